"""What a provider can do: groups of methods, declared facts, and what is left of both for one config or lease.

A missing method is one named error at the start, never a surprise in the middle of a run.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

from msgspec import Struct

from .ranges import check_ranges

MANDATORY: tuple[str, ...] = (
    "initialize",
    "ping",
    "shutdown",
    "validateConfig",
    "probe",
    "acquireLease",
    "attachLease",
    "listLeases",
    "destroyLease",
    "execute",
)
"""Every worker serves these."""

GROUPS: dict[str, tuple[str, ...]] = {
    "process": ("startProcess", "writeProcess", "signalProcess", "waitProcess"),
    "sync": ("syncIn", "syncOut"),
}
"""Optional methods, advertised as whole groups; more groups are reserved in `RESERVED_GROUPS`."""

RESERVED_GROUPS: dict[str, tuple[str, ...]] = {
    "release": ("releaseLease",),
    "renew": ("renewLease",),
    "workspace": ("realizeWorkspace",),
    "setup": ("startSetup", "getSetup", "cancelSetup"),
    "template": ("captureTemplate",),
    "templateDeletion": ("deleteTemplate",),
    "file": ("readFile", "writeFile", "statPath", "listPath", "removePath"),
}
"""Named by the design and not yet served by any provider: drafts, whose shape the first provider fixes."""


class Capabilities(Struct, frozen=True, kw_only=True, rename="camel"):
    """Declared in the hello, verified by the conformance kit."""

    kill: Literal["tree", "group", "none"] = "none"
    """What a time-out, a cancel or a kill ends: everything the command started, the group that was made for it, or
    nothing before the sandbox ends."""
    expiry: Literal["vendor", "agent", "none"] = "none"
    """Who ends a sandbox at `expiresAtMs`: the vendor, something that runs beside it, or nobody."""
    attach: Literal["replay", "live", "none"] = "none"
    """What a later worker can still get of a process's output: all of it, what comes now, or nothing."""
    pty: bool = False
    user: bool = False
    """Commands may name a user."""
    egress: tuple[Literal["all", "none", "listed"], ...] = ("all",)
    """Grants that are enforced exactly; any other is refused before anything is created."""
    create_settle_ms: int = 0
    """How long a create, or an end, can take to show in a list."""

    def __post_init__(self) -> None:
        check_ranges(self)


def incomplete_groups(methods: Iterable[str]) -> dict[str, tuple[str, ...]]:
    """For each group that is advertised in part: the methods that are missing."""
    have = set(methods)
    return {
        group: tuple(m for m in members if m not in have)
        for group, members in (GROUPS | RESERVED_GROUPS).items()
        if have & set(members) and not have >= set(members)
    }


def missing_mandatory(methods: Iterable[str]) -> tuple[str, ...]:
    """Mandatory methods that are not advertised, in the order of the specification."""
    have = set(methods)
    return tuple(m for m in MANDATORY if m not in have)


def effective_groups(methods: Iterable[str], without: Iterable[str] = ()) -> frozenset[str]:
    """Groups that can be used: advertised whole, and not taken away by a config or a lease."""
    have, lost = set(methods), set(without)
    return frozenset(g for g, members in GROUPS.items() if have >= set(members) and g not in lost)
