"""The calls in flight of one connection: at most so many at once, the others wait in line for room.

A slot is held until the worker has answered, not until the caller was told. Room in the pipe belongs to it: a frame is
made when it can be written, so that control messages overtake whoever still waits here.
"""

from __future__ import annotations

import asyncio
from collections import deque


class Slots:
    """Who holds a slot is counted; who waits for one is served in order.

    Args:
        limit: How many there are; set anew when the hello has agreed on another number.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.used = 0
        self._full = False
        self._waiters: deque[asyncio.Future[None]] = deque()

    def take_now(self) -> bool:
        """Take one, if nobody has to wait; the hot path."""
        if self._full or self._waiters or self.used >= self.limit:
            return False
        self.used += 1
        return True

    async def take(self, limit_s: float | None) -> None:
        """Wait for one; `served` must follow when its frame is written, `free` when it is over.

        Raises:
            TimeoutError: There was none within the limit.

        Cancel: takes none.
        """
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiters.append(waiter)
        try:
            async with asyncio.timeout(limit_s):
                await waiter
        except BaseException:  # a cancel above all
            if waiter.done() and not waiter.cancelled():
                self.free()  # it was handed over at the same moment
            elif waiter in self._waiters:
                self._waiters.remove(waiter)  # or whoever asks in vain while all is held would be kept for ever
            raise

    def free(self) -> None:
        """Give one back."""
        self.used -= 1
        if self._waiters:
            self.served()

    def served(self) -> None:
        """Hand a slot to whoever waits longest; that one lets the next in when its frame is written."""
        while self._waiters and not self._full and self.used < self.limit:
            waiter = self._waiters.popleft()
            if not waiter.done():
                self.used += 1
                waiter.set_result(None)
                return

    def pipe_is_full(self) -> None:
        """Nobody is let in until there is room again."""
        self._full = True

    def pipe_has_room(self) -> None:
        """Whoever waits may go on."""
        self._full = False
        self.served()

    def close(self) -> None:
        """Everybody goes on at once, and finds that the connection is gone."""
        waiters, self._waiters = self._waiters, deque()
        for waiter in waiters:
            if not waiter.done():
                self.used += 1
                waiter.set_result(None)
