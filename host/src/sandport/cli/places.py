"""What `sandport doctor` says of the disk: where state is, how large it is, and how much room there is for more."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Literal

from msgspec import Struct

from .checks import Check
from .messages import unicode_text
from .status import human_bytes

_MOST_ENTRIES = 200_000
"""A folder is measured up to here; doctor must not read a disk for minutes."""
_MOST_NAMED = 5
_LITTLE_BYTES = 1_000_000_000
_LITTLE_SHARE = 0.02
"""Of the files that a file system has room for."""
_SANDBOX = re.compile(r"sp[a-z2-7]{26}")


class Place(Struct, frozen=True, kw_only=True, rename="camel"):
    """A file or folder of the home, measured."""

    what: Literal["logs", "worker", "sandbox"]
    path: str
    provider: str | None = None
    sandbox: str | None = None
    size_bytes: int
    """The lengths of all files in it."""
    files: int
    whole: bool
    """False: there is more, which could not be read or is too much to count."""

    def size(self) -> str:
        """Its size, for a person."""
        return human_bytes(self.size_bytes) if self.whole else f"over {human_bytes(self.size_bytes)}"


class Space(Struct, frozen=True, kw_only=True, rename="camel"):
    """What is left on the file system of the home."""

    free_bytes: int
    """For its user; root may have more."""
    total_bytes: int
    free_files: int | None
    """How many more there may be; null where the file system sets no number."""
    total_files: int | None


class Places(Struct, frozen=True, kw_only=True, rename="camel"):
    """The home on the disk; the journal is told of apart."""

    home: str
    space: Space | None
    """Null where the file system does not say."""
    places: tuple[Place, ...]
    """Logs, each worker's state, and each sandbox in it."""

    def sizes(self) -> list[str]:
        """Workers and logs in a few words, those that are there."""
        found = []
        if workers := self._of("worker"):
            total = Place(
                what="worker",
                path="",
                size_bytes=sum(one.size_bytes for one in workers),
                files=sum(one.files for one in workers),
                whole=all(one.whole for one in workers),
            )
            each = ", ".join(f"{one.provider} {one.size()}" for one in workers if one.files)
            found.append(f"workers {total.size()}" + (f" ({each})" if each else ""))
        return found + [f"logs {one.size()}" for one in self._of("logs")]

    def checks(self) -> list[Check]:
        """The room that is left, and the sandboxes that are on this machine."""
        return [self._room(), self._sandboxes()]

    def _of(self, what: str) -> list[Place]:
        return [place for place in self.places if place.what == what]

    def _room(self) -> Check:
        space = self.space
        if space is None:
            return Check(name="space", state="warning", detail=f"{self.home}: its file system does not say")
        detail = f"{human_bytes(space.free_bytes)} of {human_bytes(space.total_bytes)} free at {self.home}"
        few = False
        if space.free_files is not None and space.total_files is not None:
            few = space.free_files < space.total_files * _LITTLE_SHARE
            detail += f", and {space.free_files:,} of {space.total_files:,} files" if few else ""
        if space.free_bytes >= _LITTLE_BYTES and not few:
            return Check(name="space", state="ok", detail=detail)
        fix = "make room, or set SANDPORT_HOME to a folder on another disk"
        return Check(name="space", state="warning", detail=detail, fix=fix)

    def _sandboxes(self) -> Check:
        found = sorted(self._of("sandbox"), key=lambda one: -one.size_bytes)
        if not found:
            return Check(name="sandboxes", state="ok", detail="none has a folder on this machine")
        named = [f"{one.sandbox} {one.size()}" for one in found[:_MOST_NAMED]]
        named += [f"and {len(found) - _MOST_NAMED} more"] if len(found) > _MOST_NAMED else []
        where = f"{len(found)} {'has a folder' if len(found) == 1 else 'have folders'} below {self.home}/workers"
        return Check(name="sandboxes", state="ok", detail=f"{where}: {', '.join(named)}")


def look_at_places(root: Path) -> Places:
    """Measure what is in a home; reads names and sizes only."""
    places: list[Place] = []
    if (root / "logs").is_dir():
        places.append(_measured("logs", root / "logs"))
    for entry in _entries(root / "workers"):
        if entry.is_dir(follow_symlinks=False):
            places += _worker(Path(entry.path))
    return Places(home=unicode_text(str(root)), space=_space(root), places=tuple(places))


def _worker(folder: Path) -> list[Place]:
    """A worker's state as a whole, and each sandbox in it."""
    sandboxes = [
        _measured("sandbox", Path(entry.path), provider=folder.name, sandbox=entry.name)
        for entry in _entries(folder)
        if _SANDBOX.fullmatch(entry.name) and entry.is_dir(follow_symlinks=False)
    ]
    return [_measured("worker", folder, provider=folder.name), *sandboxes]


def _entries(folder: Path) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as found:
            return sorted(found, key=lambda entry: entry.name)
    except OSError:
        # It is not there, or not ours to read; whoever measures it says that it is more than could be seen.
        return []


def _measured(
    what: Literal["logs", "worker", "sandbox"], folder: Path, *, provider: str | None = None, sandbox: str | None = None
) -> Place:
    size = files = 0
    whole = True

    def missed(error: OSError) -> None:
        # A sandbox that ends while it is counted is no gap.
        nonlocal whole
        whole = whole and isinstance(error, FileNotFoundError)

    entries = 0
    for path, folders, names in os.walk(folder, onerror=missed):
        entries += len(folders) + len(names)
        for name in names:
            try:
                size += os.lstat(os.path.join(path, name)).st_size
            except OSError as error:
                missed(error)
            else:
                files += 1
        if entries > _MOST_ENTRIES:
            whole = False
            break
    return Place(
        what=what,
        path=unicode_text(str(folder)),
        provider=provider,
        sandbox=sandbox,
        size_bytes=size,
        files=files,
        whole=whole,
    )


def _space(root: Path) -> Space | None:
    try:
        found = os.statvfs(root)
    except OSError:
        # It went away meanwhile, or its file system knows no such thing.
        return None
    counts = found.f_files > 0
    return Space(
        free_bytes=found.f_bavail * found.f_frsize,
        total_bytes=found.f_blocks * found.f_frsize,
        free_files=found.f_favail if counts else None,
        total_files=found.f_files if counts else None,
    )
