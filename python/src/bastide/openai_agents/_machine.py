"""The machine of a session."""

from __future__ import annotations

import asyncio
import os
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


def user_name(user: str | User | None) -> str | None:
    if user is None or isinstance(user, str):
        return user or None
    return user.name


class MachineSession(BaseSandboxSession):
    """A session that has a machine of the extension."""

    _owner: ClientBase[Any] | None = None
    _native: Session | None = None
    _booting: asyncio.Future[Session] | None = None
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
        if self._booting is None or self._booting.done():
            self._booting = asyncio.ensure_future(self._boot())
        return await asyncio.shield(self._booting)

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
