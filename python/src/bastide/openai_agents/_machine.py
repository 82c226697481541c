"""The machine of a session."""

from __future__ import annotations

import asyncio
import concurrent.futures
import os
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agents.sandbox.manifest import Manifest
from agents.sandbox.session.base_sandbox_session import BaseSandboxSession
from agents.sandbox.types import User

from .._native import Session
from ..errors import BastideError, Conflict
from ._errors import upstream_error

if TYPE_CHECKING:
    from ._client import ClientBase


_lock = threading.Lock()


def _renew() -> None:
    global _lock
    _lock = threading.Lock()


os.register_at_fork(after_in_child=_renew)


def user_name(user: str | User | None) -> str | None:
    if user is None or isinstance(user, str):
        return user or None
    return user.name


class MachineSession(BaseSandboxSession):
    """A session that has a machine of the extension."""

    _owner: ClientBase[Any] | None = None
    _native: Session | None = None
    # A boot under way: whoever waits may do so in any event loop.
    _booting: concurrent.futures.Future[Session] | None = None
    _boot_loop: asyncio.AbstractEventLoop | None = None
    _boot_task: asyncio.Task[None] | None = None
    _is_down: bool = False
    _is_started: bool = False
    _booted_walls: tuple[object, ...] | None = None

    def __init__(self, *, state: Any) -> None:
        self.state = state

    @classmethod
    def from_state(cls, state: Any) -> Any:
        return cls(state=state)

    def _client(self) -> ClientBase[Any]:
        """The client it was made by; one made by hand has that of the process."""
        if self._owner is None:
            self._owner = self._default_client()
        return self._owner

    def _default_client(self) -> ClientBase[Any]:
        raise NotImplementedError

    async def _boot(self) -> Session:
        """The machine: attached to, booted with its files, or made."""
        client = self._client()
        try:
            found, kept = await client._machine_of(self.state)
        except BastideError as error:
            raise upstream_error(error, "create", path=self.state.manifest.root) from error
        self._set_start_state_preserved(kept, system=False)
        self._native = found
        self._is_down = False
        if self.state.manifest.root != found.root:
            client._moved(self.state, found.root)
        self._booted_walls = _walls(self.state.manifest)
        return found

    async def _up(self, call: str) -> Session:
        if self._native is not None:
            return self._native
        if self._is_down:
            error = Conflict(
                f"session {self.state.session_id.hex} was shut down", hint="start it again"
            )
            raise upstream_error(error, call, path=self.state.manifest.root) from error
        return await asyncio.shield(asyncio.wrap_future(self._boot_once(call)))

    def _boot_once(self, call: str) -> concurrent.futures.Future[Session]:
        """The boot under way, or a new one. It goes on if whoever wanted it is cancelled."""
        with _lock:
            booting = self._boot_under_way()
            if booting is None:
                booting = self._booting = concurrent.futures.Future()
                self._boot_loop = asyncio.get_running_loop()
                self._boot_task = self._boot_loop.create_task(self._boot_for(booting, call))
            return booting

    def _boot_under_way(self) -> concurrent.futures.Future[Session] | None:
        booting, loop = self._booting, self._boot_loop
        if booting is None or booting.done() or loop is None or loop.is_closed():
            return None
        return booting

    async def _boot_for(self, waiting: concurrent.futures.Future[Session], call: str) -> None:
        try:
            waiting.set_result(await self._boot())
        except asyncio.CancelledError:
            error = Conflict("the event loop ended while the sandbox was made", hint="call again")
            waiting.set_exception(upstream_error(error, call, path=self.state.manifest.root))
            raise
        except BaseException as error:
            waiting.set_exception(error)

    async def _settled(self) -> None:
        """Waits for a boot under way: what comes of it has an end, too."""
        booting = self._boot_under_way()
        if booting is not None:
            await asyncio.wait([asyncio.wrap_future(booting)])

    def _refuse_other_walls(self, manifest: Manifest) -> None:
        """What a sandbox sees of the host is decided when it boots."""
        booted = self._booted_walls
        if booted is None or booted == _walls(manifest):
            return
        if booted[0] != manifest.root:
            raise ValueError(
                f"the root of a live session cannot become {manifest.root!r}: it is {booted[0]!r}"
            )
        before = {str(grant) for grant in booted[1:]}
        other = [grant.path for grant in manifest.extra_path_grants if str(_grant(grant)) not in before]
        names = ", ".join(repr(path) for path in other) or "the ones it was made with"
        raise ValueError(f"the grants of a live session cannot be changed: {names}")

    def _at(self, path: Path | str) -> str:
        """A path as the sandbox has it."""
        return os.fspath(path)


def _grant(grant: Any) -> tuple[str, bool, str | None]:
    return grant.path, grant.read_only, grant.host_path


def _walls(manifest: Manifest) -> tuple[object, ...]:
    return (manifest.root, *sorted(map(str, map(_grant, manifest.extra_path_grants))))
