"""Sandboxes for programs without an event loop. Every call waits, and answers Ctrl-C."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine, Iterator, Mapping, Sequence
from typing import Any, Literal, TypeVar

from . import _process, _sandbox
from ._home import home_folder
from ._program import examine
from ._sandbox import Done, Entry
from ._settings import PathLike, Time

T = TypeVar("T")

__all__ = ["Done", "Entry", "Process", "Sandbox", "doctor", "list_sessions", "sweep"]


def _wait(work: Coroutine[Any, Any, T]) -> T:
    """Runs a coroutine that never waits for a loop: without one, calls into the extension wait themselves."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        pass
    else:
        work.close()
        raise RuntimeError(
            "bastide.sync cannot be used where an event loop runs; use bastide.Sandbox there"
        )
    try:
        work.send(None)
    except StopIteration as done:
        result: T = done.value
        return result
    work.close()
    raise RuntimeError("a call of bastide.sync waited for something else than a sandbox")


def _each(said: AsyncIterator[T]) -> Iterator[T]:
    async def following() -> tuple[bool, T | None]:
        try:
            return True, await said.__anext__()
        except StopAsyncIteration:
            return False, None

    async def closing() -> None:
        close = getattr(said, "aclose", None)
        if close is not None:
            await close()

    try:
        while True:
            more, item = _wait(following())
            if not more:
                return
            yield item  # type: ignore[misc]
    finally:
        _wait(closing())


class Process:
    """A command whose output is read while it runs."""

    def __init__(self, inner: _process.Process) -> None:
        self._inner = inner

    @property
    def exit_code(self) -> int | None:
        return self._inner.exit_code

    @property
    def reason(self) -> str | None:
        return self._inner.reason

    def __iter__(self) -> Iterator[tuple[Literal["stdout", "stderr"], bytes]]:
        return _each(self._inner.__aiter__())

    def write(self, data: bytes | str) -> None:
        _wait(self._inner.write(data))

    def close_input(self) -> None:
        _wait(self._inner.close_input())

    def resize(self, rows: int, columns: int) -> None:
        _wait(self._inner.resize(rows, columns))

    def end(self) -> None:
        _wait(self._inner.end())

    def __enter__(self) -> Process:
        return self

    def __exit__(self, *_: object) -> None:
        if self.exit_code is None:
            self.end()


class Sandbox:
    """As `bastide.Sandbox`, for programs without an event loop."""

    def __init__(self, inner: _sandbox.Sandbox) -> None:
        self._inner = inner

    @classmethod
    def create(
        cls, manifest: PathLike | Mapping[str, Any] | None = None, **options: Any
    ) -> Sandbox:
        return cls(_wait(_sandbox.Sandbox.create(manifest, **options)))

    @classmethod
    def attach(
        cls,
        id: str,
        *,
        home: PathLike | None = None,
        backend: Literal["local", "docker"] = "local",
    ) -> Sandbox:
        return cls(_wait(_sandbox.Sandbox.attach(id, home=home, backend=backend)))

    @property
    def id(self) -> str:
        return self._inner.id

    @property
    def root(self) -> str:
        return self._inner.root

    @property
    def receipt(self) -> dict[str, Any]:
        return self._inner.receipt

    def run(
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
        return _wait(
            self._inner.run(
                command,
                timeout=timeout,
                env=env,
                cwd=cwd,
                user=user,
                input=input,
                output_limit=output_limit,
            )
        )

    def spawn(self, command: str | Sequence[str], **options: Any) -> Process:
        return Process(_wait(self._inner.spawn(command, **options)))

    def stream(
        self, command: str | Sequence[str], *, timeout: float | None = None, user: str | None = None
    ) -> Iterator[tuple[Literal["stdout", "stderr"], bytes]]:
        return _each(self._inner.stream(command, timeout=timeout, user=user))

    def terminal(
        self, command: str | Sequence[str] = "sh", *, rows: int = 24, columns: int = 80
    ) -> Process:
        return Process(_wait(self._inner.terminal(command, rows=rows, columns=columns)))

    def read(self, path: PathLike) -> bytes:
        return _wait(self._inner.read(path))

    def write(self, path: PathLike, data: bytes | str, *, mode: int | None = None) -> None:
        _wait(self._inner.write(path, data, mode=mode))

    def ls(self, path: PathLike = ".") -> list[Entry]:
        return _wait(self._inner.ls(path))

    def mkdir(self, path: PathLike, *, parents: bool = False) -> None:
        _wait(self._inner.mkdir(path, parents=parents))

    def rm(self, path: PathLike, *, recursive: bool = False) -> None:
        _wait(self._inner.rm(path, recursive=recursive))

    def mv(self, source: PathLike, destination: PathLike) -> None:
        _wait(self._inner.mv(source, destination))

    def upload(self, source: PathLike, destination: PathLike = ".") -> None:
        _wait(self._inner.upload(source, destination))

    def download(
        self, source: PathLike, destination: PathLike, *, max_bytes: int | None = None
    ) -> None:
        _wait(self._inner.download(source, destination, max_bytes=max_bytes))

    def expose(self, port: int) -> str:
        return _wait(self._inner.expose(port))

    def snapshot(self, name: str) -> dict[str, Any]:
        return _wait(self._inner.snapshot(name))

    def restore(self, name: str) -> None:
        _wait(self._inner.restore(name))

    def checkpoint(self, name: str | None = None) -> dict[str, Any]:
        return _wait(self._inner.checkpoint(name))

    def log(self) -> dict[str, Any]:
        return _wait(self._inner.log())

    def diff(self, range: str | None = None, path: str | None = None) -> dict[str, Any]:
        return _wait(self._inner.diff(range, path))

    def undo(self, steps: int = 1) -> dict[str, Any]:
        return _wait(self._inner.undo(steps))

    def redo(self) -> dict[str, Any]:
        return _wait(self._inner.redo())

    def restore_path(self, path: PathLike, point: str) -> dict[str, Any]:
        return _wait(self._inner.restore_path(path, point))

    def fork(self, count: int = 1, *, at: str | None = None) -> list[Sandbox]:
        return [Sandbox(fork) for fork in _wait(self._inner.fork(count, at=at))]

    def merge(self, fork: Sandbox) -> dict[str, Any]:
        return _wait(self._inner.merge(fork._inner))

    def lease(self) -> dict[str, Any]:
        return _wait(self._inner.lease())

    def change_lease(
        self,
        *,
        ttl: Time | None = None,
        idle: Time | None = None,
        then: Literal["stop", "delete"] | None = None,
        forget: bool = False,
    ) -> dict[str, Any]:
        return _wait(self._inner.change_lease(ttl=ttl, idle=idle, then=then, forget=forget))

    def detach(self) -> str:
        return _wait(self._inner.detach())

    def delete(self) -> None:
        _wait(self._inner.delete())

    def close(self) -> None:
        _wait(self._inner.close())

    def __enter__(self) -> Sandbox:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def list_sessions(
    *, home: PathLike | None = None, backend: Literal["local", "docker"] = "local"
) -> list[dict[str, Any]]:
    return _wait(_sandbox.list_sessions(home=home, backend=backend))


def sweep(
    *,
    home: PathLike | None = None,
    ended: bool = False,
    backend: Literal["local", "docker"] = "local",
) -> list[str]:
    return _wait(_sandbox.sweep(home=home, ended=ended, backend=backend))


def doctor(*, home: PathLike | None = None) -> dict[str, Any]:
    return examine(home_folder(home))
