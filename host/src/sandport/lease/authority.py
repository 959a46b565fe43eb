"""Whether a lease may be taken, used or ended: the host's plugins are asked before anything is done."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sandport.store.store import Store

from .request import LeaseRequest
from .unknown import Unknown

if TYPE_CHECKING:
    from sandport.hooks import Verb
    from sandport.plugins import Plugins


class Authority:
    """Asks them, and raises NotAuthorised where one refuses; without plugins everything may be, and nothing is read.

    Args:
        plugins: Whom to ask, if anybody.
        store: Has the leases that they are told of.
    """

    def __init__(self, plugins: Plugins | None, store: Store) -> None:
        self._plugins = plugins
        self._store = store

    async def lease(self, request: LeaseRequest) -> None:
        """Whether it may be taken."""
        if self._plugins is not None:
            from .events import leasing

            await self._plugins.authorise(leasing(request))

    async def act(self, verb: Verb, lease: str, *, reason: str | None = None, force: bool = False) -> str:
        """Which lease is meant, once the plugins have nothing against it; without plugins it is taken as it is.

        Raises:
            LeaseUnknown: There is none.
        """
        if self._plugins is None:
            return lease
        from .events import acting

        leased = await self._store.leased(lease)
        await self._plugins.authorise(acting(verb, leased, reason=reason, force=force))
        return leased.lease.id

    async def forget(self, sandbox_id: str, *, reason: str) -> None:
        """Whether the sandbox may be taken for gone; one that no row has is not asked about."""
        if self._plugins is not None and await self._store.sandbox(sandbox_id) is not None:
            await self.act("forget", sandbox_id, reason=reason)

    async def end_unknown(self, unknown: Unknown) -> None:
        """Whether a sandbox that no row has may be ended."""
        if self._plugins is not None:
            from sandport.hooks import Action

            account = unknown.account
            await self._plugins.authorise(
                Action(
                    verb="end unknown",
                    provider=account.provider,
                    tenant=account.tenant,
                    sandbox_id=unknown.sandbox_id,
                )
            )
