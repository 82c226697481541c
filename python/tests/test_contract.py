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
from agents.sandbox.snapshot import LocalSnapshotSpec, NoopSnapshot, RemoteSnapshotSpec, SnapshotBase
from agents.sandbox.types import Permissions, User
from agents.sandbox.workspace_paths import SandboxPathGrant
from pydantic import ValidationError

from bastide import _native
from bastide.errors import BastideError, _made
from bastide.openai_agents import (
    BastideSandboxClient,
    BastideSandboxClientOptions,
    BastideSandboxSessionState,
    BastideSnapshot,
    BastideSnapshotSpec,
    unix_local,
)
from bastide.openai_agents._errors import upstream_error


@pytest.fixture(params=[BastideSandboxClient, unix_local.UnixLocalSandboxClient])
def client(request):
    return request.param()


class Live:
    """A started session that goes at the end."""

    def __init__(self, client, **arguments):
        self.client, self.arguments = client, arguments

    async def __aenter__(self):
        self.session = await self.client.create(**{"options": None, **self.arguments})
        await self.session.start()
        return self.session

    async def __aexit__(self, *_):
        await self.session.shutdown()
        await self.client.delete(self.session)


def _content(text):
    return io.BytesIO(text.encode())


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
        await session.write(Path("d/a"), _content("one"))
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
            await session._write_new_file(Path("b"), _content("x"))
        with pytest.raises(upstream.WorkspaceWriteTypeError):
            await session.write(Path("t"), io.StringIO("text"))


async def test_a_session_can_be_used_before_it_starts(client):
    session = await client.create(options=None)
    try:
        assert (await session.exec("echo hi")).stdout == b"hi\n"
        await session.write(Path("a"), _content("1"))
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
        await session.write(Path("d/hers"), _content("1"), user="ada")
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


# -- snapshots and resuming -----------------------------------------------------------------------


async def _saved(client, snapshot, **arguments):
    session = await client.create(options=None, snapshot=snapshot, **arguments)
    await session.start()
    await session.write(Path("kept"), _content("1"))
    await session.stop()
    await session.shutdown()
    await client.delete(session)
    return json.loads(json.dumps(client.serialize_session_state(session.state)))


async def _resumed(client, payload):
    session = await client.resume(client.deserialize_session_state(payload))
    await session.start()
    return session


async def test_a_session_comes_back_from_its_json(client, tmp_path):
    manifest = Manifest(entries={"e": File(content=b"e", ephemeral=True), "d": File(content=b"d")})
    payload = await _saved(client, LocalSnapshotSpec(base_path=tmp_path), manifest=manifest)
    (tar,) = tmp_path.iterdir()
    with tarfile.open(tar) as archive:
        names = {os.path.normpath(name) for name in archive.getnames()}
    assert {"kept", "d"} <= names and "e" not in names
    session = await _resumed(client, payload)
    try:
        assert (await session.exec("cat kept e d")).stdout == b"1ed"
    finally:
        await session.shutdown()
        await client.delete(session)


async def test_store_snapshots_save_only_what_changed(client):
    payload = await _saved(client, BastideSnapshotSpec())
    session = await _resumed(client, payload)
    try:
        assert (await session.exec("cat kept")).stdout == b"1"
    finally:
        await session.shutdown()
        await client.delete(session)


async def test_a_store_snapshot_works_as_an_archive(tmp_path):
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w") as tar:
        info = tarfile.TarInfo("a")
        info.size = 1
        tar.addfile(info, io.BytesIO(b"x"))
    archive.seek(0)
    snapshot = BastideSnapshot(id=f"tar-{uuid.uuid4().hex}")
    assert not await snapshot.restorable()
    await snapshot.persist(archive)
    assert await snapshot.restorable()
    with await snapshot.restore() as stream, tarfile.open(fileobj=stream) as tar:
        assert "a" in {os.path.normpath(name) for name in tar.getnames()}


async def test_programs_own_snapshots_work_through_streams():
    from agents.sandbox.session.dependencies import Dependencies

    kept = {}

    class Remote:
        async def upload(self, id, data):
            kept[id] = data.read()

        async def download(self, id):
            return io.BytesIO(kept[id])

        async def exists(self, id):
            return id in kept

    client = BastideSandboxClient(
        dependencies=Dependencies().bind_value("remote", Remote()),
        options=BastideSandboxClientOptions(),
    )
    payload = await _saved(client, RemoteSnapshotSpec(client_dependency_key="remote"))
    session = await _resumed(client, payload)
    try:
        assert (await session.exec("cat kept")).stdout == b"1"
    finally:
        await session.shutdown()
        await client.delete(session)


async def test_start_after_shutdown_has_the_files(client):
    session = await client.create(options=None)
    await session.start()
    await session.write(Path("a"), _content("1"))
    await session.shutdown()
    await session.shutdown()
    with pytest.raises(upstream.ExecTransportError):
        await session.exec("true")
    await session.start()
    assert (await session.exec("cat a")).stdout == b"1"
    await session.shutdown()
    await client.delete(session)


async def test_resuming_attaches_to_what_runs(client):
    async with Live(client) as session:
        await session.write(Path("a"), _content("1"))
        await session.exec("sleep 600 & echo $! > pid")
        other = await client.resume(session.state)
        await other.start()
        assert (await other.exec("cat a; kill -0 $(cat pid)")).exit_code == 0


async def test_a_damaged_archive_leaves_the_workspace_as_it_was(client):
    hostile = io.BytesIO()
    with tarfile.open(fileobj=hostile, mode="w") as tar:
        good = tarfile.TarInfo("good")
        tar.addfile(good, io.BytesIO(b""))
        bad = tarfile.TarInfo("../out")
        tar.addfile(bad, io.BytesIO(b""))
    async with Live(client) as session:
        await session.write(Path("a"), _content("1"))
        for data in (io.BytesIO(b"no archive" * 200), io.BytesIO(hostile.getvalue())):
            with pytest.raises(upstream.WorkspaceArchiveWriteError):
                await session.hydrate_workspace(data)
        assert (await session.exec("ls")).stdout == b"a\n"


async def test_either_client_resumes_what_the_other_saved(tmp_path):
    from agents.sandbox.sandboxes.unix_local import UnixLocalSandboxClient as Theirs

    ours, theirs = unix_local.UnixLocalSandboxClient(), Theirs()
    for saver, resumer in ((ours, theirs), (theirs, ours)):
        payload = await _saved(saver, LocalSnapshotSpec(base_path=tmp_path))
        session = await _resumed(resumer, payload)
        try:
            assert (await session.exec("cat kept")).stdout == b"1"
        finally:
            await session.shutdown()
            await resumer.delete(session)


async def test_a_caller_keeps_the_folder_that_was_the_workspace(tmp_path):
    folder = tmp_path / "mine"
    folder.mkdir()
    (folder / "a").write_text("1")
    ours = unix_local.UnixLocalSandboxClient()
    async with Live(ours, manifest=Manifest(root=str(folder))) as session:
        assert (await session.exec("cat a; echo 2 > b")).stdout == b"1"
    assert (folder / "b").read_text() == "2\n"


# -- bad input ------------------------------------------------------------------------------------


async def test_a_folder_that_is_as_it_was_saved_is_used(tmp_path):
    client = unix_local.UnixLocalSandboxClient()
    root = tmp_path / "project"
    root.mkdir()
    snapshot = LocalSnapshotSpec(base_path=tmp_path / "snaps")
    session = await client.create(manifest=Manifest(root=str(root)), snapshot=snapshot)
    await session.start()
    await session.exec("printf kept > a; mkdir d; ln -s a d/l")
    await session.stop()
    await session.shutdown()
    stored = client.serialize_session_state(session.state)
    await client.delete(session)
    back = await client.resume(client.deserialize_session_state(stored))
    await back.start()
    assert (await back.exec("cat a; readlink d/l")).stdout == b"kepta\n"
    await back.shutdown()
    await client.delete(back)
    # What changed since is the caller's, and not given up.
    (root / "a").write_text("changed")
    other = await client.resume(client.deserialize_session_state(stored))
    with pytest.raises(upstream.SandboxError):
        await other.start()
    assert (root / "a").read_text() == "changed"
    await other.shutdown()
    await client.delete(other)


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


async def test_states_of_other_classes(client):
    state = SandboxSessionState(
        type="x", snapshot=NoopSnapshot(id="a"), manifest=Manifest()
    )
    with pytest.raises(TypeError):
        await client.resume(state)


def test_malformed_states_are_refused_without_their_content(client):
    for bad in ({"type": client.backend_id, "manifest": "secret-content"}, {"session_id": "secret-content"}):
        with pytest.raises(ValueError) as refused:
            client.deserialize_session_state(dict(bad))
        assert "secret-content" not in str(refused.value)


async def test_a_stored_state_grants_nothing_that_was_not_sealed(tmp_path):
    client = BastideSandboxClient()
    session = await client.create(options=None)
    payload = client.serialize_session_state(session.state)
    await client.delete(session)

    def forged(**changes):
        copy = json.loads(json.dumps(payload))
        copy["session_id"] = str(uuid.uuid4())
        for key, value in changes.items():
            if key in ("root", "extra_path_grants", "entries"):
                copy["manifest"][key] = value
            elif key in ("network", "isolation"):
                copy["options"][key] = value
            else:
                copy[key] = value
        return client.deserialize_session_state(copy)

    for changes, told in (
        ({"root": "/etc"}, "/etc"),
        ({"extra_path_grants": [{"path": "/root"}]}, "/root"),
        ({"network": "host"}, "network"),
        ({"isolation": "unconfined"}, "isolation"),
        ({"snapshot": {"type": "local", "id": "a", "base_path": str(tmp_path)}}, "snapshot"),
        ({"entries": {"s": {"type": "local_dir", "src": "/etc"}}}, "source at 's'"),
    ):
        with pytest.raises(ValueError, match=told):
            await client.resume(forged(**changes))
    # What asks for nothing is made, and what the client gives is not asked for.
    for other, changes in (
        (client, {}),
        (BastideSandboxClient(options=BastideSandboxClientOptions(pids=500)), {}),
    ):
        if other is not client:
            changes = {"options": BastideSandboxClientOptions(pids=500).model_dump(mode="json")}
        found = await other.resume(forged(**changes))
        await other.delete(found)


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
