"""The program `bastide`, which is installed with this package."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from typing import Any

from .errors import Internal, Unsupported

# It makes a sandbox of each kind, on machines that may be busy.
_PATIENCE = 300


def program() -> str:
    """Where the program is: beside the interpreter, else wherever it is found."""
    import sysconfig

    beside = os.path.join(sysconfig.get_path("scripts"), "bastide")
    found = beside if os.access(beside, os.X_OK) else shutil.which("bastide")
    if found is None:
        raise Unsupported(
            f"the program `bastide` is not in {os.path.dirname(beside)}",
            hint="install the package from its wheel",
        )
    return found


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
