"""A store in memory, written as plainly as it can be said: what the tests hold a real one against.

It raises the same errors; who calls it compares their kinds and the rows in them.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from msgspec.structs import replace

from sandport.store.errors import InUse, LeaseUnknown, NameTaken, Stale
from sandport.store.records import Leased, LeaseRow, Ref, SandboxRow, Use
from sandport.store.states import CLEANED, MOVES, Move


class ModelStore:
    """Dictionaries of rows, and what was done to each sandbox."""

    def __init__(self) -> None:
        self.now_ms = 0
        self.sandboxes: dict[str, SandboxRow] = {}
        self.leases: dict[str, LeaseRow] = {}
        self.uses: dict[tuple[str, str], Use] = {}
        self.done: dict[str, list[tuple[str, str]]] = {}

    # --- changes ---

    def request(self, sandbox: SandboxRow, lease: LeaseRow) -> None:
        if sandbox.id in self.sandboxes:
            raise self.stale(sandbox.id)
        self.check_new(lease)
        assert sandbox.owner is not None
        self.sandboxes[sandbox.id] = replace(sandbox, created_at_ms=self.now_ms, changed_at_ms=self.now_ms)
        self.done[sandbox.id] = [("requested", sandbox.owner)]
        self.add(lease, sandbox.owner)

    def creating(self, ref: Ref, *, by: str, provider_version: str, settle_ms: int) -> None:
        self.move("creating", ref, {by}, provider_version=provider_version, settle_ms=settle_ms)
        self.done[ref.sandbox_id].append(("creating", by))

    def created(self, ref: Ref, lease_id: str, *, by: str, handle: str, lease_result: bytes) -> None:
        self.check("created", ref, {by})
        self.check_requested(ref, lease_id)
        self.move("created", ref, {by}, handle=handle, lease_result=lease_result)
        self.leases[lease_id] = replace(self.leases[lease_id], state="active", active_at_ms=self.now_ms)
        self.done[ref.sandbox_id].append(("created", by))

    def refused(self, ref: Ref, lease_id: str, *, by: str, reason: str) -> None:
        self.check("refused", ref, {by})
        self.check_requested(ref, lease_id)
        self.move("refused", ref, {by}, owner=None)
        self.end_lease(ref, reason)
        self.done[ref.sandbox_id].append(("refused", by))

    def doubtful(self, ref: Ref, *, by: str, reason: str) -> None:
        self.move("doubtful", ref, {by}, quiet_since_ms=self.now_ms, due_at_ms=self.now_ms, last_error=reason)
        self.end_lease(ref, reason)
        self.done[ref.sandbox_id].append(("doubtful", by))

    def rest(self, ref: Ref, lease_id: str, *, by: str, reason: str) -> None:
        self.check_unused("rest", ref, by)
        self.check("rest", ref, {by})
        lease = self.known(lease_id)
        if (lease.sandbox_id, lease.generation) != (ref.sandbox_id, ref.generation):
            raise self.stale(lease.sandbox_id)
        self.move("rest", ref, {by}, owner=None)
        self.end_lease(ref, reason)
        self.done[ref.sandbox_id].append(("idle", by))

    def reuse(self, ref: Ref, lease: LeaseRow, *, by: str) -> SandboxRow:
        self.check("reuse", ref, {None})
        self.check_new(lease)
        self.move("reuse", ref, {None}, owner=by, generation=ref.generation + 1)
        self.add(replace(lease, active_at_ms=self.now_ms), by)
        self.done[ref.sandbox_id].append(("leased again", by))
        return self.sandboxes[ref.sandbox_id]

    def ending(self, ref: Ref, *, by: str, reason: str, force: bool, dead: Collection[str]) -> SandboxRow:
        if not force:
            self.check_unused("ending", ref, by, dead)
        owners = None if force else {None, by, *dead}
        self.move("ending", ref, owners, owner=by, due_at_ms=self.now_ms, attempts=0, last_error="")
        self.end_lease(ref, reason)
        self.done[ref.sandbox_id].append(("ending", by))
        return self.sandboxes[ref.sandbox_id]

    def gone(self, ref: Ref, *, by: str) -> None:
        self.move("gone", ref, {by}, owner=None)
        self.end_lease(ref, "destroyed")
        self.done[ref.sandbox_id].append(("destroyed", by))

    def seen(self, ref: Ref, *, by: str, handle: str | None) -> None:
        before = self.check("seen", ref, {by})
        self.move("seen", ref, {by}, quiet_since_ms=self.now_ms, handle=handle or before.handle)
        self.done[ref.sandbox_id].append(("seen", by))

    def failed(self, ref: Ref, *, by: str, error: str, due_at_ms: int, counts: bool) -> None:
        before = self.check("failed", ref, {by})
        self.move(
            "failed", ref, {by}, owner=None, last_error=error, due_at_ms=due_at_ms, attempts=before.attempts + counts
        )
        for lease in self.open_leases(ref):
            self.leases[lease.id] = replace(lease, owner=None)
        if counts:
            self.done[ref.sandbox_id].append(("attempt failed", by))

    def claim(self, ref: Ref, *, by: str, dead: Collection[str]) -> SandboxRow:
        before = self.check("claim", ref, {None, by, *dead})
        self.move("claim", ref, {None, by, *dead}, owner=by)
        for lease in self.open_leases(ref):
            self.leases[lease.id] = replace(lease, owner=by)
            self.drop_uses(lease.id, dead)
        if before.owner not in (None, by):
            self.done[ref.sandbox_id].append(("taken over", by))
        return self.sandboxes[ref.sandbox_id]

    def forget(self, sandbox_id: str, *, by: str, reason: str) -> None:
        row = self.sandboxes.get(sandbox_id)
        if row is None:
            raise self.stale(sandbox_id)
        self.move("forget", row.ref, None, owner=None, last_error=reason)
        self.end_lease(row.ref, "forgotten")
        self.done[sandbox_id].append(("forgotten", by))

    def use(self, lease_id: str, *, by: str) -> Leased:
        lease = self.known(lease_id)
        if lease.state != "active":
            raise self.stale(lease.sandbox_id)
        had = self.uses.get((lease_id, by), Use(lease_id=lease_id, instance=by, since_ms=self.now_ms, count=0))
        self.uses[lease_id, by] = replace(had, count=had.count + 1)
        return Leased(lease=lease, sandbox=self.sandboxes[lease.sandbox_id])

    def unuse(self, lease_id: str, *, by: str) -> None:
        had = self.uses.pop((lease_id, by), None)
        if had is not None and had.count > 1:
            self.uses[lease_id, by] = replace(had, count=had.count - 1)

    def unuse_all(self, instances: Collection[str]) -> int:
        dropped = [key for key in self.uses if key[1] in instances]
        for key in dropped:
            del self.uses[key]
        return len(dropped)

    def keep(self, lease_id: str, *, by: str, name: str | None, kept: bool) -> LeaseRow:
        lease = self.known(lease_id)
        if lease.state == "ended" or lease.owner not in (None, by):
            raise self.stale(lease.sandbox_id)
        self.check_name(name, lease_id)
        changed = replace(lease, kept=kept, name=name or lease.name, owner=lease.owner if kept else by)
        self.leases[lease_id] = changed
        row = self.sandboxes[lease.sandbox_id]
        self.sandboxes[row.id] = replace(row, owner=changed.owner, changed_at_ms=self.now_ms)
        self.done[row.id].append(("kept" if kept else "not kept", by))
        return changed

    def release(self, lease_id: str, *, by: str) -> None:
        lease = self.known(lease_id)
        if (lease.state, lease.kept, lease.owner) != ("active", True, by):
            raise self.stale(lease.sandbox_id)
        ref = Ref(lease.sandbox_id, lease.generation)
        self.move("release", ref, {by}, owner=None)
        self.leases[lease_id] = replace(lease, owner=None)
        self.unuse(lease_id, by=by)
        self.done[ref.sandbox_id].append(("released", by))

    def prune(self, older_than_ms: int) -> int:
        old = [row.id for row in self.sandboxes.values() if row.state == "gone" and row.changed_at_ms < older_than_ms]
        for sandbox_id in old:
            del self.sandboxes[sandbox_id], self.done[sandbox_id]
        self.leases = {lease.id: lease for lease in self.leases.values() if lease.sandbox_id in self.sandboxes}
        return len(old)

    # --- reading ---

    def work(self, *, by: str, dead: Collection[str]) -> set[str]:
        return {
            row.id
            for row in self.sandboxes.values()
            if row.state != "gone"
            and row.due_at_ms <= self.now_ms
            and (
                row.owner in dead
                or (row.owner is None and row.state in CLEANED)
                or (row.owner == by and row.state in ("ending", "doubtful"))
            )
        }

    def owners(self) -> set[str]:
        live = [row.owner for row in self.sandboxes.values() if row.state != "gone"]
        return {owner for owner in live if owner is not None} | {use.instance for use in self.uses.values()}

    def next_due_ms(self) -> int | None:
        return min(
            (row.due_at_ms for row in self.sandboxes.values() if row.owner is None and row.state in CLEANED),
            default=None,
        )

    # --- parts ---

    def stale(self, sandbox_id: str) -> Stale:
        return Stale("", row=self.sandboxes.get(sandbox_id))

    def known(self, lease_id: str) -> LeaseRow:
        if lease_id not in self.leases:
            raise LeaseUnknown("", asked=lease_id)
        return self.leases[lease_id]

    def check(self, move: Move, ref: Ref, owners: Collection[str | None] | None) -> SandboxRow:
        row = self.sandboxes.get(ref.sandbox_id)
        if row is None or row.generation != ref.generation or (row.state, move) not in MOVES:
            raise self.stale(ref.sandbox_id)
        if owners is not None and row.owner not in owners:
            raise self.stale(ref.sandbox_id)
        return row

    def move(self, move: Move, ref: Ref, owners: Collection[str | None] | None, **changes: Any) -> None:
        row = self.check(move, ref, owners)
        self.sandboxes[row.id] = replace(row, state=MOVES[row.state, move], changed_at_ms=self.now_ms, **changes)

    def check_unused(self, move: Move, ref: Ref, by: str, dead: Collection[str] = ()) -> None:
        row = self.check(move, ref, None)
        lease_ids = {lease.id for lease in self.open_leases(ref)}
        others = [use for use in self.uses.values() if use.lease_id in lease_ids and use.instance not in {by, *dead}]
        if others:
            raise InUse("", uses=others, row=row)

    def check_requested(self, ref: Ref, lease_id: str) -> None:
        lease = self.known(lease_id)
        if (lease.sandbox_id, lease.generation, lease.state) != (ref.sandbox_id, ref.generation, "requested"):
            raise self.stale(lease.sandbox_id)

    def check_name(self, name: str | None, lease_id: str) -> None:
        for other in self.leases.values():
            if name is not None and other.name == name and other.state != "ended" and other.id != lease_id:
                raise NameTaken(name, other.id)

    def check_new(self, lease: LeaseRow) -> None:
        self.check_name(lease.name, lease.id)
        if lease.id in self.leases:
            raise self.stale(self.leases[lease.id].sandbox_id)

    def open_leases(self, ref: Ref) -> list[LeaseRow]:
        return [
            lease
            for lease in self.leases.values()
            if (lease.sandbox_id, lease.generation) == (ref.sandbox_id, ref.generation) and lease.state != "ended"
        ]

    def add(self, lease: LeaseRow, by: str) -> None:
        self.leases[lease.id] = replace(lease, requested_at_ms=self.now_ms)
        self.uses[lease.id, by] = Use(lease_id=lease.id, instance=by, since_ms=self.now_ms)

    def end_lease(self, ref: Ref, reason: str) -> None:
        for lease in self.open_leases(ref):
            self.leases[lease.id] = replace(lease, state="ended", env={}, reason=reason, ended_at_ms=self.now_ms)
            for key in [key for key in self.uses if key[0] == lease.id]:
                del self.uses[key]

    def drop_uses(self, lease_id: str, instances: Collection[str]) -> None:
        for instance in instances:
            self.uses.pop((lease_id, instance), None)
