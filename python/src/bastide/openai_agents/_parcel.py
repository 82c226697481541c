"""Entries of a manifest as the extension takes them."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path, PurePath
from typing import Any

from agents.sandbox.entries import BaseEntry, Dir, File, GitRepo, LocalDir, LocalFile, Mount
from agents.sandbox.errors import MountConfigError
from agents.sandbox.manifest import Manifest

Item = tuple[Any, ...]


def has_mount(entries: Iterable[BaseEntry]) -> bool:
    """Whether there is a mount among entries, or in a folder among them."""
    for entry in entries:
        if isinstance(entry, Mount):
            return True
        if isinstance(entry, Dir) and has_mount(entry.children.values()):
            return True
    return False


def refuse_mounts(manifest: Manifest) -> None:
    """Mounts are refused before anything is made."""
    if has_mount(manifest.entries.values()):
        raise MountConfigError(
            message="sandboxes of the Python package cannot mount storage",
            context={"backend": "bastide"},
        )


def _text(key: str | PurePath) -> str:
    return key if isinstance(key, str) else key.as_posix()


def parcel(path: str | PurePath, entry: BaseEntry) -> Item | None:
    """An entry, if the extension can lay all of it out."""
    kind = type(entry)
    payload: Any
    if kind is File:
        payload = entry.content  # type: ignore[attr-defined]
        word = "file"
    elif kind is Dir:
        payload = []
        for name, child in entry.children.items():  # type: ignore[attr-defined]
            item = parcel(name, child)
            if item is None:
                return None
            payload.append(item)
        word = "dir"
    elif kind is LocalFile:
        payload, word = str(entry.src), "local_file"  # type: ignore[attr-defined]
    elif kind is LocalDir:
        src: Path | None = entry.src  # type: ignore[attr-defined]
        payload, word = None if src is None else str(src), "local_dir"
    elif kind is GitRepo:
        repo: Any = entry
        payload, word = (repo.host, repo.repo, repo.ref, repo.subpath), "git_repo"
    else:
        return None
    mode = entry.permissions.to_mode() & 0o777
    group = None if entry.group is None else entry.group.name
    return _text(path), word, payload, mode, group
