"""A host for the length of a command, and what signals do meanwhile."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable

import anyio

from sandport.configuration import Configuration
from sandport.host import Host

from .interrupts import Interrupts
from .messages import REAP, say
from .records import Records


@contextlib.asynccontextmanager
async def hosted(
    configuration: Configuration,
    interrupts: Interrupts,
    records: Records,
    *,
    cleans_up: bool = True,
    on_leaving: Callable[[], object] | None = None,
) -> AsyncIterator[Host]:
    """An open host; the first signal ends the block, and the host is closed in order; a second one leaves at once.

    What the block was at is cut short without an exception: ask `interrupts.received` afterwards.

    Args:
        configuration, cleans_up: As of `Host.open`.
        interrupts: Who catches the signals.
        records: Where the host's log goes.
        on_leaving: Called before the words with which a second signal leaves.

    Raises:
        SandportError: As `Host.open`.
    """
    loop = asyncio.get_running_loop()
    # What is started below can be cancelled from inside only: the workers must outlive the clean-up.
    interrupts.guard(lambda: None)
    try:
        async with Host.open(configuration, log=records.log, cleans_up=cleans_up) as host:

            def leave() -> None:
                host.abandon()
                if on_leaving is not None:
                    on_leaving()
                say(f"left at once; what is not ended yet is ended by the next command, or by: {REAP}")

            interrupts.on_leaving(leave)
            with anyio.CancelScope() as scope:
                interrupts.guard(lambda: loop.call_soon_threadsafe(scope.cancel))
                if interrupts.received is not None:
                    scope.cancel()
                yield host
    finally:
        interrupts.relax()
