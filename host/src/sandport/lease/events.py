"""What a host's plugins are told of leases and commands, and what they are asked; imported where there are any.

Each lease that started is told ended: by whoever wrote its end into the journal, or by the host whose block held it
where somebody else did. What was told already is remembered only until the journal has the end.
"""

from __future__ import annotations

import contextlib
import itertools
import os
from collections.abc import Callable, Iterator
from typing import Any, Final

from sandport.command import CommandLine
from sandport.errors import SandportError
from sandport.hooks import (
    Action,
    CommandEndedEvent,
    CommandStartedEvent,
    LeaseEndedEvent,
    LeaseIds,
    LeaseLostEvent,
    LeaseStartedEvent,
    Verb,
)
from sandport.outcome import Outcome
from sandport.plugins import Plugins
from sandport.process import Process
from sandport.store.records import Leased, SandboxRow
from sandport.store.store import Store
from sandport.witness import NO_SANDBOX_WITNESS, Done, LeaseWitness, OnLost, SandboxWitness
from sandport_protocol import codec
from sandport_protocol.octets import Octets, unpack

from .request import LeaseRequest
from .rows import request_of

MOST_TOLD: Final = 10_000

NowMs = Callable[[], int]


def ids_of(request: LeaseRequest) -> LeaseIds:
    """Which lease, and whose."""
    return LeaseIds(
        lease_id=request.lease_id,
        sandbox_id=request.sandbox_id,
        provider=request.provider,
        environment=request.environment,
        name=request.name,
        run=request.run,
        tenant=request.tenant,
        principal=request.principal,
        workspace=request.workspace,
        work_item=request.work_item,
    )


def leasing(request: LeaseRequest) -> Action:
    """What is asked for with a lease."""
    return Action(
        verb="lease",
        provider=request.provider,
        environment=request.environment,
        name=request.name,
        run=request.run,
        tenant=request.tenant,
        principal=request.principal,
        workspace=request.workspace,
        work_item=request.work_item,
        config=codec.read_as(dict[str, Any], request.config),
        egress=request.egress,
        workload=request.workload,
        ttl_s=request.ttl_s,
        keep=request.keep,
    )


def acting(verb: Verb, leased: Leased, *, reason: str | None = None, force: bool = False) -> Action:
    """What is asked for with a lease that is there."""
    lease, sandbox = leased.lease, leased.sandbox
    return Action(
        verb=verb,
        provider=sandbox.provider,
        environment=lease.environment,
        lease_id=lease.id,
        sandbox_id=sandbox.id,
        name=lease.name,
        run=lease.run,
        tenant=lease.tenant,
        principal=lease.principal,
        workspace=lease.workspace,
        work_item=lease.work_item,
        workload=lease.workload,
        keep=lease.kept,
        reason=reason,
        force=force,
    )


class LeaseEvents(LeaseWitness):
    """Tells plugins what becomes of leases.

    Args:
        plugins: Who is told.
        store: The journal, which knows whose a sandbox was that clean-up ends.
        now_ms: The host's clock.
    """

    def __init__(self, plugins: Plugins, store: Store, now_ms: NowMs) -> None:
        self._plugins = plugins
        self._store = store
        self._now_ms = now_ms
        self._asked: set[str] = set()
        """Sandboxes that are being asked for here, whose start was not told."""
        self._open: set[str] = set()
        """Leases that started here, whose end was not told and which were not released."""
        self._told: dict[str, bool] = {}
        """Ends that were told and that the journal does not have yet; whether they were confirmed. Where another host
        confirms one that is not heard of here, so the oldest go once there are too many."""

    def asked(self, request: LeaseRequest) -> None:
        """Its start may have to be told with its end."""
        self._asked.add(request.sandbox_id)

    def undone(self, request: LeaseRequest) -> None:
        """If it had started, that was told."""
        self._asked.discard(request.sandbox_id)

    def started(self, request: LeaseRequest, expires_at_ms: int | None) -> None:
        """Tell it, and expect an end."""
        self._asked.discard(request.sandbox_id)
        self._open.add(request.lease_id)
        event = LeaseStartedEvent(
            lease=ids_of(request), at_ms=self._now_ms(), expires_at_ms=expires_at_ms, kept=request.keep
        )
        self._plugins.tell("sandport_lease_started", event)

    def ended(self, request: LeaseRequest, reason: str, *, confirmed: bool) -> None:
        """Tell it, unless as much was told before."""
        told = self._told.get(request.lease_id)
        self._told[request.lease_id] = confirmed or bool(told)
        if len(self._told) > MOST_TOLD:
            del self._told[next(iter(self._told))]
        if told is None or (confirmed and not told):
            self._tell_end(request, reason, confirmed=confirmed)

    def ended_elsewhere(self, request: LeaseRequest, *, confirmed: bool) -> None:
        """Tell it, unless this host ended it itself and has told so."""
        if request.lease_id in self._open:
            self._tell_end(request, "another process ended it", confirmed=confirmed)

    async def keeping(self, request: LeaseRequest, name: str | None) -> None:
        """Ask whether it may.

        Raises:
            NotAuthorised: A plugin refuses.
        """
        action = Action(
            verb="keep",
            provider=request.provider,
            environment=request.environment,
            lease_id=request.lease_id,
            sandbox_id=request.sandbox_id,
            name=request.name if name is None else name,
            run=request.run,
            tenant=request.tenant,
            principal=request.principal,
            workspace=request.workspace,
            work_item=request.work_item,
            workload=request.workload,
            keep=True,
        )
        await self._plugins.authorise(action)

    def released(self, request: LeaseRequest) -> None:
        """Whoever ends it tells that."""
        self._open.discard(request.lease_id)

    async def row_ended(self, row: SandboxRow, *, confirmed: bool) -> None:
        """Tell the end of a sandbox that was leased; one that never got so far had no lease that began."""
        if row.lease_result is None or not self._plugins.hears("sandport_lease_started", "sandport_lease_ended"):
            return
        try:
            lease = await self._store.lease(row.id)
        except SandportError as error:
            self._plugins.log("error", f"the end of a lease cannot be told to plugins: {error}", sandbox=row.id)
            return
        request = request_of(row, lease)
        if row.id in self._asked:
            # Its caller was cut off in the moment in which the journal took it.
            self.started(request, row.expires_at_ms)
        self.ended(request, lease.reason, confirmed=confirmed)
        if confirmed or row.state == "gone":
            self._told.pop(request.lease_id, None)

    def _tell_end(self, request: LeaseRequest, reason: str, *, confirmed: bool) -> None:
        self._open.discard(request.lease_id)
        event = LeaseEndedEvent(lease=ids_of(request), at_ms=self._now_ms(), reason=reason, confirmed=confirmed)
        self._plugins.tell("sandport_lease_ended", event)

    def sandbox(self, request: LeaseRequest) -> SandboxWitness:
        """Who tells of its commands; nobody, where nobody listens."""
        if not self._plugins.hears("sandport_command_started", "sandport_command_ended", "sandport_lease_lost"):
            return NO_SANDBOX_WITNESS
        return SandboxEvents(ids_of(request), self._plugins, self._now_ms)


class SandboxEvents(SandboxWitness):
    """Tells plugins what is done in one sandbox.

    Args:
        lease: Which lease it is.
        plugins: Who is told.
        now_ms: The host's clock.
    """

    def __init__(self, lease: LeaseIds, plugins: Plugins, now_ms: NowMs) -> None:
        self._lease = lease
        self._plugins = plugins
        self._now_ms = now_ms
        # Unique among all that ever attach: another process may run commands of the same lease.
        self._prefix = f"c{os.urandom(4).hex()}-"
        self._numbers = itertools.count(1)

    @contextlib.contextmanager
    def command(self, line: CommandLine) -> Iterator[Done]:
        """Tell start and end of a command."""
        command_id = f"{self._prefix}{next(self._numbers)}"
        self._started(line, command_id)
        known: Outcome | None = None

        def done(outcome: Outcome) -> Outcome:
            nonlocal known
            known = outcome
            return outcome

        try:
            yield done
        except BaseException as error:
            self._failed(line, command_id, error)
            raise
        if known is not None:
            self._ended(line, command_id, known)

    def process(self, line: CommandLine, process: Process) -> None:
        """Tell the start of a process, and its end as soon as that is known."""
        self._started(line, process.id)

        def ended(end: Outcome | BaseException) -> None:
            if isinstance(end, Outcome):
                self._ended(line, process.id, end)
            else:
                self._failed(line, process.id, end)

        process.when_ended(ended)

    def on_lost(self, on_lost: OnLost | None) -> OnLost | None:
        """What tells plugins too."""

        def lost(why: str) -> None:
            event = LeaseLostEvent(lease=self._lease, at_ms=self._now_ms(), why=why)
            self._plugins.tell("sandport_lease_lost", event)
            if on_lost is not None:
                on_lost(why)

        return lost

    def _started(self, line: CommandLine, command_id: str) -> None:
        if not self._plugins.hears("sandport_command_started"):
            return
        event = CommandStartedEvent(
            lease=self._lease,
            command_id=command_id,
            argv=_words(line),
            shell=_given(line.shell),
            cwd=_given(line.cwd),
            user=line.user,
            timeout_s=None if line.timeout_ms is None else line.timeout_ms / 1000,
            at_ms=self._now_ms(),
        )
        self._plugins.tell("sandport_command_started", event)

    def _ended(self, line: CommandLine, command_id: str, outcome: Outcome) -> None:
        self._tell_end(
            line,
            command_id,
            ended=outcome.ended,
            exit_code=outcome.exit_code,
            signal=outcome.signal,
            stdout_bytes=outcome.stdout.total_bytes,
            stderr_bytes=outcome.stderr.total_bytes,
            duration_s=outcome.duration_s,
        )

    def _failed(self, line: CommandLine, command_id: str, error: BaseException) -> None:
        ours = isinstance(error, SandportError)
        partial = error.partial if isinstance(error, SandportError) else None
        self._tell_end(
            line,
            command_id,
            ended=None,
            error=type(error).__name__,
            dispatched=error.dispatched if ours else None,  # type: ignore[attr-defined]
            stdout_bytes=0 if partial is None else partial.stdout.total_bytes + partial.pty.total_bytes,
            stderr_bytes=0 if partial is None else partial.stderr.total_bytes,
        )

    def _tell_end(self, line: CommandLine, command_id: str, **end: Any) -> None:
        if not self._plugins.hears("sandport_command_ended"):
            return
        event = CommandEndedEvent(
            lease=self._lease,
            command_id=command_id,
            argv=_words(line),
            shell=_given(line.shell),
            at_ms=self._now_ms(),
            **end,
        )
        self._plugins.tell("sandport_command_ended", event)


def _words(line: CommandLine) -> tuple[str | bytes, ...] | None:
    return None if line.argv is None else tuple(word if isinstance(word, str) else unpack(word) for word in line.argv)


def _given(value: Octets | None) -> str | bytes | None:
    return value if value is None or isinstance(value, str) else unpack(value)
