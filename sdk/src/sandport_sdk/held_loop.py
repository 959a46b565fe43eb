"""Where a provider's code stands, for its author: when it holds up the event loop, or a thread that was cancelled.

An `async def` handler that blocks is the one mistake that nothing answers: the loop does not turn, no ping is answered,
and after the wedge limit the host kills the worker with all that it knew. So a thread looks whether the loop turns,
while calls are open; it sleeps otherwise, and costs a call nothing but the look at one attribute.
"""

from __future__ import annotations

import _thread
import asyncio
import logging
import os
import sys
import threading
from collections.abc import Mapping
from typing import TYPE_CHECKING

import sandport_protocol
from sandport_protocol.envelope import Id

if TYPE_CHECKING:
    from types import FrameType

    from .v1.call import Call

_log = logging.getLogger("sandport_sdk")

HELD_S = 5.0
"""Without a turn of the loop. It is looked at as often, so the word may come as late again."""
_STANDARD = os.path.dirname(os.__file__)
_OURS = (os.path.dirname(__file__), os.path.dirname(sandport_protocol.__file__))

_TURNS = asyncio.BaseEventLoop.run_forever.__code__


class LoopWatch:
    """Says once for each time that the loop is held up who does it, and where.

    Attributes:
        asleep: Whether it must be told that a call is open.
        home: The folder of the provider's own code, once it is known.
    """

    def __init__(
        self, loop: asyncio.AbstractEventLoop, open_calls: Mapping[Id, Call], *, held_s: float = HELD_S
    ) -> None:
        """Be ready; the thread is started with the first call that needs it.

        Args:
            loop: The loop, which runs in this thread.
            open_calls: The calls that are open, as they are at any moment.
            held_s: How long is too long.
        """
        self.home = ""
        self.asleep = True
        self._loop = loop
        self._open = open_calls
        self._held_s = held_s
        self._main = threading.get_ident()
        self._woken = threading.Event()
        self._stopped = threading.Event()
        self._turned = True
        self._begun = False

    def wake(self) -> None:
        """A call is open."""
        self.asleep = False
        self._woken.set()
        if not self._begun:
            self._begun = True
            try:
                # `threading` would wait here until the other thread has had its turn.
                _thread.start_new_thread(self._run, ())
            except RuntimeError as error:
                _log.debug("nothing watches the event loop: %s", error)

    def stop(self) -> None:
        """Look no more."""
        self.asleep = False
        self._stopped.set()
        self._woken.set()

    def _run(self) -> None:
        while not self._stopped.is_set():
            self._woken.wait()
            self._woken.clear()
            while self._open and not self._stopped.is_set():
                self._look()
            self.asleep = True
            if self._open:  # one that came just before this was said
                self.asleep = False
                self._woken.set()

    def _look(self) -> None:
        self._turned = False
        try:
            self._loop.call_soon_threadsafe(self._turn)
        except RuntimeError:
            self._stopped.set()  # the loop is closed
            return
        said = False
        while not self._stopped.wait(self._held_s) and not self._turned and self._open:
            said = said or self._say()

    def _turn(self) -> None:
        self._turned = True

    def _say(self) -> bool:
        place = place_of(self._main, self.home)
        task = asyncio.current_task(self._loop)
        if place is None or self._turned:
            return False  # it is not the provider that holds it up: a machine that sleeps, or has no time for us
        methods = sorted({call.method for call in self._open.values()})
        name = task.get_name() if task is not None else ""
        who = f"the handler of `{name}`" if name in methods else f"something of the provider's ({', '.join(methods)})"
        _log.error(
            "%s has held up the event loop for %g s, at %s: make it a plain def, which runs in a thread, or await what "
            "takes long; nothing else is answered meanwhile, and a host ends a worker that answers no ping",
            who,
            self._held_s,
            place,
        )
        return True


def home_of(provider: type) -> str:
    """The folder with a provider's own code; empty where it is in no file."""
    file = getattr(sys.modules.get(provider.__module__), "__file__", None)
    return os.path.join(os.path.dirname(file), "") if file else ""


def place_of(thread: int, home: str) -> str | None:
    """Where a thread is, e.g. `/src/provider.py:88 in execute`; None where it is in nothing but Python's code and ours.

    Best in the provider's own code, else in what that uses.
    """
    frame: FrameType | None = sys._current_frames().get(thread)
    beneath = None
    while frame is not None and frame.f_code is not _TURNS:  # who runs the loop does not hold it up
        file = frame.f_code.co_filename
        if home and file.startswith(home):
            return _told(frame)
        standard = file.startswith((_STANDARD, "<frozen")) and "-packages" not in file
        if beneath is None and not standard and not file.startswith(_OURS):
            beneath = _told(frame)
        frame = frame.f_back
    return beneath


def _told(frame: FrameType) -> str:
    return f"{frame.f_code.co_filename}:{frame.f_lineno} in {frame.f_code.co_name}"
