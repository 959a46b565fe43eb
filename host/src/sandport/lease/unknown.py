"""Sandboxes that a vendor lists for this store though no row says that they are there: of a lost or copied store.

They are reported, and destroyed only when somebody asks for that: another copy of this store may be using them.
"""

from __future__ import annotations

from collections.abc import Iterable

from msgspec import Raw, Struct

from sandport.errors import SandportError
from sandport.log import Log
from sandport.numbers import Timing
from sandport.rate_limits import RateLimits
from sandport.store.records import SandboxRow
from sandport.store.states import SANDBOX_STATES
from sandport.store.store import Store

from .attachment import Attachment
from .clean_up import Attempted, WorkersOf
from .listing import listed


class Account(Struct, frozen=True):
    """Whom to ask, and with what: a vendor's list depends on the config and on whose credentials it gets."""

    provider: str
    tenant: str | None
    config: bytes
    secrets: tuple[tuple[str, str], ...] = ()

    @classmethod
    def of(cls, row: SandboxRow) -> Account:
        """The account that a sandbox was created with."""
        return cls(row.provider, row.tenant, row.config, tuple(sorted(row.secrets.items())))


class Unknown(Struct, frozen=True, kw_only=True):
    """A sandbox that somebody pays for and no row knows."""

    sandbox_id: str
    handle: str
    account: Account
    created_at_ms: int | None = None
    expires_at_ms: int | None = None
    """Unix milliseconds, as its vendor says; None where it does not."""


class Unasked(Struct, frozen=True):
    """An account that could not be asked."""

    account: Account
    why: str


class Found(Struct, frozen=True):
    """What all vendors together said."""

    unknown: tuple[Unknown, ...] = ()
    """For `Host.end_unknown`, one by one."""
    unasked: tuple[Unasked, ...] = ()
    """Who may have more."""


async def find_unknown(
    store: Store, workers_of: WorkersOf, more: Iterable[Account], *, limits: RateLimits, timing: Timing
) -> Found:
    """Ask every vendor that this store ever used, and those that are configured.

    Raises:
        StoreUnusable: The journal cannot be read.
    """
    rows = await store.sandboxes(states=SANDBOX_STATES)
    accounts = dict.fromkeys([*map(Account.of, rows), *more])
    unknown: dict[tuple[str, str], Unknown] = {}
    unasked = []
    for account in accounts:
        try:
            workers = workers_of(account.provider, account.tenant)
            entries = await listed(
                account.provider,
                workers,
                config=Raw(account.config),
                secrets=dict(account.secrets),
                tenant=account.tenant,
                limits=limits,
                timing=timing,
            )
        except SandportError as error:
            unasked.append(Unasked(account, str(error)))
            continue
        for entry in entries:
            # Read after the list: a row is written before its sandbox can be listed.
            row = await store.sandbox(entry.sandbox_id)
            if row is None or row.state == "gone":
                unknown[account.provider, entry.sandbox_id] = Unknown(
                    sandbox_id=entry.sandbox_id,
                    handle=entry.handle,
                    account=account,
                    created_at_ms=entry.created_at_ms,
                    expires_at_ms=entry.expires_at_ms,
                )
    return Found(tuple(unknown.values()), tuple(unasked))


async def end_unknown(
    one: Unknown, workers_of: WorkersOf, *, limits: RateLimits, timing: Timing, log: Log
) -> Attempted:
    """Destroy it. Repeat: finds it gone."""
    account = one.account
    attachment = Attachment(
        account.provider,
        one.sandbox_id,
        one.handle,
        config=Raw(account.config),
        secrets=dict(account.secrets),
        tenant=account.tenant,
        workers=workers_of(account.provider, account.tenant),
        limits=limits,
        timing=timing,
        log=log.bind(sandbox=one.sandbox_id),
    )
    try:
        return Attempted(one.sandbox_id, account.provider, "gone", await attachment.destroy())
    except SandportError as error:
        return Attempted(one.sandbox_id, account.provider, "later", str(error))
