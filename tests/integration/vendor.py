"""Hosts over a fake vendor: one home, as many hosts one after the other, or beside each other, as a test wants."""

import asyncio
import contextlib
import os
import sys
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

from sandport.clock import Clock
from sandport.configuration import Configuration, EnvironmentSettings, HostSettings, ProviderSettings
from sandport.host import Host
from sandport.lease.delays import Delays
from sandport.lease.recovery import IsRunLive
from sandport.numbers import Timing
from sandport.store.records import SandboxState
from sandport_protocol.limits import Limits
from sandport_provider_fake.testing import Fake
from tests.integration.stage import QUICK, Records

EAGER = Delays(first_s=0.02, longest_s=0.2, absent_s=0.05, look_s=0.05)
"""Clean-up that a test can wait for."""


class Vendor:
    """A fake vendor, and hosts that lease from it."""

    def __init__(self, folder: Path, records: Records) -> None:
        self.fake = Fake(folder / "home")
        self.records = records
        self._home = folder / "home"

    @contextlib.asynccontextmanager
    async def host(
        self,
        *,
        timing: Timing = QUICK,
        delays: Delays = EAGER,
        clock: Clock | None = None,
        limits: Limits | None = None,
        config: dict[str, Any] | None = None,
        is_run_live: IsRunLive | None = None,
        others: dict[str, ProviderSettings] | None = None,
        **settings: Any,
    ) -> AsyncIterator[Host]:
        """A host of this home; `others` are further providers."""
        configuration = Configuration(
            host=HostSettings(timing=timing, clean_up=delays),
            providers={"fake": ProviderSettings(limits=limits or Limits(), **settings), **(others or {})},
            environments={"env": EnvironmentSettings(provider="fake", config=config or {})},
        )
        async with Host.open(
            configuration, home=self._home, clock=clock, is_run_live=is_run_live, log=self.records.log
        ) as host:
            yield host


async def states(host: Host) -> dict[SandboxState, int]:
    """How many sandboxes are in which state; those that are in none are left out."""
    return {state: count for state, count in (await host.store.counts()).items() if count}


VICTIM = """
import asyncio, sys
from sandport.host import Host

async def main():
    async with Host.open({config!r}, home={home!r}) as host:
        {body}

asyncio.run(main())
"""


def victim(home: Path, body: str, *, config: str | None = None) -> list[str]:
    """The command of a process that opens a host and runs these statements in it."""
    indented = body.strip("\n").replace("\n", "\n        ")
    return [sys.executable, "-c", VICTIM.format(config=config, home=os.fspath(home), body=indented)]


async def entered_before_a_cancel(block: AbstractAsyncContextManager[object], turns: int) -> bool:
    """Enter a block and cancel that after so many turns of the loop; whether it was entered by then."""
    entered = False

    async def enter() -> None:
        nonlocal entered
        async with block:
            entered = True

    entering = asyncio.ensure_future(enter())
    for _ in range(turns):
        await asyncio.sleep(0)
    entering.cancel()
    await asyncio.wait((entering,))
    return entered


async def leased_before_a_cancel(host: Host, turns: int) -> bool:
    """Ask for a lease and cancel that after so many turns of the loop; whether it was there by then."""
    return await entered_before_a_cancel(host.lease("env"), turns)
