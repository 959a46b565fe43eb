"""Both connections of the wire, under every interleaving of call, answer, cancel, deadline, output, crash and end.

What is done to them, and what must become of it, is in `pair`. Public faults that this machine is made for:
microsoft/vs-streamjsonrpc#489 (an answer that nobody waits for), microsoft/vscode-languageserver-node#634 (order),
bazelbuild/bazel#26292 (capacity that decays).
"""

from __future__ import annotations

from typing import Any, cast

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import initialize, precondition, rule

from tests.machines.lifecycle import METHODS
from tests.machines.pair import ODD, STRAY, Pair
from tests.machines.trace import PATIENCE_S, TracedMachine, World, budget

pick = st.integers(0, 5)
side = st.sampled_from(["worker", "host"])
size = st.one_of(st.integers(1, 60), st.integers(60, 400), st.just(10_000))
streams = st.sampled_from(["stdout", "stderr"])
CALLED = (*METHODS[:6], *["execute"] * 4)
TROUBLE = ["half", "half", "odd", "refuse_unread", "foreign", "shutdown", "worker_crashes", "host_crashes"]


class ConnectionPair(TracedMachine):
    machine = "connection pair"

    def new_world(self) -> World:
        return Pair()

    @property
    def pair(self) -> Pair:
        return cast("Pair", self.world)

    @initialize(served=st.sampled_from([True, True, True, False]))
    def begin(self, served: bool) -> None:
        self.step("begin", served=served)

    # ---------------------------------------------------------------- the hello

    def not_served(self) -> bool:
        return self.pair.host_book.phase in ("new", "greeting", "negotiated") or self.pair.worker_book.phase in (
            "new",
            "greeting",
            "negotiated",
        )

    @precondition(not_served)
    @rule(offered=st.sampled_from([1, 1, 1, 7]))
    def hello(self, offered: int) -> None:
        self.step("hello", offered=offered)

    @precondition(not_served)
    @rule(how=st.sampled_from(["good", "good", "good", "refuse", "other version", "unreadable"]))
    def greet(self, how: str) -> None:
        self.step("greet", how=how)

    @precondition(not_served)
    @rule()
    def initialized(self) -> None:
        self.step("initialized")

    # ---------------------------------------------------------------- calls and answers

    @rule(methods=st.lists(st.sampled_from(CALLED), min_size=1, max_size=3), arrive=st.booleans())
    def call(self, methods: list[str], arrive: bool) -> None:
        for method in methods:
            self.step("call", method=method)
        if arrive:
            self.step("deliver", side="worker", size=10_000)

    @rule(really=st.integers(0, 4))
    def call_with_too_much(self, really: int) -> None:
        if not really:
            self.step("call", method="execute", padding=5_000)

    @rule(pick=pick, cause=st.sampled_from(["cancelled", "deadline"]), over=st.booleans())
    def cancel(self, pick: int, cause: str, over: bool) -> None:
        self.step("cancel", pick=pick, cause=cause)
        if over:
            self.step("tell", pick=pick)

    @rule(pick=pick)
    def tell(self, pick: int) -> None:
        self.step("tell", pick=pick)

    def worker_is_busy(self) -> bool:
        return bool(self.pair.worker_book.open)

    @precondition(worker_is_busy)
    @rule(
        pick=pick,
        how=st.sampled_from(["result", "result", "error", "cancelled", "partial", "large", "large partial"]),
        arrive=st.booleans(),
    )
    def answer(self, pick: int, how: str, arrive: bool) -> None:
        self.step("answer", pick=pick, how=how)
        if arrive:
            self.step("deliver", side="host", size=10_000)

    @precondition(worker_is_busy)
    @rule(pick=pick, cause=st.sampled_from(["cancelled", "deadline", None]), over=st.booleans())
    def lose_an_answer(self, pick: int, cause: str | None, over: bool) -> None:
        """Half a line stands before it; the ping behind it must find that."""
        if cause is not None:
            self.step("cancel", pick=pick, cause=cause)
        if over:
            self.step("tell", pick=pick)
        self.step("half", side="worker")
        self.step("answer", pick=pick, how="result")
        self.step("ping")

    @rule(pick=pick, raw=st.booleans())
    def answer_again(self, pick: int, raw: bool) -> None:
        self.step("answer_again", pick=pick, raw=raw)

    @precondition(worker_is_busy)
    @rule(pick=pick, stream=streams, size=st.integers(0, 24), times=st.integers(1, 4))
    def output(self, pick: int, stream: str, size: int, times: int) -> None:
        for _ in range(times):
            self.step("output", pick=pick, stream=stream, size=size)

    @rule(pick=pick, stream=streams, size=st.integers(1, 64))
    def credit(self, pick: int, stream: str, size: int) -> None:
        self.step("credit", pick=pick, stream=stream, size=size)

    @rule(pick=pick)
    def progress(self, pick: int) -> None:
        self.step("progress", pick=pick)

    @rule(round_trip=st.booleans())
    def ping(self, round_trip: bool) -> None:
        self.step("ping")
        if round_trip:
            self.step("deliver_all")

    # ---------------------------------------------------------------- the pipes

    @rule(side=side, size=size)
    def deliver(self, side: str, size: int) -> None:
        self.step("deliver", side=side, size=size)

    @rule()
    def deliver_all(self) -> None:
        self.step("deliver_all")

    # ---------------------------------------------------------------- what should not happen

    @rule(what=st.sampled_from([name for name in STRAY if name not in ("deep", "oversized")]))
    def stray(self, what: str) -> None:
        self.step("stray", what=what)

    @rule(kind=st.sampled_from(["nothing"] * 8 + TROUBLE), data=st.data())
    def trouble(self, kind: str, data: Any) -> None:
        match kind:
            case "half":
                self.step("half", side=data.draw(side))
            case "odd":
                self.step("odd", what=data.draw(st.sampled_from([name for name in ODD if name not in _FATAL])))
            case "foreign":
                method = data.draw(st.sampled_from(["initialize", "ping", "execute", "shutdown", "x-y/z"]))
                self.step("foreign", method=method, pick=data.draw(pick), taken=data.draw(st.booleans()))
            case "worker_crashes" | "host_crashes":
                self.ends(kind, data)
            case "refuse_unread" | "shutdown":
                self.step(kind)

    def ends(self, kind: str, data: Any) -> None:
        """Rarely: an example that has ended early shows little."""
        if data.draw(st.integers(0, 3)):
            return
        what = data.draw(st.sampled_from([kind, kind, *_FATAL]))
        if what not in _FATAL:
            self.step(kind, keep=data.draw(st.integers(0, 600)))
        elif kind == "worker_crashes":
            self.step("stray", what=what)
        else:
            self.step("odd", what=what)

    @precondition(lambda self: self.pair.to_host.ended)
    @rule()
    def reap(self) -> None:
        self.step("reap")


_FATAL = ("deep", "oversized")

TestConnectionPair = pytest.mark.timeout(PATIENCE_S)(ConnectionPair.TestCase)
TestConnectionPair.settings = budget(examples=300, steps=50)
