"""What both clients' sessions have in common: their life and their commands."""

from __future__ import annotations

import dataclasses
import io
import logging
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

from agents.run_config import SandboxArchiveLimits
from agents.sandbox.errors import (
    ExecTimeoutError,
    ExecTransportError,
    InvalidCompressionSchemeError,
    PtySessionNotFoundError,
    WorkspaceArchiveWriteError,
)
from agents.sandbox.manifest import EnvEntry, StrEnvValue
from agents.sandbox.session import SandboxSession
from agents.sandbox.session.pty_types import PtyExecUpdate
from agents.sandbox.types import ExecResult, ExposedPortEndpoint, User

from .._native import Session
from ..errors import BastideError
from ._errors import upstream_error
from ._files import used
from ._layout import LayoutSession
from ._machine import user_name
from ._mounts import check_mounts
from ._source import length, source

_log = logging.getLogger("bastide")

# What resolvers and clients say where there is no network.
_NO_NETWORK = (
    b"Could not resolve",
    b"could not resolve",
    b"Failed to resolve",
    b"failed to lookup address",
    b"no such host",
    b"Temporary failure in name resolution",
    b"Temporary failure resolving",
    b"Name or service not known",
    b"Network is unreachable",
    b"network is unreachable",
    b"ENETUNREACH",
    b"EAI_AGAIN",
    b"getaddrinfo",
    b"unable to resolve",
)


# How much of what a command said last is looked through for that.
_LOOKED_AT = 1 << 16


class BastideExecResult(ExecResult):
    """As the SDK's, with a hint where Bastide knows what would help."""

    hint: str | None = None


@dataclasses.dataclass(frozen=True)
class BastidePtyExecUpdate(PtyExecUpdate):
    """As the SDK's, with a hint where Bastide knows what would help."""

    hint: str | None = None


class NativeSandboxSession(LayoutSession):
    """A session of the extension behind the SDK's interface."""

    _network_advice: str = ""
    # Whether it was said once that there is no network.
    _is_told: bool = False
    # Whether its workspace was saved since it was started.
    _is_saved: bool = False

    # -- lifecycle --------------------------------------------------------------------------------

    async def start(self) -> None:
        check_mounts(self.state.manifest)
        self._is_saved = False
        if self._native is None:
            self._is_down = False
        await self._up("start")
        self._refuse_other_walls(self.state.manifest)
        try:
            await self._start_workspace()
        except Exception as error:
            self._is_started = False
            await self._after_start_failed()
            wrapped = self._wrap_start_error(error)
            if wrapped is error:
                raise
            raise wrapped from error
        self._is_started = True
        await self._after_start()
        self.state.workspace_root_ready = True
        # Starting again is no reason to begin from nothing.
        self._set_start_state_preserved(True)

    async def _start_workspace(self) -> None:
        kept = self._workspace_state_preserved_on_start()
        snapshot = self.state.snapshot
        if await snapshot.restorable(dependencies=self.dependencies):
            if kept and not self._client()._discards_changes:
                await self._apply_manifest(only_ephemeral=True, provision_accounts=False)
                return
            await self._restore_snapshot_into_workspace_on_resume()
            if self.should_provision_manifest_accounts_on_resume():
                await self.provision_manifest_accounts()
            await self._apply_manifest(only_ephemeral=True, provision_accounts=False)
        elif kept:
            if self.should_provision_manifest_accounts_on_resume():
                await self.provision_manifest_accounts()
            await self._apply_manifest(only_ephemeral=True, provision_accounts=False)
        else:
            await self._apply_manifest(
                provision_accounts=self.should_provision_manifest_accounts_on_resume()
            )

    async def stop(self) -> None:
        check_mounts(self.state.manifest)
        if self._is_down and self._is_saved:
            # Closing twice is once.
            return
        try:
            try:
                await self._before_stop()
                await self._persist_snapshot()
                self._is_saved = True
            except Exception as error:
                wrapped = self._wrap_stop_error(error)
                if wrapped is error:
                    raise
                raise wrapped from error
        finally:
            await self._after_stop()

    def _wrap_stop_error(self, error: Exception) -> Exception:
        from agents.sandbox.errors import WorkspaceStopError

        return WorkspaceStopError(path=Path(self.state.manifest.root), cause=error)

    async def _before_stop(self) -> None:
        await self.pty_terminate_all()

    async def shutdown(self) -> None:
        await self._settled()
        native, self._native = self._native, None
        self._is_down = True
        self._is_started = False
        if native is not None:
            try:
                await native.shutdown()
            except BastideError as error:
                raise upstream_error(error, "shutdown", path=self.state.manifest.root) from error

    async def running(self) -> bool:
        native = self._native
        return self._is_started and native is not None and await native.answers()

    def supports_pty(self) -> bool:
        return True

    # -- commands ---------------------------------------------------------------------------------

    def _shell(self) -> list[str]:
        return ["sh", "-c"]

    def _argv(self, command: Sequence[str | Path], shell: bool | list[str]) -> list[str]:
        argv = [str(part) for part in command]
        if shell:
            line = argv[0] if len(argv) == 1 else shlex.join(argv)
            argv = [*(shell if isinstance(shell, list) else self._shell()), line]
        return argv

    async def _environment(self) -> list[tuple[str, str]]:
        found: list[tuple[str, str]] = []
        for key, value in self.state.manifest.environment.value.items():
            if isinstance(value, EnvEntry):
                value = value.value
            if type(value) is StrEnvValue:
                value = value.value
            if not isinstance(value, str):
                resolved = await self.state.manifest.environment.resolve()
                return [pair for pair in resolved.items() if pair[0] != "HOME"]
            # The workspace is always the home.
            if key != "HOME":
                found.append((key, value))
        return found

    async def exec(
        self,
        *command: str | Path,
        timeout: float | None = None,
        shell: bool | list[str] = True,
        user: str | User | None = None,
    ) -> ExecResult:
        native = self._native or await self._up("exec")
        return await self._run(native, self._argv(command, shell), timeout, user_name(user))

    async def _exec_internal(
        self, *command: str | Path, timeout: float | None = None
    ) -> ExecResult:
        native = self._native or await self._up("exec")
        return await self._run(native, [str(part) for part in command], timeout, None)

    async def _run(
        self, native: Session, argv: list[str], timeout: float | None, user: str | None
    ) -> ExecResult:
        limit = timeout
        try:
            # Nothing is later than what is no number, so nothing ends there.
            limit = None if timeout is not None and timeout != timeout else timeout
            out, err, code = await native.exec(argv, await self._environment(), limit, user)
        except BastideError as error:
            raised = upstream_error(error, "exec", command=tuple(argv))
            if isinstance(raised, ExecTimeoutError):
                # As it was given, not as it was understood.
                raised.timeout_s = timeout
                raised.context["timeout_s"] = timeout
            raise raised from error
        except TypeError as error:
            if isinstance(timeout, (int, float)) or timeout is None:
                raise
            raise ExecTransportError(command=tuple(argv), cause=error) from error
        result = BastideExecResult(stdout=out, stderr=err, exit_code=code)
        if code != 0:
            result.hint = self._network_hint(native, out, err)
        return result

    def _network_hint(self, native: Session, *said: bytes) -> str | None:
        ends = [output[-_LOOKED_AT:] for output in said]
        if not any(words in end for end in ends for words in _NO_NETWORK):
            return None
        if native.receipt.get("network") != "none":
            return None
        hint = f"this sandbox has no network; {self._network_advice}"
        if not self._is_told:
            # Whoever runs agents sees what their tools said, and not what is known besides.
            self._is_told = True
            _log.warning("session %s: %s", self.state.session_id.hex, hint)
        return hint

    async def pty_exec_start(
        self,
        *command: str | Path,
        timeout: float | None = None,
        shell: bool | list[str] = True,
        user: str | User | None = None,
        tty: bool = False,
        yield_time_s: float | None = None,
        max_output_tokens: int | None = None,
    ) -> PtyExecUpdate:
        native = self._native or await self._up("pty")
        argv = self._argv(command, shell)
        _check_yield(yield_time_s)
        try:
            update = await native.pty_exec_start(
                argv,
                await self._environment(),
                user=user_name(user),
                tty=tty,
                yield_time_s=yield_time_s,
                max_output_tokens=max_output_tokens,
            )
        except BastideError as error:
            raise upstream_error(error, "pty", command=tuple(argv)) from error
        return self._update(native, update)

    async def pty_write_stdin(
        self,
        *,
        session_id: int,
        chars: str,
        yield_time_s: float | None = None,
        max_output_tokens: int | None = None,
    ) -> PtyExecUpdate:
        native, number = self._native, _process_number(session_id)
        if native is None:
            # Whatever there was ended with the machine.
            raise PtySessionNotFoundError(session_id=session_id)
        _check_yield(yield_time_s)
        try:
            update = await native.pty_write_stdin(
                number,
                chars,
                yield_time_s=yield_time_s,
                max_output_tokens=max_output_tokens,
            )
        except BastideError as error:
            raise upstream_error(error, "pty") from error
        return self._update(native, update)

    def _update(
        self, native: Session, update: tuple[int | None, bytes, int | None, int | None]
    ) -> PtyExecUpdate:
        process_id, output, exit_code, count = update
        return BastidePtyExecUpdate(
            process_id=process_id,
            output=output,
            exit_code=exit_code,
            original_token_count=count,
            hint=self._network_hint(native, output) if exit_code else None,
        )

    async def pty_terminate_all(self) -> None:
        if self._native is not None:
            await self._native.pty_terminate_all()

    # -- ports ------------------------------------------------------------------------------------

    async def resolve_exposed_port(self, port: int) -> ExposedPortEndpoint:
        self._assert_exposed_port_configured(port)
        return await self._resolve_exposed_port(port)

    async def _resolve_exposed_port(self, port: int) -> ExposedPortEndpoint:
        native = self._native or await self._up("resolve_exposed_port")
        try:
            host, number, tls, query = await native.resolve_exposed_port(port)
        except BastideError as error:
            raise upstream_error(error, "resolve_exposed_port", port=port) from error
        return ExposedPortEndpoint(host=host, port=number, tls=tls, query=query)


def _process_number(session_id: Any) -> int:
    """What can be the number of a process; anything else is no process."""
    try:
        number = int(session_id)
    except (TypeError, ValueError, OverflowError):
        number = None
    if number is None or number != session_id or not -(1 << 63) <= number < 1 << 63:
        raise PtySessionNotFoundError(session_id=session_id)
    return number


def _check_yield(seconds: float | None) -> None:
    """A time that is no number of milliseconds is the caller's mistake."""
    if seconds is not None:
        int(seconds * 1000)


def wrap(session: SandboxSession, inner: NativeSandboxSession) -> SandboxSession:
    """Has the SDK's wrapper pass on what it would otherwise do piece by piece."""
    wrapped: Any = session
    wrapped._apply_manifest = inner._apply_manifest
    wrapped._apply_entry_batch = inner._apply_entry_batch
    wrapped.provision_manifest_accounts = inner.provision_manifest_accounts

    async def extract(
        path: Path | str,
        data: io.IOBase,
        *,
        compression_scheme: Literal["tar", "zip"] | None = None,
        archive_limits: SandboxArchiveLimits | None = None,
    ) -> None:
        if archive_limits is not None:
            archive_limits.validate()
        scheme = compression_scheme or Path(path).suffix.removeprefix(".") or None
        if scheme not in ("tar", "zip"):
            raise InvalidCompressionSchemeError(path=Path(path), scheme=scheme)
        target = await inner._validate_path_access(Path(path), for_write=True)
        content, held = await source(target, data)
        # What is told is that the archive is written. What is wrong inside it is no trouble with that.
        damage: list[WorkspaceArchiveWriteError] = []

        async def run() -> None:
            try:
                await inner._extract(target, content, compression_scheme, archive_limits)
            except WorkspaceArchiveWriteError as error:
                await inner._write_content(target, content)
                damage.append(error)

        size = length(content)
        start: dict[str, object] = {"path": str(target), "user": None, "bytes": size}
        most = archive_limits.max_input_bytes if archive_limits is not None else None
        try:
            if most is not None and size > most:
                # Nothing of it is written.
                await inner._extract(target, content, compression_scheme, archive_limits)
            await wrapped._annotate(op="write", start_data=start, run=run, finish_data=None)
        finally:
            used(held, data)
        if damage:
            raise damage[0]

    wrapped.extract = extract
    return session
