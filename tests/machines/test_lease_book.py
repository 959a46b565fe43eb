"""The lease layer of several hosts over one journal, with a vendor, workers and a disk that fail.

What is done, and what must hold, is in `lease_world`. Public faults that this machine is made for: E2B#1658 (103, the
response to a create is lost), verifiers#2406 (101, an interrupted create leaks), paperclip#13515 (122, a lease stays
active after a restart), paperclip#8513 (123, destroy is forgotten), crabbox#1144 and #1148 (126, a sweeper takes what
another process holds), agent-sandbox#467 (128, an exit hook ends other owners' sandboxes).
"""

from __future__ import annotations

from typing import cast, get_args

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import initialize, rule

from tests.machines.lease_world import HOSTS, LeaseWorld
from tests.machines.memory_vendor import Plan
from tests.machines.trace import PATIENCE_S, TracedMachine, World, budget

which = st.integers(0, HOSTS - 1)
pick = st.integers(0, 5)
plans = st.sampled_from([*["works"] * 8, *get_args(Plan)])
waits = st.sampled_from([1, 1, 6, 11, 30, 45, 400])


class LeaseBook(TracedMachine):
    machine = "lease book"

    def new_world(self) -> World:
        return LeaseWorld()

    @property
    def leases(self) -> LeaseWorld:
        return cast("LeaseWorld", self.world)

    @initialize(both=st.booleans())
    def begin(self, both: bool) -> None:
        for number in range(HOSTS if both else 1):
            self.step("open", which=number)

    @rule(which=which)
    def open(self, which: int) -> None:
        self.step("open", which=which)

    @rule(which=which, back=st.sampled_from([None, 0, 1]), after_s=st.sampled_from([0, 1, 11]))
    def kill(self, which: int, back: int | None, after_s: int) -> None:
        self.step("kill", which=which)
        if back is not None:
            self.step("open", which=back)
        if after_s:
            self.step("wait", for_s=after_s)

    @rule(which=which, really=st.integers(0, 2))
    def close_host(self, which: int, really: int) -> None:
        if not really:
            self.step("close_host", which=which)

    @rule(which=which, keep=st.booleans(), lives=st.booleans())
    def lease_that_works(self, which: int, keep: bool, lives: bool) -> None:
        self.step("open", which=which)
        self.step("lease", which=which, plan="works", keep=keep, lives=lives)

    @rule(which=which, plan=plans, keep=st.sampled_from([False, False, True]), lives=st.booleans())
    def lease(self, which: int, plan: str, keep: bool, lives: bool) -> None:
        self.step("lease", which=which, plan=plan, keep=keep, lives=lives)

    @rule(
        which=which,
        plan=st.sampled_from(get_args(Plan)),
        how=st.sampled_from(["cancel", "kill", "crash_worker"]),
        after_s=st.sampled_from([0, 1, 11, 40]),
    )
    def give_up_while_asking(self, which: int, plan: str, how: str, after_s: int) -> None:
        self.step("open", which=which)
        self.step("lease", which=which, plan=plan, keep=False, lives=False)
        if how == "cancel":
            self.step("cancel", pick=-1, turns=0)
        else:
            self.step(how, which=which)
        self.step("open", which=which)
        self.step("wait", for_s=after_s)

    @rule(pick=pick)
    def leave(self, pick: int) -> None:
        self.step("leave", pick=pick)

    @rule(pick=pick, turns=st.integers(0, 12))
    def cancel(self, pick: int, turns: int) -> None:
        self.step("cancel", pick=pick, turns=turns)

    @rule(which=which, pick=pick, force=st.booleans())
    def end(self, which: int, pick: int, force: bool) -> None:
        self.step("end", which=which, pick=pick, force=force)

    @rule(pick=pick, really=st.integers(0, 3))
    def stop_living(self, pick: int, really: int) -> None:
        if not really:
            self.step("stop_living", pick=pick)

    @rule(which=which)
    def crash_worker(self, which: int) -> None:
        self.step("crash_worker", which=which)

    @rule(which=which, trouble=st.sampled_from(["before", "after"]))
    def disk(self, which: int, trouble: str) -> None:
        self.step("disk", which=which, trouble=trouble)

    @rule(for_s=st.sampled_from([5, 60, 3600]))
    def outage(self, for_s: int) -> None:
        self.step("outage", for_s=for_s)

    @rule(for_s=waits)
    def wait(self, for_s: int) -> None:
        self.step("wait", for_s=for_s)


TestLeaseBook = pytest.mark.timeout(PATIENCE_S)(LeaseBook.TestCase)
TestLeaseBook.settings = budget(examples=60, steps=30)
