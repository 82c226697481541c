"""The program `bastide`, which is installed with this package."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

from . import _native
from .errors import Internal, Unsupported

# It makes a sandbox of each kind, on machines that may be busy.
_PATIENCE = 300


def places() -> list[str]:
    """Where the program may be: where the package says that it was put, beside the interpreter, or on the search path."""
    import sysconfig
    from importlib.metadata import PackageNotFoundError, files

    found: list[str] = []
    try:
        for file in files("bastide") or ():
            if file.name == "bastide" and file.parts[-2:-1] == ("bin",):
                found.append(os.path.normpath(str(file.locate())))
    except PackageNotFoundError:
        # A copy of the sources has no record of what was installed.
        pass
    found.append(os.path.join(sysconfig.get_path("scripts"), "bastide"))
    # `pip install --target` puts it beside the package.
    found.append(str(Path(__file__).parent.parent / "bin" / "bastide"))
    found.extend(filter(None, [shutil.which("bastide")]))
    return list(dict.fromkeys(found))


# It has the guest in it, and the extension of a wheel has none.
_native.set_carrier(places)


def program() -> str:
    """Where the program is."""
    looked_at = places()
    for place in looked_at:
        if os.path.isfile(place) and os.access(place, os.X_OK):
            return place
    raise Unsupported(
        f"the program `bastide` is at none of {', '.join(looked_at)}",
        hint="install the package from its wheel",
    )


def examine(home: str) -> dict[str, Any]:
    """What `bastide doctor` finds."""
    command = [program(), "doctor", "--json"]
    environment = {**os.environ, "BASTIDE_HOME": home}
    try:
        done = subprocess.run(
            command,
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_PATIENCE,
        )
        found: dict[str, Any] = json.loads(done.stdout)
    except (OSError, ValueError, subprocess.TimeoutExpired) as error:
        raise Internal(f"bastide doctor said nothing that can be read: {error}") from error
    return found
