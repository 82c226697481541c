"""Errors of Bastide as the SDK's classes."""

from __future__ import annotations

import builtins
from pathlib import Path
from typing import Any

from agents.sandbox import errors as upstream

from ..errors import BastideError

# Which class an error of our own has, by the operation it comes from.
_BY_CALL: dict[str, type[upstream.SandboxError]] = {
    "exec": upstream.ExecTransportError,
    "pty": upstream.ExecTransportError,
    "read": upstream.WorkspaceArchiveReadError,
    "ls": upstream.WorkspaceArchiveReadError,
    "same_file": upstream.WorkspaceArchiveReadError,
    "persist_workspace": upstream.WorkspaceArchiveReadError,
    "write": upstream.WorkspaceArchiveWriteError,
    "rm": upstream.WorkspaceArchiveWriteError,
    "mv": upstream.WorkspaceArchiveWriteError,
    "mkdir": upstream.WorkspaceArchiveWriteError,
    "hydrate_workspace": upstream.WorkspaceArchiveWriteError,
    "create": upstream.WorkspaceStartError,
    "resume": upstream.WorkspaceStartError,
    "start": upstream.WorkspaceStartError,
    "stop": upstream.WorkspaceStopError,
    "shutdown": upstream.WorkspaceStopError,
    "delete": upstream.WorkspaceStopError,
    "resolve_exposed_port": upstream.ExposedPortUnavailableError,
}

_BUILTIN = {
    "ValueError",
    "TypeError",
    "RuntimeError",
    "OSError",
    "FileExistsError",
    "TimeoutError",
    "OverflowError",
}
# Classes of libraries that are made only by those libraries; each is a ValueError there.
_AS_VALUE_ERROR = {"UnicodeDecodeError", "JSONDecodeError", "ValidationError"}


def upstream_error(
    error: BastideError,
    call: str,
    *,
    path: str | Path | None = None,
    command: tuple[str, ...] = (),
    port: int | None = None,
) -> BaseException:
    """The SDK's exception for an error of the extension."""
    name = error._class_name
    if name in _BUILTIN:
        made: BaseException = getattr(builtins, str(name))(error.message)
        return made
    if name in _AS_VALUE_ERROR:
        return ValueError(str(error))
    cls = getattr(upstream, name, None) if name is not None else None
    if isinstance(cls, type) and issubclass(cls, upstream.SandboxError):
        return built(cls, error)
    if error.kind == "invalid_input" and call not in ("exec", "pty", "read", "write"):
        return ValueError(str(error))
    return own_error(error, call, path=path, command=command, port=port)


def built(cls: type[upstream.SandboxError], error: BastideError) -> upstream.SandboxError:
    """An instance of one of the SDK's classes, with what the core knows."""
    made = cls.__new__(cls)
    context = dict(error.context)
    if isinstance(context.get("command"), list) and issubclass(cls, upstream.ExecFailureError):
        context["command"] = tuple(context["command"])
    cause = BastideError("; ".join(error._causes)) if error._causes else None
    upstream.SandboxError.__init__(
        made,
        message=error.message,
        error_code=upstream.ErrorCode(error._error_code),
        op=error._op,  # type: ignore[arg-type]
        context=context,
        cause=cause,
        retryable=error.retryable,
    )
    fields: dict[str, Any] = {
        "exit_code": error._exit_code,
        "stdout": error._stdout,
        "stderr": error._stderr,
        "timeout_s": error._timeout_s,
        "session_id": error._session_id,
    }
    if error._command is not None:
        fields["command"] = tuple(error._command)
    for name, value in fields.items():
        if value is not None:
            setattr(made, name, value)
    if isinstance(made, upstream.ExecFailureError) and not hasattr(made, "command"):
        # Something else than a command found out that the session is gone.
        made.command = ()
    if isinstance(made, upstream.ExecTimeoutError) and not hasattr(made, "timeout_s"):
        made.timeout_s = None
    return made


def own_error(
    error: BastideError,
    call: str,
    *,
    path: str | Path | None = None,
    command: tuple[str, ...] = (),
    port: int | None = None,
) -> upstream.SandboxError:
    """An error that the SDK has no class for gets the class of its operation."""
    context: dict[str, object] = {
        "bastide": {"kind": error.kind, "code": error.code, "hint": error.hint},
        "detail": str(error),
    }
    made: Any
    cls: Any = _BY_CALL.get(call, upstream.ExecTransportError)
    if cls is upstream.ExecTransportError:
        made = cls(command=command, context=context, cause=error)
    elif cls is upstream.ExposedPortUnavailableError:
        made = cls(
            port=port or 0,
            exposed_ports=(),
            reason="backend_unavailable",
            context=context,
            cause=error,
        )
    else:
        made = cls(path=Path(path if path is not None else "."), context=context, cause=error)
    if made.retryable is None:
        made.retryable = error.retryable
    result: upstream.SandboxError = made
    return result
