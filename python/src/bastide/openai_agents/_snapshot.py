"""Snapshots in the store of a home: only what changed is saved."""

from __future__ import annotations

import asyncio
import io
import os
import tempfile
from typing import Literal

from agents.sandbox.errors import SnapshotPersistError, SnapshotRestoreError
from agents.sandbox.session.dependencies import Dependencies
from agents.sandbox.snapshot import SnapshotBase, SnapshotSpec

from .. import _native
from .._home import home_folder
from ..errors import BastideError


class BastideSnapshot(SnapshotBase):
    """A snapshot in the store of a home. Other clients keep and fetch it as an archive."""

    type: Literal["bastide"] = "bastide"
    home: str | None = None

    def _store(self) -> _native.Store:
        return _native.Store(home_folder(self.home))

    def _place(self) -> str:
        return f"<bastide:{self.id}>"

    async def persist(self, data: io.IOBase, *, dependencies: Dependencies | None = None) -> None:
        from pathlib import Path

        with tempfile.TemporaryFile() as copy:
            while piece := data.read(1 << 20):
                copy.write(piece)
                await asyncio.sleep(0)
            copy.flush()
            try:
                await self._store().import_tar(self.id, copy.fileno())
            except BastideError as error:
                raise SnapshotPersistError(
                    snapshot_id=self.id, path=Path(self._place()), cause=error
                ) from error

    async def restore(self, *, dependencies: Dependencies | None = None) -> io.IOBase:
        from pathlib import Path

        try:
            return os.fdopen(await self._store().export(self.id), "rb")
        except BastideError as error:
            raise SnapshotRestoreError(
                snapshot_id=self.id, path=Path(self._place()), cause=error
            ) from error

    async def restorable(self, *, dependencies: Dependencies | None = None) -> bool:
        return await self._store().exists(self.id)


class BastideSnapshotSpec(SnapshotSpec):
    """Keeps the workspace of a session in the store of a home."""

    type: Literal["bastide"] = "bastide"
    home: str | None = None

    def build(self, snapshot_id: str) -> SnapshotBase:
        return BastideSnapshot(id=snapshot_id, home=self.home)
