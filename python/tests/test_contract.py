"""The SDK's contract, on both clients."""

import asyncio
import io
import json
import os
import subprocess
import sys
import tarfile
import uuid
from pathlib import Path

import pytest
from agents.sandbox import errors as upstream
from agents.sandbox.entries import BaseEntry, Dir, File, LocalDir, LocalFile
from agents.sandbox.manifest import Environment, EnvValue, Manifest
from agents.sandbox.materialization import MaterializedFile
from agents.sandbox.session.manager import Instrumentation
from agents.sandbox.session.sandbox_client import BaseSandboxClientOptions
from agents.sandbox.session.sandbox_session_state import SandboxSessionState
from agents.sandbox.session.sinks import CallbackSink
from agents.sandbox.snapshot import SnapshotBase
from agents.sandbox.types import Permissions, User
from agents.sandbox.workspace_paths import SandboxPathGrant
from live_session import Live, content
from pydantic import ValidationError

from bastide import _native
from bastide.errors import BastideError, _made
from bastide.openai_agents import (
    BastideSandboxClient,
    BastideSandboxClientOptions,
    BastideSandboxSessionState,
    BastideSnapshotSpec,
    unix_local,
)
from bastide.openai_agents._errors import upstream_error


@pytest.fixture(params=[BastideSandboxClient, unix_local.UnixLocalSandboxClient])
def client(request):
    return request.param()


# -- types ----------------------------------------------------------------------------------------


def test_types_are_registered_and_round_trip():
    options = BastideSandboxClientOptions(exposed_ports=(80,), memory=1 << 30, network="host")
    assert BaseSandboxClientOptions.parse(options.model_dump(mode="json")) == options
    snapshot = BastideSnapshotSpec().build("a")
    assert SnapshotBase.parse(snapshot.model_dump(mode="json")) == snapshot
    state = BastideSandboxSessionState(snapshot=snapshot, manifest=Manifest(), options=options)
    again = SandboxSessionState.parse(json.loads(state.model_dump_json()))
    assert type(again) is BastideSandboxSessionState and again == state
    assert (state.type, snapshot.type, options.type) == ("bastide",) * 3
    assert BastideSandboxClient.backend_id == "bastide" and BastideSandboxClient.supports_default_options


def test_the_drop_in_has_the_same_names_and_types():
    import agents.sandbox.sandboxes.unix_local as theirs

    assert unix_local.UnixLocalSandboxSessionState is theirs.UnixLocalSandboxSessionState
    assert unix_local.UnixLocalSandboxClientOptions is theirs.UnixLocalSandboxClientOptions
    assert unix_local.UnixLocalSandboxClient.backend_id == theirs.UnixLocalSandboxClient.backend_id


def test_without_the_sdk_the_extra_is_named(tmp_path):
    code = (
        "import sys, importlib.metadata as m\n"
        "found = m.version\n"
        "def version(name):\n"
        "    if name == 'openai-agents':\n        raise m.PackageNotFoundError(name)\n"
        "    return found(name)\n"
        "m.version = version\n"
        "try:\n    import bastide.openai_agents\nexcept ImportError as error:\n    print(error)\n"
    )
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert "bastide[openai-agents]" in told.stdout
    old = code.replace("raise m.PackageNotFoundError(name)", "return '0.23.9'")
    told = subprocess.run([sys.executable, "-c", old], capture_output=True, text=True)
    assert "0.23.9" in told.stdout and "bastide[openai-agents]" in told.stdout


# -- errors ---------------------------------------------------------------------------------------


def _given(name, **fields):
    known = dict.fromkeys(
        "error_code op hint retryable command exit_code stdout stderr timeout_s session_id".split()
    )
    known.update(
        call="exec", kind="io", class_name=name, message="m", context={}, causes=[], **fields
    )
    return _made(known)


def test_every_class_is_the_sdks_with_its_code_operation_and_retryability():
    rows = _native.error_classes()
    seen = 0
    for name, base, code, op, retryable in rows:
        cls = getattr(upstream, name, None)
        if not (isinstance(cls, type) and issubclass(cls, upstream.SandboxError)) or code is None:
            continue
        if base is not None:
            assert issubclass(cls, getattr(upstream, base)), name
        error = _given(name, error_code=code, op=op or "exec", retryable=retryable)
        made = upstream_error(error, "exec")
        assert type(made) is cls and made.code == code and made.op == (op or "exec")
        assert made.retryable is retryable and str(made) == "m"
        seen += 1
    assert seen >= 30


async def test_errors_have_what_the_sdks_own_have(client):
    async with Live(client) as session:
        with pytest.raises(upstream.ExecTransportError) as failed:
            await session.exec("no-such-program", shell=False)
        theirs = upstream.ExecTransportError(command=("no-such-program",))
        assert failed.value.context == theirs.context and failed.value.op == theirs.op
        with pytest.raises(upstream.ExecTimeoutError) as late:
            await session.exec("sleep 60", timeout=0.2)
        theirs = upstream.ExecTimeoutError(command=("sh", "-c", "sleep 60"), timeout_s=0.2)
        assert late.value.context == theirs.context and late.value.timeout_s == 0.2
        assert late.value.retryable == theirs.retryable and late.value.command == theirs.command
        with pytest.raises(upstream.WorkspaceReadNotFoundError) as missing:
            await session.read(Path("nothing"))
        theirs = upstream.WorkspaceReadNotFoundError(path=Path("nothing"))
        assert missing.value.context["path"] == theirs.context["path"]
        with pytest.raises(upstream.PtySessionNotFoundError) as gone:
            await session.pty_write_stdin(session_id=1, chars="")
        assert gone.value.session_id == 1


def test_errors_of_our_own_have_the_class_of_their_operation():
    for call, cls in {
        "exec": upstream.ExecTransportError,
        "read": upstream.WorkspaceArchiveReadError,
        "write": upstream.WorkspaceArchiveWriteError,
        "create": upstream.WorkspaceStartError,
        "stop": upstream.WorkspaceStopError,
        "resolve_exposed_port": upstream.ExposedPortUnavailableError,
    }.items():
        made = upstream_error(BastideError("x", kind="agent_lost", hint="h", retryable=False), call)
        assert type(made) is cls
        assert made.context["bastide"] == {"kind": "agent_lost", "code": "agent_lost", "hint": "h"}
        assert made.retryable is False


# -- files and commands ---------------------------------------------------------------------------


async def test_files(client, tmp_path):
    async with Live(client) as session:
        await session.mkdir("d", parents=True)
        await session.write(Path("d/a"), content("one"))
        with await session.read(Path("d/a")) as found:
            assert found.read() == b"one"
        assert await session.read_bounded(Path("d/a"), max_bytes=2) == b"on"
        big = os.urandom(12 << 20)
        (tmp_path / "big").write_bytes(big)
        with open(tmp_path / "big", "rb") as file:
            file.seek(5)
            await session.write(Path("big"), file)
            assert file.read() == b""
        with await session.read(Path("big")) as found:
            assert found.read() == big[5:]

        class Pieces(io.RawIOBase):
            left = 9 << 20

            def read(self, size=-1):
                size = min(size, self.left)
                self.left -= size
                return b"p" * size

        await session.write(Path("pieces"), Pieces())
        entries = {Path(e.path).name: e for e in await session.ls(".")}
        assert entries["pieces"].size == 9 << 20 and entries["d"].is_dir()
        assert entries["d"].permissions.directory and not entries["big"].permissions.directory
        await session.mv("d/a", "b")
        assert await session.same_file("b", "./b") and not await session.same_file("b", "big")
        await session.rm("d", recursive=True)
        with pytest.raises(upstream.ExecNonZeroError):
            await session.ls("d")
        with pytest.raises(FileExistsError):
            await session._write_new_file(Path("b"), content("x"))
        with pytest.raises(upstream.WorkspaceWriteTypeError):
            await session.write(Path("t"), io.StringIO("text"))


async def test_a_session_can_be_used_before_it_starts(client):
    session = await client.create(options=None)
    try:
        assert (await session.exec("echo hi")).stdout == b"hi\n"
        await session.write(Path("a"), content("1"))
        assert not await session.running()
        await session.start()
        assert await session.running()
        assert (await session.exec("cat a")).stdout == b"1"
    finally:
        await session.shutdown()
        await client.delete(session)
        await client.delete(session)


async def test_paths_that_lead_out(client):
    async with Live(client) as session:
        await session.exec("ln -s /etc link")
        for path in ("../x", "/etc/passwd", "link/passwd"):
            with pytest.raises(upstream.InvalidManifestPathError):
                await session.read(Path(path))


async def test_the_environment_of_a_manifest_is_resolved_for_each_command(client):
    class Counted(EnvValue):
        type: str = f"counted-{uuid.uuid4().hex}"

        async def resolve(self):
            Counted.count += 1
            return str(Counted.count)

    Counted.count = 0
    manifest = Manifest(environment=Environment(value={"A": "static", "B": Counted()}))
    async with Live(client, manifest=manifest) as session:
        assert (await session.exec("echo $A $B")).stdout == b"static 1\n"
        assert (await session.exec("echo $A $B")).stdout == b"static 2\n"


async def test_eight_commands_at_once(client):
    async with Live(client) as session:
        done = await asyncio.gather(*(session.exec(f"echo {n}") for n in range(8)))
        assert [result.stdout for result in done] == [f"{n}\n".encode() for n in range(8)]


async def test_interactive_processes(client):
    async with Live(client) as session:
        assert session.supports_pty()
        started = await session.pty_exec_start("cat", tty=True, yield_time_s=0.3)
        said = await session.pty_write_stdin(session_id=started.process_id, chars="hi\n")
        assert b"hi" in said.output
        await session.pty_terminate_all()
        ended = await session.pty_exec_start("echo done; exit 7", yield_time_s=10)
        assert ended.exit_code == 7 and b"done" in ended.output


async def test_ports(client):
    options = {
        BastideSandboxClient: BastideSandboxClientOptions(exposed_ports=(8123,)),
        unix_local.UnixLocalSandboxClient: unix_local.UnixLocalSandboxClientOptions((8123,)),
    }[type(client)]
    async with Live(client, options=options) as session:
        endpoint = await session.resolve_exposed_port(8123)
        assert endpoint.host == "127.0.0.1" and not endpoint.tls
        with pytest.raises(upstream.ExposedPortUnavailableError) as refused:
            await session.resolve_exposed_port(8124)
        assert refused.value.context["reason"] == "not_configured"


async def test_a_command_without_network_gets_a_hint(client):
    async with Live(client) as session:
        done = await session.exec("echo 'Temporary failure in name resolution' >&2; exit 6")
        assert "network='host'" in done.hint


async def test_receipts(client):
    async with Live(client) as session:
        assert client.receipt(session)["network"] == "none"


class Telling:
    """A client whose sinks hear of every operation."""

    def __init__(self, kind):
        self.heard = []
        sink = CallbackSink(lambda event, _: self.heard.append(event), mode="sync")
        self.client = kind(instrumentation=Instrumentation(sinks=[sink]))

    def taken(self):
        events, self.heard = self.heard, []
        return [json.loads(event.model_dump_json()) for event in events]


async def test_extract_tells_of_one_write(client):
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w") as tar:
        info = tarfile.TarInfo("in/a.txt")
        info.size = 3
        tar.addfile(info, io.BytesIO(b"abc"))
    size = archive.tell()
    archive.seek(0)
    telling = Telling(type(client))
    async with Live(telling.client) as session:
        place = f"{session.state.manifest.root}/d/x.tar"
        telling.taken()
        await session.extract("d/x.tar", archive)
        events = telling.taken()
        wanted = {"path": place, "user": None, "bytes": size}
        assert [(event["op"], event["phase"]) for event in events] == [
            ("write", "start"),
            ("write", "finish"),
        ]
        assert all(event["data"] == wanted for event in events)
        assert (await session.exec("cat d/in/a.txt")).stdout == b"abc"
        # An archive that is damaged was written all the same.
        telling.taken()
        with pytest.raises(upstream.WorkspaceArchiveWriteError):
            await session.extract("bad.tar", io.BytesIO(b"no archive"))
        assert [event.get("ok") for event in telling.taken()] == [None, True]
        # What is refused before anything happens is told to nobody.
        with pytest.raises(upstream.InvalidCompressionSchemeError):
            await session.extract("x.rar", io.BytesIO(b""))
        with pytest.raises(upstream.InvalidManifestPathError):
            await session.extract("../x.tar", io.BytesIO(b""))
        assert telling.taken() == []


class Failing(io.RawIOBase):
    """A stream that says a little and then fails."""

    def __init__(self, error):
        self.error, self.pieces = error, [b"part"]

    def readable(self):
        return True

    def read(self, size=-1):
        if self.pieces:
            return self.pieces.pop()
        raise self.error


async def test_streams_that_fail(client):
    async with Live(client) as session:
        with pytest.raises(upstream.WorkspaceArchiveWriteError) as raised:
            await session.write(Path("a"), Failing(OSError(5, "gone")))
        assert raised.value.context["path"] == f"{session.state.manifest.root}/a"
        assert isinstance(raised.value.cause, OSError)
        with pytest.raises(upstream.WorkspaceArchiveWriteError):
            await session.hydrate_workspace(Failing(OSError(5, "gone")))
        with pytest.raises(ValueError, match="own"):
            await session.write(Path("a"), Failing(ValueError("its own")))
        with pytest.raises(upstream.WorkspaceReadNotFoundError):
            await session.read(Path("a"))


async def test_numbers_that_are_none(client):
    async with Live(client) as session:
        for number in (None, "12", 1.5, 1 << 70, -1):
            with pytest.raises(upstream.PtySessionNotFoundError) as missing:
                await session.pty_write_stdin(session_id=number, chars="x")
            assert missing.value.context == {"session_id": number}
        # Nothing is later than what is no number.
        assert (await session.exec("echo on", timeout=float("nan"))).stdout == b"on\n"
        with pytest.raises(upstream.ExecTimeoutError) as late:
            await session.exec("sleep 9", timeout=-1)
        assert late.value.context["timeout_s"] == -1
        with pytest.raises(upstream.ExecTransportError):
            await session.exec("echo on", timeout="3")
        with pytest.raises(ValueError):
            await session.pty_exec_start("echo on", yield_time_s=float("nan"))
        with pytest.raises(OverflowError):
            await session.pty_exec_start("echo on", yield_time_s=float("inf"))


async def test_a_folder_is_not_moved_and_the_error_says_so(client):
    async with Live(client) as session:
        await session.mkdir("d")
        with pytest.raises(upstream.ExecNonZeroError, match="must be a regular file or symlink"):
            await session.mv("d", "e")


# -- manifests ------------------------------------------------------------------------------------


class Shout(BaseEntry):
    type: str = "bastide_test_shout"
    text: str

    async def apply(self, session, dest, base_dir):
        await session.write(dest, io.BytesIO(self.text.upper().encode()))
        return [MaterializedFile(path=dest, sha256="0")]


async def test_manifests_of_every_kind(client, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "f").write_bytes(b"local")
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "g").write_bytes(b"in")
    manifest = Manifest(
        entries={
            "bytes": File(content=b"\xff\x00"),
            "x": File(content=b"x", permissions=Permissions(owner=5, group=0, other=0)),
            "d": Dir(children={"e": Dir(), "s": Shout(text="nested"), "f": File(content=b"f")}),
            "own": Shout(text="own"),
            "lf": LocalFile(src=Path("f")),
            "ld": LocalDir(src=Path("folder")),
        }
    )
    async with Live(client, manifest=manifest) as session:
        with await session.read(Path("bytes")) as found:
            assert found.read() == b"\xff\x00"
        said = await session.exec("cat own d/s d/f lf ld/g; stat -c %a x; test -d d/e")
        assert said.stdout == b"OWNNESTEDflocalin500\n" and said.ok()
        # Entries that capabilities add to a live session.
        files = await session._apply_entry_batch(
            [(Path(session.state.manifest.root) / "late", LocalFile(src=Path("f")))],
            base_dir=tmp_path,
        )
        assert len(files) == 1 and (await session.exec("cat late")).stdout == b"local"
        with pytest.raises(ValueError, match="/opt/other"):
            grants = (SandboxPathGrant(path="/opt/other"),)
            changed = session.state.manifest.model_copy(update={"extra_path_grants": grants})
            await session._validate_manifest_application(manifest=changed)


async def test_users():
    async with Live(BastideSandboxClient(), manifest=Manifest(users=[User(name="ada")])) as session:
        assert (await session.exec("mkdir -m 777 d; id -un", user=None)).ok()
        assert (await session.exec("id -un", user="ada")).stdout == b"ada\n"
        await session.write(Path("d/hers"), content("1"), user="ada")
        assert [e.owner for e in await session.ls("d")] == ["ada"]


async def test_folders_of_this_machine_have_no_users_of_their_own():
    ours = unix_local.UnixLocalSandboxClient()
    session = await ours.create(options=None, manifest=Manifest(users=[User(name="ada")]))
    with pytest.raises(ValueError, match="users"):
        await session.start()
    await ours.delete(session)


async def test_entries_that_lead_out_are_refused(client):
    for entries in ({"../a": File(content=b"")}, {"/a": File(content=b"")}):
        session = None
        with pytest.raises(upstream.InvalidManifestPathError):
            session = await client.create(options=None, manifest=Manifest(entries=entries))
            await session.start()
        if session is not None:
            await client.delete(session)


# -- bad input ------------------------------------------------------------------------------------


def test_options_that_cannot_be():
    for bad in (
        {"unknown": 1},
        {"exposed_ports": (0,)},
        {"exposed_ports": (65536,)},
        {"image": "debian"},
        {"network": "some"},
        {"backend": "docker"},
    ):
        with pytest.raises(ValidationError):
            BastideSandboxClientOptions(**bad)


async def test_what_this_machine_has_not_is_told_with_a_hint():
    options = BastideSandboxClientOptions(network="bridge")
    with pytest.raises(upstream.WorkspaceStartError) as refused:
        await BastideSandboxClient().create(options=options)
    assert refused.value.context["bastide"]["kind"] == "unsupported"
    assert refused.value.context["bastide"]["hint"]


async def test_mounts_are_refused_before_anything_is_made(client):
    from agents.sandbox import entries

    mount = entries.S3Mount(
        bucket="b", mount_strategy=entries.DockerVolumeMountStrategy(driver="rclone")
    )
    with pytest.raises(upstream.MountConfigError):
        await client.create(options=None, manifest=Manifest(entries={"m": mount}))
