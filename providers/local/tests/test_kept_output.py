"""What is kept of an output: its ends for a result, its newest bytes for whoever follows."""

from hypothesis import given
from hypothesis import strategies as st

from sandport_provider_local.streams import Ends, Window

PIECES = st.lists(st.binary(max_size=40), max_size=30)


@given(pieces=PIECES, limit=st.integers(0, 100))
def test_the_ends_of_an_output_are_its_first_and_last_bytes(pieces: list[bytes], limit: int) -> None:
    ends = Ends(limit)
    for piece in pieces:
        ends.add(piece)
    whole = b"".join(pieces)
    head, tail, dropped = ends.kept()
    assert ends.total_bytes == len(whole)
    assert dropped == max(0, len(whole) - limit)
    if dropped:
        assert (len(head), len(tail)) == (limit - limit // 2, limit // 2)
        assert head + whole[len(head) : len(whole) - len(tail)] + tail == whole
    else:
        assert (head, tail) == (whole, b"")


@given(pieces=PIECES, keep=st.integers(0, 60), ahead=st.integers(0, 60))
def test_a_window_holds_what_is_not_sent_and_then_the_newest(pieces: list[bytes], keep: int, ahead: int) -> None:
    window, whole, sent = Window(keep), b"", 0
    for piece in pieces:
        whole += piece
        sent = max(sent, len(whole) - ahead)
        window.add(piece, sent=sent)
        assert window.end == len(whole)
        assert window.base <= sent
        assert window.read(window.base, len(whole)) == whole[window.base :]
        assert window.end - window.base >= min(keep, len(whole))
        assert window.end - window.base <= max(keep, ahead)


@given(data=st.binary(min_size=1, max_size=100), start=st.integers(0, 99), size=st.integers(0, 100))
def test_a_window_is_read_from_any_offset_in_it(data: bytes, start: int, size: int) -> None:
    window = Window(1000)
    window.add(b"before", sent=0)
    window.trim(sent=6, keep_bytes=0)
    window.add(data, sent=6)
    assert window.base == 6
    assert window.read(6 + start, size) == data[start : start + size]
