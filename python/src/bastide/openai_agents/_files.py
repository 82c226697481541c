"""The files of a session."""

from __future__ import annotations

import io
import os
from pathlib import Path
from typing import Any, Literal

from agents.run_config import SandboxArchiveLimits
from agents.sandbox.errors import WorkspaceArchiveWriteError
from agents.sandbox.files import EntryKind, FileEntry
from agents.sandbox.types import Permissions, User

from ..errors import BastideError
from ._errors import upstream_error
from ._machine import MachineSession, user_name
from ._source import source

_KINDS = {kind.value: kind for kind in EntryKind}


class FilesSession(MachineSession):
    """A session whose files are reached by the extension."""

    async def read(self, path: Path, *, user: str | User | None = None) -> io.IOBase:
        native = self._native or await self._up("read")
        try:
            found = await native.read(self._at(path), user_name(user))
        except BastideError as error:
            raise upstream_error(error, "read", path=path) from error
        return io.BytesIO(found) if isinstance(found, bytes) else os.fdopen(found, "rb")

    async def _read_bounded(self, path: Path, *, max_bytes: int) -> bytes:
        native = self._native or await self._up("read")
        try:
            return await native.read_bounded(self._at(path), max_bytes)
        except BastideError as error:
            raise upstream_error(error, "read", path=path) from error

    async def write(
        self, path: Path, data: io.IOBase, *, user: str | User | None = None
    ) -> None:
        await self._write(path, data, user=user, new=False)

    async def _write_new_file(
        self, path: Path, data: io.IOBase, *, user: str | User | None = None
    ) -> None:
        await self._write(path, data, user=user, new=True)

    async def _write(
        self, path: Path, data: io.IOBase, *, user: str | User | None, new: bool
    ) -> None:
        native = self._native or await self._up("write")
        try:
            content, held = await source(path, data)
        except OSError as error:
            # A stream that cannot be read is a file that cannot be written; what else it raises is its own.
            raise WorkspaceArchiveWriteError(path=self._shown(path), cause=error) from error
        try:
            await native.write(self._at(path), content, user=user_name(user), new=new)
        except BastideError as error:
            raise upstream_error(error, "write", path=path) from error
        finally:
            used(held, data)

    async def _write_content(self, path: Path, content: Any) -> None:
        """Writes what was read already."""
        native = self._native or await self._up("write")
        try:
            await native.write(self._at(path), content, user=None, new=False)
        except BastideError as error:
            raise upstream_error(error, "write", path=path) from error

    async def ls(
        self, path: Path | str, *, user: str | User | None = None
    ) -> list[FileEntry]:
        native = self._native or await self._up("ls")
        try:
            rows = await native.ls(self._at(path), user_name(user))
        except BastideError as error:
            raise upstream_error(error, "ls", path=path) from error
        shared: dict[tuple[int, str], Permissions] = {}
        entries = []
        for place, mode, owner, group, size, kind in rows:
            permissions = shared.get((mode, kind))
            if permissions is None:
                permissions = Permissions.from_mode(mode & 0o777)
                permissions.directory = kind == "directory"
                shared[mode, kind] = permissions
            entries.append(
                FileEntry(
                    path=place,
                    permissions=permissions,
                    owner=owner,
                    group=group,
                    size=size,
                    kind=_KINDS[kind],
                )
            )
        return entries

    async def mkdir(
        self, path: Path | str, *, parents: bool = False, user: str | User | None = None
    ) -> None:
        native = self._native or await self._up("mkdir")
        try:
            await native.mkdir(self._at(path), parents=parents, user=user_name(user))
        except BastideError as error:
            raise upstream_error(error, "mkdir", path=path) from error

    async def rm(
        self, path: Path | str, *, recursive: bool = False, user: str | User | None = None
    ) -> None:
        native = self._native or await self._up("rm")
        try:
            await native.rm(self._at(path), recursive=recursive, user=user_name(user))
        except BastideError as error:
            raise upstream_error(error, "rm", path=path) from error

    async def mv(
        self,
        source: Path | str,
        destination: Path | str,
        *,
        user: str | User | None = None,
    ) -> None:
        native = self._native or await self._up("mv")
        try:
            await native.mv(self._at(source), self._at(destination), user_name(user))
        except BastideError as error:
            raise upstream_error(error, "mv", path=destination) from error

    async def same_file(
        self,
        left: Path | str,
        right: Path | str,
        *,
        follow_symlinks: bool = True,
        user: str | User | None = None,
    ) -> bool:
        native = self._native or await self._up("same_file")
        try:
            return await native.same_file(
                self._at(left), self._at(right), follow=follow_symlinks, user=user_name(user)
            )
        except BastideError as error:
            raise upstream_error(error, "same_file", path=left) from error

    async def extract(
        self,
        path: Path | str,
        data: io.IOBase,
        *,
        compression_scheme: Literal["tar", "zip"] | None = None,
        archive_limits: SandboxArchiveLimits | None = None,
    ) -> None:
        if archive_limits is not None:
            archive_limits.validate()
        content, held = await source(path, data)
        try:
            await self._extract(path, content, compression_scheme, archive_limits)
        finally:
            used(held, data)

    async def _extract(
        self,
        path: Path | str,
        content: Any,
        compression_scheme: Literal["tar", "zip"] | None,
        archive_limits: SandboxArchiveLimits | None,
    ) -> None:
        """Writes an archive that was read already, and unpacks it."""
        limits = archive_limits if archive_limits is not None else self._archive_limits
        native = self._native or await self._up("write")
        try:
            await native.extract(
                self._at(path),
                content,
                scheme=compression_scheme,
                limits=None
                if limits is None
                else (limits.max_input_bytes, limits.max_extracted_bytes, limits.max_members),
            )
        except BastideError as error:
            raise upstream_error(error, "write", path=path) from error

    def _shown(self, path: Path | str) -> Path:
        """A path as errors about writing name it."""
        try:
            return self.normalize_path(path, for_write=True)
        except Exception:
            return Path(path)


def used(held: Any, data: io.IOBase) -> None:
    """Leaves a stream as if it had been read here."""
    if held is None:
        return
    if held is data:
        data.seek(0, io.SEEK_END)
    else:
        held.close()
