"""How much memory a hostile worker costs a host: each bound, with its reason, and the table of what was measured."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from sandport_conformance import schema
from sandport_conformance.outcomes import expect

from .played import Measured, Played

_MIB = 1 << 20
_LEEWAY_BYTES = 8 * _MIB
"""What an allocator and an interpreter's modules for errors may add, whatever the worker does."""


@dataclass(frozen=True, slots=True)
class Bound:
    """The most that a host may grow.

    Attributes:
        what: What the worker does.
        factor: How often the ceiling may be held at once.
        limit: The ceiling of the wire that the bound follows from.
    """

    what: str
    factor: int
    limit: str

    def in_bytes(self, limits: dict[str, int]) -> int:
        """The bound, for the limits that the host offered."""
        return self.factor * limits.get(self.limit, schema.default_limits()[self.limit]) + _LEEWAY_BYTES


BOUNDS = {
    "endless line": Bound("half a gibibyte without a line feed", 3, "frameBytes"),
    "200,000 brackets": Bound("200,000 arrays opened in one line", 3, "frameBytes"),
    "lines before the hello": Bound("half a gibibyte of lines before the hello", 3, "frameBytes"),
    "output flood": Bound("a command that writes 64 MiB, of which the caller keeps one", 8, "creditBytes"),
    "no credit kept": Bound("128 MiB of output to a consumer that stands still", 8, "creditBytes"),
    "log flood": Bound("8 MiB of log in lines", 64, "logLineBytes"),
    "long log line": Bound("64 MiB of log without a line feed", 64, "logLineBytes"),
    "stopped worker": Bound("a worker that stops with SIGSTOP", 2, "creditBytes"),
}
"""Each by its name in the table; on top of an ordinary run and eight mebibytes."""


def measure(name: str, played: Played, ordinary: Played) -> Measured:
    """What a run cost above an ordinary one."""
    grown = max(0, played.peak_bytes - ordinary.peak_bytes)
    return Measured(name, grown, BOUNDS[name].in_bytes(played.limits() or ordinary.limits()), played.peak_bytes)


def keep(measured: Measured) -> None:
    """Expect that a run stayed below its bound.

    Raises:
        Failed: It did not.
    """
    bound = BOUNDS[measured.name]
    expect(
        measured.grown_bytes <= measured.bound_bytes,
        f"{bound.what}: the host grew by {_mib(measured.grown_bytes)} MiB; "
        f"at most {_mib(measured.bound_bytes)} MiB ({bound.factor} x {bound.limit})",
    )


def table(measured: Iterable[Measured]) -> str:
    """The table, as Markdown; empty where nothing was measured."""
    lines = [
        f"| {entry.name} | {BOUNDS[entry.name].what} | {_mib(entry.peak_bytes)} | {_mib(entry.grown_bytes)} "
        f"| {_mib(entry.bound_bytes)} | {BOUNDS[entry.name].factor} x `{BOUNDS[entry.name].limit}` |"
        for entry in measured
    ]
    head = [
        "| hostile worker | what it does | peak, MiB | above an ordinary run, MiB | at most, MiB | bound |",
        "|---|---|---|---|---|---|",
    ]
    return "\n".join([*head, *lines]) + "\n" if lines else ""


def _mib(size: int) -> str:
    return f"{size / _MIB:.1f}"
