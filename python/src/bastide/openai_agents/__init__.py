"""A sandbox client for the OpenAI Agents SDK (openai-agents 0.24)."""

from importlib.metadata import PackageNotFoundError, version

_NEEDED = (0, 24)


def _check_sdk() -> None:
    advice = "install the extra: pip install 'bastide[openai-agents]'"
    try:
        found = version("openai-agents")
    except PackageNotFoundError:
        raise ImportError(f"bastide.openai_agents needs the OpenAI Agents SDK; {advice}") from None
    numbers = tuple(int(part) for part in found.split(".")[:2] if part.isdigit())
    if numbers < _NEEDED:
        raise ImportError(
            f"bastide.openai_agents needs openai-agents 0.24, and {found} is installed; {advice}"
        )


_check_sdk()

from ._mounts import BastideHostMountStrategy  # noqa: E402
from ._snapshot import BastideSnapshot, BastideSnapshotSpec  # noqa: E402
from .bastide import (  # noqa: E402
    BastideSandboxClient,
    BastideSandboxClientOptions,
    BastideSandboxSession,
    BastideSandboxSessionState,
)

__all__ = [
    "BastideHostMountStrategy",
    "BastideSandboxClient",
    "BastideSandboxClientOptions",
    "BastideSandboxSession",
    "BastideSandboxSessionState",
    "BastideSnapshot",
    "BastideSnapshotSpec",
]
