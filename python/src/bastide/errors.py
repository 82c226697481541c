"""Errors of Bastide."""

from __future__ import annotations

from typing import Any


class BastideError(Exception):
    """Something failed: what kind of failure it is, why, and what to do next."""

    kind: str = "internal"

    def __init__(
        self,
        message: str,
        *,
        kind: str | None = None,
        code: str | None = None,
        hint: str | None = None,
        context: dict[str, Any] | None = None,
        retryable: bool | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        if kind is not None:
            self.kind = kind
        self.code = code if code is not None else self.kind
        self.hint = hint
        self.context: dict[str, Any] = context if context is not None else {}
        self.retryable = retryable
        # What is known beside it, for programs written against the reference.
        self._call: str = ""
        self._class_name: str | None = None
        self._error_code: str | None = None
        self._op: str | None = None
        self._command: list[str] | None = None
        self._exit_code: int | None = None
        self._stdout: bytes | None = None
        self._stderr: bytes | None = None
        self._timeout_s: float | None = None
        self._session_id: int | None = None
        self._causes: list[str] = []

    def __str__(self) -> str:
        text = self.message
        if self._causes:
            text = f"{text}: {self._causes[-1]}"
        return text if self.hint is None else f"{text} ({self.hint})"


class InvalidInput(BastideError, ValueError):
    kind = "invalid_input"


class NotFound(BastideError, FileNotFoundError):
    kind = "not_found"


class Conflict(BastideError):
    kind = "conflict"


class PermissionDenied(BastideError, PermissionError):
    kind = "permission_denied"


class Unsupported(BastideError):
    kind = "unsupported"


class Timeout(BastideError, TimeoutError):
    kind = "timeout"


class Cancelled(BastideError):
    kind = "cancelled"


class LimitExceeded(BastideError):
    kind = "limit_exceeded"


class CommandFailed(BastideError):
    kind = "command_failed"


class AgentLost(BastideError, ConnectionError):
    kind = "agent_lost"


class BackendLost(BastideError, ConnectionError):
    kind = "backend_lost"


class IoFailed(BastideError, OSError):
    kind = "io"


class Internal(BastideError):
    kind = "internal"


_BY_KIND: dict[str, type[BastideError]] = {
    cls.kind: cls
    for cls in (
        InvalidInput,
        NotFound,
        Conflict,
        PermissionDenied,
        Unsupported,
        Timeout,
        Cancelled,
        LimitExceeded,
        CommandFailed,
        AgentLost,
        BackendLost,
        IoFailed,
        Internal,
    )
}


def _made(fields: dict[str, Any]) -> BastideError:
    """The exception of an error of the extension, which calls this."""
    kind = fields["kind"]
    error = _BY_KIND.get(kind, Internal)(
        fields["message"],
        kind=kind,
        code=fields["error_code"],
        hint=fields["hint"],
        context=fields["context"],
        # What is lost does not come back by asking again.
        retryable=False if kind in ("agent_lost", "backend_lost") else fields["retryable"],
    )
    for name in (
        "call",
        "class_name",
        "error_code",
        "op",
        "command",
        "exit_code",
        "stdout",
        "stderr",
        "timeout_s",
        "session_id",
        "causes",
    ):
        setattr(error, f"_{name}", fields[name])
    return error
