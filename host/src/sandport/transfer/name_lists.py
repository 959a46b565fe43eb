"""The lists of names that a sandbox writes, cut as they come: its own programs write them, so nothing of them is sure.

What is held is bounded in every way that costs memory or time, and not by bytes alone: a name of one byte takes sixty
of them here, and a path that is one level deeper is one more to look up.
"""

from __future__ import annotations

from typing import Final

from sandport.sync.errors import SyncError, TooLargeError, printable

__all__ = ["MOST_NAMES", "NameLists"]

MOST_NAMES: Final = 1_000_000

MOST_BYTES: Final = 512 << 20
"""A million paths of 500 bytes; they are held in memory while they are compared."""

_MOST_LEVELS: Final = 20 * MOST_NAMES
"""Of all paths together: each is looked up by every directory that it is in."""

_LONGEST_NAME_BYTES: Final = 64 << 10
"""Sixteen times what a system call takes."""


class NameLists:
    """Words that each end with NUL, in lists that each end with one more.

    Args:
        lists: How many lists come.
        path: How messages call the directory.
    """

    def __init__(self, lists: int, path: bytes) -> None:
        self._lists: list[list[bytes]] = [[]]
        self._ends_left = lists
        self._path = path
        self._begun = b""
        self._bytes = 0
        self._names = 0
        self._levels = 0

    def feed(self, piece: bytes) -> None:
        """Take in what came; it takes time by its length, so a long one should come in slices.

        Raises:
            TooLargeError: There are more names, or longer ones, than are held.
            SyncError: Something comes after the last list.
        """
        self._bytes += len(piece)
        self._levels += piece.count(b"/")
        if self._bytes > MOST_BYTES or self._levels > _MOST_LEVELS:
            raise self._too_large()
        said = self._begun + piece
        start = 0
        while (end := said.find(b"\0", start)) >= 0:
            self._take(said[start:end])
            start = end + 1
        self._begun = said[start:]
        if self._begun and not self._ends_left:
            raise self._not_whole()
        if len(self._begun) > _LONGEST_NAME_BYTES:
            raise self._too_large()

    def _take(self, word: bytes) -> None:
        if not self._ends_left:
            raise self._not_whole()
        if not word:
            self._ends_left -= 1
            self._lists.append([])
            return
        self._names += 1
        if self._names > MOST_NAMES or len(word) > _LONGEST_NAME_BYTES:
            raise self._too_large()
        if word != b".":
            self._lists[-1].append(word.removeprefix(b"./"))

    def whole(self) -> list[list[bytes]]:
        """All lists, once all has come.

        Raises:
            SyncError: The end of one is missing.
        """
        if self._ends_left or self._begun:
            raise self._not_whole()
        return self._lists[:-1]

    def _too_large(self) -> TooLargeError:
        return TooLargeError(
            f"{printable(self._path)} holds too many names to be mirrored, of which at most {MOST_NAMES:,} are taken; "
            "mirror a part of it",
            path=self._path,
        )

    def _not_whole(self) -> SyncError:
        return SyncError(
            f"the listing of {printable(self._path)} was cut or is none, so nothing was deleted; copy again",
            path=self._path,
        )
