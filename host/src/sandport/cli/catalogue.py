"""The list of providers, as `sandport providers` shows it."""

from __future__ import annotations

from sandport.configuration import load
from sandport.errors import ProviderUnknown
from sandport.nearest import nearest

from .application import Settings
from .config_keys import keys_of
from .inventory import Inventory, Listed, inventory
from .listing import put_json, put_lines, put_table
from .messages import say

SIZES = "-c takes sizes as 512M or 512Mi too"


def show(settings: Settings, name: str | None, *, probe: bool, as_json: bool) -> int:
    """Print the list, or what one of them is; 1 where a provider could not be asked, else 0.

    Raises:
        ProviderUnknown: There is none of this name.
    """
    configuration = load(settings.config)
    found = inventory(configuration)
    if name is not None:
        found, probe = _only(name, found), True
    if probe:
        from .probing import ask_all

        ask_all(found, configuration, settings)
        if (code := settings.interrupts.exit_code) is not None:
            return code
    if as_json:
        put_json(found)
    else:
        _put(found, probe=probe)
        if name is not None:
            _put_config(found.providers[0])
    return 1 if probe and any(provider.fault for provider in found.providers) else 0


def _only(name: str, found: Inventory) -> Inventory:
    known = {provider.name: provider for provider in found.providers}
    if name not in known:
        hint = nearest(name, known) or f"; there are: {', '.join(known) or 'none'}"
        raise ProviderUnknown(f"no provider {name!r} is installed or configured{hint}")
    return Inventory(providers=(known[name],), faults=())


def _put_config(provider: Listed) -> None:
    """The keys of its config, for `-c`."""
    if provider.hello is None:
        return
    keys = keys_of(bytes(provider.hello.config_schema))
    if not keys:
        put_lines(["", "its config has no keys" if keys is not None else "it does not say which keys its config has"])
        return
    put_lines(["", f"its config, for -c KEY=VALUE and [environments.NAME] config = {{ KEY = VALUE }} ({SIZES}):"])
    rows = [[key.name, key.type, key.default or "-", key.description or "-"] for key in keys.values()]
    put_table(["KEY", "VALUE", "DEFAULT", "MEANING"], rows)


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
