"""What is on disk of a worker that runs: `HOME/running/TOKEN`, for whoever cleans up after a host that was killed.

A token in an environment says that a process came from a worker, and not that it is one: children inherit it. Only
this record says which process the worker was, and so which process group was its own. It proves nothing by itself:
whoever acts on it reads the process again. A record that is stale, torn or missing means that nothing is killed.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

import msgspec
from msgspec import Struct

from sandport.private import make_folder, open_private

from .identity import Identity

FOLDER = "running"
_BYTES = 64 * 1024


class _Written(Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    pid: int
    start_ticks: int
    boot_id: str
    token: str
    provider: str
    tenant: str | None = None


class WorkerRecord(Struct, frozen=True, kw_only=True):
    """One record."""

    path: Path
    identity: Identity
    provider: str
    tenant: str | None = None

    @classmethod
    def keep(cls, root: Path, identity: Identity, provider: str, tenant: str | None) -> WorkerRecord | None:
        """Write the record of a worker that was just started; None where the folder takes none.

        A worker must not fail for want of a note about it: without one, what is left of it is reported and not ended.
        """
        written = _Written(
            pid=identity.pid,
            start_ticks=identity.started_ticks,
            boot_id=identity.boot_id,
            token=identity.token,
            provider=provider,
            tenant=tenant,
        )
        path = root / FOLDER / identity.token
        try:
            make_folder(path.parent)
            descriptor = open_private(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
            try:
                os.write(descriptor, msgspec.json.encode(written))
            finally:
                os.close(descriptor)
        except OSError:
            return None
        return cls(path=path, identity=identity, provider=provider, tenant=tenant)

    def forget(self) -> None:
        """The worker is gone."""
        with contextlib.suppress(OSError):  # gone already, or the folder is: it says nothing any more either way
            self.path.unlink()


def records_of(root: Path, instance: str) -> tuple[list[WorkerRecord], list[Path]]:
    """The records of an instance's workers, and the files that should be some and cannot be read."""
    found: list[WorkerRecord] = []
    broken: list[Path] = []
    try:
        names = sorted(os.listdir(root / FOLDER))
    except OSError:
        return [], []  # no worker was ever recorded here
    for name in names:
        if not name.startswith(f"{instance}."):
            continue
        path = root / FOLDER / name
        try:
            with open(path, "rb") as file:
                said = msgspec.json.decode(file.read(_BYTES), type=_Written)
        except FileNotFoundError:
            continue
        except (OSError, msgspec.DecodeError):
            broken.append(path)
            continue
        if said.token != name:
            broken.append(path)
            continue
        identity = Identity(said.pid, said.start_ticks, said.boot_id, said.token)
        found.append(WorkerRecord(path=path, identity=identity, provider=said.provider, tenant=said.tenant))
    return found, broken
