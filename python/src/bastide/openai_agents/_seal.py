"""What a stored state may ask for.

A state can come from anywhere, so by itself it grants nothing. What of it reaches outside is sealed with a
key of the home when it is stored. A state whose seal fits was stored by a client of this home.
"""

from __future__ import annotations

import hmac
import json
import os
import secrets
from pathlib import Path
from typing import Any

from agents.sandbox.entries import Dir, File

from .. import _native

_KEY_BYTES = 32


def _key(home: str) -> bytes:
    path = Path(home) / "state.key"
    try:
        found = path.read_bytes()
    except FileNotFoundError:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        temporary = path.with_name(f".state.key.{secrets.token_hex(8)}")
        number = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            with os.fdopen(number, "wb") as file:
                file.write(secrets.token_bytes(_KEY_BYTES))
                file.flush()
                os.fsync(file.fileno())
            # Whoever is first has made it.
            try:
                os.link(temporary, path)
            except FileExistsError:
                pass
        finally:
            os.unlink(temporary)
        found = path.read_bytes()
    if len(found) != _KEY_BYTES:
        raise ValueError(f"{path} is damaged; remove it, and stored states have to be vouched for")
    return found


def _outside_entries(entries: Any, prefix: str = "") -> list[tuple[str, str]]:
    found = []
    for key, entry in entries.items():
        path = f"{prefix}{key}"
        if type(entry) is Dir:
            found.extend(_outside_entries(entry.children, f"{path}/"))
        elif type(entry) is not File:
            found.append((path, json.dumps(entry.model_dump(mode="json"), sort_keys=True)))
    return found


def outside(state: Any) -> dict[str, Any]:
    """What of a state reaches outside its sandbox."""
    manifest = state.manifest
    return {
        "root": state._asked_root or manifest.root,
        "grants": sorted((grant.path, grant.read_only) for grant in manifest.extra_path_grants),
        "options": state.options.model_dump(mode="json"),
        "exposed_ports": list(state.exposed_ports),
        "snapshot": state.snapshot.model_dump(mode="json"),
        "entries": _outside_entries(manifest.entries),
    }


def seal(home: str, state: Any) -> str:
    text = json.dumps([state.session_id.hex, outside(state)], sort_keys=True)
    return _native.keyed_hash(_key(home), text.encode())


def check(home: str, state: Any, given: Any, default_root: str) -> bool:
    """Whether this home sealed a stored state. One that it did not, and that asks for more than the client gives,
    is refused.
    """
    if state.seal is not None:
        fitting = seal(home, state).encode()
        if hmac.compare_digest(state.seal.encode(errors="replace"), fitting):
            return True
    asked = outside(state)
    wanted: list[str] = []
    if asked["root"] != default_root:
        wanted.append(f"the folder {asked['root']!r} as its workspace")
    wanted.extend(f"the path {path!r}" for path, _read_only in asked["grants"])
    default = given.model_dump(mode="json")
    for name, value in asked["options"].items():
        if value != default[name]:
            # A policy says where secrets come from.
            wanted.append("a policy" if name == "policy" else f"{name}={value!r}")
    if asked["snapshot"]["type"] not in ("noop",):
        wanted.append(f"a snapshot of type {asked['snapshot']['type']!r}")
    wanted.extend(f"a source at {path!r}" for path, _shown in asked["entries"])
    ports = set(asked["exposed_ports"]) - set(given.exposed_ports)
    wanted.extend(f"the port {port}" for port in sorted(ports))
    if wanted:
        raise ValueError(
            f"the stored state of session {state.session_id.hex} was not sealed by this home, and asks for "
            + ", ".join(wanted)
        )
    return False
