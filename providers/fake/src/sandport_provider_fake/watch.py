"""Ends sandboxes whose time is over, also where nobody asks about them."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from typing import TYPE_CHECKING

from sandport_sdk.v1 import errors

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from .sandbox import Sandbox
    from .vendor import Vendor

AGAIN_S = 0.5
"""After a failure of the watch itself, such as a clock that cannot be read."""

_log = logging.getLogger("sandport_provider_fake")


class Watch:
    """Looks at the vendor's clock for the sandboxes of one worker, until it is closed.

    What fails meanwhile has no call that could tell it: it is an error in the log, and the watch goes on.

    Args:
        vendor: Whose clock it is, and who ends a sandbox.
        attached: The sandboxes by id, as they come and go.
        forget: Ends what runs in one of them for this worker, and takes it out of them.
    """

    def __init__(
        self, vendor: Vendor, attached: Mapping[str, Sandbox], forget: Callable[[str], Awaitable[None]]
    ) -> None:
        self._vendor = vendor
        self._attached = attached
        self._forget = forget
        self._news = asyncio.Event()
        self._watching: asyncio.Task[None] | None = None
        self._ending: asyncio.Task[None] | None = None

    def begin(self) -> None:
        """Watch from now on."""
        self._watching = asyncio.create_task(self._watch())

    def look(self) -> None:
        """There is another sandbox, or another time for one."""
        self._news.set()

    async def close(self) -> None:
        """Watch no longer; what is just being ended is waited for."""
        if self._watching is not None:
            self._watching.cancel()
        if self._ending is not None:
            await self._ending

    async def _watch(self) -> None:
        while True:
            self._news.clear()
            try:
                self._ending = asyncio.create_task(self._end_all(self._over()))
                await asyncio.shield(self._ending)
                due_ms = min((one.record.expires_at_ms for one in self._attached.values()), default=None)
                await self._vendor.clock.next_look(due_ms, self._news)
            except Exception:  # noqa: BLE001 - no call could tell it, so the log does
                _log.exception("no sandbox was looked at for its expiry; it is tried again in %s s", AGAIN_S)
                await asyncio.sleep(AGAIN_S)

    def _over(self) -> list[str]:
        now_ms = self._vendor.clock.now_ms()
        return [sandbox_id for sandbox_id, one in self._attached.items() if one.record.expires_at_ms <= now_ms]

    async def _end_all(self, over: list[str]) -> None:
        for sandbox_id in over:
            try:
                with contextlib.suppress(errors.WireError):  # the next who looks at it goes on with it
                    await self._vendor.find(sandbox_id)
            except Exception:  # noqa: BLE001 - no call could tell it, so the log does
                _log.exception("the vendor did not end %s, whose time is over", sandbox_id)
            try:
                await self._forget(sandbox_id)
            except Exception:  # noqa: BLE001 - no call could tell it, so the log does
                _log.exception("what runs in %s, whose time is over, was not ended", sandbox_id)
