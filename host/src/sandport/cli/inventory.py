"""What is known of each provider from metadata and settings; nothing of one runs, and nothing is started."""

from __future__ import annotations

from typing import Literal

import msgspec
from msgspec import Struct

from sandport.configuration import Configuration
from sandport.discovery import Discovery, discover
from sandport.errors import SandportError
from sandport.worker.environment import grant_line
from sandport_protocol.capabilities import Capabilities
from sandport_protocol.v1 import ProbeCheck

from .messages import unicode_text

Origin = Literal["installed", "configured"]


class Hello(Struct, frozen=True, kw_only=True, rename="camel"):
    """What a worker said of itself."""

    name: str
    version: str
    display_name: str
    protocol_version: int
    methods: tuple[str, ...]
    capabilities: Capabilities
    features: tuple[str, ...]
    groups: tuple[str, ...]
    """Optional groups of methods that it serves whole."""
    missing_groups: tuple[str, ...]
    wants_env: tuple[str, ...]
    withheld: tuple[str, ...]
    """Variables that it reads, that are set here, and that it did not get."""
    config_schema: msgspec.Raw
    """The JSON Schema of its config."""

    def abilities(self) -> str:
        """The declared facts, for a person."""
        able = self.capabilities
        words = [f"kill {able.kill}", f"expiry {able.expiry}", f"attach {able.attach}"]
        words += ["egress " + "/".join(able.egress), *self.groups]
        words += [name for name, has in (("pty", able.pty), ("user", able.user)) if has]
        return ", ".join(words)


class Fault(Struct, frozen=True, kw_only=True, rename="camel"):
    """Why something cannot be used."""

    condition: str
    message: str
    log_tail: tuple[str, ...] = ()
    """The last lines of the worker's stderr."""


class Listed(Struct, kw_only=True, rename="camel"):
    """One provider."""

    name: str
    origin: Origin
    """`configured`: sandport.toml has the command that starts it."""
    distribution: str | None = None
    version: str | None = None
    module: str | None = None
    command: tuple[str, ...] = ()
    grants: tuple[str, ...] = ()
    """Variables that sandport.toml grants its worker."""
    path: str | None = None
    """The metadata that says so."""
    fault: Fault | None = None
    hello: Hello | None = None
    """Only where a worker was asked."""
    start_ms: int | None = None
    """How long that worker took to be ready."""
    probe: tuple[ProbeCheck, ...] = ()
    """What it found where it looked at what its sandboxes need, with its config as it is by default."""
    probe_fault: str | None = None
    """Why it could not look."""

    def grant_line(self) -> str:
        """What sandport.toml has to say so that nothing is withheld."""
        withheld = self.hello.withheld if self.hello is not None else ()
        return grant_line(self.name, (*self.grants, *withheld))


class Inventory(Struct, frozen=True, kw_only=True, rename="camel"):
    """Every provider, and what could not be read."""

    providers: tuple[Listed, ...]
    faults: tuple[Fault, ...]
    """Metadata of the group that names no usable provider."""


def inventory(configuration: Configuration) -> Inventory:
    """Everything that is installed or configured, by name."""
    found = discover()
    listed = _installed(found)
    for name, settings in configuration.providers.items():
        entry = listed.setdefault(name, Listed(name=name, origin="configured"))
        entry.command = settings.command
        entry.grants = settings.env
        if settings.command:
            # Who else claims the name does not matter to a provider with a command of its own.
            entry.origin, entry.fault = "configured", None
        elif entry.module is None:
            message = f"[providers.{name}] is in sandport.toml, but has no command, and no such provider is installed"
            entry.fault = Fault(condition="ProviderUnknown", message=message)
    faults = tuple(
        Fault(condition="MetadataInvalid", message=unicode_text(f"{fault.dist_info}: {fault.message}"))
        for fault in found.faults
    )
    return Inventory(providers=tuple(listed[name] for name in sorted(listed)), faults=faults)


def _installed(found: Discovery) -> dict[str, Listed]:
    return {
        provider.name: Listed(
            name=provider.name,
            origin="installed",
            distribution=provider.distribution,
            version=provider.version,
            module=provider.module,
            path=unicode_text(provider.dist_info),
            fault=None if (conflict := found.conflict(provider.name)) is None else fault_of(conflict),
        )
        for provider in found.providers
    }


def fault_of(error: SandportError, log_tail: tuple[str, ...] = ()) -> Fault:
    """An error, as a listing shows it."""
    return Fault(
        condition=type(error).__name__,
        message=unicode_text(str(error)),
        log_tail=tuple(unicode_text(line) for line in log_tail),
    )
