"""The user's own terminal: its size, raw for as long as a program inside has it, and as it was on every way out."""

from __future__ import annotations

import contextlib
import os
import signal
import termios
import tty
from collections.abc import Iterator
from typing import Any

USUAL_SIZE = (80, 24)
_MOST_CHARACTERS = 65535

WIPED = b"\x1b[?1047l\x1b[?1000l\x1b[?1002l\x1b[?1003l\x1b[?1006l\x1b[?2004l\x1b[?1l\x1b>\x1b[?25h\x1b[0m\r\n"
"""For a program that could not do it itself: out of the other screen, no mouse, no marked pastes, keys as usual, a
cursor, no colours, a new line."""


class Terminal:
    """The terminal of a descriptor.

    Args:
        descriptor: Where its keys come from; another one may show it.
    """

    def __init__(self, descriptor: int = 0) -> None:
        self.descriptor = descriptor
        self._before: list[Any] | None = None

    def size(self) -> tuple[int, int]:
        """Columns and rows; the usual ones where nobody told it its own, or it went away."""
        try:
            columns, rows = os.get_terminal_size(self.descriptor)
        except OSError:
            # Its other end is closed; whoever reads or writes next is told.
            return USUAL_SIZE
        if columns < 1 or rows < 1:
            return USUAL_SIZE
        return min(columns, _MOST_CHARACTERS), min(rows, _MOST_CHARACTERS)

    @contextlib.contextmanager
    def raw(self) -> Iterator[None]:
        """Every key as it is, Ctrl-C and Ctrl-Z too, and every byte shown as it comes, for the length of the block."""
        try:
            self._before = termios.tcgetattr(self.descriptor)
            tty.setraw(self.descriptor, termios.TCSADRAIN)
        except termios.error:
            # It went away; the first read says so.
            self._before = None
        try:
            yield
        finally:
            self.restore()

    def again(self) -> None:
        """Raw again, where a shell that had stopped us put it back for itself."""
        if self._before is not None:
            with contextlib.suppress(termios.error):  # as above
                tty.setraw(self.descriptor, termios.TCSADRAIN)

    def restore(self) -> None:
        """As it was before the block, whatever was done in it; a second call does nothing."""
        before, self._before = self._before, None
        if before is None or not self._is_ours():
            return
        # A terminal of which we are not in front any more would stop us here.
        blocked = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTTOU})
        try:
            with contextlib.suppress(termios.error):  # it went away, and nothing of it has to be as it was
                termios.tcsetattr(self.descriptor, termios.TCSANOW, before)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, blocked)

    def _is_ours(self) -> bool:
        """Whether what its keys do is ours to say: in the background it is a shell's, which has seen to it."""
        try:
            return os.tcgetpgrp(self.descriptor) == os.getpgrp()
        except OSError:
            # A terminal, but not the one that controls us: nobody else looks after it.
            return True
