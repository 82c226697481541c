"""Where sessions are kept, and which variables of this program they see."""

from __future__ import annotations

import os
import threading
from collections.abc import Collection
from pathlib import Path

from . import _native
from .errors import InvalidInput

# As the reference's, without the folder for temporary files: a session has a /tmp of its own.
ENVIRONMENT = frozenset(
    "PATH LANG LC_ALL LC_COLLATE LC_CTYPE LC_MESSAGES LC_MONETARY LC_NUMERIC LC_TIME TZ TERM"
    " SSL_CERT_FILE SSL_CERT_DIR REQUESTS_CA_BUNDLE NODE_EXTRA_CA_CERTS UV_PYTHON NO_COLOR"
    " FORCE_COLOR CI".split()
)

_clients: dict[tuple[object, ...], _native.Client] = {}
_lock = threading.Lock()


def _renew() -> None:
    global _lock
    _clients.clear()
    _lock = threading.Lock()


os.register_at_fork(after_in_child=_renew)


def home_folder(home: str | os.PathLike[str] | None) -> str:
    """The given home, else `BASTIDE_HOME`, else the user's."""
    if home is not None:
        return os.path.abspath(os.fspath(home))
    if chosen := os.environ.get("BASTIDE_HOME"):
        return os.path.abspath(chosen)
    if data := os.environ.get("XDG_DATA_HOME"):
        return str(Path(data).absolute() / "bastide")
    if own := os.environ.get("HOME"):
        return str(Path(own).absolute() / ".local/share/bastide")
    raise InvalidInput(
        "there is no folder to keep sessions in",
        hint="set HOME, or set BASTIDE_HOME to a folder of yours",
    )


def native_client(
    home: str,
    *,
    docker: bool = False,
    image: str | None = None,
    audit: bool = False,
    secrets: tuple[tuple[str, str], ...] = (),
) -> _native.Client:
    """The client of a home, one for all that want the same."""
    engine = certificates = None
    if docker:
        engine = os.environ.get("DOCKER_HOST") or None
        if engine and os.environ.get("DOCKER_TLS_VERIFY"):
            certificates = os.environ.get("DOCKER_CERT_PATH") or os.path.expanduser("~/.docker")
    key = (home, docker, image, engine, certificates, audit, secrets)
    with _lock:
        client = _clients.get(key)
        if client is None:
            client = _clients[key] = _native.Client(
                home,
                docker=docker,
                image=image,
                engine=engine,
                certificates=certificates,
                audit=audit,
                secrets=secrets,
                # Asked each time: a policy may name a variable that is set later.
                environment=os.environ.get,
            )
        return client


def shared_environment(names: Collection[str] | None = ENVIRONMENT) -> dict[str, str]:
    """The variables of this program that commands see; all of them if no names are given."""
    return {
        name: value
        for name, value in os.environ.items()
        if (names is None or name in names) and name not in ("HOME", "TMPDIR")
    }
