"""What both clients' sessions have in common."""

from __future__ import annotations

import asyncio
import hashlib
import io
import os
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from agents.run_config import SandboxArchiveLimits
from agents.sandbox.entries import BaseEntry, resolve_workspace_path
from agents.sandbox.files import EntryKind, FileEntry
from agents.sandbox.manifest import EnvEntry, Manifest, StrEnvValue
from agents.sandbox.materialization import MaterializationResult, MaterializedFile
from agents.sandbox.session import SandboxSession, manifest_ops, snapshot_lifecycle
from agents.sandbox.session.base_sandbox_session import BaseSandboxSession
from agents.sandbox.session.pty_types import PtyExecUpdate
from agents.sandbox.snapshot import NoopSnapshot
from agents.sandbox.types import ExecResult, ExposedPortEndpoint, Permissions, User

from .._native import Session
from ..errors import BastideError, Conflict
from ._errors import upstream_error
from ._parcel import parcel, refuse_mounts
from ._snapshot import BastideSnapshot
from ._source import source

if TYPE_CHECKING:
    from ._client import ClientBase

_KINDS = {kind.value: kind for kind in EntryKind}
# What resolvers and clients say where there is no network.
_NO_NETWORK = (
    b"Could not resolve",
    b"Temporary failure in name resolution",
    b"Name or service not known",
    b"Network is unreachable",
    b"getaddrinfo",
    b"unable to resolve",
)


class BastideExecResult(ExecResult):
    """As the SDK's, with a hint where Bastide knows what would help."""

    hint: str | None = None


def _user_name(user: str | User | None) -> str | None:
    if user is None or isinstance(user, str):
        return user or None
    return user.name


class NativeSandboxSession(BaseSandboxSession):
    """A session of the extension behind the SDK's interface."""

    _owner: ClientBase[Any] | None = None
    _native: Session | None = None
    _booting: asyncio.Future[Session] | None = None
    _is_down: bool = False
    _is_started: bool = False
    _booted_walls: tuple[object, ...] | None = None

    def __init__(self, *, state: Any) -> None:
        self.state = state

    @classmethod
    def from_state(cls, state: Any) -> Any:
        return cls(state=state)

    # -- the machine ------------------------------------------------------------------------------

    def _client(self) -> ClientBase[Any]:
        """The client it was made by; one made by hand has that of the process."""
        if self._owner is None:
            self._owner = self._default_client()
        return self._owner

    def _default_client(self) -> ClientBase[Any]:
        raise NotImplementedError

    async def _boot(self) -> Session:
        """The machine: attached to, booted with its files, or made."""
        client = self._client()
        try:
            found, kept = await client._machine_of(self.state)
        except BastideError as error:
            raise upstream_error(error, "create", path=self.state.manifest.root) from error
        self._set_start_state_preserved(kept, system=False)
        self._native = found
        self._is_down = False
        if self.state.manifest.root != found.root:
            client._moved(self.state, found.root)
        self._booted_walls = _walls(self.state.manifest)
        return found

    async def _up(self, call: str) -> Session:
        if self._native is not None:
            return self._native
        if self._is_down:
            error = Conflict(
                f"session {self.state.session_id.hex} was shut down", hint="start it again"
            )
            raise upstream_error(error, call, path=self.state.manifest.root) from error
        if self._booting is None or self._booting.done():
            self._booting = asyncio.ensure_future(self._boot())
        return await asyncio.shield(self._booting)

    # -- lifecycle --------------------------------------------------------------------------------

    async def start(self) -> None:
        refuse_mounts(self.state.manifest)
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
        refuse_mounts(self.state.manifest)
        try:
            try:
                await self._before_stop()
                await self._persist_snapshot()
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

    def _at(self, path: Path | str) -> str:
        """A path as the sandbox has it."""
        return os.fspath(path)

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
        return await self._run(native, self._argv(command, shell), timeout, _user_name(user))

    async def _exec_internal(
        self, *command: str | Path, timeout: float | None = None
    ) -> ExecResult:
        native = self._native or await self._up("exec")
        return await self._run(native, [str(part) for part in command], timeout, None)

    async def _run(
        self, native: Session, argv: list[str], timeout: float | None, user: str | None
    ) -> ExecResult:
        try:
            out, err, code = await native.exec(argv, await self._environment(), timeout, user)
        except BastideError as error:
            raise upstream_error(error, "exec", command=tuple(argv)) from error
        result = BastideExecResult(stdout=out, stderr=err, exit_code=code)
        if code != 0 and any(said in err for said in _NO_NETWORK):
            result.hint = self._network_hint(native)
        return result

    def _network_hint(self, native: Session) -> str | None:
        if native.receipt.get("network") != "none":
            return None
        return "this sandbox has no network; make it with network='host' to give it the host's"

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
        try:
            update = await native.pty_exec_start(
                argv,
                await self._environment(),
                user=_user_name(user),
                tty=tty,
                yield_time_s=yield_time_s,
                max_output_tokens=max_output_tokens,
            )
        except BastideError as error:
            raise upstream_error(error, "pty", command=tuple(argv)) from error
        return _update(update)

    async def pty_write_stdin(
        self,
        *,
        session_id: int,
        chars: str,
        yield_time_s: float | None = None,
        max_output_tokens: int | None = None,
    ) -> PtyExecUpdate:
        native = self._native or await self._up("pty")
        try:
            update = await native.pty_write_stdin(
                session_id,
                chars,
                yield_time_s=yield_time_s,
                max_output_tokens=max_output_tokens,
            )
        except BastideError as error:
            raise upstream_error(error, "pty") from error
        return _update(update)

    async def pty_terminate_all(self) -> None:
        if self._native is not None:
            await self._native.pty_terminate_all()

    # -- files ------------------------------------------------------------------------------------

    async def read(self, path: Path, *, user: str | User | None = None) -> io.IOBase:
        native = self._native or await self._up("read")
        try:
            found = await native.read(self._at(path), _user_name(user))
        except BastideError as error:
            raise upstream_error(error, "read", path=path) from error
        return io.BytesIO(found) if isinstance(found, bytes) else os.fdopen(found, "rb")

    async def _read_bounded(self, path: Path, *, max_bytes: int) -> bytes:
        native = self._native or await self._up("read")
        try:
            return await native.read_bounded(self._at(path), max_bytes)
        except BastideError as error:
            raise upstream_error(error, "read", path=path) from error

    async def write(
        self, path: Path, data: io.IOBase, *, user: str | User | None = None
    ) -> None:
        await self._write(path, data, user=user, new=False)

    async def _write_new_file(
        self, path: Path, data: io.IOBase, *, user: str | User | None = None
    ) -> None:
        await self._write(path, data, user=user, new=True)

    async def _write(
        self, path: Path, data: io.IOBase, *, user: str | User | None, new: bool
    ) -> None:
        native = self._native or await self._up("write")
        content, held = await source(path, data)
        try:
            await native.write(self._at(path), content, user=_user_name(user), new=new)
        except BastideError as error:
            raise upstream_error(error, "write", path=path) from error
        finally:
            _used(held, data)

    async def ls(
        self, path: Path | str, *, user: str | User | None = None
    ) -> list[FileEntry]:
        native = self._native or await self._up("ls")
        try:
            rows = await native.ls(self._at(path), _user_name(user))
        except BastideError as error:
            raise upstream_error(error, "ls", path=path) from error
        shared: dict[tuple[int, str], Permissions] = {}
        entries = []
        for place, mode, owner, group, size, kind in rows:
            permissions = shared.get((mode, kind))
            if permissions is None:
                permissions = Permissions.from_mode(mode & 0o777)
                permissions.directory = kind == "directory"
                shared[mode, kind] = permissions
            entries.append(
                FileEntry(
                    path=place,
                    permissions=permissions,
                    owner=owner,
                    group=group,
                    size=size,
                    kind=_KINDS[kind],
                )
            )
        return entries

    async def mkdir(
        self, path: Path | str, *, parents: bool = False, user: str | User | None = None
    ) -> None:
        native = self._native or await self._up("mkdir")
        try:
            await native.mkdir(self._at(path), parents=parents, user=_user_name(user))
        except BastideError as error:
            raise upstream_error(error, "mkdir", path=path) from error

    async def rm(
        self, path: Path | str, *, recursive: bool = False, user: str | User | None = None
    ) -> None:
        native = self._native or await self._up("rm")
        try:
            await native.rm(self._at(path), recursive=recursive, user=_user_name(user))
        except BastideError as error:
            raise upstream_error(error, "rm", path=path) from error

    async def mv(
        self,
        source: Path | str,
        destination: Path | str,
        *,
        user: str | User | None = None,
    ) -> None:
        native = self._native or await self._up("mv")
        try:
            await native.mv(self._at(source), self._at(destination), _user_name(user))
        except BastideError as error:
            raise upstream_error(error, "mv", path=destination) from error

    async def same_file(
        self,
        left: Path | str,
        right: Path | str,
        *,
        follow_symlinks: bool = True,
        user: str | User | None = None,
    ) -> bool:
        native = self._native or await self._up("same_file")
        try:
            return await native.same_file(
                self._at(left), self._at(right), follow=follow_symlinks, user=_user_name(user)
            )
        except BastideError as error:
            raise upstream_error(error, "same_file", path=left) from error

    async def extract(
        self,
        path: Path | str,
        data: io.IOBase,
        *,
        compression_scheme: Literal["tar", "zip"] | None = None,
        archive_limits: SandboxArchiveLimits | None = None,
    ) -> None:
        if archive_limits is not None:
            archive_limits.validate()
        limits = archive_limits if archive_limits is not None else self._archive_limits
        native = self._native or await self._up("write")
        content, held = await source(path, data)
        try:
            await native.extract(
                self._at(path),
                content,
                scheme=compression_scheme,
                limits=None
                if limits is None
                else (limits.max_input_bytes, limits.max_extracted_bytes, limits.max_members),
            )
        except BastideError as error:
            raise upstream_error(error, "write", path=path) from error
        finally:
            _used(held, data)

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

    # -- manifests --------------------------------------------------------------------------------

    def _refuse_other_walls(self, manifest: Manifest) -> None:
        """What a sandbox sees of the host is decided when it boots."""
        booted = self._booted_walls
        if booted is None or booted == _walls(manifest):
            return
        if booted[0] != manifest.root:
            raise ValueError(
                f"the root of a live session cannot become {manifest.root!r}: it is {booted[0]!r}"
            )
        before = {str(grant) for grant in booted[1:]}
        other = [grant.path for grant in manifest.extra_path_grants if str(_grant(grant)) not in before]
        names = ", ".join(repr(path) for path in other) or "the ones it was made with"
        raise ValueError(f"the grants of a live session cannot be changed: {names}")

    async def _validate_manifest_application(
        self,
        *,
        only_ephemeral: bool = False,
        manifest: Manifest | None = None,
        session_running: bool | None = None,
    ) -> None:
        manifest = manifest or self.state.manifest
        refuse_mounts(manifest)
        self._refuse_other_walls(manifest)

    async def _apply_manifest(
        self, *, only_ephemeral: bool = False, provision_accounts: bool = True
    ) -> MaterializationResult:
        manifest = self.state.manifest
        refuse_mounts(manifest)
        await self._up("start")
        if provision_accounts and not only_ephemeral:
            await self.provision_manifest_accounts()
        entries: Any
        if only_ephemeral:
            applier = manifest_ops._build_manifest_applier(self, include_entry_concurrency=False)
            entries = applier._ephemeral_entries(manifest)
        else:
            entries = manifest.entries.items()
        files = await self._lay_out(entries, self._manifest_base_dir())
        return MaterializationResult(files=files)

    async def _apply_entry_batch(
        self, entries: Sequence[tuple[Path, BaseEntry]], *, base_dir: Path
    ) -> list[MaterializedFile]:
        await self._up("start")
        root = Path(self.state.manifest.root)
        inside = []
        for dest, entry in entries:
            try:
                inside.append((dest.relative_to(root), entry))
            except ValueError:
                inside.append((dest, entry))
        return await self._lay_out(inside, base_dir)

    async def _lay_out(
        self, entries: Sequence[tuple[str | Path, BaseEntry]], base_dir: Path
    ) -> list[MaterializedFile]:
        files: list[MaterializedFile] = []
        items: list[tuple[Any, ...]] = []

        async def flush() -> None:
            if not items:
                return
            native = self._native or await self._up("start")
            try:
                copied = await native.apply(list(items), base_dir)
            except BastideError as error:
                raise upstream_error(error, "start", path=self.state.manifest.root) from error
            items.clear()
            files.extend(MaterializedFile(path=Path(path), sha256=sha) for path, sha in copied)

        for key, entry in entries:
            item = parcel(key, entry)
            if item is not None and not os.path.isabs(item[0]):
                items.append(item)
                continue
            # A type of the program's own, or a folder that has one: it lays itself out.
            await flush()
            dest = resolve_workspace_path(
                self.state.manifest.root,
                Manifest._coerce_rel_path(key),
                allow_absolute_within_root=False,
            )
            files.extend(await entry.apply(self, dest, base_dir))
        await flush()
        return files

    async def provision_manifest_accounts(self) -> None:
        manifest = self.state.manifest
        if not manifest.users and not manifest.groups:
            return
        native = self._native or await self._up("start")
        try:
            await native.provision(
                [user.name for user in manifest.users],
                [(group.name, [user.name for user in group.users]) for group in manifest.groups],
            )
        except BastideError as error:
            raise upstream_error(error, "start", path=manifest.root) from error

    # -- snapshots --------------------------------------------------------------------------------

    def _skipped(self) -> list[str]:
        return sorted(path.as_posix() for path in self._persist_workspace_skip_relpaths())

    async def persist_workspace(self) -> io.IOBase:
        stream, _sha256 = await self._archive()
        return stream

    async def _archive(self) -> tuple[io.IOBase, str]:
        native = self._native or await self._up("persist_workspace")
        try:
            number, sha256 = await native.persist(self._skipped())
        except BastideError as error:
            root = self.state.manifest.root
            raise upstream_error(error, "persist_workspace", path=root) from error
        return os.fdopen(number, "rb"), sha256

    async def hydrate_workspace(self, data: io.IOBase) -> None:
        native = self._native or await self._up("hydrate_workspace")
        root = self.state.manifest.root
        content, held = await source(root, data)
        try:
            await native.hydrate(content)
        except BastideError as error:
            raise upstream_error(error, "hydrate_workspace", path=root) from error
        finally:
            _used(held, data)

    async def _persist_snapshot(self) -> None:
        snapshot = self.state.snapshot
        if isinstance(snapshot, NoopSnapshot):
            return
        native = self._native or await self._up("stop")
        if type(snapshot) is BastideSnapshot:
            try:
                await snapshot._store().save(native, snapshot.id, self._skipped())
            except BastideError as error:
                raise upstream_error(error, "stop", path=self.state.manifest.root) from error
            self.state.snapshot_fingerprint = None
            self.state.snapshot_fingerprint_version = None
            return
        archive, sha256 = await self._own_archive()
        try:
            await snapshot.persist(archive, dependencies=self.dependencies)
        finally:
            archive.close()
        self.state.snapshot_fingerprint = None
        self.state.snapshot_fingerprint_version = None
        if sha256 is None:
            return
        try:
            digest = self._resume_manifest_digest()
        except Exception:
            # A manifest that cannot be written down has no fingerprint.
            return
        text = f"{sha256}\n{digest}\n".encode()
        self.state.snapshot_fingerprint = hashlib.sha256(text).hexdigest()
        self.state.snapshot_fingerprint_version = self._snapshot_fingerprint_version()

    async def _own_archive(self) -> tuple[io.IOBase, str | None]:
        """The workspace as an archive, by a subclass's own way if it has one."""
        if type(self).persist_workspace is not NativeSandboxSession.persist_workspace:
            return await self.persist_workspace(), None
        return await self._archive()

    async def _restore_snapshot_into_workspace_on_resume(self) -> None:
        snapshot = self.state.snapshot
        native = self._native or await self._up("start")
        root = self.state.manifest.root
        try:
            if type(snapshot) is BastideSnapshot:
                await snapshot._store().restore(native, snapshot.id)
                return
            archive = await snapshot.restore(dependencies=self.dependencies)
            try:
                content, held = await source(root, archive)
                await native.restore(content)
                del held
            finally:
                snapshot_lifecycle._close_best_effort(archive)
        except BastideError as error:
            raise upstream_error(error, "hydrate_workspace", path=root) from error


def _grant(grant: Any) -> tuple[str, bool, str | None]:
    return grant.path, grant.read_only, grant.host_path


def _walls(manifest: Manifest) -> tuple[object, ...]:
    return (manifest.root, *sorted(map(str, map(_grant, manifest.extra_path_grants))))


def _update(update: tuple[int | None, bytes, int | None, int | None]) -> PtyExecUpdate:
    process_id, output, exit_code, count = update
    return PtyExecUpdate(
        process_id=process_id, output=output, exit_code=exit_code, original_token_count=count
    )


def _used(held: Any, data: io.IOBase) -> None:
    """Leaves a stream as if it had been read here."""
    if held is None:
        return
    if held is data:
        data.seek(0, io.SEEK_END)
    else:
        held.close()


def wrap(session: SandboxSession, inner: NativeSandboxSession) -> SandboxSession:
    """Has the SDK's wrapper pass on what it would otherwise do piece by piece."""
    wrapped: Any = session
    wrapped._apply_manifest = inner._apply_manifest
    wrapped._apply_entry_batch = inner._apply_entry_batch
    wrapped.provision_manifest_accounts = inner.provision_manifest_accounts

    async def extract(path: Path | str, data: io.IOBase, **options: Any) -> None:
        async def run() -> None:
            await inner.extract(path, data, **options)

        start = {"path": str(path), "user": None}
        await wrapped._annotate(op="write", start_data=start, run=run, finish_data=None)

    wrapped.extract = extract
    return session
