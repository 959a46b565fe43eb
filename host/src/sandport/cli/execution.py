"""`sandport run`, `exec` and `sync` at work: get a sandbox, work in it, let go of it; and what is told about it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable

import anyio

from sandport.errors import LeaseLost, NotSupported
from sandport.host import Host, ProviderFacts
from sandport.sandbox import Sandbox
from sandport_protocol.capabilities import effective_groups

from .application import Settings
from .config_keys import fitted
from .failures import OutputFailed
from .hosting import hosted
from .messages import REAP, say, unicode_text
from .moments import iso, now_ms, span
from .narrator import Narrator
from .plan import HeldLease, NewLease, Plan, check_exposes
from .records import Records
from .report import Report
from .screen import Screen
from .terminal import Terminal
from .work import Work


def perform(plan: Plan, settings: Settings, report: Report) -> None:
    """Carry the plan out; everything that comes of it is in the report, and what a person needs on stderr."""
    anyio.run(_Performance(plan, settings, report).whole, backend="asyncio")


class _Performance:
    def __init__(self, plan: Plan, settings: Settings, report: Report) -> None:
        self._plan = plan
        self._task = plan.task
        self._report = report
        self._interrupts = settings.interrupts
        self._records = Records(settings, usual="error" if plan.task.talk == "quiet" else "warning")
        self._narrator = Narrator(
            plan.task.talk, settings, report, for_machine=plan.task.as_json, told=self._records.told
        )
        self._records.before_each = self._narrator.status.clear
        self._screen = Screen(Terminal(), self._records) if plan.task.on_terminal else None
        self._opened_ms = now_ms()
        self._expires_ms: int | None = None
        self._notes_told = 0
        self._unread = False
        """Whoever read our output went away, which is a wish to end like a signal."""

    async def whole(self) -> None:
        """From the first thing that is started to the last that is stopped."""
        loop = asyncio.get_running_loop()
        started = loop.time()
        try:
            async with hosted(
                self._plan.configuration, self._interrupts, self._records, on_leaving=self._leaving
            ) as host:
                self._report.ids.store = host.home.store_id
                try:
                    await self._in_host(host)
                finally:
                    stopping = loop.time()
            self._report.timings_ms["stop"] = round((loop.time() - stopping) * 1000)
        except Exception as error:  # noqa: BLE001 - every failure becomes a line, an exit code and a part of the report
            self._narrator.failed(error)
        self._report.total_ms = round((loop.time() - started) * 1000)
        self._report.warnings += self._records.errors
        self._epilogue()

    def _leaving(self) -> None:
        if self._screen is not None:
            self._screen.give_back()
        self._narrator.status.clear()

    async def _in_host(self, host: Host) -> None:
        lease = self._plan.lease
        try:
            if isinstance(lease, NewLease):
                await self._in_new(host, lease)
            else:
                await self._in_held(host, lease)
        except Exception as error:  # noqa: BLE001 - as above; the host is still closed in order
            self._narrator.failed(error)
        finally:
            # After a signal too: what is left is what its sender wants to know.
            with anyio.CancelScope(shield=True):
                await self._take_stock(host)

    # -------------------------------------------------------------- a sandbox

    async def _in_new(self, host: Host, wanted: NewLease) -> None:
        narrator, report = self._narrator, self._report
        provider = report.ids.provider or wanted.environment
        with narrator.phase("start", f"starting the {provider} worker"):
            facts = await host.describe(provider)
        narrator.tell(f"{provider} worker {facts.hello.provider.version} started", "start")
        self._check_terminal(facts)
        check_exposes(wanted.exposes, provider, bytes(facts.hello.provider.config_schema))
        config = fitted(wanted.config, bytes(facts.hello.provider.config_schema))
        with narrator.phase("acquire", f"creating a {provider} sandbox"):
            lease = contextlib.AsyncExitStack()
            sandbox = await lease.enter_async_context(
                host.lease(wanted.environment, config=config, ttl_s=wanted.ttl_s, keep=wanted.keep, name=wanted.name)
            )
        report.ids.sandbox, report.ids.lease, report.name = sandbox.id, sandbox.lease_id, wanted.name
        narrator.tell(f"sandbox {sandbox.id} created", "acquire")
        self._warn(sandbox)
        try:
            await self._work(sandbox, _feeds(host, sandbox))
        finally:
            await self._let_go(lease, sandbox)

    async def _let_go(self, lease: contextlib.AsyncExitStack, sandbox: Sandbox) -> None:
        """The end of the block; one that was to be kept is ended all the same if somebody wanted us to stop."""
        stopped = self._unread or self._interrupts.received is not None
        kept = sandbox.kept and not stopped
        with self._narrator.phase("release", "letting go of the sandbox" if kept else "destroying the sandbox"):
            try:
                if sandbox.kept and stopped:
                    await sandbox.destroy()
            finally:
                await lease.aclose()
        self._narrator.tell(f"sandbox {sandbox.id} {'kept' if kept else 'released'}", "release")

    async def _in_held(self, host: Host, held: HeldLease) -> None:
        narrator, report = self._narrator, self._report
        lease = contextlib.AsyncExitStack()
        with narrator.phase("attach", f"attaching to {held.which}"):
            try:
                sandbox = await lease.enter_async_context(host.attach(held.which))
            except LeaseLost as error:
                if held.which in str(error):
                    raise
                raise LeaseLost(f"lease {held.which}: {error}", dispatched=error.dispatched) from error
        async with lease:
            row = await host.store.lease(sandbox.lease_id)
            report.ids.sandbox, report.ids.lease, report.name = sandbox.id, sandbox.lease_id, row.name
            report.ids.provider = sandbox.provider
            report.ids.environment = row.environment if row.environment != sandbox.provider else None
            narrator.tell(f"attached to sandbox {sandbox.id}", "attach")
            self._warn(sandbox)
            self._check_terminal(await host.describe(sandbox.provider))
            await self._work(sandbox, _feeds(host, sandbox))

    def _warn(self, sandbox: Sandbox) -> None:
        """Say what is to be known of the sandbox before anything runs in it, also to who wants to hear errors only."""
        for note in sandbox.lease.notes:
            self._report.notes.append(unicode_text(note))
            if self._task.command:
                say(f"note: {note}")
        self._notes_told = len(self._report.notes)

    def _check_terminal(self, facts: ProviderFacts) -> None:
        """Before anything is made or copied: a shell has to have one."""
        if self._screen is not None and not facts.hello.capabilities.pty:
            raise NotSupported(
                f"provider {facts.name} has no terminals (capabilities.pty); leave out -t, or use sandport run or exec",
                dispatched="no",
            )

    async def _work(self, sandbox: Sandbox, feeds: Callable[[], Awaitable[bool]]) -> None:
        try:
            await Work(self._task, self._narrator, feeds, self._screen).whole(sandbox)
        except Exception as error:  # noqa: BLE001 - as above; what follows is letting go
            self._unread = isinstance(error, OutputFailed) and error.closed
            self._narrator.failed(error)

    # -------------------------------------------------------------- what is left

    async def _take_stock(self, host: Host) -> None:
        report = self._report
        try:
            if report.ids.lease is not None:
                leased = await host.store.leased(report.ids.lease)
                report.kept = leased.lease.kept and leased.lease.state == "active"
                if report.kept:
                    self._expires_ms = leased.sandbox.expires_at_ms
                    report.expires_at = iso(self._expires_ms)
            for row in await host.store.sandboxes():
                if row.created_at_ms < self._opened_ms or (report.kept and row.id == report.ids.sandbox):
                    continue
                if row.state == "intended":
                    continue  # nobody was ever asked for it
                if (await host.store.receipts(row.id))[0].instance == host.instance:
                    report.left.append(row.id)
            if report.left:
                report.started()
        except Exception as error:  # noqa: BLE001 - as above
            self._narrator.failed(error)

    # -------------------------------------------------------------- what is told

    def _epilogue(self) -> None:
        report, remark = self._report, self._narrator.remark
        held = isinstance(self._plan.lease, HeldLease)
        if (code := self._interrupts.exit_code) is not None:
            report.interrupted(code)
            if report.warnings or report.left:
                remark("interrupted")
            elif report.kept:
                remark("interrupted; the lease is as it was" if held else "interrupted")
            else:
                remark("interrupted; what was started has been cleaned up")
        else:
            self._tell_of_command()
        if report.left:
            many = "sandboxes are" if len(report.left) > 1 else "sandbox is"
            say(f"{len(report.left)} {many} not confirmed gone; to go on with the clean-up: {REAP}")
        if report.kept and not held:
            which = report.name or report.ids.lease
            ends = "" if self._expires_ms is None else f" (ends by itself in {span(self._expires_ms - now_ms())})"
            say(
                f"kept as {report.ids.lease}{ends}; next: sandport exec {which} -- COMMAND, sandport leases end {which}"
            )

    def _tell_of_command(self) -> None:
        report, remark = self._report, self._narrator.remark
        if report.ended == "timedOut":
            remark(f"the command was killed: it ran longer than --timeout {self._task.timeout_s:g}")
        elif report.ended == "outOfMemory":
            remark("the command was killed: it ran out of memory")
        if report.tree not in (None, "gone"):
            remark(f"that everything which the command started is gone could not be proven ({report.tree})")
        for name, stream in (("stdout", report.stdout), ("stderr", report.stderr)):
            if stream is not None and stream.dropped:
                remark(f"{stream.dropped} bytes of {name} were not taken in time and are lost")
            elif stream is not None and stream.end == "heldOpen":
                remark(
                    f"something that the command left behind held its {name} open; what that wrote later is not shown"
                )
        if self._screen is not None and self._screen.keeps_size:
            remark("the provider does not change the size of a terminal; what ran kept that of its start")
        for note in report.notes[self._notes_told :]:
            remark(f"note: {note}")


def _feeds(host: Host, sandbox: Sandbox) -> Callable[[], Awaitable[bool]]:
    async def feeds() -> bool:
        facts = await host.describe(sandbox.provider)
        return "process" in effective_groups(facts.hello.supported_methods, sandbox.lease.without)

    return feeds
