"""What a mirror takes away from a sandbox's directory: a listing by one command, a comparison here, two lists back."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import msgspec

from sandport.sync.errors import SyncError, TargetBusyError, TooLargeError, printable
from sandport.sync.ledger import Ledger
from sandport.sync.mirror import KnownPaths
from sandport.sync.result import SyncResult
from sandport.sync.selection import Selection
from sandport.transfer import script
from sandport.transfer.shell import Shell, new_scratch
from sandport.transfer.told import failure_of, told_by

__all__ = ["Deletion", "list_far"]

_LISTING_BYTES = 512 << 20
"""A million paths of 500 bytes; it is held in memory while it is compared."""


class Listing(msgspec.Struct, frozen=True):
    """Every path below a directory of the sandbox, relative to it."""

    directories: list[bytes]
    others: list[bytes]


async def list_far(shell: Shell, path: bytes) -> Listing:
    """What is there; nothing where the directory is not.

    Raises:
        SyncError: It cannot be listed, or is too large to be.
    """
    scratch = new_scratch()
    said = bytearray()

    def take(stream: str, data: bytes) -> None:
        if stream == "stdout":
            said.extend(data)
            if len(said) > _LISTING_BYTES:
                raise TooLargeError(
                    f"{printable(path)} holds too many names to be mirrored; mirror a part of it", path=path
                )

    outcome = await shell.run(script.list_names(scratch, path), on_output=take)
    told = told_by(outcome, scratch)
    if told is not None:
        if told.kind == "missing":
            return Listing([], [])
        raise failure_of(outcome, told, path)
    directories, mark, others = bytes(said).partition(b"\0\0")
    if not mark:
        raise SyncError(f"the listing of {printable(path)} was cut, so nothing was deleted; copy again", path=path)
    return Listing(list(_paths(directories)), list(_paths(others)))


def _paths(listed: bytes) -> Iterator[bytes]:
    for path in listed.split(b"\0"):
        below = path.removeprefix(b"./")
        if below not in (b"", b"."):
            yield below


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
        for path in listing.others:
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
                    shown = b"/".join(part for part in (top, path) if part not in (b"", b"."))
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

        self.first = Listing([p for p in directories if first(p)], [p for p in others if first(p)])
        self.last = Listing([p for p in directories if not first(p)], [p for p in others if not first(p)])

    def told_in(self, result: SyncResult) -> SyncResult:
        """The result, with what is deleted."""
        ledger = Ledger()
        for listing in (self.first, self.last):
            for path in (*listing.others, *listing.directories):
                ledger.delete(path)
        told = ledger.result()
        return msgspec.structs.replace(result, deleted=told.deleted, deleted_paths=told.deleted_paths)

    async def remove(self, shell: Shell, path: bytes, listing: Listing) -> None:
        """Remove one of the two lists.

        Raises:
            SyncError: Something could not be removed.
        """
        if listing.directories:
            await self._run(shell, path, script.open_names, listing.directories)
        if listing.others:
            await self._run(shell, path, lambda s, p: script.remove_names(s, p, directories=False), listing.others)
        if listing.directories:
            await self._run(shell, path, lambda s, p: script.remove_names(s, p, directories=True), listing.directories)

    async def _run(self, shell: Shell, path: bytes, text: script.OfPath, names: Iterable[bytes]) -> None:
        most = await shell.piece_bytes()
        scratch = new_scratch()
        batch = bytearray()
        for name in names:
            word = b"./" + name + b"\0"
            if len(batch) + len(word) > most:
                await shell.ask(text(scratch, path), scratch, path, stdin=bytes(batch))
                batch.clear()
            batch += word
        await shell.ask(text(scratch, path), scratch, path, stdin=bytes(batch))


def _depth(path: bytes) -> int:
    return path.count(b"/")


def _above(path: bytes) -> Iterator[bytes]:
    while b"/" in path:
        path = path.rpartition(b"/")[0]
        yield path


def _lineage(path: bytes) -> Iterator[bytes]:
    yield path
    yield from _above(path)
