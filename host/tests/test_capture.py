"""Kept output: head, tail and counts are those of the whole, however it was cut into pieces."""

import io
import sys

from hypothesis import given
from hypothesis import strategies as st

from sandport.capture import Capture

PIECES = st.lists(st.binary(max_size=12), max_size=30)


@given(pieces=PIECES, limit=st.integers(0, 40))
def test_head_tail_and_counts_are_those_of_the_whole(pieces: list[bytes], limit: int) -> None:
    """cube-harness#368, stella#1119, hermes-agent#22913 (62): only the head was kept."""
    spill = io.BytesIO()
    capture = Capture(limit, spill)
    for piece in pieces:
        capture.take(piece)
    whole = b"".join(pieces)
    captured, kept = capture.captured("seen"), capture.kept()
    if len(whole) <= limit:
        assert (captured.data, captured.tail, captured.dropped_bytes) == (whole, b"", 0)
    else:
        head, tail = limit - limit // 2, limit // 2
        assert captured.data == whole[:head]
        assert captured.tail == whole[len(whole) - tail :]
        assert captured.dropped_bytes == len(whole) - limit
    assert captured.total_bytes == capture.total_bytes == len(whole)
    assert (kept.data, kept.tail, kept.dropped_bytes, kept.total_bytes) == (
        captured.data,
        captured.tail,
        captured.dropped_bytes,
        len(whole),
    )
    assert spill.getvalue() == whole


@given(pieces=PIECES, more=PIECES, limit=st.integers(0, 40))
def test_looking_at_it_changes_nothing(pieces: list[bytes], more: list[bytes], limit: int) -> None:
    looked, alone = Capture(limit), Capture(limit)
    for piece in pieces:
        looked.take(piece)
        alone.take(piece)
        looked.captured("seen")
    for piece in more:
        looked.take(piece)
        alone.take(piece)
    assert looked.captured("seen") == alone.captured("seen")


def test_a_tail_of_many_pieces_is_exact_where_it_is_trimmed_on_the_way() -> None:
    capture = Capture(200_000)
    whole = b"".join(b"%07d\n" % number for number in range(200_000))
    for start in range(0, len(whole), 1000):
        capture.take(whole[start : start + 1000])
        end = min(start + 1000, len(whole))
        if end > 200_000:
            assert capture.captured("seen").tail == whole[end - 100_000 : end]
    captured = capture.captured("heldOpen")
    assert captured.data == whole[:100_000]
    assert captured.tail == whole[-100_000:]
    assert captured.dropped_bytes == len(whole) - 200_000
    assert captured.end == "heldOpen"


def test_single_bytes_cost_about_a_byte_each() -> None:
    """haiku.rag#623, agent-governance-toolkit#2303 (61): hostile output exhausted the host's memory."""
    capture = Capture(400_000)
    for _ in range(400_000):
        capture.take(b"x")
    held = sum(sys.getsizeof(buffer) for buffer in (capture._head, capture._tail))
    assert held < 1_000_000


def test_the_text_says_how_much_is_missing_in_the_middle() -> None:
    capture = Capture(4)
    capture.take(b"abcdefgh")
    captured = capture.captured("seen")
    assert captured.decode() == "ab\n[... 4 bytes dropped ...]\ngh"
    assert bytes(captured) == b"abgh"
