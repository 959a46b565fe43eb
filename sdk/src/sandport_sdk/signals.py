"""The signals of a worker: from the moment it serves until its last instruction, none of them ends it by itself.

SIGTERM asks it to end (PROC-10), SIGINT means the host (PROC-11). Whoever asks may ask again, at any moment: so neither
is ever given back to the system, which would end the process with the signal instead of with its own code. asyncio's
way does that (`loop.close`), and so does the interpreter on its way out, with every handler that is a Python function.

Nothing is ignored (SIG_IGN) or blocked while something can still be started: a child would inherit that.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from asyncio import AbstractEventLoop
    from types import FrameType

_OURS = (signal.SIGTERM, signal.SIGINT)


def hold_interrupts() -> None:
    """Do nothing on SIGINT. Call it before anything of the author's, whose own functions for the exit then run first.

    The terminal's Ctrl-C reaches the whole foreground group; what ends is for the host to say.
    """
    import atexit

    signal.signal(signal.SIGINT, _nothing)
    atexit.register(_ignore_all)
    os.register_at_fork(before=_hold, after_in_parent=_release, after_in_child=_give_up)


class Termination:
    """Calls back in the loop at each SIGTERM, and goes on to take them when the loop is closed."""

    def __init__(self, loop: AbstractEventLoop, on_term: Callable[[], object]) -> None:
        """Begin; from the main thread.

        Args:
            loop: The running loop.
            on_term: Called at each of them; often, where somebody insists.
        """
        self._loop = loop
        self._on_term = on_term
        self._read, self._write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        # A signal that comes just before the loop begins to wait would be handled only after it.
        loop.add_reader(self._read, self._wake)
        signal.set_wakeup_fd(self._write, warn_on_full_buffer=False)
        signal.signal(signal.SIGTERM, self._on_signal)

    def stop(self) -> None:
        """Call back no more. SIGTERM does nothing from now on."""
        signal.signal(signal.SIGTERM, _nothing)
        self._loop.remove_reader(self._read)
        former = signal.set_wakeup_fd(-1)
        if former not in (-1, self._write):
            signal.set_wakeup_fd(former)  # a handler's code has put its own there
        os.close(self._read)
        os.close(self._write)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        """Between any two instructions of the main thread: only the loop may call what is ours."""
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._on_term)

    def _wake(self) -> None:
        os.read(self._read, 4096)


def _nothing(number: int, frame: FrameType | None) -> None:
    """A handler and not SIG_IGN, which every program that is started would inherit."""


def _ignore_all() -> None:
    """The last that is called at the exit: afterwards the interpreter gives back what is a Python function."""
    for number in _OURS:
        signal.signal(number, signal.SIG_IGN)


# ------------------------------------------------------------------ forked children, such as those of a process pool


def _hold() -> None:
    """Before a fork: what is sent to the child at once waits until the child has its own handlers.

    Otherwise it is taken by the parent's, which the interpreter drops in a child: a pool that ends its children with
    SIGTERM would wait for them for ever.
    """
    signal.pthread_sigmask(signal.SIG_BLOCK, _OURS)


def _release() -> None:
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _OURS)


def _give_up() -> None:
    """In the child: the signals are its own. The wake-up descriptor is shared, and would wake the parent."""
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    _release()
