"""What is given and cannot be: every way out of the workspace, streams that are none, and archives of ill will."""

import gzip
import io
import re
import tarfile
import zipfile
from pathlib import Path

import pytest
from agents.sandbox import errors as upstream
from agents.sandbox.entries import File
from agents.sandbox.manifest import Manifest
from agents.sandbox.workspace_paths import SandboxPathGrant

from bastide.openai_agents import BastideSandboxClient
from bastide.openai_agents.unix_local import UnixLocalSandboxClient


@pytest.fixture(params=[BastideSandboxClient, UnixLocalSandboxClient])
def client(request):
    return request.param()


@pytest.fixture
def outside(tmp_path):
    """A folder of this machine with a file in it, and what it must still hold at the end."""
    folder = tmp_path / "outside"
    folder.mkdir()
    (folder / "secret").write_bytes(b"secret")
    yield folder
    assert sorted(path.name for path in folder.iterdir()) == ["secret"]
    assert (folder / "secret").read_bytes() == b"secret"


async def _started(client):
    manifest = Manifest(entries={"own": File(content=b"own"), "d/f": File(content=b"f")})
    session = await client.create(options=None, manifest=manifest)
    await session.start()
    return session


def _tar(*members):
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w") as archive:
        for name, kind, content in members:
            member = tarfile.TarInfo(name)
            member.type = kind
            if kind == tarfile.REGTYPE:
                member.size = len(content)
                archive.addfile(member, io.BytesIO(content))
            else:
                member.linkname = content
                archive.addfile(member)
    return made.getvalue()


OPERATIONS = {
    "read": lambda session, path: session.read(Path(path)),
    "write": lambda session, path: session.write(Path(path), io.BytesIO(b"changed")),
    "new": lambda session, path: session._inner._write_new_file(Path(path), io.BytesIO(b"changed")),
    "bounded": lambda session, path: session.read_bounded(Path(path), max_bytes=10),
    "ls": lambda session, path: session.ls(path),
    "mkdir": lambda session, path: session.mkdir(f"{path}/made"),
    "mkdirs": lambda session, path: session.mkdir(f"{path}/a/b", parents=True),
    "rm": lambda session, path: session.rm(f"{path}/secret"),
    "rm -r": lambda session, path: session.rm(f"{path}/secret", recursive=True),
    "mv from": lambda session, path: session.mv(f"{path}/secret", "stolen"),
    "mv to": lambda session, path: session.mv("own", f"{path}/given"),
    "extract": lambda session, path: session.extract(
        f"{path}/a.tar", io.BytesIO(_tar(("x", tarfile.REGTYPE, b"x")))
    ),
}


@pytest.mark.parametrize("operation", OPERATIONS)
async def test_no_operation_leads_out(client, outside, operation):
    act = OPERATIONS[operation]
    session = await _started(client)
    try:
        up = "/".join([".."] * 12)
        await session.exec(f"ln -s {outside} link; ln -s link again; mkdir deep; ln -s {up}{outside} deep/up")
        for path in (str(outside), f"{up}{outside}", f"d/{up}{outside}", "link", "again", "deep/up"):
            if operation in ("read", "write", "new", "bounded"):
                path = f"{path}/secret"
            # Those that read a part tell no more than that, as with the reference.
            bounded = upstream.WorkspaceArchiveReadError
            expected = bounded if operation == "bounded" else upstream.InvalidManifestPathError
            with pytest.raises(expected):
                await act(session, path)
        assert (await session.exec("cat own")).stdout == b"own"
    finally:
        await client.delete(session)


class _Odd(io.RawIOBase):
    """A stream whose pieces are what they should not be."""

    def __init__(self, *pieces):
        self.pieces = list(pieces)

    def readable(self):
        return True

    def read(self, size=-1):
        piece = self.pieces.pop(0) if self.pieces else b""
        if isinstance(piece, BaseException):
            raise piece
        return piece


async def test_streams_that_are_none(client, tmp_path):
    session = await _started(client)
    text = tmp_path / "text"
    text.write_text("text")
    try:
        with text.open() as file:
            for stream in (io.StringIO("text"), file, _Odd("text"), _Odd(b"first", "text")):
                with pytest.raises(upstream.WorkspaceWriteTypeError):
                    await session.write(Path("own"), stream)
        for wrong in (None, b"bytes", "text", 3, object()):
            with pytest.raises((upstream.WorkspaceWriteTypeError, TypeError, AttributeError)):
                await session.write(Path("own"), wrong)
        with pytest.raises(RuntimeError, match="broken"):
            await session.write(Path("own"), _Odd(b"first", RuntimeError("broken")))
        for closed in (io.BytesIO(b""), (tmp_path / "text").open("rb")):
            closed.close()
            with pytest.raises(ValueError):
                await session.write(Path("own"), closed)
        with await session.read(Path("own")) as found:
            assert found.read() == b"own"
    finally:
        await client.delete(session)


def _zip(name, content=b"x", mode=0o644):
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w") as archive:
        info = zipfile.ZipInfo(name)
        info.external_attr = mode << 16
        archive.writestr(info, content)
    return made.getvalue()


GOOD = _tar(("own", tarfile.REGTYPE, b"changed" * 100), ("more", tarfile.REGTYPE, b"more" * 10_000))

ARCHIVES = {
    "up": _tar(("own", tarfile.REGTYPE, b"changed"), ("../up", tarfile.REGTYPE, b"x")),
    "absolute": _tar(("own", tarfile.REGTYPE, b"changed"), ("/tmp/bastide-abs", tarfile.REGTYPE, b"x")),
    "through a link": _tar(
        ("own", tarfile.REGTYPE, b"changed"),
        ("l", tarfile.SYMTYPE, "/tmp"),
        ("l/bastide-link", tarfile.REGTYPE, b"x"),
    ),
    "through a hard link": _tar(("own", tarfile.REGTYPE, b"changed"), ("h", tarfile.LNKTYPE, "/etc/passwd")),
    "a device": _tar(("own", tarfile.REGTYPE, b"changed"), ("dev", tarfile.CHRTYPE, "")),
    "cut off": GOOD[: len(GOOD) // 2],
    "no archive": b"this is no archive" * 100,
    "a damaged header": b"\xff" * 512 + GOOD[512:],
    "cut off, compressed": gzip.compress(GOOD)[: len(gzip.compress(GOOD)) // 2],
}


async def _tree(session):
    done = await session.exec("find . -type f -exec sha256sum {} + | sort; find . -type l")
    return done.stdout


@pytest.mark.parametrize("kind", ARCHIVES)
async def test_archives_of_ill_will_change_nothing(client, kind):
    session = await _started(client)
    try:
        before = await _tree(session)
        with pytest.raises(upstream.WorkspaceArchiveWriteError):
            await session.hydrate_workspace(io.BytesIO(ARCHIVES[kind]))
        assert await _tree(session) == before
        with pytest.raises(upstream.WorkspaceArchiveWriteError):
            await session.extract("a.tar", io.BytesIO(ARCHIVES[kind]))
        # The archive itself lies where it was put, as with the reference.
        assert (await session.exec("cat own")).stdout == b"own"
        assert not Path("/tmp/bastide-abs").exists() and not Path("/tmp/bastide-link").exists()
    finally:
        await client.delete(session)


@pytest.mark.parametrize(
    "content",
    [_zip("../up"), _zip("/tmp/bastide-abs"), _zip("l", b"/etc", 0o120777), _zip("own", b"x" * 100)[:-30]],
)
async def test_zips_of_ill_will_change_nothing(client, content):
    session = await _started(client)
    try:
        with pytest.raises(upstream.WorkspaceArchiveWriteError):
            await session.extract("a.zip", io.BytesIO(content), compression_scheme="zip")
        assert (await session.exec("cat own")).stdout == b"own"
        assert not Path("/tmp/bastide-abs").exists()
    finally:
        await client.delete(session)


@pytest.mark.parametrize(
    "change",
    [
        {"session_id": "sk-secret"},
        {"manifest": {"root": 3, "environment": {"KEY": "sk-secret"}}},
        {"manifest": "sk-secret"},
        {"exposed_ports": ["sk-secret"]},
        {"snapshot": {"type": "sk-secret"}},
        {"type": "sk-secret"},
        {"options": {"sk-secret": "sk-secret"}},
    ],
)
async def test_malformed_states_do_not_say_what_they_hold(client, change):
    session = await client.create(options=None)
    stored = client.serialize_session_state(session.state)
    await client.delete(session)
    if "options" in change and not isinstance(client, BastideSandboxClient):
        change = {"workspace_root_owned": "sk-secret"}
    with pytest.raises(ValueError) as refused:
        await client.resume(client.deserialize_session_state({**stored, **change}))
    error = refused.value
    while error is not None:
        assert "sk-secret" not in str(error) and "sk-secret" not in repr(error), repr(error)
        error = error.__cause__ or error.__context__


async def test_what_a_live_session_sees_of_the_machine_cannot_change(client, tmp_path):
    session = await _started(client)
    manifest = session.state.manifest
    elsewhere = repr(str(tmp_path))
    changes = {
        f"the root of a live session cannot become {elsewhere}: it is {manifest.root!r}": {"root": str(tmp_path)},
        f"the grants of a live session cannot be changed: {elsewhere}": {
            "extra_path_grants": (SandboxPathGrant(path=str(tmp_path)),)
        },
    }
    try:
        for said, change in changes.items():
            session.state.manifest = manifest.model_copy(update=change)
            for act in (session.start, session.apply_manifest):
                with pytest.raises(ValueError, match=re.escape(said)):
                    await act()
            # Commands and files are where they were.
            assert (await session.exec("pwd; cat own")).stdout.decode() == f"{manifest.root}\nown"
            with await session.read(Path("own")) as found:
                assert found.read() == b"own"
            session.state.manifest = manifest
        assert list(tmp_path.iterdir()) == []
    finally:
        session.state.manifest = manifest
        await client.delete(session)


@pytest.mark.parametrize("timeout", [-1.0, 0.0])
async def test_no_time_is_no_time(client, timeout):
    session = await _started(client)
    try:
        with pytest.raises((upstream.ExecTimeoutError, ValueError)):
            await session.exec("sleep 5", timeout=timeout)
        assert (await session.exec("echo on", timeout=float("inf"))).stdout == b"on\n"
    finally:
        await client.delete(session)


async def test_commands_that_are_none(client):
    session = await _started(client)
    try:
        for wrong in (("nothing-like-this",), ("./own",), ("d",)):
            with pytest.raises(upstream.ExecTransportError):
                await session.exec(*wrong, shell=False)
        with pytest.raises((upstream.ExecTransportError, ValueError)):
            await session.exec("a\0b", shell=False)
        with pytest.raises((upstream.ExecTransportError, ValueError, TypeError, IndexError)):
            await session.exec(shell=False)
        assert (await session.exec("echo on")).stdout == b"on\n"
    finally:
        await client.delete(session)
