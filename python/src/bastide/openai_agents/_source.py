"""Streams of a program as the extension takes them."""

from __future__ import annotations

import asyncio
import io
import os
import stat
import tempfile
from pathlib import Path
from typing import Any

from agents.sandbox.session.workspace_payloads import coerce_write_payload

_PIECE = 1 << 20
_IN_MEMORY = 8 << 20


def length(content: bytes | tuple[int, int]) -> int:
    """How many bytes a content has."""
    if isinstance(content, bytes):
        return len(content)
    number, start = content
    return max(os.fstat(number).st_size - start, 0)


async def source(path: str | Path, data: io.IOBase) -> tuple[Any, Any]:
    """The content of a stream, and what has to stay open until it was read.

    A file is read by the extension itself. Any other stream is read here, piece by piece, for only
    this thread may touch it.
    """
    if type(data) is io.BytesIO:
        return data.read(), None
    if isinstance(data, (io.BufferedReader, io.BufferedRandom, io.FileIO)):
        try:
            number, start = data.fileno(), data.tell()
            if stat.S_ISREG(os.fstat(number).st_mode):
                if isinstance(data, io.BufferedRandom):
                    data.flush()
                return (number, start), data
        except OSError:
            pass
    stream: Any = coerce_write_payload(path=Path(path), data=data).stream
    pieces: list[bytes] = []
    size = 0
    spilled: Any = None
    while piece := stream.read(_PIECE):
        size += len(piece)
        if spilled is None and size > _IN_MEMORY:
            spilled = tempfile.TemporaryFile()
            spilled.write(b"".join(pieces))
            pieces.clear()
        if spilled is None:
            pieces.append(piece)
        else:
            spilled.write(piece)
        await asyncio.sleep(0)
    if spilled is None:
        return b"".join(pieces), None
    spilled.flush()
    return (spilled.fileno(), 0), spilled
