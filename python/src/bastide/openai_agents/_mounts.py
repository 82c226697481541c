"""Storage that the host mounts: no key of it is ever inside."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Any, Literal

from agents.sandbox import _mount_security
from agents.sandbox.entries import (
    AzureBlobMount,
    BaseEntry,
    Dir,
    GCSMount,
    Mount,
    R2Mount,
    S3Mount,
)
from agents.sandbox.entries.mounts.base import MountStrategyBase
from agents.sandbox.errors import MountConfigError
from agents.sandbox.manifest import Manifest
from agents.sandbox.materialization import MaterializedFile

if TYPE_CHECKING:
    from agents.sandbox.session.base_sandbox_session import BaseSandboxSession

# What the program of the host that mounts can speak to.
_PROVIDERS: tuple[type[Mount], ...] = (S3Mount, R2Mount, GCSMount, AzureBlobMount)


class BastideHostMountStrategy(MountStrategyBase):
    """Mounts from outside the sandbox, which sees files and no keys."""

    type: Literal["host"] = "host"

    def validate_mount(self, mount: Mount) -> None:
        if type(mount) not in _PROVIDERS:
            raise MountConfigError(
                message="the host cannot mount this kind of storage",
                context={"mount_type": mount.type},
            )

    async def activate(
        self, mount: Mount, session: BaseSandboxSession, dest: Path, base_dir: Path
    ) -> list[MaterializedFile]:
        # Our own sessions mount with the rest of a manifest, and never ask this.
        raise _elsewhere(mount)

    async def deactivate(
        self, mount: Mount, session: BaseSandboxSession, dest: Path, base_dir: Path
    ) -> None:
        raise _elsewhere(mount)

    async def teardown_for_snapshot(
        self, mount: Mount, session: BaseSandboxSession, path: Path
    ) -> None:
        """Nothing: no snapshot has anything of a store in it."""

    async def restore_after_snapshot(
        self, mount: Mount, session: BaseSandboxSession, path: Path
    ) -> None:
        """Nothing: it was not unmounted."""

    def build_docker_volume_driver_config(
        self, mount: Mount
    ) -> tuple[str, dict[str, str], bool] | None:
        return None


# The SDK lets keys of a mount pass only to strategies it knows to keep them outside.
_mount_security._STRATEGY_CLASSIFICATION_BY_TYPE["host"] = (
    "external",
    None,
    BastideHostMountStrategy.__module__,
    BastideHostMountStrategy.__name__,
)
_mount_security._SERIALIZED_FIELDS_BY_STRATEGY_TYPE["host"] = frozenset({"type"})


def _elsewhere(mount: Mount) -> MountConfigError:
    return MountConfigError(
        message="only sessions of Bastide's clients are mounted into from outside",
        context={"mount_type": mount.type},
    )


def mounts(entries: Mapping[Any, BaseEntry]) -> Iterator[Mount]:
    """Every mount among entries, and in folders among them."""
    for entry in entries.values():
        if isinstance(entry, Mount):
            yield entry
        elif isinstance(entry, Dir):
            yield from mounts(entry.children)


def has_mounts(manifest: Manifest) -> bool:
    return next(mounts(manifest.entries), None) is not None


def check_mounts(manifest: Manifest) -> None:
    """Refuses what cannot be mounted, before anything is made."""
    for mount in mounts(manifest.entries):
        if type(mount.mount_strategy) is not BastideHostMountStrategy:
            raise MountConfigError(
                message="sandboxes are mounted into by the strategy `host` alone",
                context={"backend": "bastide", "mount_type": mount.type},
            )


def mount_entries(manifest: Manifest) -> dict[str, Any]:
    """The mounts of a manifest that the host makes, by their places, and their keys with them."""
    found: dict[str, Any] = {}

    def walk(entries: Mapping[Any, BaseEntry], prefix: PurePath) -> None:
        for key, entry in entries.items():
            # Most are neither, and paths take longer than all the rest.
            if isinstance(entry, Mount):
                if type(entry.mount_strategy) is BastideHostMountStrategy:
                    place = prefix / Manifest._coerce_rel_path(key)
                    found[place.as_posix()] = entry.model_dump(mode="json")
            elif isinstance(entry, Dir):
                walk(entry.children, prefix / Manifest._coerce_rel_path(key))

    walk(manifest.entries, PurePath())
    return found
