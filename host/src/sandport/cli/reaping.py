"""`sandport reap` at work."""

from __future__ import annotations

import asyncio
import os
import sys
from typing import Literal

import anyio
from msgspec import Struct

from sandport.configuration import Configuration, load
from sandport.errors import UsageError
from sandport.home import home_path
from sandport.host import Host
from sandport.lease.clean_up import Attempted
from sandport.lease.unknown import Account, Found, Unknown
from sandport.lease.view import LeaseView, lease_view, view

from . import exit_codes
from .answers import answered
from .application import Settings
from .hosting import hosted
from .lease_facts import process_text
from .listing import put_json, put_lines
from .messages import REAP, say, unicode_text, write
from .moments import iso, now_ms
from .plan import seconds
from .records import Records
from .status import Status
from .streams import Inlet

_SHORTEST_WAIT_S = 0.2


class ReapWish(Struct, frozen=True, kw_only=True):
    """The options as they were given."""

    wait: str | None
    unknown: bool
    yes: bool
    forget: str | None
    reason: str | None
    as_json: bool


class Reaped(Struct, frozen=True, kw_only=True, rename="camel"):
    """What came of one sandbox."""

    sandbox: str
    lease: str | None
    name: str | None
    provider: str
    end: Literal["gone", "later", "not ours"]
    """Confirmed gone; tried again later; another process is at it."""
    detail: str


class UnknownFound(Struct, frozen=True, kw_only=True, rename="camel"):
    """A sandbox of this store that no lease here knows."""

    sandbox: str
    provider: str
    created_at: str | None
    expires_at: str | None
    end: Literal["gone", "later", "not ours"] | None
    """What came of it; null where it was left alone."""
    detail: str


class Unasked(Struct, frozen=True, kw_only=True, rename="camel"):
    """A provider that could not be asked for its list."""

    provider: str
    tenant: str | None
    why: str


class Answer(Struct, kw_only=True, rename="camel"):
    """Everything that was done."""

    confirmed: bool = True
    """Nothing that was found is left."""
    sandboxes: list[Reaped] = []
    unknown: list[UnknownFound] | None = None
    """Null where it was not asked for."""
    unasked: list[Unasked] = []


def reap(wish: ReapWish, settings: Settings) -> int:
    """Do what was asked for; answers the exit code."""
    with answered(as_json=wish.as_json):
        wait_s = _check(wish)
        configuration = load(settings.config)
        if wish.forget is not None:
            return _forget(wish, wish.forget, configuration, settings)
        reaping = _Reaping(wish, wait_s, settings)
        anyio.run(reaping.whole, configuration, backend="asyncio")
    if wish.as_json:
        put_json(reaping.answer)
    if (code := settings.interrupts.exit_code) is not None:
        return code
    return 0 if reaping.answer.confirmed else exit_codes.OURS


def _check(wish: ReapWish) -> float:
    if wish.forget is not None and (wish.unknown or wish.wait is not None):
        raise UsageError("--forget: goes alone, with --reason")
    if wish.forget is not None and not (wish.reason or "").strip():
        raise UsageError(f"--forget {wish.forget}: say why, with --reason TEXT; it is kept")
    if wish.reason is not None and wish.forget is None:
        raise UsageError("--reason: belongs to --forget SANDBOX")
    if wish.yes and not wish.unknown:
        raise UsageError("--yes: belongs to --unknown; what leases know needs no question")
    return 0.0 if wish.wait is None else seconds("--wait", wish.wait)


# ------------------------------------------------------------------ what waits


class _Reaping:
    def __init__(self, wish: ReapWish, wait_s: float, settings: Settings) -> None:
        self.answer = Answer()
        self._wish = wish
        self._wait_s = wait_s
        self._interrupts = settings.interrupts
        self._records = Records(settings)
        self._status = Status(quiet=False)
        self._leases: dict[str, LeaseView] = {}
        self._reaped: dict[str, Reaped] = {}

    async def whole(self, configuration: Configuration) -> None:
        async with hosted(configuration, self._interrupts, self._records, cleans_up=False) as host:
            seen = await asyncio.to_thread(view, host.home.root, now_ms=now_ms())
            self._leases = {one.sandbox.id: one for one in seen.leases}
            await self._clean_up(host)
            if self._wish.unknown:
                await self._find_unknown(host)
        if self._interrupts.received is not None:
            say("interrupted; what is not confirmed gone is tried again by the next command")

    async def _clean_up(self, host: Host) -> None:
        loop = asyncio.get_running_loop()
        until = loop.time() + self._wait_s
        with self._status.doing("looking after what dead processes left"):
            await self._once(host, everything=True)
        while self._open() and (left_s := until - loop.time()) > 0:
            due_ms = await host.store.next_due_ms()
            due_s = self._wait_s if due_ms is None else (due_ms - now_ms()) / 1000
            with self._status.doing(f"waiting to try {len(self._open())} again"):
                await asyncio.sleep(min(left_s, max(due_s, _SHORTEST_WAIT_S)))
            await self._once(host, everything=False)
        self.answer.sandboxes = list(self._reaped.values())
        self.answer.confirmed = not self._open()
        self._sum_up()

    def _open(self) -> list[Reaped]:
        return [one for one in self._reaped.values() if one.end != "gone"]

    async def _once(self, host: Host, *, everything: bool) -> None:
        for attempted in await host.clean_up(everything=everything, on_done=self._progress):
            # Somebody else may have been faster, and at its end by now.
            if attempted.end == "not ours":
                row = await host.store.sandbox(attempted.sandbox_id)
                if row is None or row.state == "gone":
                    self._note(attempted, end="gone", detail="another process ended it")

    def _progress(self, attempted: Attempted, done: int, total: int) -> None:
        one = self._note(attempted, end=attempted.end, detail=attempted.detail)
        result = {"gone": "gone", "later": "NOT CONFIRMED", "not ours": "left to another process"}[one.end]
        self._say(f"{done} of {total}: {self._named(one)}: {result}" + (f": {one.detail}" if one.end != "gone" else ""))

    def _note(self, attempted: Attempted, *, end: Literal["gone", "later", "not ours"], detail: str) -> Reaped:
        known = self._leases.get(attempted.sandbox_id)
        one = Reaped(
            sandbox=attempted.sandbox_id,
            lease=None if known is None else known.lease.id,
            name=None if known is None else known.lease.name,
            provider=attempted.provider,
            end=end,
            detail=unicode_text(detail),
        )
        self._reaped[one.sandbox] = one
        return one

    def _named(self, one: Reaped) -> str:
        lease = one.name or one.lease
        return f"{one.sandbox} at {one.provider}" + (f" (lease {lease})" if lease else "")

    def _say(self, line: str) -> None:
        """Where a person reads it: stdout is one object's with --json."""
        if self._wish.as_json:
            say(line)
        else:
            put_lines([line])

    def _sum_up(self) -> None:
        if not self._reaped:
            self._say("nothing to clean up")
        elif waiting := len(self._open()):
            say(
                f"{waiting} of {len(self._reaped)} not confirmed gone; the next command that starts something tries "
                f"again, or now: {REAP} --wait 60"
            )

    # -------------------------------------------------------------- what nobody knows

    async def _find_unknown(self, host: Host) -> None:
        with self._status.doing("asking the providers for their lists"):
            found = await host.find_unknown()
        self._tell_of_unasked(found)
        answer = self.answer
        answer.unknown = [_unknown(one) for one in found.unknown]
        if not found.unknown:
            self._say("no sandbox of this store is unknown" if not found.unasked else "nothing unknown was listed")
            return
        for one in answer.unknown:
            self._say(f"unknown: {one.sandbox} at {one.provider}, created {one.created_at or 'at some time'}")
        if not await self._wanted(len(found.unknown)):
            return
        for number, unknown in enumerate(found.unknown):
            attempted = await host.end_unknown(unknown)
            answer.unknown[number] = _unknown(unknown, attempted)
            result = "gone" if attempted.end == "gone" else f"NOT CONFIRMED: {attempted.detail}"
            named = f"{unknown.sandbox_id} at {unknown.account.provider}"
            self._say(f"{number + 1} of {len(found.unknown)}: {named}: {result}")
        if any(one.end != "gone" for one in answer.unknown):
            answer.confirmed = False

    def _tell_of_unasked(self, found: Found) -> None:
        for unasked in found.unasked:
            account = unasked.account
            say(f"{_account(account)} could not be asked for its list: {unasked.why}")
            self.answer.unasked.append(
                Unasked(provider=account.provider, tenant=account.tenant, why=unicode_text(unasked.why))
            )
        if found.unasked:
            self.answer.confirmed = False

    async def _wanted(self, count: int) -> bool:
        if self._wish.yes:
            return True
        what = f"{count} {'sandboxes' if count > 1 else 'sandbox'}"
        if not (sys.stdin is not None and sys.stdin.isatty() and os.isatty(2)):
            say(f"{what} left alone, since a copy of this store may use them; to destroy them: {REAP} --unknown --yes")
            return False
        write(f"sandport: destroy {what}? A copy of this store may be using them. [y/N] ")
        return (await Inlet(0).read()).strip().lower() in (b"y", b"yes")


def _unknown(one: Unknown, attempted: Attempted | None = None) -> UnknownFound:
    return UnknownFound(
        sandbox=one.sandbox_id,
        provider=one.account.provider,
        created_at=iso(one.created_at_ms),
        expires_at=iso(one.expires_at_ms),
        end=None if attempted is None else attempted.end,
        detail="" if attempted is None else unicode_text(attempted.detail),
    )


def _account(account: Account) -> str:
    config = account.config.decode("utf-8", "replace")
    parts = [f"tenant {account.tenant}"] if account.tenant else []
    parts += [f"config {config}"] if config != "{}" else []
    return account.provider + (f" ({', '.join(parts)})" if parts else "")


# ------------------------------------------------------------------ the operator's exit


def _forget(wish: ReapWish, which: str, configuration: Configuration, settings: Settings) -> int:
    found = lease_view(home_path(os.environ), which, now_ms=now_ms())
    sandbox = found.sandbox.id
    if found.sandbox.state == "gone" or not found.current:
        raise UsageError(f"--forget {which}: sandbox {sandbox} is gone already; there is nothing to forget")
    holders = [process for process in (found.owner, *found.users) if process is not None and process.live]
    if holders:
        raise UsageError(
            f"--forget {which}: process {process_text(holders[0])} uses it\n"
            f"end that process, or the lease: sandport leases end {found.lease.id} --force"
        )
    reason = wish.reason or ""
    anyio.run(_forget_it, sandbox, reason, configuration, settings, backend="asyncio")
    if (code := settings.interrupts.exit_code) is not None:
        return code
    if wish.as_json:
        put_json({"forgotten": {"sandbox": sandbox, "lease": found.lease.id, "reason": unicode_text(reason)}})
    say(
        f"{sandbox} is taken for gone, though nobody confirmed it: nothing was destroyed, nobody looks for it again\n"
        f"if it is still there at {found.sandbox.provider}, only its own expiry or a hand ends it; it may cost money"
    )
    return 0


async def _forget_it(sandbox: str, reason: str, configuration: Configuration, settings: Settings) -> None:
    records = Records(settings, usual="error")
    async with hosted(configuration, settings.interrupts, records, cleans_up=False) as host:
        await host.forget(sandbox, reason=reason)
