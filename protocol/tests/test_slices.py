"""A large frame goes into its pipe a slice at a time, and the wire is the same as if it went at once."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from sandport_protocol.slices import SLICE_BYTES, Slices

SIZES = st.sampled_from([1, 50, SLICE_BYTES, SLICE_BYTES + 1, 5 * SLICE_BYTES + 7])


class Transport:
    """Is full after some writes, and has room again when it is told so."""

    def __init__(self, full_after: list[int]) -> None:
        self.slices = Slices(self.take)
        self.written: list[bytes] = []
        self._full_after = full_after
        self._left = full_after.pop() if full_after else 1
        self.full = False

    def take(self, data: bytes | memoryview) -> None:
        self.written.append(bytes(data))
        self._left -= 1
        if self._left <= 0 and not self.full:
            self.full = True
            self.slices.pause()

    def room(self) -> bool:
        self.full = False
        self._left = self._full_after.pop() if self._full_after else 1
        return self.slices.resume()


@given(
    steps=st.lists(st.one_of(st.none(), SIZES), max_size=12),
    full_after=st.lists(st.integers(1, 9), max_size=20),
)
def test_frames_arrive_whole_and_in_order_whenever_the_pipe_is_full(
    steps: list[int | None], full_after: list[int]
) -> None:
    transport = Transport(full_after)
    sent = b""
    for number, size in enumerate(steps):
        if size is None:
            assert transport.room() is not transport.full
        else:
            frame = bytes([number]) * size
            sent += frame
            transport.slices.write(frame)
        assert transport.full or transport.slices.pending_bytes == 0  # nothing waits where there is room
        assert transport.slices.pending_bytes == len(sent) - sum(map(len, transport.written))
    while transport.slices.pending_bytes:
        transport.room()
    assert b"".join(transport.written) == sent
    assert max(map(len, transport.written), default=0) <= SLICE_BYTES


def test_what_is_small_goes_straight_through_where_nothing_waits_before_it() -> None:
    """A ping does so even into a full pipe; where the pipe is not full, it is the frame itself and no copy."""
    written: list[bytes | memoryview] = []
    slices = Slices(written.append)
    slices.pause()
    frame = b"ping\n"
    slices.write(frame)
    assert written[0] is frame


def test_no_more_than_a_slice_goes_into_a_full_pipe_and_small_frames_wait_behind_it() -> None:
    transport = Transport([1])
    transport.slices.write(b"x" * 10 * SLICE_BYTES)
    transport.slices.write(b"behind")
    assert list(map(len, transport.written)) == [SLICE_BYTES]
    assert transport.slices.pending_bytes == 9 * SLICE_BYTES + len(b"behind")


def test_before_the_pipe_is_closed_all_that_waits_is_given_to_it() -> None:
    transport = Transport([1])
    transport.slices.write(b"x" * 3 * SLICE_BYTES)
    transport.slices.finish()
    assert b"".join(transport.written) == b"x" * 3 * SLICE_BYTES
    assert transport.slices.pending_bytes == 0


def test_a_pipe_that_breaks_in_the_middle_of_a_frame_gets_no_more_of_it() -> None:
    written: list[int] = []

    def breaks(data: bytes | memoryview) -> None:
        written.append(len(data))
        if len(written) == 3:
            slices.drop()

    slices = Slices(breaks)
    slices.write(b"x" * 10 * SLICE_BYTES)
    assert written == [SLICE_BYTES] * 3
    assert slices.pending_bytes == 0


def test_what_nobody_reads_is_forgotten() -> None:
    transport = Transport([1])
    transport.slices.write(b"x" * 3 * SLICE_BYTES)
    transport.slices.drop()
    assert transport.slices.pending_bytes == 0
    assert transport.room()
    assert len(transport.written) == 1
