"""Sandboxes for software agents.

`Sandbox` is the asynchronous interface, `bastide.sync.Sandbox` the one that waits.
`bastide.openai_agents` has a sandbox client for the OpenAI Agents SDK.
"""

from . import _bridge as _bridge
from . import errors
from ._process import Process
from ._sandbox import Done, Entry, Sandbox, doctor, list_sessions, sweep
from .errors import BastideError

__all__ = [
    "BastideError",
    "Done",
    "Entry",
    "Process",
    "Sandbox",
    "doctor",
    "errors",
    "list_sessions",
    "sweep",
]
