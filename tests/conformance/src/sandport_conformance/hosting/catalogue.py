"""All checks of hosts, in the order in which they run."""

from __future__ import annotations

from collections.abc import Sequence

from sandport_conformance.outcomes import Misuse

from . import calls, commands, files, hellos, leases, lines, novelties, processes, record
from .declaration import HOST_CHECKS, HostCheck

_MODULES = (lines, novelties, hellos, calls, leases, commands, files, processes, record)
_ORDER = tuple(module.__name__ for module in _MODULES)


def every_host_check() -> tuple[HostCheck, ...]:
    """All checks of hosts, those that read the record last."""
    return tuple(sorted(HOST_CHECKS.values(), key=lambda check: (check.record, _ORDER.index(check.run.__module__))))


def select(only: Sequence[str]) -> tuple[HostCheck, ...]:
    """The checks of these ids, requirements or parts of them; all where none is named.

    Raises:
        Misuse: A name fits no check.
    """
    checks = every_host_check()
    for name in only:
        if not any(_is_named(check, name) for check in checks):
            raise Misuse(f"no check of a host is called {name!r}")
    return tuple(check for check in checks if not only or any(_is_named(check, name) for name in only))


def _is_named(check: HostCheck, name: str) -> bool:
    return name in (check.id, check.requirement.id)
