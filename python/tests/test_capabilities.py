"""What agents of the SDK are given: their tools, skills, users and working folders, in our sandboxes."""

from pathlib import Path

import pytest
from agents import RunConfig, Runner, function_tool
from agents.sandbox import Manifest, SandboxAgent, SandboxRunConfig
from agents.sandbox.capabilities import Capability, Filesystem, Shell, Skill, Skills
from agents.sandbox.capabilities.skills import LocalDirLazySkillSource
from agents.sandbox.entries import Dir, File, LocalDir
from agents.sandbox.types import Group, Permissions, User
from agents.testing import ScriptedModel, assistant_message, function_call
from openai.types.responses import ResponseCustomToolCall

import bastide
from bastide.openai_agents import BastideSandboxClient
from bastide.openai_agents.unix_local import UnixLocalSandboxClient


@pytest.fixture(params=[BastideSandboxClient, UnixLocalSandboxClient])
def client(request):
    return request.param()


def shell(command, call_id="shell", **more):
    return [function_call("exec_command", {"cmd": command, "login": False, **more}, call_id=call_id)]


def patch(text, call_id="patch"):
    return [
        ResponseCustomToolCall(
            type="custom_tool_call", call_id=call_id, name="apply_patch", input=text
        )
    ]


class Told:
    """What the tools of a run said, and what the model was told."""

    def __init__(self, result, model):
        self.final = result.final_output
        self.outputs = [str(item.output) for item in result.new_items if hasattr(item, "output")]
        self.instructions = str([call.system_instructions for call in model.calls])


async def run(client, *steps, config=None, **agent):
    # Without a manifest of the agent's, capabilities have none to add to.
    agent.setdefault("default_manifest", Manifest())
    model = ScriptedModel([*steps, [assistant_message("done", item_id="end")]])
    worker = SandboxAgent(name="worker", model=model, **agent)
    config = config or {"client": client}
    result = await Runner.run(worker, "go", run_config=RunConfig(sandbox=SandboxRunConfig(**config)))
    told = Told(result, model)
    assert told.final == "done"
    return told


PATCH = """*** Begin Patch
*** Update File: notes.txt
@@
-old
+new
*** Add File: made/by/patch.txt
+added
*** End Patch
"""


async def test_the_tools_of_files(client):
    manifest = Manifest(entries={"notes.txt": File(content=b"old\n")})
    told = await run(
        client,
        patch(PATCH),
        shell("cat notes.txt made/by/patch.txt"),
        default_manifest=manifest,
        capabilities=[Shell(), Filesystem()],
    )
    assert "new\nadded" in told.outputs[1], told.outputs


PIXEL = (
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAQAAAC1HAwCAAAAC0lEQVR42mNk+A8AAQUBAScY42YAAAAASUVORK5CYII="
)


async def test_a_picture_is_looked_at(client):
    told = await run(
        client,
        shell(f"echo {PIXEL} | base64 -d > a.png"),
        [function_call("view_image", {"path": "a.png"}, call_id="look")],
        capabilities=[Shell(), Filesystem()],
    )
    assert "image/png" in told.outputs[1], told.outputs


def _skill(name):
    return Skill(
        name=name,
        description=f"how to {name}",
        content=f"# {name}\nrun scripts/do.sh\n",
        scripts={"do.sh": File(content=f"echo {name} is done\n".encode())},
    )


async def test_skills_are_laid_out_and_named_to_the_model(client):
    told = await run(
        client,
        shell("cat .agents/dance/SKILL.md; sh .agents/dance/scripts/do.sh"),
        capabilities=[Shell(), Skills(skills=[_skill("dance"), _skill("sing")])],
    )
    assert "dance is done" in told.outputs[0] and "# dance" in told.outputs[0]
    assert "how to sing" in told.instructions


async def test_skills_from_a_folder_are_read_inside(client):
    text = b"---\nname: dig\ndescription: how to dig\n---\nDig.\n"
    folder = Dir(children={"dig": Dir(children={"SKILL.md": File(content=text)})})
    told = await run(
        client,
        shell("cat .agents/dig/SKILL.md"),
        capabilities=[Shell(), Skills(from_=folder)],
    )
    assert "Dig." in told.outputs[0]
    assert "how to dig" in told.instructions


async def test_skills_that_are_loaded_when_they_are_wanted(client, tmp_path, monkeypatch):
    skill = tmp_path / "skills" / "swim"
    skill.mkdir(parents=True)
    (skill / "SKILL.md").write_text("---\nname: swim\ndescription: how to swim\n---\nSwim.\n")
    monkeypatch.chdir(tmp_path)
    source = LocalDirLazySkillSource(source=LocalDir(src=Path("skills")))
    told = await run(
        client,
        shell("cat .agents/swim/SKILL.md || echo not yet", "before"),
        [function_call("load_skill", {"skill_name": "swim"}, call_id="load")],
        shell("cat .agents/swim/SKILL.md", "after"),
        capabilities=[Shell(), Skills(lazy_from=source)],
    )
    assert "not yet" in told.outputs[0] and "Swim." in told.outputs[2], told.outputs
    assert "how to swim" in told.instructions


class Counter(Capability):
    """A capability of a program's own: a tool, entries and instructions."""

    type: str = "counter"

    def tools(self):
        session = self.session

        @function_tool
        async def count(word: str) -> str:
            done = await session.exec(f"grep -c {word} text.txt")
            return done.stdout.decode().strip()

        return [count]

    def process_manifest(self, manifest):
        manifest.entries["text.txt"] = File(content=b"one\ntwo\none\n")
        return manifest

    async def instructions(self, manifest):
        return "Count by the tool `count`."


async def test_capabilities_of_a_programs_own(client):
    told = await run(
        client,
        [function_call("count", {"word": "one"}, call_id="count")],
        capabilities=[Counter()],
    )
    assert told.outputs == ["2"]
    assert "Count by the tool" in told.instructions


async def test_agents_run_as_a_user():
    client = BastideSandboxClient()
    worker = User(name="worker")
    crew = Group(name="crew", users=[worker])
    shared = Dir(group=crew, permissions=Permissions(group=7, directory=True))
    told = await run(
        client,
        shell("id -un; id -Gn; cd shared && echo mine > own && stat -c %U own", "who"),
        shell("echo changed > seed", "seed"),
        patch("*** Begin Patch\n*** Add File: shared/patched\n+text\n*** End Patch\n"),
        shell("stat -c %U shared/patched; cat shared/patched; echo; cat seed", "patched"),
        default_manifest=Manifest(
            entries={"seed": File(content=b"seed"), "shared": shared}, users=[worker], groups=[crew]
        ),
        run_as=worker,
        capabilities=[Shell(), Filesystem()],
    )
    who, seed, _patch, patched = (said.split("Output:\n")[-1].split() for said in told.outputs)
    assert who[0] == "worker" and "crew" in who and who[-1] == "worker", told.outputs
    # What is not the user's stays as it is, for commands and for the tools of files.
    assert "denied" in " ".join(seed)
    assert patched == ["worker", "text", "seed"], told.outputs


async def test_a_user_that_only_the_agent_names_is_made():
    told = await run(
        BastideSandboxClient(), shell("id -un"), run_as="solo", capabilities=[Shell()]
    )
    assert "solo" in told.outputs[0]


async def test_the_users_of_a_manifest_are_apart():
    client = BastideSandboxClient()
    manifest = Manifest(users=[User(name="ann"), User(name="bob")])
    session = await client.create(manifest=manifest)
    try:
        await session.start()
        for name in ("ann", "bob"):
            done = await session.exec("id -un", user=name)
            assert done.stdout == f"{name}\n".encode(), done.stderr
        made = await session.exec("mkdir -m 700 /tmp/a; echo private > /tmp/a/f; cat /tmp/a/f", user="ann")
        assert made.stdout == b"private\n", made.stderr
        assert (await session.exec("cat /tmp/a/f", user="bob")).exit_code != 0
    finally:
        await client.delete(session)


async def test_runs_have_a_working_folder(client):
    manifest = Manifest(entries={"a": Dir(children={"b": Dir(children={"f": File(content=b"here")})})})
    told = await run(
        client,
        shell("pwd; cat f", "here"),
        shell("pwd", "there", workdir="/"),
        patch("*** Begin Patch\n*** Update File: f\n@@\n-here\n+there\n*** End Patch\n"),
        shell("cat f", "after"),
        config={"client": client, "cwd": "a/b"},
        default_manifest=manifest,
        capabilities=[Shell(), Filesystem()],
    )
    assert "/a/b\nhere" in told.outputs[0], told.outputs
    assert "there" in told.outputs[3], told.outputs


async def test_a_working_folder_that_is_not_there_is_refused(client):
    with pytest.raises(Exception, match="does not exist"):
        await run(client, config={"client": client, "cwd": "nowhere"}, capabilities=[Shell()])
    assert await bastide.list_sessions() == []


async def test_a_live_session_is_shared_and_gets_what_capabilities_add(client):
    session = await client.create(options=None, manifest=Manifest(entries={"log": File(content=b"")}))
    try:
        await session.start()
        for number in range(2):
            await run(
                client,
                shell(f"echo {number} >> log; cat .agents/s{number}/SKILL.md"),
                config={"session": session},
                capabilities=[Shell(), Skills(skills=[_skill(f"s{number}")])],
            )
        found = await session.exec("cat log; ls .agents")
        assert found.stdout == b"0\n1\ns0\ns1\n", found
        # It is its owner's, and still runs.
        assert await session.running()
    finally:
        await client.delete(session)
