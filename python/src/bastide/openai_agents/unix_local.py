"""A drop-in for `agents.sandbox.sandboxes.unix_local`: the same names, and commands that are confined.

Workspaces are folders of this machine, as there. Commands have no network unless the client is made with
`network="host"`, or with `allow=` or `policy=` for named places, and see of the machine's files only the system and the
workspace.
"""

from __future__ import annotations

import io
import os
import shutil
import tarfile
import tempfile
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, Literal

from agents.sandbox.errors import WorkspaceArchiveWriteError
from agents.sandbox.manifest import Manifest
from agents.sandbox.sandboxes.unix_local import (
    UnixLocalSandboxClientOptions,
    UnixLocalSandboxSessionState,
)
from agents.sandbox.session import SandboxSession, SandboxSessionState
from agents.sandbox.session.dependencies import Dependencies
from agents.sandbox.session.manager import Instrumentation
from agents.sandbox.snapshot import SnapshotBase, SnapshotSpec, resolve_snapshot
from agents.sandbox.types import User
from agents.sandbox.util.blocking_io import run_blocking_workspace_io
from agents.sandbox.util.tar_utils import UnsafeTarMemberError, validate_tarfile

from ._client import DEFAULT_ROOT, ClientBase, new_id
from ._mounts import check_mounts
from ._session import NativeSandboxSession

__all__ = [
    "UnixLocalSandboxClient",
    "UnixLocalSandboxClientOptions",
    "UnixLocalSandboxSession",
    "UnixLocalSandboxSessionState",
]


# How the names of folders begin that the SDK's client makes.
_FOLDER = "sandbox-local-"


class UnixLocalSandboxSession(NativeSandboxSession):
    """A session whose workspace is a folder of this machine."""

    state: UnixLocalSandboxSessionState
    _network_advice = "make the client with allow=['example.org', '@packages'] for named places, or network='host'"
    # Whether another client made the folder that is the workspace, for this session.
    _has_left_folder: bool = False

    def _default_client(self) -> ClientBase[Any]:
        return _default_client()

    def normalize_path(self, path: Path | str, *, for_write: bool = False) -> Path:
        policy = self._workspace_path_policy()
        return policy.normalize_path(path, for_write=for_write, resolve_symlinks=True)

    def _at(self, path: Path | str) -> str:
        text = os.fspath(path)
        root = self.state.manifest.root
        if os.path.isabs(text) and not text.startswith(root):
            # The root may have been named by a link, and the path by what the link leads to.
            real = os.path.realpath(root)
            if text == real or text.startswith(f"{real}/"):
                return os.path.join(root, os.path.relpath(text, real))
        return text

    async def read(self, path: Path, *, user: str | User | None = None) -> io.IOBase:
        if not self._is_down or not os.path.isdir(self.state.manifest.root):
            return await super().read(path, user=user)
        # The folder is still there, as with the reference; a machine is up as long as it takes.
        await self._boot()
        try:
            return await super().read(path, user=user)
        finally:
            await self.shutdown()

    async def _restore_snapshot_into_workspace_on_resume(self) -> None:
        root = self.state.manifest.root
        if not self.state.workspace_root_owned and await self._is_as_saved():
            # A folder of the caller's outlives its session, and is not cleared for what it holds already.
            return
        if self._has_left_folder:
            # Another client made this folder for the session. What is to come is judged before it is cleared.
            archive = await self.state.snapshot.restore(dependencies=self.dependencies)

            def judge() -> None:
                with tarfile.open(fileobj=archive, mode="r:*") as tar:
                    validate_tarfile(tar, allow_external_symlink_targets=False)

            try:
                await run_blocking_workspace_io(judge)
            except (UnsafeTarMemberError, tarfile.TarError, OSError) as error:
                raise WorkspaceArchiveWriteError(path=Path(root), cause=error) from error
            finally:
                archive.close()
            await self._clear_workspace_root_on_resume()
        await super()._restore_snapshot_into_workspace_on_resume()


class UnixLocalSandboxClient(ClientBase[UnixLocalSandboxClientOptions | None]):
    """Makes confined sessions in folders of this machine."""

    backend_id = "unix_local"
    _session_class = UnixLocalSandboxSession

    def __init__(
        self,
        *,
        instrumentation: Instrumentation | None = None,
        dependencies: Dependencies | None = None,
        inherit_host_environment: bool = False,
        host_environment_allowlist: Collection[str] | None = None,
        network: Literal["none", "host"] = "none",
        policy: Mapping[str, Any] | None = None,
        allow: Collection[str] = (),
        home: str | os.PathLike[str] | None = None,
    ) -> None:
        super().__init__(
            instrumentation=instrumentation,
            dependencies=dependencies,
            home=home,
            inherit_host_environment=inherit_host_environment,
            host_environment_allowlist=host_environment_allowlist,
        )
        if network not in ("none", "host"):
            raise ValueError(f"network={network!r} is neither 'none' nor 'host'")
        if isinstance(allow, str):
            raise TypeError("allow must be a collection of places")
        self._machine_options: dict[str, Any] = {"network": network}
        if policy is not None or allow:
            if network != "none":
                raise ValueError(f"network={network!r} has no policy: leave network out")
            policy = None if policy is None else dict(policy)
            self._machine_options = {"network": "policy", "policy": policy, "allow": list(allow)}

    def _options_of(self, state: UnixLocalSandboxSessionState) -> dict[str, Any]:
        return dict(self._machine_options)

    def _is_there(self, state: UnixLocalSandboxSessionState) -> bool:
        return state.manifest.root == DEFAULT_ROOT or os.path.isdir(state.manifest.root)

    def _settings(self, state: Any, options: dict[str, Any]) -> dict[str, Any]:
        settings = super()._settings(state, options)
        root = state.manifest.root
        if state.workspace_root_owned and (root == DEFAULT_ROOT or not os.path.isdir(root)):
            # It gets a folder of its own, which goes with it.
            settings["manifest"]["root"] = DEFAULT_ROOT
            settings["unix_local"] = True
        return settings

    async def _begin(self, state: Any) -> SandboxSession:
        root = state.manifest.root
        left = state.workspace_root_owned and root != DEFAULT_ROOT and os.path.isdir(root)
        session = await super()._begin(state)
        inner: Any = session._inner
        inner._has_left_folder = left and not inner._workspace_state_preserved_on_start()
        return session

    async def create(
        self,
        *,
        snapshot: SnapshotSpec | SnapshotBase | None = None,
        manifest: Manifest | None = None,
        options: UnixLocalSandboxClientOptions | None = None,
    ) -> SandboxSession:
        options = options if options is not None else UnixLocalSandboxClientOptions()
        manifest = manifest if manifest is not None else Manifest()
        _refuse_host_paths(manifest)
        check_mounts(manifest)
        session_id = new_id()
        state = UnixLocalSandboxSessionState(
            session_id=session_id,
            manifest=_own(manifest) if manifest.root == DEFAULT_ROOT else manifest,
            snapshot=resolve_snapshot(snapshot, str(session_id)),
            workspace_root_owned=manifest.root == DEFAULT_ROOT,
            exposed_ports=options.exposed_ports,
        )
        return await self._begin(state)

    async def resume(self, state: SandboxSessionState) -> SandboxSession:
        if not isinstance(state, UnixLocalSandboxSessionState):
            raise TypeError("UnixLocalSandboxClient.resume expects a UnixLocalSandboxSessionState")
        state.assert_path_grants_rebound()
        _refuse_host_paths(state.manifest)
        check_mounts(state.manifest)
        return await self._begin(state)

    async def delete(self, session: SandboxSession) -> SandboxSession:
        await super().delete(session)
        state: Any = session._inner.state
        root = Path(state.manifest.root)
        if state.workspace_root_owned and root.is_dir():
            # One that another client made for the session.
            await run_blocking_workspace_io(shutil.rmtree, root, True)
        return session

    def deserialize_session_state(self, payload: dict[str, object]) -> SandboxSessionState:
        state: Any = self._deserialize_session_state_payload(payload, UnixLocalSandboxSessionState)
        root = Path(state.manifest.root)
        is_made = root.name.startswith(_FOLDER) and root.parent == Path(tempfile.gettempdir())
        if root.is_dir() and not is_made:
            # Whatever a stored state says, it is no folder that was made for a session, and is not removed with it.
            state.workspace_root_owned = False
        result: SandboxSessionState = state
        return result


def _own(manifest: Manifest) -> Manifest:
    """A manifest of the session's own: what is added to it later is not added to the caller's. Entries are only read, and
    copying each of ten thousand takes longer than laying them out.
    """
    own: Manifest = manifest.model_copy(
        update={
            "entries": dict(manifest.entries),
            "users": list(manifest.users),
            "groups": list(manifest.groups),
            "environment": manifest.environment.model_copy(deep=True),
        }
    )
    return own


def _refuse_host_paths(manifest: Manifest) -> None:
    for grant in manifest.extra_path_grants:
        if grant.host_path is not None:
            raise ValueError(
                "UnixLocalSandboxClient does not support sandbox path grant host_path "
                f"for {grant.path!r}; omit host_path when both paths are the same"
            )


_shared: UnixLocalSandboxClient | None = None


def _default_client() -> UnixLocalSandboxClient:
    """The client of sessions that were made by hand."""
    global _shared
    if _shared is None:
        _shared = UnixLocalSandboxClient()
    return _shared
