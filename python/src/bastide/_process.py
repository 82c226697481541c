"""Commands whose output is read while they run."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any, Literal

from . import _native


class Process:
    """A command whose output is read while it runs, with a terminal or without."""

    def __init__(self, native: _native.Process) -> None:
        self._native = native
        self.exit_code: int | None = None
        self.reason: str | None = None
        #: What a reader was told in the moment it was cancelled.
        self._untold: list[Any] = []

    def __aiter__(self) -> AsyncIterator[tuple[Literal["stdout", "stderr"], bytes]]:
        return self._read()

    async def _read(self) -> AsyncIterator[tuple[Literal["stdout", "stderr"], bytes]]:
        while self.exit_code is None:
            said = self._untold.pop(0) if self._untold else await self._next()
            if said is None:
                # Somebody else who listens was told it.
                continue
            kind, data = said
            if kind == "exit":
                self.exit_code, self.reason, _detail = data
            else:
                yield kind, data

    async def _next(self) -> Any:
        # A future where a loop runs; elsewhere it is waited for at once.
        answer = self._native.next()
        try:
            return await answer
        except asyncio.CancelledError:
            # The answer may be there already, and this task not have heard it yet.
            if isinstance(answer, asyncio.Future) and answer.done() and not answer.cancelled():
                if answer.exception() is None:
                    self._untold.append(answer.result())
            raise

    async def write(self, data: bytes | str) -> None:
        """Writes to its standard input, or types on its terminal."""
        await self._native.write(data.encode() if isinstance(data, str) else data)

    async def close_input(self) -> None:
        await self._native.close_input()

    async def resize(self, rows: int, columns: int) -> None:
        await self._native.resize(rows, columns)

    async def end(self) -> None:
        """Ends it with everything descended from it."""
        await self._native.end()

    async def __aenter__(self) -> Process:
        return self

    async def __aexit__(self, *_: object) -> None:
        if self.exit_code is None:
            await self.end()
