"""What the extension needs of asyncio."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Generator
from typing import Any

from . import _native


class Call(asyncio.Future):  # type: ignore[type-arg]
    """A call into the extension. Cancelling it ends what it does."""

    _abort: Callable[[], None] | None = None

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(loop=loop)

    def cancel(self, msg: Any | None = None) -> bool:
        if self._abort is not None and not self.done():
            self._abort()
        return super().cancel(msg)


# A child would wait for ever for what a thread of its parent has locked, and keep its parent's sessions up by the
# descriptors it inherits.
os.register_at_fork(
    before=_native.before_fork,
    after_in_parent=_native.after_fork_in_parent,
    after_in_child=_native.after_fork_in_child,
)


class Ready:
    """The result of a call that was waited for because no event loop runs."""

    __slots__ = ("value",)

    def __init__(self, value: Any) -> None:
        self.value = value

    def __await__(self) -> Generator[Any, None, Any]:
        return self.value
        yield
