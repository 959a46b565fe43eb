"""The signals that end the kit: each is an exception, as Ctrl-C is, so that what was started is ended too."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

_ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Stopped(KeyboardInterrupt):
    """A signal asks for the end.

    Attributes:
        number: Which.
    """

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


def number_of(interrupt: KeyboardInterrupt) -> int:
    """The signal that an interrupt stands for."""
    return interrupt.number if isinstance(interrupt, Stopped) else int(signal.SIGINT)


@contextmanager
def stoppable() -> Iterator[None]:
    """Let SIGTERM and SIGHUP raise `Stopped`, as SIGINT raises KeyboardInterrupt; one that is ignored stays ignored."""

    def stop(number: int, frame: FrameType | None) -> None:
        raise Stopped(number)

    with _handlers(stop, (signal.SIGTERM, signal.SIGHUP)):
        yield


@contextmanager
def held_back() -> Iterator[None]:
    """Let a signal that comes inside wait for the end of it: for what must be written down once it was begun."""
    came: list[int] = []

    def note(number: int, frame: FrameType | None) -> None:
        came.append(number)

    with _handlers(note, _ENDING):
        yield
    if came:
        signal.raise_signal(came[0])


@contextmanager
def deaf() -> Iterator[None]:
    """Let no signal cut the end short that an earlier one has begun."""

    def ignore(number: int, frame: FrameType | None) -> None:
        """Once was enough."""

    with _handlers(ignore, _ENDING):
        yield


@contextmanager
def _handlers(handler: signal._HANDLER, numbers: tuple[signal.Signals, ...]) -> Iterator[None]:
    # Handlers and no mask: a child would inherit that. Only the main thread is interrupted, and may ask for this.
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.getsignal(number) for number in numbers}
    changed = {number: old for number, old in before.items() if old not in (signal.SIG_IGN, None)}
    for number in changed:
        signal.signal(number, handler)
    try:
        yield
    finally:
        for number, old in changed.items():
            signal.signal(number, old)
