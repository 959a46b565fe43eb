"""The vendor's time: the machine's, or a virtual one that moves only when somebody moves it.

`clock.json` is `{"virtualMs": instant}` or `{"aheadMs": of the machine's clock}`; without it, it is the machine's.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from typing import TYPE_CHECKING

from .journal import SharedFile

if TYPE_CHECKING:
    from pathlib import Path

LOOK_S = 0.02
"""Between two looks at a virtual clock that somebody waits for."""


class VendorClock:
    """One clock for every worker of the vendor."""

    def __init__(self, folder: Path) -> None:
        self._file = SharedFile(folder / "clock.json")

    @property
    def is_virtual(self) -> bool:
        """Whether it stands still by itself."""
        return "virtualMs" in self._file.read_object()

    def now_ms(self) -> int:
        """Unix milliseconds."""
        said = self._file.read_object()
        virtual: int | None = said.get("virtualMs")
        if virtual is not None:
            return virtual
        ahead: int = said.get("aheadMs", 0)
        return time.time_ns() // 1_000_000 + ahead

    def make_virtual(self, start_ms: int | None = None) -> None:
        """Let it stand still, at an instant or now; nothing happens where it does. For who holds the vendor's lock."""
        if not self.is_virtual:
            self._file.write({"virtualMs": self.now_ms() if start_ms is None else start_ms})

    def advance(self, by_ms: int) -> int:
        """Move it; the new time. For who holds the vendor's lock."""
        said = self._file.read_object()
        if "virtualMs" in said:
            self._file.write({"virtualMs": said["virtualMs"] + by_ms})
        else:
            self._file.write({"aheadMs": said.get("aheadMs", 0) + by_ms})
        return self.now_ms()

    async def next_look(self, at_ms: int | None, news: asyncio.Event) -> None:
        """Return when it may be that late, or there is news; never, where there is no instant and no news."""
        timeout_s = None
        if at_ms is not None:
            # Looked at often even where it is the machine's: somebody may set it forward.
            left_s = max(0.0, (at_ms - self.now_ms()) / 1000)
            timeout_s = LOOK_S if self.is_virtual else min(LOOK_S * 10, left_s)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await news.wait()

    async def sleep_until(self, at_ms: int) -> None:
        """Return once it is that late, however it came to be."""
        nothing = asyncio.Event()
        while self.now_ms() < at_ms:
            await self.next_look(at_ms, nothing)
