"""Asking providers: a worker of each is started, says its hello, and is stopped."""

from __future__ import annotations

import time

import anyio

from sandport.configuration import Configuration
from sandport.errors import SandportError, WorkerError
from sandport.host import Host, ProviderFacts
from sandport_protocol.capabilities import GROUPS, effective_groups

from .application import Settings
from .hosting import hosted
from .inventory import Fault, Hello, Inventory, Listed, fault_of
from .messages import unicode_text
from .records import Records
from .status import Status


def ask_all(found: Inventory, configuration: Configuration, settings: Settings) -> None:
    """Note the hello of every provider that can be started, or why there is none.

    Raises:
        HomeUnusable: Workers need a place for their state.
    """
    anyio.run(_ask_all, found, configuration, settings, backend="asyncio")


async def _ask_all(found: Inventory, configuration: Configuration, settings: Settings) -> None:
    records = Records(settings, usual="critical")
    # Whoever looks does not change: what waits for clean-up is told, and left to wait.
    async with hosted(configuration, settings.interrupts, records, cleans_up=False) as host:
        usable = [provider for provider in found.providers if provider.fault is None]
        with Status(quiet=False).doing(f"asking {', '.join(provider.name for provider in usable)}"):
            async with anyio.create_task_group() as tasks:
                for provider in usable:
                    tasks.start_soon(_ask, host, provider)


async def _ask(host: Host, provider: Listed) -> None:
    started = time.monotonic()
    try:
        provider.hello = hello_of(await host.describe(provider.name))
        provider.start_ms = round((time.monotonic() - started) * 1000)
    except SandportError as error:
        report = error.report if isinstance(error, WorkerError) else None
        provider.fault = fault_of(error, report.log_tail if report is not None else ())
        return
    except OSError as error:
        # Its place on the disk cannot be made, or read; the others may be well.
        provider.fault = Fault(condition=type(error).__name__, message=unicode_text(f"cannot be started: {error}"))
        return
    try:
        provider.probe = (await host.probe(provider.name)).checks
    except SandportError as error:
        # Many need a config that says more than nothing; that is no fault of the machine's.
        provider.probe_fault = unicode_text(str(error))


def hello_of(facts: ProviderFacts) -> Hello:
    """What a worker said, as it is shown."""
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
        config_schema=hello.provider.config_schema,
    )
