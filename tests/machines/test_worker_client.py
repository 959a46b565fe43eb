"""The host's client and the SDK's dispatcher, both real, in virtual time, with scripted handlers.

What is done to them, and what must become of it, is in `client_pair`. Public faults that this machine is made for:
modelcontextprotocol/python-sdk#1333 (B10, control messages behind work), bazelbuild/bazel#26292 (B08, capacity that
decays), microsoft/vscode-languageserver-node#1282 (C05, a cancel before its call).
"""

from __future__ import annotations

from typing import Any, cast

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import initialize, precondition, rule

from tests.machines.client_pair import ClientPair
from tests.machines.trace import PATIENCE_S, TracedMachine, World, budget

pick = st.integers(0, 5)
methods = st.sampled_from(["execute", "execute", "acquireLease", "probe"])
policies = st.sampled_from(["obey", "obey", "finish", "ignore"])
deadlines = st.sampled_from([0, 0, 1, 1_000, 7_000, 20_000])
waits = st.sampled_from([1, 400, 1_000, 5_000, 5_001, 12_000, 31_000])
sizes = st.one_of(st.integers(1, 80), st.integers(80, 400), st.just(100_000))


HAPPENINGS: dict[str, list[tuple[str, dict[str, Any]]]] = {
    "answers come": [("deliver", {"side": "host", "size": 100_000})],
    "words come": [("deliver", {"side": "worker", "size": 100_000})],
    "time comes": [("come_due", {})],
    "both come": [("come_due", {}), ("deliver", {"side": "host", "size": 100_000})],
    "a caller is cut off": [("cut_in_motion", {"pick": 0})],
    "another is cut off": [("cut_in_motion", {"pick": 1})],
}
"""What may happen in one turn of the loop, as steps."""
TROUBLE = [*["nothing"] * 12, "freeze", "crash", "shut_down", "end_input", "end_input"]


class ClientAndDispatcher(TracedMachine):
    machine = "worker client"

    def new_world(self) -> World:
        return ClientPair()

    @property
    def pair(self) -> ClientPair:
        return cast("ClientPair", self.world)

    @initialize(
        prepared=st.sampled_from([True, True, True, False]),
        flows=st.booleans(),
        beats=st.booleans(),
        slots=st.sampled_from([1, 2, 4, 4]),
    )
    def begin(self, prepared: bool, flows: bool, beats: bool, slots: int) -> None:
        self.step("begin", prepared=prepared, flows=flows, beats=beats, slots=slots)

    @precondition(lambda self: not self.pair.desk.prepared.done())
    @rule(works=st.sampled_from([True, True, True, False]))
    def get_ready(self, works: bool) -> None:
        self.step("get_ready", works=works)

    # ---------------------------------------------------------------- callers

    @rule(
        calls=st.lists(st.tuples(methods, policies, deadlines, st.booleans()), min_size=1, max_size=4),
        then_ping=st.sampled_from([True, False, False]),
        arrive=st.sampled_from([True, True, False]),
    )
    def call(self, calls: list[tuple[str, str, int, bool]], then_ping: bool, arrive: bool) -> None:
        """All in one turn of the loop."""
        for method, policy, deadline_ms, by_hand in calls:
            self.step("call", method=method, policy=policy, deadline_ms=deadline_ms, by_hand=by_hand)
        if then_ping:
            self.step("ping")
        if arrive:
            self.arrive("worker")

    def arrive(self, side: str) -> None:
        """What is on its way gets there, and is worked on."""
        self.step("settle")
        self.step("deliver", side=side, size=100_000)
        self.step("settle")

    @rule(really=st.integers(0, 3))
    def call_with_too_much(self, really: int) -> None:
        if not really:
            self.step("call", method="execute", policy="obey", deadline_ms=0, by_hand=False, padding=30_000)

    @rule(place=pick, pick=pick, arrive=st.booleans())
    def cancel(self, place: int, pick: int, arrive: bool) -> None:
        self.step("cut", place=place, pick=pick)
        if arrive:
            self.arrive("worker")

    @precondition(lambda self: self.pair.serves)
    @rule(
        crowd=st.lists(st.tuples(methods, policies, deadlines), min_size=1, max_size=3),
        answers=st.integers(1, 2),
        pick=pick,
        happenings=st.lists(
            st.tuples(st.sampled_from(["answers come", *HAPPENINGS]), st.sampled_from([0, 1, 1, 2])),
            min_size=2,
            max_size=3,
        ),
    )
    def meet(
        self,
        crowd: list[tuple[str, str, int]],
        answers: int,
        pick: int,
        happenings: list[tuple[str, int]],
    ) -> None:
        """While callers wait in line and answers are on their way, things happen within a few turns of the loop."""
        self.step("flow", on=False)
        for method, policy, deadline_ms in crowd:
            self.step("call", method=method, policy=policy, deadline_ms=deadline_ms, by_hand=False)
        self.arrive("worker")
        for _ in range(answers):
            self.step("order", pick=pick, what="return")
        self.step("settle")
        for happening, turns in happenings:
            for name, arguments in HAPPENINGS[happening]:
                self.step(name, **arguments)
            if turns:
                self.step("turn", count=turns)
        self.step("settle")

    @rule(pick=pick, turns=st.integers(0, 2))
    def answer_and_ping(self, pick: int, turns: int) -> None:
        """A ping arrives in one of the turns in which an answer is written."""
        self.step("flow", on=False)
        self.step("ping")
        self.step("settle")
        self.step("order", pick=pick, what="return")
        self.step("turn", count=turns)
        self.step("deliver", side="worker", size=100_000)
        self.step("settle")

    @rule(pick=pick, pieces=st.integers(1, 4))
    def take(self, pick: int, pieces: int) -> None:
        self.step("take", pick=pick, pieces=pieces)

    # ---------------------------------------------------------------- handlers

    @rule(
        pick=pick,
        what=st.sampled_from(["return", "return", "return", "unavailable", "fault", "exit", "return early"]),
        arrive=st.booleans(),
    )
    def end(self, pick: int, what: str, arrive: bool) -> None:
        self.step("order", pick=pick, what=what)
        if arrive:
            self.arrive("host")

    @rule(
        pick=pick,
        stream=st.sampled_from(["stdout", "stderr"]),
        size=st.integers(1, 200),
        aside=st.booleans(),
        then=st.sampled_from(["go on", "go on", "return", "unavailable"]),
    )
    def output(self, pick: int, stream: str, size: int, aside: bool, then: str) -> None:
        self.step("order", pick=pick, what="pump" if aside else "output", stream=stream, size=size)
        if then != "go on":
            self.step("order", pick=pick, what=then)

    @rule(pick=pick, stream=st.sampled_from(["stdout", "stderr"]))
    def end_mark(self, pick: int, stream: str) -> None:
        self.step("order", pick=pick, what="end", stream=stream)

    # ---------------------------------------------------------------- pipes and time

    @rule(side=st.sampled_from(["worker", "host"]), size=sizes)
    def deliver(self, side: str, size: int) -> None:
        self.step("deliver", side=side, size=size)

    @rule(count=st.integers(1, 4))
    def turn(self, count: int) -> None:
        self.step("turn", count=count)

    @rule()
    def settle(self) -> None:
        self.step("settle")

    @rule(ms=waits)
    def wait(self, ms: int) -> None:
        self.step("wait", ms=ms)

    @rule(on=st.booleans())
    def flow(self, on: bool) -> None:
        self.step("flow", on=on)

    # ---------------------------------------------------------------- what should not happen

    @rule(kind=st.sampled_from(["nothing"] * 4 + ["half", "print", "nobody", "again", "overdraw", "lose"]), pick=pick)
    def misbehave(self, kind: str, pick: int) -> None:
        if kind == "again":
            self.step("answer_again", pick=pick)
        elif kind == "overdraw":
            self.step("overdraw", pick=pick)
        elif kind == "lose":
            self.lose_an_answer(pick)
        elif kind != "nothing":
            self.step("stray", what=kind)

    def lose_an_answer(self, pick: int) -> None:
        """An answer stands behind half a line, and whatever the host does about that arrives."""
        self.step("stray", what="half")
        self.step("order", pick=pick, what="return")
        self.arrive("host")
        self.arrive("worker")
        self.arrive("host")

    @rule(kind=st.sampled_from(TROUBLE), keep=sizes)
    def trouble(self, kind: str, keep: int) -> None:
        if kind == "crash":
            self.step("crash", keep=keep)
        elif kind != "nothing":
            self.step(kind)

    @rule(how=st.sampled_from(["end_input", "shut_down"]), policy=policies, really=st.integers(0, 4))
    def end_with_a_call_open(self, how: str, policy: str, really: int) -> None:
        """Nobody tells its handler anything any more."""
        if not really:
            self.step("call", method="execute", policy=policy, deadline_ms=0, by_hand=False)
            self.arrive("worker")
            self.step(how)
            self.step("flow", on=True)
            self.step("wait", ms=20_000)

    @rule()
    def reap(self) -> None:
        if self.pair.gone or self.pair.dispatcher.ended.done():
            self.step("reap")


TestClientAndDispatcher = pytest.mark.timeout(PATIENCE_S)(ClientAndDispatcher.TestCase)
TestClientAndDispatcher.settings = budget(examples=150, steps=40)
