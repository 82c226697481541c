"""Entries of a manifest as the extension takes them."""

from __future__ import annotations

from pathlib import Path, PurePath
from typing import Any

from agents.sandbox.entries import BaseEntry, Dir, File, GitRepo, LocalDir, LocalFile, Mount

Item = tuple[Any, ...]


def _text(key: str | PurePath) -> str:
    return key if isinstance(key, str) else key.as_posix()


def to_native(path: str | PurePath, entry: BaseEntry) -> Item | None:
    """An entry, if the extension can lay all of it out."""
    kind = type(entry)
    payload: Any
    if kind is File:
        payload = entry.content  # type: ignore[attr-defined]
        word = "file"
    elif kind is Dir:
        payload = []
        for name, child in entry.children.items():  # type: ignore[attr-defined]
            if isinstance(child, Mount):
                # What is mounted is mounted when all else is there.
                continue
            item = to_native(name, child)
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
