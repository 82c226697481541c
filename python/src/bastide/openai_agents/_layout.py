"""Laying out manifests, saving and restoring workspaces."""

from __future__ import annotations

import hashlib
import io
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from agents.sandbox.entries import BaseEntry, Dir, Mount, resolve_workspace_path
from agents.sandbox.errors import MountConfigError, WorkspaceArchiveWriteError
from agents.sandbox.manifest import Manifest
from agents.sandbox.materialization import MaterializationResult, MaterializedFile
from agents.sandbox.session import manifest_ops, snapshot_lifecycle
from agents.sandbox.snapshot import NoopSnapshot

from ..errors import BastideError
from ._errors import upstream_error
from ._files import FilesSession, used
from ._mounts import check_mounts, has_mounts, mount_entries, mounts
from ._native_entries import to_native
from ._snapshot import BastideSnapshot
from ._source import source


def _has_transient(entries: Mapping[Any, BaseEntry]) -> bool:
    """Whether anything among entries, or in folders among them, is in no snapshot."""
    return any(
        entry.ephemeral
        or isinstance(entry, Mount)
        or (isinstance(entry, Dir) and _has_transient(entry.children))
        for entry in entries.values()
    )


class LayoutSession(FilesSession):
    """A session whose workspace is made, saved and restored by the extension."""

    async def _validate_manifest_application(
        self,
        *,
        only_ephemeral: bool = False,
        manifest: Manifest | None = None,
        session_running: bool | None = None,
    ) -> None:
        manifest = manifest or self.state.manifest
        check_mounts(manifest)
        self._refuse_other_walls(manifest)

    async def _apply_manifest(
        self, *, only_ephemeral: bool = False, provision_accounts: bool = True
    ) -> MaterializationResult:
        manifest = self.state.manifest
        check_mounts(manifest)
        await self._up("start")
        if provision_accounts and not only_ephemeral:
            await self.provision_manifest_accounts()
        entries: Any
        if only_ephemeral:
            applier = manifest_ops._build_manifest_applier(self, include_entry_concurrency=False)
            entries = applier._ephemeral_entries(manifest)
        else:
            entries = manifest.entries.items()
        files = await self._lay_out(entries, self._manifest_base_dir())
        if has_mounts(manifest):
            native = self._native or await self._up("start")
            try:
                await native.mount()
            except BastideError as error:
                raise upstream_error(error, "start", path=manifest.root) from error
        return MaterializationResult(files=files)

    async def _apply_entry_batch(
        self, entries: Sequence[tuple[Path, BaseEntry]], *, base_dir: Path
    ) -> list[MaterializedFile]:
        added = next(mounts(dict(entries)), None)
        if added is not None:
            raise MountConfigError(
                message="a session is mounted into when it starts: add the mount to its manifest",
                context={"mount_type": added.type},
            )
        await self._up("start")
        root = Path(self.state.manifest.root)
        inside = []
        for dest, entry in entries:
            try:
                inside.append((dest.relative_to(root), entry))
            except ValueError:
                inside.append((dest, entry))
        return await self._lay_out(inside, base_dir)

    async def _lay_out(
        self, entries: Sequence[tuple[str | Path, BaseEntry]], base_dir: Path
    ) -> list[MaterializedFile]:
        files: list[MaterializedFile] = []
        items: list[tuple[Any, ...]] = []

        async def flush() -> None:
            if not items:
                return
            native = self._native or await self._up("start")
            try:
                copied = await native.apply(list(items), base_dir)
            except BastideError as error:
                raise upstream_error(error, "start", path=self.state.manifest.root) from error
            items.clear()
            files.extend(MaterializedFile(path=Path(path), sha256=sha) for path, sha in copied)

        for key, entry in entries:
            if isinstance(entry, Mount):
                continue
            item = to_native(key, entry)
            if item is not None and not os.path.isabs(item[0]):
                items.append(item)
                continue
            # A type of the program's own, or a folder that has one: it lays itself out.
            await flush()
            dest = resolve_workspace_path(
                self.state.manifest.root,
                Manifest._coerce_rel_path(key),
                allow_absolute_within_root=False,
            )
            files.extend(await entry.apply(self, dest, base_dir))
        await flush()
        return files

    async def provision_manifest_accounts(self) -> None:
        manifest = self.state.manifest
        if not manifest.users and not manifest.groups:
            return
        native = self._native or await self._up("start")
        try:
            await native.provision(
                [user.name for user in manifest.users],
                [(group.name, [user.name for user in group.users]) for group in manifest.groups],
            )
        except BastideError as error:
            raise upstream_error(error, "start", path=manifest.root) from error

    def _persist_workspace_skip_relpaths(self) -> set[Path]:
        if _has_transient(self.state.manifest.entries):
            skipped: set[Path] = super()._persist_workspace_skip_relpaths()
            return skipped
        # Ten thousand paths are not looked at where there is nothing to leave out.
        return set(self._runtime_persist_workspace_skip_relpaths or ())

    def _skipped(self) -> list[str]:
        # Mounts are in no snapshot anyway.
        mounted = mount_entries(self.state.manifest)
        paths = (path.as_posix() for path in self._persist_workspace_skip_relpaths())
        return sorted(path for path in paths if path not in mounted)

    async def persist_workspace(self) -> io.IOBase:
        stream, _sha256 = await self._archive()
        return stream

    async def _archive(self) -> tuple[io.IOBase, str]:
        native = self._native or await self._up("persist_workspace")
        try:
            number, sha256 = await native.persist(self._skipped())
        except BastideError as error:
            root = self.state.manifest.root
            raise upstream_error(error, "persist_workspace", path=root) from error
        return os.fdopen(number, "rb"), sha256

    async def hydrate_workspace(self, data: io.IOBase) -> None:
        native = self._native or await self._up("hydrate_workspace")
        root = self.state.manifest.root
        try:
            content, held = await source(root, data)
        except OSError as error:
            raise WorkspaceArchiveWriteError(path=Path(root), cause=error) from error
        try:
            await native.hydrate(content)
        except BastideError as error:
            raise upstream_error(error, "hydrate_workspace", path=root) from error
        finally:
            used(held, data)

    async def _persist_snapshot(self) -> None:
        snapshot = self.state.snapshot
        if isinstance(snapshot, NoopSnapshot):
            return
        native = self._native or await self._up("stop")
        if type(snapshot) is BastideSnapshot:
            try:
                await snapshot._store().save(native, snapshot.id, self._skipped())
            except BastideError as error:
                raise upstream_error(error, "stop", path=self.state.manifest.root) from error
            self.state.snapshot_fingerprint = None
            self.state.snapshot_fingerprint_version = None
            return
        archive, sha256 = await self._own_archive()
        try:
            await snapshot.persist(archive, dependencies=self.dependencies)
        finally:
            archive.close()
        fingerprint = self._fingerprint(sha256)
        version = None if fingerprint is None else self._snapshot_fingerprint_version()
        self.state.snapshot_fingerprint = fingerprint
        self.state.snapshot_fingerprint_version = version

    def _fingerprint(self, sha256: str | None) -> str | None:
        """What a workspace with this archive looks like."""
        if sha256 is None:
            return None
        try:
            digest = self._resume_manifest_digest()
        except Exception:
            # A manifest that cannot be written down has no fingerprint.
            return None
        return hashlib.sha256(f"{sha256}\n{digest}\n".encode()).hexdigest()

    async def _is_as_saved(self) -> bool:
        """Whether the workspace looks as it did when it was last saved."""
        state = self.state
        saved = state.snapshot_fingerprint
        if not saved or state.snapshot_fingerprint_version != self._snapshot_fingerprint_version():
            return False
        try:
            archive, sha256 = await self._own_archive()
        except Exception:
            # What cannot be found out counts as no.
            return False
        archive.close()
        return self._fingerprint(sha256) == saved

    async def _own_archive(self) -> tuple[io.IOBase, str | None]:
        """The workspace as an archive, by a subclass's own way if it has one."""
        if type(self).persist_workspace is not LayoutSession.persist_workspace:
            return await self.persist_workspace(), None
        return await self._archive()

    async def _restore_snapshot_into_workspace_on_resume(self) -> None:
        snapshot = self.state.snapshot
        native = self._native or await self._up("start")
        root = self.state.manifest.root
        try:
            if type(snapshot) is BastideSnapshot:
                await snapshot._store().restore(native, snapshot.id)
                return
            archive = await snapshot.restore(dependencies=self.dependencies)
            try:
                content, held = await source(root, archive)
                await native.restore(content)
                del held
            finally:
                snapshot_lifecycle._close_best_effort(archive)
        except BastideError as error:
            raise upstream_error(error, "hydrate_workspace", path=root) from error
