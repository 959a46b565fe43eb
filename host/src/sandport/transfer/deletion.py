"""What a mirror takes away from a sandbox's directory: a listing by one command, a comparison here, two lists back."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Final

import msgspec

from sandport.sync.errors import PathOutsideRootError, TargetBusyError, printable
from sandport.sync.ledger import Ledger
from sandport.sync.mirror import KnownPaths
from sandport.sync.result import SyncResult
from sandport.sync.scratch import scratch_name
from sandport.sync.selection import Selection
from sandport.sync.target import in_the_way
from sandport.transfer import script
from sandport.transfer.name_lists import NameLists
from sandport.transfer.shell import Shell
from sandport.transfer.told import failure_of, told_by

__all__ = ["Deletion", "Obstacles", "list_far"]

_LISTS: Final = 3
_SLICE_BYTES: Final = 64 << 10
"""Cut at once; the event loop gets its turn in between."""


class Listing(msgspec.Struct, frozen=True):
    """Every path below a directory of the sandbox, relative to it."""

    directories: list[bytes]
    links: list[bytes]
    others: list[bytes]


async def list_far(shell: Shell, names: list[bytes], *, delete: bool) -> Listing:
    """What is there; nothing where the directory is not.

    Args:
        shell: The sandbox's.
        names: The way to the directory.
        delete: Whether something of it will be deleted, which needs further programs.

    Raises:
        PathOutsideRootError: It, or something on the way to it, is a link.
        TargetBusyError: It, or something on the way to it, is no directory.
        SyncError: It cannot be listed, or is too large to be.
    """
    scratch = scratch_name()
    path = b"/".join(names) or b"."
    lists = NameLists(_LISTS, path)

    async def take(stream: str, data: bytes) -> None:
        if stream != "stdout":
            return
        for start in range(0, len(data), _SLICE_BYTES):
            lists.feed(data[start : start + _SLICE_BYTES])
            await asyncio.sleep(0)

    outcome = await shell.run(
        script.list_names(scratch, names, tools="xargs rmdir touch" if delete else ""), on_output=take
    )
    told = told_by(outcome, scratch)
    if told is not None:
        raise failure_of(outcome, told, path)
    return Listing(*lists.whole())


class Obstacles:
    """What a rehearsal meets in a sandbox's directory.

    Args:
        listing: What the sandbox has.
        top: How messages call the directory.
    """

    def __init__(self, listing: Listing, top: bytes) -> None:
        self._directories = frozenset(listing.directories)
        self._links = frozenset(listing.links)
        self._others = frozenset(listing.others)
        self._top = top

    def meet(self, path: bytes, *, is_directory: bool) -> None:
        """See whether something could take its place.

        Raises:
            PathOutsideRootError: A link is where a directory should go.
            TargetBusyError: A directory is where something else should go, or the other way round.
        """
        if not is_directory:
            if path in self._directories:
                raise in_the_way(shown_below(self._top, path))
        elif path in self._links:
            shown = shown_below(self._top, path)
            raise PathOutsideRootError(
                f"{printable(shown)} is refused: it is a symbolic link where a directory should be, and links are not "
                "followed; remove the link, or name the directory that it leads to",
                path=shown,
            )
        elif path in self._others:
            raise in_the_way(shown_below(self._top, path))


def shown_below(top: bytes, path: bytes) -> bytes:
    """How messages call a path below a target."""
    return path if top in (b"", b".") else top + b"/" + path


class Deletion:
    """What is to be removed: before the copy, because it is in its way, and after it.

    Args:
        listing: What the sandbox has.
        known: What the source has.
        spared: What of the source could not be read; nothing of that name or below it is removed.
        selection: What it leaves out is not removed either.
        top: How messages call the target.
    """

    def __init__(
        self, listing: Listing, known: KnownPaths, spared: KnownPaths, selection: Selection | None, *, top: bytes
    ) -> None:
        staying: set[bytes] = set()
        """Directories that hold what stays."""

        def stays(path: bytes, *, is_directory: bool) -> bool:
            if any(spared.holds(above) for above in _lineage(path)):
                return True
            return selection is not None and selection.matches(path, is_directory)

        others: list[bytes] = []
        for path in (*listing.links, *listing.others):
            if stays(path, is_directory=False) or (known.holds(path) and not known.lists(path)):
                staying.update(_above(path))
            else:
                others.append(path)
        directories: list[bytes] = []
        in_the_way = {path for path in listing.directories if known.holds(path) and not known.lists(path)}
        for path in sorted(listing.directories, key=_depth, reverse=True):
            if path in staying or known.lists(path) or stays(path, is_directory=True):
                staying.update(_above(path))
                if path in in_the_way:
                    shown = shown_below(top, path)
                    raise TargetBusyError(
                        f"{printable(shown)} cannot be replaced: it is a directory that holds what must stay; "
                        "move that away, or choose another target",
                        path=shown,
                    )
            else:
                directories.append(path)
        in_the_way.update(path for path in others if known.lists(path))

        def first(path: bytes) -> bool:
            return any(above in in_the_way for above in _lineage(path))

        self.first = Listing([p for p in directories if first(p)], [], [p for p in others if first(p)])
        self.last = Listing([p for p in directories if not first(p)], [], [p for p in others if not first(p)])
        gone = {*directories, *others}
        # Their times are not the source's to say, and must not tell of what was taken out of them.
        self._touched = sorted({a for p in gone for a in (_parent(p),) if a and a not in gone and not known.lists(a)})

    def told_in(self, result: SyncResult) -> SyncResult:
        """The result, with what is deleted."""
        ledger = Ledger()
        for listing in (self.first, self.last):
            for path in (*listing.others, *listing.directories):
                ledger.delete(path)
        told = ledger.result()
        return msgspec.structs.replace(result, deleted=told.deleted, deleted_paths=told.deleted_paths)

    def members(self) -> dict[bytes, bytes]:
        """What an archive tells the far side of it, in the names of `script.py`."""
        return {
            b"first-others": _listed(self.first.others),
            b"first-directories": _listed(self.first.directories),
            b"last-others": _listed(self.last.others),
            b"last-directories": _listed(self.last.directories),
            b"before": b"".join(b'touch -r %b "./$S/%d"\n' % (_word(path), i) for i, path in enumerate(self._touched)),
            b"after": b"".join(b'touch -r "./$S/%d" %b\n' % (i, _word(path)) for i, path in enumerate(self._touched)),
        }


def _listed(paths: list[bytes]) -> bytes:
    return b"".join(b"./%b\0" % path for path in paths)


def _word(path: bytes) -> bytes:
    return b"'./%b'" % path.replace(b"'", b"'\\''")


def _parent(path: bytes) -> bytes:
    return path.rpartition(b"/")[0]


def _depth(path: bytes) -> int:
    return path.count(b"/")


def _above(path: bytes) -> Iterator[bytes]:
    while b"/" in path:
        path = path.rpartition(b"/")[0]
        yield path


def _lineage(path: bytes) -> Iterator[bytes]:
    yield path
    yield from _above(path)
