"""Output under credit: order, gaps, ends, and never more credit than was taken."""

import asyncio
from dataclasses import dataclass, field
from typing import Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandport.lane import OutputLane
from sandport_protocol.v1 import ExecuteResult, OutputParams, StreamEnd, StreamName, StreamResult

STREAMS: tuple[StreamName, ...] = ("stdout", "stderr")


def piece(stream: StreamName, offset: int, data: bytes = b"", end: StreamEnd | None = None) -> OutputParams:
    return OutputParams(id=1, stream=stream, offset=offset, data=data, end=end)


def result(stdout: int = 0, stderr: int = 0, *, end: StreamEnd = "seen") -> ExecuteResult:
    return ExecuteResult(
        ended="exited",
        exit_code=0,
        stdout=StreamResult(total_bytes=stdout, end=end),
        stderr=StreamResult(total_bytes=stderr),
    )


@dataclass
class Step:
    """One thing that happens to a lane: a piece comes, or a piece is taken."""

    do: Literal["feed", "consume"]
    stream: StreamName = "stdout"
    size: int = 0


STEPS = st.lists(
    st.one_of(
        st.builds(Step, do=st.just("feed"), stream=st.sampled_from(STREAMS), size=st.integers(1, 40)),
        st.just(Step("consume")),
    ),
    max_size=60,
)


@dataclass
class Ledger:
    """What a worker may still send, and what the consumer took."""

    credit: int
    granted: dict[StreamName, int] = field(default_factory=lambda: dict.fromkeys(STREAMS, 0))
    taken: dict[StreamName, int] = field(default_factory=lambda: dict.fromkeys(STREAMS, 0))
    sent: dict[StreamName, int] = field(default_factory=lambda: dict.fromkeys(STREAMS, 0))

    def give(self, stream: StreamName, size: int) -> None:
        self.granted[stream] += size
        assert size > 0
        assert self.granted[stream] <= self.taken[stream], "room was given for bytes that nobody has taken"

    def room(self, stream: StreamName) -> int:
        return self.credit + self.granted[stream] - self.sent[stream]


@given(steps=STEPS, credit=st.integers(1, 100))
def test_any_interleaving_keeps_order_and_grants_only_what_was_taken(steps: list[Step], credit: int) -> None:
    asyncio.run(interleave(steps, credit))


async def interleave(steps: list[Step], credit: int) -> None:
    ledger = Ledger(credit)
    lane = OutputLane(STREAMS, credit)
    lane.bind(ledger.give)
    number = 0
    sent: list[tuple[StreamName, bytes]] = []
    got: list[tuple[StreamName, bytes]] = []
    waiting = 0

    async def consume() -> None:
        nonlocal waiting
        taken = await lane.next_piece()
        assert taken is not None
        got.append(taken)
        waiting -= len(taken[1])
        ledger.taken[taken[0]] += len(taken[1])
        lane.taken(taken[0], len(taken[1]))

    for step in steps:
        if step.do == "consume":
            if waiting:
                await consume()
            continue
        size = min(step.size, ledger.room(step.stream))
        if size <= 0:
            continue
        data = bytes((number + place) % 256 for place in range(size))
        number += size
        assert lane.feed(piece(step.stream, ledger.sent[step.stream], data)) is None
        ledger.sent[step.stream] += size
        sent.append((step.stream, data))
        waiting += size
    while waiting:
        await consume()
    # Everything was taken: at most a quarter of the credit of each stream is not given back yet.
    for stream in STREAMS:
        assert ledger.room(stream) > credit - max(1, credit // 4) - 1
    assert runs(got) == runs(sent)
    assert {name: lane.received(name) for name in STREAMS} == ledger.sent
    # What was granted is what may come: all of it, and not one byte more.
    for stream in STREAMS:
        room = ledger.room(stream)
        if room:
            assert lane.feed(piece(stream, ledger.sent[stream], b"x" * room)) is None
            assert await lane.next_piece() == (stream, b"x" * room)
        broken = lane.feed(piece(stream, ledger.sent[stream] + room, b"x"))
        assert broken == f"{stream} went 1 bytes beyond its credit"
    lane.close()
    assert await lane.next_piece() is None


def runs(pieces: list[tuple[StreamName, bytes]]) -> list[tuple[StreamName, bytes]]:
    """The same output with neighbours of one stream joined: how it was cut does not matter, its order does."""
    joined: list[tuple[StreamName, bytes]] = []
    for name, data in pieces:
        if joined and joined[-1][0] == name:
            joined[-1] = (name, joined[-1][1] + data)
        else:
            joined.append((name, data))
    return joined


@given(received=st.integers(0, 50), offset=st.integers(0, 100))
def test_any_offset_but_the_next_one_is_a_gap(received: int, offset: int) -> None:
    """langsmith-sdk#3022 (33): a part of the output was missing and nothing said so."""
    lane = OutputLane(STREAMS, 1000)
    assert lane.feed(piece("stdout", 0, b"x" * received)) is None
    broken = lane.feed(piece("stdout", offset, b"y"))
    assert (broken is None) == (offset == received)
    assert broken is None or f"continues at {offset}, {received} bytes were received" in broken


@given(credit=st.integers(1, 100), over=st.integers(1, 10))
def test_what_goes_beyond_its_credit_is_told_by_how_much(credit: int, over: int) -> None:
    lane = OutputLane(STREAMS, credit)
    assert lane.feed(piece("stdout", 0, b"x" * credit)) is None
    assert lane.feed(piece("stderr", 0, b"x" * credit)) is None
    assert lane.feed(piece("stdout", credit, b"x" * over)) == f"stdout went {over} bytes beyond its credit"


@given(data=st.binary(max_size=3), end=st.sampled_from(["seen", "heldOpen", None]))
def test_nothing_follows_an_end_mark(data: bytes, end: StreamEnd | None) -> None:
    lane = OutputLane(STREAMS, 1000)
    assert lane.feed(piece("stdout", 0, b"abc", end="seen")) is None
    assert lane.feed(piece("stdout", 3, data, end=end)) == "output on stdout after its end"
    assert lane.feed(piece("stderr", 0, b"abc")) is None


def test_a_stream_that_the_command_does_not_have_is_named() -> None:
    assert OutputLane(STREAMS, 10).feed(piece("pty", 0, b"x")) == "this command has no stream pty"


def test_a_capture_takes_at_once_and_its_credit_comes_back_in_batches() -> None:
    given_back: list[int] = []
    kept: list[bytes] = []
    lane = OutputLane(STREAMS, 1000, lambda stream, data: kept.append(data))
    lane.bind(lambda stream, size: given_back.append(size))
    for number in range(100):
        assert lane.feed(piece("stdout", number * 100, b"x" * 100)) is None
    assert len(kept) == 100
    assert given_back == [300] * 33


def test_after_its_end_a_stream_gets_no_more_credit() -> None:
    lane = OutputLane(STREAMS, 8)
    lane.bind(lambda stream, size: pytest.fail("a stream that has ended wants no room"))
    assert lane.feed(piece("stdout", 0, b"x" * 8, end="seen")) is None
    lane.divert(lambda stream, data: None)


@pytest.mark.anyio
async def test_a_consumer_that_waits_is_woken_by_a_piece_and_by_the_end() -> None:
    lane = OutputLane(STREAMS, 100)
    waiting = asyncio.ensure_future(lane.next_piece())
    await asyncio.sleep(0)
    assert lane.feed(piece("stdout", 0, b"x")) is None
    assert await waiting == ("stdout", b"x")
    waiting = asyncio.ensure_future(lane.next_piece())
    await asyncio.sleep(0)
    lane.close()
    assert await waiting is None


@pytest.mark.anyio
async def test_a_consumer_that_was_cancelled_leaves_the_piece_for_the_next() -> None:
    lane = OutputLane(STREAMS, 100)
    waiting = asyncio.ensure_future(lane.next_piece())
    await asyncio.sleep(0)
    assert lane.feed(piece("stdout", 0, b"x")) is None
    waiting.cancel()
    await asyncio.wait((waiting,))
    assert waiting.cancelled()
    lane.close()
    assert await lane.next_piece() == ("stdout", b"x")


@pytest.mark.anyio
async def test_single_bytes_that_wait_are_held_in_few_objects() -> None:
    lane = OutputLane(STREAMS, 100_000)
    for number in range(100_000):
        assert lane.feed(piece("stdout", number, b"x")) is None
    lane.close()
    pieces = 0
    while await lane.next_piece() is not None:
        pieces += 1
    assert pieces <= 100


def test_what_waits_is_handed_over_where_nobody_iterates_any_more() -> None:
    kept: list[bytes] = []
    lane = OutputLane(STREAMS, 2000)
    assert lane.feed(piece("stdout", 0, b"before")) is None
    lane.divert(lambda stream, data: kept.append(data))
    assert lane.feed(piece("stdout", 6, b"after")) is None
    assert kept == [b"before", b"after"]


# ------------------------------------------------------------------ the truth


def ended_lane(stdout: bytes = b"", stderr: bytes = b"", end: StreamEnd = "seen") -> OutputLane:
    lane = OutputLane(STREAMS, 1000)
    assert lane.feed(piece("stdout", 0, stdout, end=end)) is None
    assert lane.feed(piece("stderr", 0, stderr, end="seen")) is None
    return lane


def test_a_result_that_agrees_with_every_byte_and_end_is_believed() -> None:
    assert ended_lane(b"abc", b"d").contradiction(result(3, 1)) is None
    assert ended_lane(end="heldOpen").contradiction(result(end="heldOpen")) is None


def test_a_result_without_an_end_mark_is_not_believed() -> None:
    """cloudflare/sandbox-sdk#873 (29): the stream broke, and exit 0 was made up."""
    lane = OutputLane(STREAMS, 1000)
    assert lane.feed(piece("stdout", 0, b"abc", end="seen")) is None
    assert lane.contradiction(result(3)) == "stderr has no end mark"


@given(stdout=st.integers(0, 5), stderr=st.integers(0, 5), end=st.sampled_from(["seen", "heldOpen"]))
def test_any_wrong_count_or_end_is_a_contradiction(stdout: int, stderr: int, end: StreamEnd) -> None:
    """kubernetes#124571, kubernetes-client/c#168 (59): output was truncated, with exit 0."""
    broken = ended_lane(b"abc", b"d").contradiction(result(stdout, stderr, end=end))
    assert (broken is None) == ((stdout, stderr, end) == (3, 1, "seen"))


def test_the_stream_of_a_terminal_is_held_against_what_is_said_of_stdout() -> None:
    lane = OutputLane(("pty",), 100)
    assert lane.feed(piece("pty", 0, b"abc", end="seen")) is None
    assert lane.contradiction(result(3)) is None
    assert lane.contradiction(result(2)) == "pty has 2 bytes by the result and 3 were received"
