"""Plugins that distributions bring: found by name in package metadata, imported once somebody names them.

Discovery reads the group `sandport.plugins` as it reads that of providers: as text. Unlike a provider, which stays in a
process of its own, a plugin runs in the host; so none is imported that sandport.toml or the caller does not name.
"""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from typing import Any, Final

from .discovery import DiscoveryFault, Entry, entries_of
from .errors import UsageError
from .nearest import nearest

GROUP: Final = "sandport.plugins"


def find_plugin(name: str, paths: Sequence[str] | None = None) -> Entry:
    """The installed plugin of this name; nothing of it is imported.

    Args:
        name: The name of its entry point.
        paths: Folders to look in; by default those that this interpreter imports from.

    Raises:
        UsageError: There is none, or more than one.
    """
    faults: list[DiscoveryFault] = []
    entries = list(entries_of(GROUP, paths, faults))
    claims = [entry for entry in entries if entry.name == name]
    if len(claims) > 1:
        who = " and ".join(f"{one.distribution} {one.version} ({one.dist_info})" for one in claims)
        raise UsageError(f"two distributions install a plugin called {name!r}: {who}\nuninstall one of them")
    if not claims:
        known = sorted({entry.name for entry in entries})
        unread = "".join(f"\n{fault.dist_info}: {fault.message}" for fault in faults)
        raise UsageError(
            f"no plugin {name!r} is installed{nearest(name, known)}; there are: {', '.join(known) or 'none'}{unread}\n"
            "install what brings it, or leave the name out: of [host] plugins in sandport.toml, or of "
            "Host.open(plugins=[...])"
        )
    return claims[0]


def load_plugin(entry: Entry) -> Any:
    """What an entry point names, imported: a module, or an object in it; a class is called without arguments.

    Raises:
        UsageError: It cannot be imported or made; whatever it raised is the cause.
    """
    module, _, path = entry.value.partition(":")
    try:
        found: Any = importlib.import_module(module.strip())
        for part in path.strip().split(".") if path else ():
            found = getattr(found, part)
        return found() if isinstance(found, type) else found
    except Exception as error:  # somebody else's code: whatever it raises, it cannot be used
        raise UsageError(
            f"the plugin {entry.name!r} ({entry.value}, of {entry.distribution} {entry.version}) cannot be loaded: "
            f"{type(error).__name__}: {error}\nmend or upgrade {entry.distribution}, or leave the name out: of [host] "
            "plugins in sandport.toml, or of Host.open(plugins=[...])"
        ) from error
