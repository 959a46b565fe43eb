"""Ctrl-C during a copy that runs in the main thread, heard where nothing is half-done.

Python raises KeyboardInterrupt between any two instructions, also between the one that opened a descriptor, or started
a process, and the one that says whose it is to end; no order of statements closes that gap. So while a copy is at work
the signal is noted, and raised at the next moment at which the copy could be cancelled anyway. A worker thread, where
copies belong, never gets one.
"""

from __future__ import annotations

import signal
from collections.abc import Callable
from types import FrameType, TracebackType
from typing import Self

__all__ = ["HeldInterrupt"]


class HeldInterrupt:
    """Holds an interrupt back in its block, until it is polled for or the block ends; a second one is not held.

    Only where Python's own handler would raise: who has one of his own, or ignores the signal, keeps it.

    Args:
        cancelled: What else is to be asked at a poll; answers whether to stop.
    """

    def __init__(self, cancelled: Callable[[], bool] | None) -> None:
        self._cancelled = cancelled
        self._holds = False
        self._came = False

    def __enter__(self) -> Self:
        if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            self._holds = True
            try:
                signal.signal(signal.SIGINT, self._note)
            except ValueError:
                # Not the main thread of the main interpreter: no interrupt comes here.
                self._holds = False
        return self

    def __exit__(
        self, _kind: type[BaseException] | None, error: BaseException | None, _traceback: TracebackType | None
    ) -> None:
        if self._holds:
            signal.signal(signal.SIGINT, signal.default_int_handler)
            if self._came and (error is None or isinstance(error, Exception)):
                raise KeyboardInterrupt from error

    @property
    def cancelled(self) -> Callable[[], bool] | None:
        """What to poll: `cancelled`, and where interrupts are held one that raises them."""
        return self._poll if self._holds else self._cancelled

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self._came:
            # Somebody is in a hurry, or the system does not come back to us.
            signal.default_int_handler(number, frame)
        self._came = True

    def _poll(self) -> bool:
        if self._came:
            raise KeyboardInterrupt
        return self._cancelled is not None and self._cancelled()
