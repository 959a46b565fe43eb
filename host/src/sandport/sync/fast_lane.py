"""The short way for small files into new directories, which two processes can go at the same time.

Every file of a directory that this copy has made is offered here first. Alone, it is copied at once. When there were
many, a second process is started; as soon as it is ready, names are gathered to stretches, and both take chunks of a
stretch until none is left: through a pipe that holds a byte for each chunk, so none is taken twice. A stretch is of one
directory, and ends before anything is done to that directory but making files in it.

What is left undone, by either, goes the long way, which says what is wrong with it. Should the second process end or
not answer, so does all that it had taken.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple, Self

from sandport.sync.ledger import Ledger
from sandport.sync.meter import Meter
from sandport.sync.mirror import KnownPaths
from sandport.sync.scan import Scanner
from sandport.sync.second_process import Answer, SecondProcess
from sandport.sync.small_files import CHUNK_FILES, SMALL_BYTES, STRETCH_FILES, UNDONE, Making, copy_small
from sandport.sync.target import TargetTree

__all__ = ["FastLane", "Sharing", "wrong_size"]

_SHARED_FILES: Final = 3 * CHUNK_FILES
"""Fewer than these are not worth the asking."""

_MISSED_FILES: Final = 4
"""So many files one after the other that did not go this way, and the next ones are likely to be too large as well."""

_PASSED_FILES: Final = 64
"""How many of those go the long way untried, at most."""

_ASK_EVERY_FILES: Final = 16
"""Until it is ready."""


class Sharing(NamedTuple):
    """After how many files a second process is started, and how.

    A tree of so many files is likely to have as many more as make up for it.
    """

    after_files: int = 512
    start: Callable[[], SecondProcess | None] = SecondProcess.start


class FastLane:
    """Takes files from a scanner into a target, as long as they are small and their directory is new.

    Args:
        scanner: Whose files.
        tree: Where to.
        account: Told of each file.
        known: Told of each path, for a mirror.
        meter: Told of each file, and polled.
        max_bytes: How many bytes the account may come to; None for no ceiling.
        sharing: When a second process is started, and how.
    """

    def __init__(
        self,
        scanner: Scanner,
        tree: TargetTree,
        account: Ledger,
        *,
        known: KnownPaths | None,
        meter: Meter,
        max_bytes: int | None,
        sharing: Sharing,
    ) -> None:
        self._scanner = scanner
        self._tree = tree
        self._account = account
        self._known = known
        self._meter = meter
        self._max_bytes = max_bytes
        self._sharing = sharing
        self._until_start = sharing.after_files
        self._until_asked = _ASK_EVERY_FILES
        self._second: SecondProcess | None = None
        self._shares = False
        self._missed = 0
        self._passing = 0
        self._stretch: list[bytes] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._second is not None:
            self._second.end()

    def take(self, name: bytes) -> Sequence[bytes]:
        """`scan.Taker.take`."""
        making = self._tree.making
        if making is None:
            return (name,)
        if self._passing:
            self._passing -= 1
            return (name,)
        if not self._shares:
            return () if self._copy(name, making) else (name,)
        self._stretch.append(name)
        return self.rest() if len(self._stretch) == STRETCH_FILES else ()

    def rest(self) -> Sequence[bytes]:
        """`scan.Taker.rest`."""
        names = self._stretch
        if not names:
            return ()
        self._stretch = []
        making = self._tree.making
        assert making is not None  # or nothing would have been taken
        if len(names) >= _SHARED_FILES and self._second is not None and self._has_room(len(names)):
            return self._copy_shared(names, making, self._second)
        return [name for name in names if not self._copy(name, making)]

    def _has_room(self, files: int) -> bool:
        """Whether so many files cannot come to more than the ceiling, whatever they hold by now."""
        return self._max_bytes is None or self._account.total_bytes + files * SMALL_BYTES <= self._max_bytes

    def _copy(self, name: bytes, making: Making) -> bool:
        account, meter = self._account, self._meter
        most_bytes = SMALL_BYTES
        if self._max_bytes is not None:
            most_bytes = min(most_bytes, self._max_bytes - account.total_bytes)
        copied = copy_small(name, self._scanner.fd, self._tree.fd, most_bytes, making)
        if copied == UNDONE:
            self._missed += 1
            if self._missed >= _MISSED_FILES:
                self._passing = min(1 << (self._missed - _MISSED_FILES), _PASSED_FILES)
            return False
        self._missed = 0
        account.files += 1
        account.total_bytes += copied
        if self._known is not None:
            self._known.add(self._scanner.path_of(name))
        if making.odd:
            self._tell_odd(*making.odd.pop())
        meter.advance(copied)
        meter.file_done()
        if not self._shares:
            self._look_for_second()
        return True

    def _tell_odd(self, name: bytes, promised: int) -> None:
        reason = "it was written to while it was read" if promised == UNDONE else wrong_size(promised)
        self._account.change(self._scanner.path_of(name), reason)

    # ------------------------------------------------------------------ two processes

    def _look_for_second(self) -> None:
        if self._until_start:
            self._until_start -= 1
            if not self._until_start:
                self._second = self._sharing.start()
        elif self._second is not None:
            self._until_asked -= 1
            if not self._until_asked:
                self._until_asked = _ASK_EVERY_FILES
                self._shares = self._second.is_ready()

    def _copy_shared(self, names: list[bytes], making: Making, second: SecondProcess) -> Sequence[bytes]:
        own: set[int] = set()
        undone: list[int] = []
        answer: Answer | None = None
        try:
            try:
                second.give(names, self._scanner.fd, self._tree.fd, SMALL_BYTES, making)
            except OSError:
                # It has ended; nothing was taken.
                second.end()
            else:
                while (chunk := second.claim()) is not None:
                    places = chunk[: len(names) - chunk.start]
                    own.update(places)
                    undone += [place for place in places if not self._copy(names[place], making)]
                answer = second.answer(self._meter.poll)
        except BaseException:
            # Whatever cut it short, Ctrl-C too: who comes next must find no half of a file under a file's name.
            self._remove_unfinished(second, [name for place, name in enumerate(names) if place not in own])
            raise
        theirs = [place for place in range(len(names)) if place not in own]
        if answer is None or answer.files + len(answer.undone) != len(theirs):
            self._shares = False
            self._remove_unfinished(second, [names[place] for place in theirs])
            undone += theirs
        else:
            self._tell_answer(answer, names, theirs)
            undone += answer.undone
        return [names[place] for place in sorted(undone)]

    def _tell_answer(self, answer: Answer, names: list[bytes], theirs: list[int]) -> None:
        self._account.files += answer.files
        self._account.total_bytes += answer.total_bytes
        if self._known is not None:
            for place in set(theirs).difference(answer.undone):
                self._known.add(self._scanner.path_of(names[place]))
        for place, promised in answer.odd:
            self._tell_odd(names[place], promised)
        self._meter.advance(answer.total_bytes)
        self._meter.file_done(answer.files)

    def _remove_unfinished(self, second: SecondProcess, names: list[bytes]) -> None:
        """End the second process, and remove what it may have been at, so that whatever has its name is whole."""
        second.end()
        for name in names:
            # What cannot be removed is in the way of the copy that comes now, and told of by that.
            with contextlib.suppress(OSError):
                os.unlink(name, dir_fd=self._tree.fd)


def wrong_size(size_bytes: int) -> str:
    """What to tell of a file that did not give all of its bytes."""
    return f"it did not give the {size_bytes:,} bytes that its size promised"
