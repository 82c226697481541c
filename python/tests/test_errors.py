"""Errors are the SDK's, in everything a program can look at."""

import inspect
import io
from pathlib import Path

import pytest
from agents.sandbox import errors as upstream
from agents.sandbox.entries import Dir, File, LocalDir, LocalFile
from agents.sandbox.manifest import Manifest
from agents.sandbox.sandboxes.unix_local import UnixLocalSandboxClient as Theirs
from agents.sandbox.types import ExecResult

from bastide.errors import _made
from bastide.openai_agents import unix_local
from bastide.openai_agents._errors import upstream_error

CLASSES = [
    cls
    for cls in vars(upstream).values()
    if isinstance(cls, type) and issubclass(cls, upstream.SandboxError)
]

# What the SDK's constructors take, by name.
GIVEN = {
    "actual_type": "str",
    "cause": None,
    "command": ("sh", "-c", "true"),
    "context": {"more": 1},
    "dest": Path("/workspace/d"),
    "error_code": upstream.ErrorCode.EXEC_TIMEOUT,
    "exec_result": ExecResult(stdout=b"out", stderr=b"\xfferr", exit_code=7),
    "exposed_ports": (80, 81),
    "message": "what went wrong",
    "op": "exec",
    "path": Path("/workspace/a"),
    "port": 80,
    "ref": "main",
    "rel": "../a",
    "repo": "a/b",
    "retryable": None,
    "scheme": "rar",
    "session_id": 7,
    "snapshot_id": "s",
    "src": Path("/src"),
    "src_root": "/src",
    "stderr": "said",
    "subpath": "/x",
    "timeout_s": 1.5,
    "tool": "rclone",
    "url": "https://example.com/a/b",
}
REASONS = {"ExposedPortUnavailableError": "not_configured", "GitSubpathError": "absolute"}


def _theirs(cls):
    names = [name for name in inspect.signature(cls.__init__).parameters if name != "self"]
    given = {name: GIVEN[name] for name in names if name != "reason"}
    if "reason" in names:
        given["reason"] = REASONS.get(cls.__name__, "absolute")
    if cls.__name__ == "MountCommandError":
        given["command"] = "rclone mount"
    return cls(**given)


def _seen(error):
    """Everything that a program can look at, but where it was raised."""
    fields = {key: value for key, value in vars(error).items() if not key.startswith("__")}
    return {**fields, "text": str(error), "code": error.code, "class": type(error)}


@pytest.mark.parametrize("cls", CLASSES, ids=lambda cls: cls.__name__)
def test_every_class_is_what_the_sdk_builds_itself(cls):
    theirs = _theirs(cls)

    def known(name):
        return getattr(theirs, name, None)

    command = known("command")
    # What the extension says of such an error.
    fields = {
        "call": "exec",
        "kind": "io",
        "class_name": cls.__name__,
        "error_code": str(theirs.error_code.value),
        "op": theirs.op,
        "message": theirs.message,
        "context": {
            key: list(value) if isinstance(value, tuple) else value
            for key, value in theirs.context.items()
        },
        "retryable": theirs.retryable,
        "hint": None,
        "command": list(command) if isinstance(command, tuple) else None,
        "exit_code": known("exit_code"),
        "stdout": known("stdout"),
        "stderr": known("stderr") if isinstance(known("stderr"), bytes) else None,
        "timeout_s": known("timeout_s"),
        "session_id": known("session_id"),
        "causes": [],
    }
    ours = upstream_error(_made(fields), "exec")
    assert _seen(ours) == _seen(theirs)


async def _live(client, use, **arguments):
    session = await client.create(options=None, **arguments)
    try:
        await session.start()
        with pytest.raises(Exception) as raised:
            await use(session)
        return raised.value, session.state.manifest.root
    finally:
        await session.shutdown()
        await client.delete(session)


async def _read(session):
    await session.read(Path("nothing"))


async def _read_out(session):
    await session.read(Path("../x"))


async def _read_absolute(session):
    await session.read(Path("/etc/passwd"))


async def _text(session):
    await session.write(Path("t"), io.StringIO("text"))


async def _late(session):
    await session.exec("sleep 60", timeout=0.3)


async def _no_program(session):
    await session.exec("no-such-program", shell=False)


async def _no_terminal(session):
    await session.pty_write_stdin(session_id=1, chars="")


async def _no_port(session):
    await session.resolve_exposed_port(80)


async def _no_archive(session):
    await session.extract("x.rar", io.BytesIO(b"no archive"))


async def _damaged(session):
    await session.extract("x.tar", io.BytesIO(b"no archive" * 200))


async def _twice(session):
    await session._write_new_file(Path("a"), io.BytesIO(b""))
    await session._write_new_file(Path("a"), io.BytesIO(b""))


@pytest.mark.parametrize(
    "use",
    [
        _read,
        _read_out,
        _read_absolute,
        _text,
        _late,
        _no_program,
        _no_terminal,
        _no_port,
        _no_archive,
        _damaged,
        _twice,
    ],
    ids=lambda use: use.__name__.strip("_"),
)
async def test_what_fails_on_both_fails_alike(use):
    ours, our_root = await _live(unix_local.UnixLocalSandboxClient(), use)
    theirs, their_root = await _live(Theirs(), use)
    assert type(ours) is type(theirs)
    if not isinstance(theirs, upstream.SandboxError):
        return
    assert (ours.error_code, ours.op, ours.retryable) == (
        theirs.error_code,
        theirs.op,
        theirs.retryable,
    )
    assert ours.message.replace(our_root, "R") == theirs.message.replace(their_root, "R")

    def shown(error, root):
        # Why, in the words of whoever noticed, is not part of it.
        kept = {key: str(value).replace(root, "R") for key, value in error.context.items()}
        return {key: value for key, value in kept.items() if not key.startswith("cause") and key != "detail"}

    assert shown(ours, our_root) == shown(theirs, their_root)


@pytest.mark.parametrize(
    "entries",
    [
        {"a": LocalFile(src=Path("no-such-file"))},
        {"a": LocalDir(src=Path("no-such-folder"))},
        {"../a": File(content=b"")},
        {"/a": Dir()},
    ],
    ids=["file", "folder", "out", "absolute"],
)
async def test_manifests_that_fail_on_both_fail_alike(entries, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    raised = []
    for client in (unix_local.UnixLocalSandboxClient(), Theirs()):
        with pytest.raises(Exception) as failed:
            session = await client.create(options=None, manifest=Manifest(entries=dict(entries)))
            try:
                await session.start()
            finally:
                await session.shutdown()
                await client.delete(session)
        raised.append(failed.value)
    ours, theirs = raised
    assert type(ours) is type(theirs), raised
    if isinstance(theirs, upstream.SandboxError):
        assert (ours.error_code, ours.op) == (theirs.error_code, theirs.op)
