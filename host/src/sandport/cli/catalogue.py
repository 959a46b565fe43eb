"""The list of providers, as `sandport providers` shows it."""

from __future__ import annotations

from sandport.configuration import load

from .application import Settings
from .inventory import Inventory, Listed, inventory
from .listing import put_json, put_lines, put_table
from .messages import say


def show(settings: Settings, *, probe: bool, as_json: bool) -> int:
    """Print the list; 1 where a provider could not be asked, else 0."""
    configuration = load(settings.config)
    found = inventory(configuration)
    if probe:
        from .probing import ask_all

        ask_all(found, configuration, settings)
        if (code := settings.interrupts.exit_code) is not None:
            return code
    if as_json:
        put_json(found)
    else:
        _put(found, probe=probe)
    return 1 if probe and any(provider.fault for provider in found.providers) else 0


def _put(found: Inventory, *, probe: bool) -> None:
    if found.providers:
        head = ["PROVIDER", "VERSION", "FROM"] + (["ABILITIES", "WITHHELD"] if probe else [])
        put_table(head, [_row(provider, probe=probe) for provider in found.providers])
    else:
        put_lines(["no provider is installed; pip install sandport-provider-local is the one for this machine"])
    for provider in found.providers:
        if provider.fault is not None:
            say(f"{provider.name}: {provider.fault.message}")
    for fault in found.faults:
        say(fault.message)


def _row(provider: Listed, *, probe: bool) -> list[str]:
    origin = " ".join(provider.command) or f"{provider.distribution} ({provider.module})"
    row = [provider.name, provider.version or "-", origin if provider.command or provider.module else "-"]
    if not probe:
        return row
    hello = provider.hello
    if hello is None:
        return [*row, "cannot be used", "-"]
    row[1] = hello.version
    return [*row, hello.abilities(), ", ".join(hello.withheld) or "-"]
