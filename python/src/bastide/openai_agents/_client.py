"""What both clients have in common."""

from __future__ import annotations

import json
import os
import uuid
from collections.abc import Collection
from typing import Any, TypeVar

from agents.sandbox.manifest import Manifest
from agents.sandbox.session import SandboxSession
from agents.sandbox.session.base_sandbox_session import BaseSandboxSession
from agents.sandbox.session.dependencies import Dependencies
from agents.sandbox.session.manager import Instrumentation
from agents.sandbox.session.sandbox_client import BaseSandboxClient

from .. import _native
from .._home import ENVIRONMENT, home_folder, native_client, shared_environment
from ..errors import BastideError, Conflict
from ._errors import upstream_error
from ._mounts import has_mounts, mount_entries
from ._session import NativeSandboxSession, wrap

OptionsT = TypeVar("OptionsT")

DEFAULT_ROOT: str = Manifest.model_fields["root"].default


class ClientBase(BaseSandboxClient[OptionsT]):
    """Makes sessions of the extension, and finds them again."""

    supports_default_options = True
    _session_class: type[NativeSandboxSession]
    _discards_changes: bool = False
    _audit: bool = False
    _secrets: tuple[tuple[str, str], ...] = ()

    def __init__(
        self,
        *,
        instrumentation: Instrumentation | None,
        dependencies: Dependencies | None,
        home: str | os.PathLike[str] | None,
        inherit_host_environment: bool,
        host_environment_allowlist: Collection[str] | None,
    ) -> None:
        if inherit_host_environment and host_environment_allowlist is not None:
            raise ValueError("host_environment_allowlist requires inherit_host_environment=False")
        if isinstance(host_environment_allowlist, str):
            raise TypeError("host_environment_allowlist must be a collection of variable names")
        self._instrumentation = instrumentation if instrumentation is not None else Instrumentation()
        self._dependencies = dependencies
        self._home = home_folder(home)
        self._passed: frozenset[str] | None
        if inherit_host_environment:
            self._passed = None
        elif host_environment_allowlist is None:
            self._passed = ENVIRONMENT
        else:
            self._passed = frozenset(host_environment_allowlist)

    # -- what the two clients differ in -------------------------------------------------------------

    def _options_of(self, state: Any) -> dict[str, Any]:
        """The options of a session's machine, as the extension takes them."""
        raise NotImplementedError

    def _is_there(self, state: Any) -> bool:
        """Whether the folder of this machine that is a session's workspace is there; where it is none, it is the machine's."""
        return True

    def _moved(self, state: Any, root: str) -> None:
        """Notes where the workspace of a session really is."""
        state.manifest = state.manifest.model_copy(update={"root": root})

    def _native_client(self, options: dict[str, Any]) -> _native.Client:
        docker = options.get("backend") == "docker"
        return native_client(
            self._home,
            docker=docker,
            image=options.get("image") if docker else None,
            audit=self._audit,
            secrets=self._secrets,
        )

    # -- machines -----------------------------------------------------------------------------------

    async def _machine_of(self, state: Any) -> tuple[_native.Session, bool]:
        """The machine of a session, and whether its files are those it had."""
        options = self._options_of(state)
        client = self._native_client(options)
        mounted = json.dumps(self._manifest(state)) if has_mounts(state.manifest) else None
        # What is made where a folder was taken away has nothing of it.
        was_there = self._is_there(state)
        found = await client.resume(state.session_id.hex, True, mounted)
        if found is not None:
            return found, was_there
        try:
            return await client.create(json.dumps(self._settings(state, options))), False
        except Conflict:
            # Somebody else who has the same state was faster.
            found = await client.resume(state.session_id.hex, True)
            if found is None:
                raise
            return found, True

    def _manifest(self, state: Any) -> dict[str, Any]:
        """What a machine has to know of the manifest before it boots."""
        grants = []
        for grant in state.manifest.extra_path_grants:
            shown: dict[str, Any] = {"path": grant.path, "read_only": grant.read_only}
            if grant.host_path is not None:
                shown["host_path"] = str(grant.host_path)
            grants.append(shown)
        entries = mount_entries(state.manifest)
        return {"root": state.manifest.root, "extra_path_grants": grants, "entries": entries}

    def _settings(self, state: Any, options: dict[str, Any]) -> dict[str, Any]:
        is_local = options.get("backend") != "docker"
        return {
            "manifest": self._manifest(state),
            "env": shared_environment(self._passed) if is_local else {},
            "exposed_ports": list(state.exposed_ports),
            "base_dir": os.getcwd(),
            "tied": True,
            **options,
            "id": state.session_id.hex,
        }

    # -- the SDK's interface ------------------------------------------------------------------------

    def _wrap_session(
        self, inner: BaseSandboxSession, *, instrumentation: Instrumentation | None = None
    ) -> SandboxSession:
        session = super()._wrap_session(inner, instrumentation=instrumentation)
        return wrap(session, inner) if isinstance(inner, NativeSandboxSession) else session

    async def _begin(self, state: Any) -> SandboxSession:
        inner = self._session_class(state=state)
        inner._owner = self
        await inner._boot()
        return self._wrap_session(inner, instrumentation=self._instrumentation)

    async def delete(self, session: SandboxSession) -> SandboxSession:
        """Ends a session and removes it. Deleting twice is once."""
        inner = session._inner
        if not isinstance(inner, self._session_class):
            raise TypeError(
                f"{type(self).__name__}.delete expects a {self._session_class.__name__}"
            )
        await inner._settled()
        inner._native = None
        inner._is_down = True
        inner._is_started = False
        state: Any = inner.state
        client = self._native_client(self._options_of(state))
        try:
            await client.delete(state.session_id.hex)
        except BastideError as error:
            raise upstream_error(error, "delete", path=state.manifest.root) from error
        return session

    def receipt(self, session: SandboxSession) -> dict[str, Any]:
        """What isolation and limits are really in force in a session."""
        inner = session._inner
        if not isinstance(inner, NativeSandboxSession) or inner._native is None:
            raise ValueError("only a live session of this client has a receipt")
        return inner._native.receipt

    async def list(self) -> list[dict[str, Any]]:
        """Every session of the client's home on this machine."""
        return await native_client(self._home, audit=self._audit, secrets=self._secrets).list()

    async def sweep(self) -> Any:
        """Removes what no session needs, and says what that was."""
        return await native_client(self._home, audit=self._audit, secrets=self._secrets).sweep()


def new_id() -> uuid.UUID:
    return uuid.uuid4()
