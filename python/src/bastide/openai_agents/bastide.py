"""The client `bastide`: private workspaces, the strongest isolation of the machine, no network."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from typing import Any, Literal

from agents.sandbox.manifest import Manifest
from agents.sandbox.session import SandboxSession, SandboxSessionState
from agents.sandbox.session.dependencies import Dependencies
from agents.sandbox.session.manager import Instrumentation
from agents.sandbox.session.sandbox_client import BaseSandboxClientOptions
from agents.sandbox.snapshot import SnapshotBase, SnapshotSpec, resolve_snapshot
from pydantic import ConfigDict, Field, PrivateAttr, field_validator, model_validator

from . import _seal
from ._client import DEFAULT_ROOT, ClientBase, new_id
from ._mounts import check_mounts
from ._session import NativeSandboxSession


class BastideSandboxClientOptions(BaseSandboxClientOptions):
    """What a sandbox is to be. By default local, without network, as isolated as the machine can."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    type: Literal["bastide"] = "bastide"
    exposed_ports: tuple[int, ...] = ()
    backend: Literal["local", "docker"] = "local"
    image: str | None = None
    network: Literal["none", "bridge", "host", "policy"] = "none"
    #: Where a network with a policy leads: the document, or a few words for it.
    policy: dict[str, Any] | None = None
    allow: tuple[str, ...] = ()
    isolation: Literal["auto", "namespaces", "landlock", "unconfined"] = "auto"
    nested_sandbox: bool = False
    memory: int | None = Field(default=None, gt=0)
    pids: int | None = Field(default=None, gt=0)
    cpu_millis: int | None = Field(default=None, gt=0)
    disk: int | None = Field(default=None, gt=0)
    workspace: Literal["private", "host"] = "private"
    git_fetch: Literal["auto", "inside", "host"] = "auto"
    git_ca_file: str | None = None

    @field_validator("exposed_ports")
    @classmethod
    def _check_ports(cls, ports: tuple[int, ...]) -> tuple[int, ...]:
        if any(not 1 <= port <= 65535 for port in ports):
            raise ValueError("exposed_ports entries must be between 1 and 65535")
        return ports

    @model_validator(mode="after")
    def _check_network(self) -> BastideSandboxClientOptions:
        is_ruled = self.policy is not None or bool(self.allow)
        if is_ruled and self.network not in ("none", "policy"):
            raise ValueError(f"network={self.network!r} has no policy: leave network out")
        if self.network == "policy" and not is_ruled:
            raise ValueError("network='policy' needs a policy, or places to allow")
        return self

    @model_validator(mode="after")
    def _check_image(self) -> BastideSandboxClientOptions:
        if self.image is not None and self.backend != "docker":
            raise ValueError("an image needs backend='docker'")
        if self.image is None and self.backend == "docker":
            raise ValueError("backend='docker' needs an image")
        if self.backend == "docker" and self.isolation != "auto":
            raise ValueError("how containers are confined is their engine's: leave isolation 'auto'")
        return self


class BastideSandboxSessionState(SandboxSessionState):
    """The state of a session. Stored, it grants nothing that its home did not seal."""

    type: Literal["bastide"] = "bastide"
    options: BastideSandboxClientOptions = Field(default_factory=BastideSandboxClientOptions)
    seal: str | None = None

    # Whether it was made by a client of this program, not read from anywhere.
    _is_own: bool = PrivateAttr(default=False)
    # The root that was asked for, where the machine has the workspace elsewhere.
    _asked_root: str | None = PrivateAttr(default=None)


class BastideSandboxSession(NativeSandboxSession):
    """A session of `BastideSandboxClient`."""

    state: BastideSandboxSessionState

    # How somebody who needs a network gets one.
    _network_advice = "make it with options allow=('example.org', '@packages') for named places, or network='host'"

    def _default_client(self) -> ClientBase[Any]:
        return _default_client()

    def _shell(self) -> list[str]:
        return ["sh", "-lc" if self.state.options.backend == "docker" else "-c"]


class BastideSandboxClient(ClientBase[BastideSandboxClientOptions | None]):
    """Makes sandboxes that are confined, on this machine or in containers."""

    backend_id = "bastide"
    _session_class = BastideSandboxSession

    def __init__(
        self,
        *,
        instrumentation: Instrumentation | None = None,
        dependencies: Dependencies | None = None,
        home: str | os.PathLike[str] | None = None,
        options: BastideSandboxClientOptions | None = None,
        audit: bool = False,
        secrets: Mapping[str, str] | None = None,
        inherit_host_environment: bool = False,
        host_environment_allowlist: Collection[str] | None = None,
        discard_changes: bool = False,
    ) -> None:
        super().__init__(
            instrumentation=instrumentation,
            dependencies=dependencies,
            home=home,
            inherit_host_environment=inherit_host_environment,
            host_environment_allowlist=host_environment_allowlist,
        )
        self._options = options if options is not None else BastideSandboxClientOptions()
        self._audit = audit
        # The log has their names where their values would be.
        self._secrets = tuple(sorted((secrets or {}).items()))
        self._discards_changes = discard_changes

    def _options_of(self, state: BastideSandboxSessionState) -> dict[str, Any]:
        options: dict[str, Any] = state.options.model_dump(exclude={"type", "exposed_ports"})
        if options["policy"] is not None or options["allow"]:
            options["network"] = "policy"
        return options

    def _is_there(self, state: BastideSandboxSessionState) -> bool:
        return state.options.workspace != "host" or os.path.isdir(state.manifest.root)

    def _moved(self, state: BastideSandboxSessionState, root: str) -> None:
        state._asked_root = state._asked_root or state.manifest.root
        super()._moved(state, root)

    async def create(
        self,
        *,
        snapshot: SnapshotSpec | SnapshotBase | None = None,
        manifest: Manifest | None = None,
        options: BastideSandboxClientOptions | None = None,
    ) -> SandboxSession:
        options = options if options is not None else self._options
        manifest = manifest if manifest is not None else Manifest()
        check_mounts(manifest)
        is_chosen = manifest.root != DEFAULT_ROOT
        if options.backend == "local" and is_chosen and options.workspace != "host":
            raise ValueError(
                f"the root {manifest.root!r} is a folder of this machine; say workspace='host' for that"
            )
        if options.workspace == "host" and not is_chosen:
            raise ValueError("workspace='host' needs a manifest whose root is a folder of this machine")
        session_id = new_id()
        state = BastideSandboxSessionState(
            session_id=session_id,
            manifest=manifest,
            snapshot=resolve_snapshot(snapshot, str(session_id)),
            exposed_ports=tuple(dict.fromkeys(options.exposed_ports)),
            options=options,
        )
        state._is_own = True
        return await self._begin(state)

    async def resume(self, state: SandboxSessionState) -> SandboxSession:
        if not isinstance(state, BastideSandboxSessionState):
            raise TypeError("BastideSandboxClient.resume expects a BastideSandboxSessionState")
        state.assert_path_grants_rebound()
        check_mounts(state.manifest)
        if not state._is_own and not _seal.check(self._home, state, self._options, DEFAULT_ROOT):
            name = state.session_id.hex
            if self._native_client(self._options_of(state)).knows(name):
                raise ValueError(
                    f"session {name} is of this home, and the stored state was not sealed by it; store states by "
                    "serialize_session_state"
                )
        if state._asked_root is not None:
            root = state._asked_root
            state.manifest = state.manifest.model_copy(update={"root": root})
            state._asked_root = None
        return await self._begin(state)

    def _serialize_session_state(self, state: SandboxSessionState) -> dict[str, object]:
        if isinstance(state, BastideSandboxSessionState):
            asked = state._asked_root
            if asked is not None:
                # Where the workspace lies on this machine is said by the machine, each time.
                manifest = state.manifest.model_copy(update={"root": asked})
                state = state.model_copy(update={"manifest": manifest})
                state._asked_root = None
            grants = tuple(
                grant for grant in state.manifest.extra_path_grants if grant.host_path is None
            )
            sealed = state.model_copy(
                update={"manifest": state.manifest.model_copy(update={"extra_path_grants": grants})}
            )
            state = state.model_copy(update={"seal": _seal.seal(self._home, sealed)})
        return super()._serialize_session_state(state)

    def deserialize_session_state(self, payload: dict[str, object]) -> SandboxSessionState:
        return self._deserialize_session_state_payload(payload, BastideSandboxSessionState)


_shared: BastideSandboxClient | None = None


def _default_client() -> BastideSandboxClient:
    """The client of sessions that were made by hand."""
    global _shared
    if _shared is None:
        _shared = BastideSandboxClient()
    return _shared
