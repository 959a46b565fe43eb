"""Asking providers: a worker of each is started, says its hello, and is stopped."""

from __future__ import annotations

import asyncio
import time

import anyio

from sandport.configuration import Configuration
from sandport.errors import SandportError, WorkerError
from sandport.host import Host, ProviderFacts
from sandport_protocol.capabilities import GROUPS, effective_groups

from .application import Settings
from .inventory import Hello, Inventory, Listed, fault_of
from .records import Records
from .status import Status


def ask_all(found: Inventory, configuration: Configuration, settings: Settings) -> None:
    """Note the hello of every provider that can be started, or why there is none.

    Raises:
        HomeUnusable: Workers need a place for their state.
    """
    anyio.run(_ask_all, found, configuration, settings, backend="asyncio")


async def _ask_all(found: Inventory, configuration: Configuration, settings: Settings) -> None:
    interrupts = settings.interrupts
    # As in a run: what is started is cancelled from inside the host, which stops its workers in order.
    interrupts.guard(lambda: None)
    loop = asyncio.get_running_loop()
    try:
        async with Host.open(configuration, log=Records(settings, usual="critical").log) as host:
            interrupts.on_leaving(host.abandon)
            with anyio.CancelScope() as scope:
                interrupts.guard(lambda: loop.call_soon_threadsafe(scope.cancel))
                if interrupts.received is not None:
                    scope.cancel()
                usable = [provider for provider in found.providers if provider.fault is None]
                with Status(quiet=False).doing(f"asking {', '.join(provider.name for provider in usable)}"):
                    async with anyio.create_task_group() as tasks:
                        for provider in usable:
                            tasks.start_soon(_ask, host, provider)
    finally:
        interrupts.relax()


async def _ask(host: Host, provider: Listed) -> None:
    started = time.monotonic()
    try:
        provider.hello = _hello(await host.describe(provider.name))
        provider.start_ms = round((time.monotonic() - started) * 1000)
    except SandportError as error:
        report = error.report if isinstance(error, WorkerError) else None
        provider.fault = fault_of(error, report.log_tail if report is not None else ())


def _hello(facts: ProviderFacts) -> Hello:
    hello = facts.hello
    groups = effective_groups(hello.supported_methods)
    return Hello(
        name=hello.provider.name,
        version=hello.provider.version,
        display_name=hello.provider.display_name,
        protocol_version=hello.protocol_version,
        methods=hello.supported_methods,
        capabilities=hello.capabilities,
        features=hello.features,
        groups=tuple(sorted(groups)),
        missing_groups=tuple(sorted(set(GROUPS) - groups)),
        wants_env=hello.wants_env,
        withheld=facts.withheld,
    )
