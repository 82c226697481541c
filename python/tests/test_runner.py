"""Agents of the SDK in our sandboxes."""

import subprocess
import sys

import pytest
from agents import RunConfig, Runner
from agents.sandbox import Manifest, SandboxAgent, SandboxRunConfig
from agents.sandbox.capabilities import Filesystem, Shell
from agents.sandbox.entries import File
from agents.sandbox.session.manager import Instrumentation
from agents.sandbox.session.sinks import CallbackSink
from agents.testing import ScriptedModel, assistant_message, function_call

from bastide import sync
from bastide.openai_agents import BastideSandboxClient
from bastide.openai_agents.unix_local import UnixLocalSandboxClient


@pytest.fixture(params=[BastideSandboxClient, UnixLocalSandboxClient])
def client(request):
    return request.param()


def _shell(command, call_id):
    return [function_call("exec_command", {"cmd": command, "login": False}, call_id=call_id)]


def _agent(*steps):
    model = ScriptedModel([*steps, [assistant_message("done", item_id="end")]])
    manifest = Manifest(entries={"seed": File(content=b"seed")})
    return SandboxAgent(
        name="worker",
        model=model,
        default_manifest=manifest,
        capabilities=[Shell(), Filesystem()],
    )


async def test_a_run_with_shell_and_files(client):
    agent = _agent(_shell("cat seed; echo more > out; cat out", "one"))
    config = RunConfig(sandbox=SandboxRunConfig(client=client))
    result = await Runner.run(agent, "go", run_config=config)
    assert result.final_output == "done"
    said = [item.output for item in result.new_items if hasattr(item, "output")]
    assert "seedmore" in str(said)


async def test_runs_share_a_live_session(client):
    session = await client.create(manifest=Manifest())
    async with session:
        for number in range(2):
            agent = _agent(_shell(f"echo {number} >> log", f"call{number}"))
            config = RunConfig(sandbox=SandboxRunConfig(session=session))
            await Runner.run(agent, "go", run_config=config)
        assert (await session.exec("cat log")).stdout == b"0\n1\n"
    await client.delete(session)


async def test_sinks_hear_each_operation_once_and_numbered_from_one(client):
    heard = []
    sink = CallbackSink(lambda event, session: heard.append(event), mode="sync")
    told = type(client)(instrumentation=Instrumentation(sinks=[sink]))
    session = await told.create(manifest=Manifest())
    await session.start()
    await session.exec("true")
    await session.shutdown()
    await told.delete(session)
    assert [event.seq for event in heard] == list(range(1, len(heard) + 1))
    assert [(event.op, event.phase) for event in heard] == [
        (op, phase) for op in ("start", "exec", "shutdown") for phase in ("start", "finish")
    ]


PAUSED = """
import asyncio, json, sys
from agents import Runner, RunConfig, RunState, function_tool
from agents.sandbox import Manifest, SandboxAgent, SandboxRunConfig
from agents.sandbox.capabilities import Shell
from agents.sandbox.snapshot import LocalSnapshotSpec
from agents.testing import ScriptedModel, assistant_message, function_call
from bastide.openai_agents import BastideSandboxClient

@function_tool(needs_approval=True)
def ask() -> str:
    return "asked"

def shell(command, name):
    return [function_call("exec_command", {"cmd": command, "login": False}, call_id=name)]

def agent(steps):
    return SandboxAgent(
        name="worker", model=ScriptedModel(steps), tools=[ask], capabilities=[Shell()],
    )

async def main(folder, stored):
    config = RunConfig(sandbox=SandboxRunConfig(
        client=BastideSandboxClient(), snapshot=LocalSnapshotSpec(base_path=folder)))
    if stored is None:
        steps = [shell("echo kept > file", "a"), [function_call("ask", {}, call_id="b")]]
        result = await Runner.run(agent(steps), "go", run_config=config)
        assert result.interruptions
        print(json.dumps(result.to_state().to_json()))
        return
    worker = agent([shell("cat file", "c"), [assistant_message("done", item_id="e")]])
    state = await RunState.from_json(worker, json.loads(stored))
    for item in state.get_interruptions():
        state.approve(item)
    result = await Runner.run(worker, state, run_config=config)
    print(result.final_output, [str(i.output) for i in result.new_items if hasattr(i, "output")])

asyncio.run(main(sys.argv[1], sys.stdin.read() or None))
"""


def test_a_paused_run_goes_on_in_another_process(tmp_path):
    def step(stored):
        return subprocess.run(
            [sys.executable, "-c", PAUSED, str(tmp_path)],
            input=stored,
            capture_output=True,
            text=True,
            timeout=120,
        )

    first = step("")
    assert first.returncode == 0, first.stderr[-2000:]
    # Nothing of it runs or lies around meanwhile.
    assert sync.list_sessions() == []
    second = step(first.stdout.strip().splitlines()[-1])
    assert second.returncode == 0, second.stderr[-2000:]
    assert "done" in second.stdout and "kept" in second.stdout
