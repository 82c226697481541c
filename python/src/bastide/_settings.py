"""What a new sandbox is to be."""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

from ._home import shared_environment
from .errors import InvalidInput

PathLike = str | os.PathLike[str]
#: Seconds, or a time as the standard library has it.
Time = float | timedelta

_UNITS = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}


def seconds_of(time: Time | None) -> float | None:
    if time is None:
        return None
    try:
        found = time.total_seconds() if isinstance(time, timedelta) else float(time)
    except (TypeError, ValueError):
        found = math.nan
    if not math.isfinite(found) or found <= 0:
        raise InvalidInput(f"{time!r} is no time a lease can have", hint="give it in seconds, as in ttl=3600")
    return found


def _bytes_of(size: int | str | None) -> int | None:
    if size is None or isinstance(size, int):
        return size
    found = re.fullmatch(r"\s*(\d+)\s*([kmgt]?)(?:i?b)?\s*", size.lower())
    if found is None:
        raise InvalidInput(f"{size!r} is no size", hint="write it as in 512m or 1g")
    return int(found[1]) * _UNITS[found[2]]


def settings_of(
    manifest: PathLike | Mapping[str, Any] | None,
    *,
    backend: str,
    image: str | None,
    network: str,
    isolation: str,
    nested_sandbox: bool,
    memory: int | str | None,
    pids: int | None,
    cpus: float | None,
    disk: int | str | None,
    env: Mapping[str, str] | None,
    workspace: PathLike | None,
    policy: PathLike | Mapping[str, Any] | None,
    allow: Sequence[str],
    secrets: Mapping[str, str] | None,
    journal: bool,
    ttl: Time | None,
    idle: Time | None,
    then: str,
    keep: bool,
) -> str:
    """A new sandbox as the extension takes it."""
    if backend not in ("local", "docker"):
        raise InvalidInput(f"there is no backend {backend!r}", hint="it is `local` or `docker`")
    if (image is not None) != (backend == "docker"):
        raise InvalidInput("an image and the backend `docker` belong together")
    if any(not isinstance(value, str) for value in (env or {}).values()):
        raise InvalidInput("the values of env have to be text")
    settings: dict[str, Any] = {
        "network": network,
        "isolation": isolation,
        "nested_sandbox": nested_sandbox,
        "memory": _bytes_of(memory),
        "pids": pids,
        "cpu_millis": None if cpus is None else round(cpus * 1000),
        "disk": _bytes_of(disk),
        "env": {**(shared_environment() if backend == "local" else {}), **(env or {})},
        "journal": journal,
        "ttl": seconds_of(ttl),
        "idle": seconds_of(idle),
        "then": then,
        "tied": not keep,
        "starts": True,
        "manifest": {},
        "base_dir": os.getcwd(),
    }
    if then not in ("stop", "delete"):
        raise InvalidInput(f"a lease does not end by {then!r}", hint="it is `stop` or `delete`")
    if isinstance(allow, str):
        raise InvalidInput("allow is a list of places", hint=f"write allow=[{allow!r}]")
    if policy is not None or allow or secrets:
        settings["network"] = "policy" if network == "none" else network
        settings["allow"] = list(allow)
        settings["secrets"] = dict(secrets or {})
    if isinstance(policy, Mapping):
        settings["policy"] = dict(policy)
    elif policy is not None:
        path = Path(policy).absolute()
        settings["policy_name"] = os.fspath(path)
        settings["policy_text"] = path.read_text()
    if isinstance(manifest, Mapping):
        settings["manifest"] = dict(manifest)
    elif manifest is not None:
        path = Path(manifest).absolute()
        settings["manifest_name"] = os.fspath(path)
        settings["manifest_text"] = path.read_text()
        settings["base_dir"] = os.fspath(path.parent)
    if workspace is not None:
        if manifest is not None:
            raise InvalidInput("give either a manifest with a `root` or a workspace")
        settings["manifest"] = {"root": os.path.abspath(os.fspath(workspace))}
    return json.dumps(settings)
