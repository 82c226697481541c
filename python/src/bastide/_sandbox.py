"""Sandboxes without any SDK."""

from __future__ import annotations

import asyncio
import os
import stat
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Literal

from . import _native
from ._home import home_folder, native_client
from ._process import Process
from ._program import examine
from ._settings import PathLike, Time, seconds_of, settings_of

@dataclass(frozen=True)
class Done:
    """How a command ended, and what it said."""

    stdout: bytes
    stderr: bytes
    exit_code: int
    reason: str
    detail: str | None
    truncated: bool

    @property
    def ok(self) -> bool:
        return self.exit_code == 0


@dataclass(frozen=True)
class Entry:
    """One entry of a folder."""

    path: str
    mode: int
    owner: str
    group: str
    size: int
    kind: str


def _make_folder(path: Path) -> None:
    """Makes a folder beneath one that is copied to, and follows no link that has its name."""
    try:
        path.mkdir()
    except FileExistsError:
        if path.is_symlink() or not path.is_dir():
            raise


class Sandbox:
    """A sandbox: run commands in it, use its files, then close it."""

    def __init__(self, client: _native.Client, session: _native.Session, home: str) -> None:
        self._client = client
        self._session = session
        self._home = home
        self._keeps = False
        self._closed = False

    @classmethod
    async def create(
        cls,
        manifest: PathLike | Mapping[str, Any] | None = None,
        *,
        backend: Literal["local", "docker"] = "local",
        image: str | None = None,
        network: Literal["none", "bridge", "host", "policy"] = "none",
        policy: PathLike | Mapping[str, Any] | None = None,
        allow: Sequence[str] = (),
        secrets: Mapping[str, str] | None = None,
        isolation: Literal["auto", "namespaces", "landlock", "unconfined"] = "auto",
        nested_sandbox: bool = False,
        memory: int | str | None = None,
        pids: int | None = None,
        cpus: float | None = None,
        disk: int | str | None = None,
        env: Mapping[str, str] | None = None,
        workspace: PathLike | None = None,
        journal: bool = False,
        ttl: Time | None = None,
        idle: Time | None = None,
        then: Literal["stop", "delete"] = "stop",
        home: PathLike | None = None,
        keep: bool = False,
        audit: bool = False,
    ) -> Sandbox:
        """Makes a sandbox. Unless it is to be kept, it ends with this program and goes when closed.

        Its commands have no network, or with `policy` (a file, or its content) or `allow` (`["example.org",
        "db.example.org:5432", "@packages"]`) one that leads there and nowhere else. `secrets` stay outside and go to
        one host each: `{"OPENAI_API_KEY": "env:OPENAI_API_KEY@api.openai.com"}`; inside, the variable holds a
        placeholder.

        With `journal`, every command is a point that `undo` goes back to. With `ttl` or `idle` (seconds, or a
        `timedelta`) it ends by itself: after that time, or after so much of it in which nothing happens; `then` says
        whether its files stay.
        """
        settings = settings_of(
            manifest,
            backend=backend,
            image=image,
            network=network,
            isolation=isolation,
            nested_sandbox=nested_sandbox,
            memory=memory,
            pids=pids,
            cpus=cpus,
            disk=disk,
            env=env,
            workspace=workspace,
            policy=policy,
            allow=allow,
            secrets=secrets,
            journal=journal,
            ttl=ttl,
            idle=idle,
            then=then,
            keep=keep,
        )
        folder = home_folder(home)
        client = native_client(folder, docker=backend == "docker", image=image, audit=audit)
        made = cls(client, await client.create(settings), folder)
        made._keeps = keep
        return made

    @classmethod
    async def attach(
        cls,
        id: str,
        *,
        home: PathLike | None = None,
        backend: Literal["local", "docker"] = "local",
    ) -> Sandbox:
        """A sandbox that runs, whoever made it. Closing it leaves it alone."""
        folder = home_folder(home)
        client = native_client(folder, docker=backend == "docker")
        found = cls(client, await client.attach(id), folder)
        found._keeps = True
        return found

    @property
    def id(self) -> str:
        return self._session.id

    @property
    def root(self) -> str:
        """Where the workspace is inside."""
        return self._session.root

    @property
    def receipt(self) -> dict[str, Any]:
        """What isolation and limits are really in force."""
        return self._session.receipt

    async def run(
        self,
        command: str | Sequence[str],
        *,
        timeout: float | None = None,
        env: Mapping[str, str] | None = None,
        cwd: str | None = None,
        user: str | None = None,
        input: bytes | None = None,
        output_limit: int | None = None,
    ) -> Done:
        """Runs a command to its end: a line for the shell, or a program and its arguments."""
        shell = command if isinstance(command, str) else None
        result = await self._session.run(
            [] if shell is not None else list(command),
            shell=shell,
            env=None if env is None else list(env.items()),
            cwd=cwd,
            timeout=timeout,
            user=user,
            input=input,
            output_limit=output_limit,
        )
        return Done(*result)

    async def spawn(
        self,
        command: str | Sequence[str],
        *,
        timeout: float | None = None,
        env: Mapping[str, str] | None = None,
        cwd: str | None = None,
        user: str | None = None,
        terminal: tuple[int, int] | None = None,
    ) -> Process:
        """Starts a command that can be written to while it runs."""
        shell = command if isinstance(command, str) else None
        native = await self._session.spawn(
            [] if shell is not None else list(command),
            shell=shell,
            env=None if env is None else list(env.items()),
            cwd=cwd,
            timeout=timeout,
            user=user,
            terminal=terminal,
            stream_input=terminal is None,
        )
        return Process(native)

    async def stream(
        self, command: str | Sequence[str], *, timeout: float | None = None, user: str | None = None
    ) -> AsyncIterator[tuple[Literal["stdout", "stderr"], bytes]]:
        """What a command says, as it says it. It ends when nobody listens any more."""
        async with await self.spawn(command, timeout=timeout, user=user) as process:
            await process.close_input()
            async for said in process:
                yield said

    async def terminal(
        self, command: str | Sequence[str] = "sh", *, rows: int = 24, columns: int = 80
    ) -> Process:
        """A command on a terminal of its own."""
        return await self.spawn(command, terminal=(rows, columns))

    async def read(self, path: PathLike) -> bytes:
        """The content of a file."""
        found = await self._session.read(os.fspath(path))
        if isinstance(found, bytes):
            return found
        with os.fdopen(found, "rb") as file:
            return file.read()

    async def write(self, path: PathLike, data: bytes | str, *, mode: int | None = None) -> None:
        """Writes a file; the folder it is in must exist."""
        content = data.encode() if isinstance(data, str) else data
        await self._session.write(os.fspath(path), content, mode=mode)

    async def ls(self, path: PathLike = ".") -> list[Entry]:
        return [Entry(*row) for row in await self._session.ls(os.fspath(path))]

    async def mkdir(self, path: PathLike, *, parents: bool = False) -> None:
        await self._session.mkdir(os.fspath(path), parents=parents)

    async def rm(self, path: PathLike, *, recursive: bool = False) -> None:
        await self._session.rm(os.fspath(path), recursive=recursive)

    async def mv(self, source: PathLike, destination: PathLike) -> None:
        await self._session.mv(os.fspath(source), os.fspath(destination))

    async def upload(self, source: PathLike, destination: PathLike = ".") -> None:
        """Copies a file or folder of this machine into the workspace. Links are refused."""
        path = Path(os.path.abspath(source))
        name = os.fspath(destination)
        found = path.stat()
        is_folder = stat.S_ISDIR(found.st_mode)
        if name in (".", "") and not is_folder:
            name = path.name
        if name in (".", ""):
            for child in sorted(path.iterdir()):
                await self.upload(child, child.name)
            return
        kind = "local_dir" if is_folder else "local_file"
        item = (name, kind, path.name, found.st_mode & 0o777, None)
        await self._session.apply([item], path.parent)

    async def download(
        self, source: PathLike, destination: PathLike, *, max_bytes: int | None = None
    ) -> None:
        """Copies a file or folder of the workspace to this machine. What is no file or folder stays.

        A file of more than ``max_bytes`` is refused. Holes stay holes.
        """
        target = Path(destination)
        if (await self._session.stat(os.fspath(source)))[5] != "directory":
            if target.is_dir():
                target = target / os.path.basename(os.fspath(source))
            await self._session.download(os.fspath(source), target, max_bytes)
            return
        target.mkdir(parents=True, exist_ok=True)
        # Folders can be nested deeper than calls can.
        folders = [(os.fspath(source), target)]
        while folders:
            folder, target = folders.pop()
            for entry in await self.ls(folder):
                place = target / os.path.basename(entry.path)
                if entry.kind == "file":
                    await self._session.download(entry.path, place, max_bytes)
                elif entry.kind == "directory":
                    _make_folder(place)
                    folders.append((entry.path, place))

    async def expose(self, port: int) -> str:
        """Publishes a port on this machine's loopback, and says where."""
        host, number, _tls, _query = await self._session.expose(port)
        return f"http://{host}:{number}/"

    async def snapshot(self, name: str) -> dict[str, Any]:
        """Saves the workspace; only what changed since the last time is stored."""
        return await _native.Store(self._home).save(self._session, name, [])

    async def restore(self, name: str) -> None:
        """Makes the workspace what it was when the snapshot was saved."""
        await _native.Store(self._home).restore(self._session, name)

    async def checkpoint(self, name: str | None = None) -> dict[str, Any]:
        """Makes a point of the workspace as it is now, under a name if one is given."""
        return await _native.checkpoint(self._session, name)

    async def log(self) -> dict[str, Any]:
        """The points of the workspace, oldest first."""
        return await self._client.log(self.id)

    async def diff(self, range: str | None = None, path: str | None = None) -> dict[str, Any]:
        """What is different between two points: `A..B`, `A` for what is there now, nothing for what `undo` would take
        back.
        """
        return await _native.diff(self._session, range, path)

    async def undo(self, steps: int = 1) -> dict[str, Any]:
        """Makes the workspace what it was before the last commands, or at the last checkpoint. Processes end."""
        return await _native.undo(self._session, steps)

    async def redo(self) -> dict[str, Any]:
        """Takes the last undo back."""
        return await _native.redo(self._session)

    async def restore_path(self, path: PathLike, point: str) -> dict[str, Any]:
        """Makes a file or a folder what it was at a point, and leaves everything else alone."""
        return await _native.restore_path(self._session, os.fspath(path), point)

    async def fork(self, count: int = 1, *, at: str | None = None) -> list[Sandbox]:
        """Sandboxes that begin with the files of this one, as they are now or were at a point."""
        forks = []
        for session in await self._client.fork(self._session, count, at):
            fork = Sandbox(self._client, session, self._home)
            # It goes when it is closed, as this one does.
            fork._keeps = self._keeps
            forks.append(fork)
        return forks

    async def merge(self, fork: Sandbox) -> dict[str, Any]:
        """Takes over what was changed in a fork; what both changed stays, and the fork's lies beside it."""
        return await _native.merge(self._session, fork._session)

    async def lease(self) -> dict[str, Any]:
        """How many seconds are left, after how many in which nothing happens it ends, and what happens then."""
        return await _native.lease(self._session)

    async def change_lease(
        self,
        *,
        ttl: Time | None = None,
        idle: Time | None = None,
        then: Literal["stop", "delete"] | None = None,
        forget: bool = False,
    ) -> dict[str, Any]:
        """Gives it another lease from now on; what is not said stays as it is, unless that is to be forgotten."""
        return await _native.lease(
            self._session, ttl=seconds_of(ttl), idle=seconds_of(idle), then=then, forget=forget
        )

    async def detach(self) -> str:
        """Has it live on without this program. Its name is what `attach` takes."""
        await self._session.detach()
        self._keeps = True
        return self.id

    async def delete(self) -> None:
        """Ends everything and removes it. Deleting twice is once."""
        await self._client.delete(self.id)
        self._closed = True

    async def close(self) -> None:
        """Ends a sandbox that is not kept; lets go of any other."""
        if not self._closed and not self._keeps:
            await self.delete()
        self._closed = True

    async def __aenter__(self) -> Sandbox:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()


async def list_sessions(
    *, home: PathLike | None = None, backend: Literal["local", "docker"] = "local"
) -> list[dict[str, Any]]:
    """Every session of a home."""
    return await native_client(home_folder(home), docker=backend == "docker").list()


async def sweep(
    *,
    home: PathLike | None = None,
    ended: bool = False,
    backend: Literal["local", "docker"] = "local",
) -> list[str]:
    """Removes what no session needs, and says what that was."""
    client = native_client(home_folder(home), docker=backend == "docker")
    return await client.sweep(ended=ended)


async def doctor(*, home: PathLike | None = None) -> dict[str, Any]:
    """What this machine can enforce: what holds, what is missing, and what would change that."""
    return await asyncio.to_thread(examine, home_folder(home))
