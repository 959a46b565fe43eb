"""What a program hangs into its host: events of leases and commands, redaction of the log, and the authoriser.

```python
from sandport import Host
from sandport.hooks import CommandEndedEvent, hookimpl


class Ledger:
    @hookimpl
    def sandport_command_ended(self, event: CommandEndedEvent) -> None:
        print(event.lease.lease_id, event.argv, event.exit_code, event.duration_s)


async with Host.open(plugins=[Ledger()]) as host: ...
```

A plugin is an object, or a module, with functions that are marked with `hookimpl` and named for one of the hooks in
`Specs`; each takes as many of the hook's arguments as it wants. `Host.open` refuses one that implements none, or a hook
that there is not, with a UsageError, before anything is started.

A distribution offers one to others by an entry point of the group `sandport.plugins`, whose value is a module, or an
object or class in it (`house.policy:Policy`; a class is called without arguments). What is installed is not called, and
not even imported, until it is named: in sandport.toml by `[host] plugins = ["house"]`, which holds for the command
`sandport` too, or by `Host.open(plugins=["house"])`. One that is named and cannot be used keeps the host from opening.

All plugins with a hook are called, in the order in which they were given, those of sandport.toml first; pluggy's
`tryfirst` and `trylast` are heeded, its wrappers are refused.

What is promised:

- A hook for events can hurt no run: what it raises is logged, once for each hook of a plugin, with the plugin's name,
  and whatever it was told of goes on. (`SystemExit` and `KeyboardInterrupt` are let through: they end programs.)
- A plain function is called on the host's event loop and holds all of it up while it runs: it must be quick, and is
  named in the log, once, where it was not. An `async` one is awaited in a task of its own, bounded: one event at a time
  for each plugin, in order, each for `PATIENCE_S` at most; behind `WAITING` events that wait, later ones are dropped,
  and the log says so. The end of the host waits once for what is still to be told, `PATIENCE_S` at most.
- Neither a redactor nor an authoriser that fails lets anything through.
- Without a plugin none of this is there: not even pluggy is imported.
"""

from __future__ import annotations

from collections.abc import Awaitable, Mapping
from typing import Any, Final, Literal

import pluggy
from msgspec import Struct

from sandport_protocol.errors import Dispatched
from sandport_protocol.v1 import Egress, Ended

__all__ = [
    "PATIENCE_S",
    "WAITING",
    "Action",
    "CommandEndedEvent",
    "CommandStartedEvent",
    "LeaseEndedEvent",
    "LeaseIds",
    "LeaseLostEvent",
    "LeaseStartedEvent",
    "Specs",
    "Verb",
    "hookimpl",
]

PROJECT: Final = "sandport"
hookimpl = pluggy.HookimplMarker(PROJECT)
"""Marks a function of a plugin as the implementation of the hook whose name it has."""
_spec = pluggy.HookspecMarker(PROJECT)

PATIENCE_S: Final = 5.0
"""How long one call of an `async` hook may take, an authoriser's answer too."""
WAITING: Final = 1000
"""Events that wait for one plugin's `async` hooks."""

Verb = Literal["lease", "attach", "keep", "end", "end unknown", "forget"]
"""`Host.lease` and `attach`, `Sandbox.keep`, `Host.end_lease`, `end_unknown` and `forget`."""


class LeaseIds(Struct, frozen=True, kw_only=True):
    """Which lease, and whose."""

    lease_id: str
    sandbox_id: str
    """Also on the vendor's resource."""
    provider: str
    environment: str
    """The name that it was leased by."""
    name: str | None = None
    """As known when the event's block began, or its row was read."""
    run: str | None = None
    tenant: str | None = None
    principal: str | None = None
    workspace: str | None = None
    work_item: str | None = None
    """The five are the embedder's own ids, as given to `Host.lease`."""


class LeaseStartedEvent(Struct, frozen=True, kw_only=True):
    """A sandbox is there for a lease, and the journal has it."""

    lease: LeaseIds
    at_ms: int
    """Unix milliseconds, by the host's clock."""
    expires_at_ms: int | None
    """When it ends by itself, Unix milliseconds."""
    kept: bool
    """It was asked for with `keep`."""


class LeaseEndedEvent(Struct, frozen=True, kw_only=True):
    """A lease is over."""

    lease: LeaseIds
    at_ms: int
    """Unix milliseconds, by the host's clock."""
    reason: str
    """As in the journal: `its block is over`, `its owner died`, what `end_lease` was given, ..."""
    confirmed: bool
    """Whether its sandbox is known to be gone; where it is not, clean-up goes on, and its success is told too."""


class LeaseLostEvent(Struct, frozen=True, kw_only=True):
    """The sandbox of a lease that a block of this host holds is gone, or another process has ended it."""

    lease: LeaseIds
    at_ms: int
    """When that was noticed: Unix milliseconds, by the host's clock."""
    why: str


class CommandStartedEvent(Struct, frozen=True, kw_only=True):
    """A command is about to be sent (`execute`), or a process was started (`start`)."""

    lease: LeaseIds
    command_id: str
    """The same in its end; unique in the lease."""
    argv: tuple[str | bytes, ...] | None
    """As given, paths as text; bytes where they are no UTF-8. None where `shell` was given."""
    shell: str | bytes | None
    cwd: str | bytes | None
    user: str | None
    timeout_s: float | None
    at_ms: int
    """Unix milliseconds, by the host's clock."""


class CommandEndedEvent(Struct, frozen=True, kw_only=True):
    """A command ended, or its end cannot be told. Its output is never in here."""

    lease: LeaseIds
    command_id: str
    argv: tuple[str | bytes, ...] | None
    shell: str | bytes | None
    at_ms: int
    """Unix milliseconds, by the host's clock."""
    ended: Ended | None
    """`exited`, `signalled`, `timedOut` or `outOfMemory`; None where `error` says why that is not known."""
    exit_code: int | None = None
    signal: int | None = None
    stdout_bytes: int = 0
    """What it wrote, kept or not; with a terminal all of it. Where `ended` is None, what was received and is known."""
    stderr_bytes: int = 0
    duration_s: float | None = None
    """Measured where the command ran; None where its end is not known."""
    error: str | None = None
    """The class of what was raised: `CommandNotFound`, `WorkerCrashed`, `CancelledError`, ..."""
    dispatched: Dispatched | None = None
    """Whether it may have run, where `error` is one of Sandport's."""


class Action(Struct, frozen=True, kw_only=True):
    """What somebody asks the host to do."""

    verb: Verb
    provider: str
    environment: str | None = None
    lease_id: str | None = None
    """The lease in question; None for `lease`, whose ids are minted later, and `end unknown`."""
    sandbox_id: str | None = None
    name: str | None = None
    """For `keep` the one that the lease would have."""
    run: str | None = None
    tenant: str | None = None
    principal: str | None = None
    workspace: str | None = None
    work_item: str | None = None
    """The five: of the lease that is asked for, or is there. Who asks now is not among the arguments of the other
    verbs: a context variable of the caller's is seen by the authoriser."""
    config: Mapping[str, Any] | None = None
    """For `lease`: the provider's config as it would be sent, without secrets."""
    egress: Egress | None = None
    workload: str | None = None
    ttl_s: float | None = None
    keep: bool = False
    reason: str | None = None
    """For `end` and `forget`: why."""
    force: bool = False
    """For `end`: also where another process uses it."""


class Specs:
    """The hooks, each with what is promised of it."""

    @_spec
    def sandport_lease_started(self, event: LeaseStartedEvent) -> Awaitable[None] | None:
        """A sandbox is there for a lease: told before `Host.lease` hands it out.

        Told of each that the journal has as created, so also where its caller gave up just then; not at an attach.
        """

    @_spec
    def sandport_lease_ended(self, event: LeaseEndedEvent) -> Awaitable[None] | None:
        """A lease that had started is over, whatever ended it: its block, its holder, a request, its time, clean-up.

        Told by the host that ended it, so also for leases of hosts that died, and by the host whose block held it where
        another process did. Once with `confirmed`; where the end cannot be confirmed at first, once without before.
        Never for a kept lease whose block is over, and not for what a host leaves to the next one.
        """

    @_spec
    def sandport_lease_lost(self, event: LeaseLostEvent) -> Awaitable[None] | None:
        """A block holds a lease that is there no more; at most once for each block, when it is noticed.

        The end of the lease is told as always.
        """

    @_spec
    def sandport_command_started(self, event: CommandStartedEvent) -> Awaitable[None] | None:
        """An `execute` has its turn and is about to be sent, or a process of `start` is there.

        Not for what the host runs for itself, as to copy files; nor for a call that makes no sense and starts nothing.
        """

    @_spec
    def sandport_command_ended(self, event: CommandEndedEvent) -> Awaitable[None] | None:
        """Its end: once for each start, before `execute` returns or raises, for a process as soon as it is known."""

    @_spec
    def sandport_redact(self, text: str) -> str:
        """The text as it may be written.

        Called with the text of each record of the host's log, with each text among its values, and with each line of a
        worker's log, a line at a time (one that is longer than `log_line_bytes` in pieces), before they are written
        anywhere: to the embedder's log, to the files in the home, into a crash report. Levels are told apart before.
        Each plugin gets what the one before it answered. It is never `async`, and may be called often.

        Where it raises, or answers something else than text, the text is withheld: in its place stands which plugin
        failed, and how.
        """
        raise NotImplementedError  # a specification: pluggy reads it, and nobody calls it

    @_spec
    def sandport_authorise(self, action: Action) -> str | Awaitable[str | None] | None:
        """A reason to refuse, or None.

        Asked before a lease, an attach, a `Sandbox.keep`, an end by request (`Host.end_lease`, `end_unknown`,
        `forget`), and before anything of it is journalled or sent. May be `async`; runs in the task of the caller,
        whose context variables it sees. The first refusal counts: the call raises NotAuthorised. Whatever it raises
        refuses, an answer that is neither text nor None too, and one that takes longer than `PATIENCE_S`.

        Not asked where a holder ends or uses what it has leased, nor for what clean-up does by itself.
        """
        raise NotImplementedError  # a specification: pluggy reads it, and nobody calls it
