"""Any sequence of operations of several instances leaves a store as it leaves the plainest model of one.

Instances die and others take over from them, names are given and taken, leases are used by several, and callers come
with generations and owners that are not true any more.
"""

from __future__ import annotations

import asyncio
import os
import tempfile
from collections.abc import Callable, Collection
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from host.tests.store.making import A, B, C, lease_row, next_lease, sandbox_row
from host.tests.store.model import ModelStore
from host.tests.store.moves import everything
from sandport.clock import VirtualClock
from sandport.store.errors import InUse, LeaseUnknown, NameTaken, Stale
from sandport.store.records import Ref, Use
from sandport.store.sqlite import SqliteStore
from sandport.store.states import MOVES, SANDBOX_STATES, Move
from sandport.store.store import Store

instances = st.sampled_from([A, B, C])
names = st.sampled_from([None, None, None, None, None, "one", "two"])
IN_MEMORY = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
picks = st.integers(0, 40)


class StoreAndModel(RuleBasedStateMachine):
    """One store opened twice, and the model."""

    def __init__(self) -> None:
        super().__init__()
        self.model = ModelStore()
        self.clock = VirtualClock()
        self.runner = asyncio.Runner()
        self.folder = tempfile.TemporaryDirectory(prefix="sandport-test-", dir=IN_MEMORY)
        self.stores: list[SqliteStore] = []
        self.dead: set[str] = set()
        self.number = 0

    @initialize()
    def open(self) -> None:
        self.stores = [self.runner.run(self.opened()) for _ in range(2)]
        self.model.now_ms = self.clock.now_ms()

    async def opened(self) -> SqliteStore:
        return await SqliteStore.open(Path(self.folder.name, "store.db"), clock=self.clock)

    def teardown(self) -> None:
        for store in self.stores:
            self.runner.run(store.aclose())
        self.runner.close()
        self.folder.cleanup()

    # --- what is chosen ---

    def sandbox_of(self, pick: int) -> tuple[Ref, str | None]:
        """A sandbox, mostly one of the latest that are not gone, and its owner."""
        rows = [row for row in self.model.sandboxes.values() if row.state != "gone" or pick % 5 == 0]
        if not rows:
            return Ref("sp-none"), None
        row = rows[-1 - pick % min(len(rows), 8)]
        return row.ref, row.owner

    def some_lease(self, pick: int) -> str:
        """One of the latest leases."""
        leases = list(self.model.leases)
        return leases[-1 - pick % min(len(leases), 6)] if leases else "le-none"

    def lease_of(self, ref: Ref, pick: int, *, honest: bool) -> str:
        """The lease of a generation, or any."""
        for lease in self.model.leases.values():
            if honest and (lease.sandbox_id, lease.generation) == (ref.sandbox_id, ref.generation):
                return lease.id
        return self.some_lease(pick)

    def owner_of(self, lease_id: str, by: str, *, honest: bool) -> str:
        """Its owner where that is who acts."""
        lease = self.model.leases.get(lease_id)
        return lease.owner if honest and lease is not None and lease.owner is not None else by

    def both(self, method: str, *arguments: object, **options: object) -> None:
        """The same on both, with the same result or the same refusal."""
        self.number += 1
        store = self.stores[self.number % 2]

        async def on_store() -> object:
            result: object = await getattr(store, method)(*arguments, **options)
            return result

        found = _outcome(lambda: self.runner.run(on_store()))
        assert found == _outcome(lambda: getattr(self.model, method)(*arguments, **options)), method

    # --- what happens ---

    @rule(by=instances, name=names, kept=st.booleans(), fresh=st.integers(0, 9), far=st.integers(0, 9))
    def ask(self, by: str, name: str | None, kept: bool, fresh: int, far: int) -> None:
        """One more sandbox, and how far its create comes; now and then with an id that is taken."""
        number = self.number if fresh else max(self.number - 3, 0)
        sandbox = sandbox_row(f"sp-{number}", owner=by)
        lease = lease_row(f"le-{number}", sandbox.id, owner=by, name=name, kept=kept)
        self.both("request", sandbox, lease)
        if far > 0:
            self.both("creating", sandbox.ref, by=by, provider_version="1", settle_ms=0)
        if far > 2:
            self.both("created", sandbox.ref, lease.id, by=by, handle="h", lease_result=b"{}")
        if far in (6, 7):
            self.both("release", lease.id, by=by)
        if far in (8, 9):
            self.both("rest", sandbox.ref, lease.id, by=by, reason="over")

    def _move(self, pick: int, by: str, honest: int, stale: int, choose: st.DataObject) -> None:
        """Any move of a sandbox, mostly one that its state allows, by its owner, of its generation."""
        ref, owner = self.sandbox_of(pick)
        state = self.model.sandboxes[ref.sandbox_id].state if ref.sandbox_id in self.model.sandboxes else None
        by = owner if honest and owner is not None else by
        lease_id = self.lease_of(ref, pick, honest=honest > 0)
        if stale == 0 or (ref.generation > 1 and stale < 4):
            ref = Ref(ref.sandbox_id, ref.generation - 1)
        force, counts = choose.draw(st.tuples(st.booleans(), st.booleans()), label="force, counts")
        dead, due_at_ms = frozenset(self.dead), self.model.now_ms + 1000 * (pick % 3)
        calls: dict[Move, tuple[tuple[object, ...], dict[str, object]]] = {
            "creating": ((ref,), {"provider_version": "1", "settle_ms": pick}),
            "created": ((ref, lease_id), {"handle": "h", "lease_result": b"{}"}),
            "refused": ((ref, lease_id), {"reason": "quota"}),
            "doubtful": ((ref,), {"reason": "no answer"}),
            "rest": ((ref, lease_id), {"reason": "over"}),
            "reuse": ((ref, next_lease(ref, f"le-again-{self.number}", by)), {}),
            "ending": ((ref,), {"reason": "end", "force": force, "dead": dead}),
            "gone": ((ref,), {}),
            "seen": ((ref,), {"handle": "h2" if counts else None}),
            "failed": ((ref,), {"error": "e", "due_at_ms": due_at_ms, "counts": counts}),
            "claim": ((ref,), {"dead": dead}),
        }
        fitting = [name for name in calls if (state, name) in MOVES]
        name = choose.draw(st.sampled_from(fitting if fitting and stale < 8 else list(calls)), label="move")
        arguments, options = calls[name]
        self.both(name, *arguments, by=by, **options)

    # The rules are drawn evenly, and most of a sandbox's life is these.
    _often = rule(pick=picks, by=instances, honest=st.integers(0, 3), stale=st.integers(0, 9), choose=st.data())
    move = _often(_move)
    another_move = _often(_move)
    yet_another_move = _often(_move)

    @rule(pick=picks, by=instances, over=st.booleans())
    def use(self, pick: int, by: str, over: bool) -> None:
        self.both("unuse" if over else "use", self.some_lease(pick), by=by)

    @rule(pick=picks, by=instances, honest=st.booleans(), name=names, kept=st.booleans())
    def keep(self, pick: int, by: str, honest: bool, name: str | None, kept: bool) -> None:
        lease_id = self.some_lease(pick)
        self.both("keep", lease_id, by=self.owner_of(lease_id, by, honest=honest), name=name, kept=kept)

    @rule(pick=picks, by=instances, honest=st.booleans())
    def release(self, pick: int, by: str, honest: bool) -> None:
        lease_id = self.some_lease(pick)
        self.both("release", lease_id, by=self.owner_of(lease_id, by, honest=honest))

    @rule(pick=picks, by=instances, really=st.integers(0, 3))
    def forget(self, pick: int, by: str, really: int) -> None:
        self.both("forget", self.sandbox_of(pick)[0].sandbox_id if really == 3 else "sp-none", by=by, reason="closed")

    @rule(instance=instances)
    def die_or_come_back(self, instance: str) -> None:
        self.dead ^= {instance}

    @rule(what=st.sampled_from(["drop uses", "prune", "time", "time", "open again"]))
    def time_passes(self, what: str) -> None:
        if what == "drop uses":
            self.both("unuse_all", frozenset(self.dead))
        elif what == "prune":
            self.both("prune", self.model.now_ms - 2000)
        elif what == "open again":
            self.runner.run(self.stores.pop(0).aclose())
            self.stores.append(self.runner.run(self.opened()))
        else:
            self.clock.advance(1)
            self.model.now_ms = self.clock.now_ms()

    # --- what always holds ---

    @invariant()
    def both_hold_the_same(self) -> None:
        if not self.stores:
            return
        store, model = self.stores[0], self.model
        sandboxes, leases, uses, receipts = self.runner.run(everything(store))
        assert sandboxes == list(model.sandboxes.values())
        assert leases == list(model.leases.values())
        assert sorted(uses, key=_key) == sorted(model.uses.values(), key=_key)
        done = [[(receipt.what, receipt.instance) for receipt in of_one] for of_one in receipts]
        assert done == list(model.done.values())
        self.runner.run(self.reads_agree(store, self.dead))

    async def reads_agree(self, store: Store, dead: Collection[str]) -> None:
        model = self.model
        assert await store.owners() == model.owners()
        assert await store.next_due_ms() == model.next_due_ms()
        work = await store.work(model.now_ms, by=A, dead=dead)
        assert {row.id for row in work} == model.work(by=A, dead=dead)
        counts = await store.counts()
        assert counts == {s: sum(row.state == s for row in model.sandboxes.values()) for s in SANDBOX_STATES}

    @invariant()
    def a_lease_and_its_sandbox_have_one_owner(self) -> None:
        for lease in self.model.leases.values():
            if lease.state != "ended":
                row = self.model.sandboxes[lease.sandbox_id]
                assert (row.owner, row.generation) == (lease.owner, lease.generation)
                assert row.state in ("intended", "creating", "leased")


def _outcome(call: Callable[[], object]) -> object:
    try:
        return call()
    except InUse as refusal:
        return InUse, refusal.row, sorted(refusal.uses, key=_key)
    except NameTaken as refusal:
        return NameTaken, refusal.lease_id
    except LeaseUnknown as refusal:
        return LeaseUnknown, refusal.asked
    except Stale as refusal:
        return Stale, refusal.row


def _key(use: Use) -> tuple[str, str]:
    return use.lease_id, use.instance


TestStoreAndModel = pytest.mark.slow(StoreAndModel.TestCase)
# Long runs find more than many: most of what can go wrong needs a sandbox with a past.
TestStoreAndModel.settings = settings(max_examples=40, stateful_step_count=60, deadline=None)
