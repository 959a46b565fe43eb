"""Whether the host is still there, for a worker whose end of input may never come.

A wrapper between the two, or a sibling that inherited the pipe, can hold it open after the host's death. So a worker
also watches its parent process, and how long it heard nothing.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from asyncio import AbstractEventLoop, TimerHandle

_log = logging.getLogger("sandport_sdk")

POLL_S = 1.0
"""Between two looks at the parent, where the kernel cannot announce its end."""
_SECOND_LOOK_S = 0.1


class ParentWatch:
    """Calls back once when the process that started this one is gone."""

    def __init__(
        self, loop: AbstractEventLoop, parent: int, on_gone: Callable[[], object], *, poll_s: float = POLL_S
    ) -> None:
        """Watch `parent`, which is what `os.getppid` said when this process began.

        It may well be 1 (a host that is the init of its container), or 0 (one outside of our process namespace): what
        counts is that it changes, not what it changes to.
        """
        self._loop = loop
        self._parent = parent
        self._on_gone = on_gone
        self._poll_s = poll_s
        self._pidfd: int | None = None
        self._timer: TimerHandle | None = None
        try:
            self._pidfd = os.pidfd_open(parent)
        except (AttributeError, OSError) as error:
            _log.debug("no pidfd of the parent (%s): looking at it every %s s", error, poll_s)
            self._look()
            return
        loop.add_reader(self._pidfd, self._gone)
        # It may have died before, and its number been given away.
        if os.getppid() != parent:
            self._gone()

    def stop(self) -> None:
        """Watch no more."""
        if self._pidfd is not None:
            self._loop.remove_reader(self._pidfd)
            os.close(self._pidfd)
            self._pidfd = None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _look(self) -> None:
        if os.getppid() != self._parent:
            self._gone()
        else:
            self._timer = self._loop.call_later(self._poll_s, self._look)

    def _gone(self) -> None:
        self.stop()
        self._on_gone()


class SilenceWatch:
    """Calls back once when nothing was heard for longer than the limit.

    Attributes:
        heard: The loop's time at which something came in last; whoever reads sets it.
    """

    __slots__ = ("_limit_s", "_loop", "_on_silence", "_timer", "heard")

    def __init__(self, loop: AbstractEventLoop, limit_s: Callable[[], float], on_silence: Callable[[], object]) -> None:
        self._loop = loop
        self._limit_s = limit_s
        self._on_silence = on_silence
        self.heard = loop.time()
        self._timer = loop.call_later(limit_s(), self._look)

    def restart(self) -> None:
        """The limit changed."""
        self._timer.cancel()
        self._look()

    def stop(self) -> None:
        """Listen no more."""
        self._timer.cancel()

    def _look(self) -> None:
        left = self.heard + self._limit_s() - self._loop.time()
        if left > 0:
            self._timer = self._loop.call_later(left, self._look)
        else:
            # A handler may have held the loop for long: what the host said meanwhile is read before the second look.
            self._timer = self._loop.call_later(_SECOND_LOOK_S, self._judge, self.heard)

    def _judge(self, heard: float) -> None:
        if self.heard == heard:
            self._on_silence()
        else:
            self._look()
