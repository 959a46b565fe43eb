"""The way out of a shell that answers no more: seen however it is cut, and nothing else is touched."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from sandport.cli.escape import Escape

KEYS = st.lists(st.sampled_from([b"~", b".", b"\r", b"\n", b"a", b"\x03"]), max_size=12).map(b"".join)


def passed(data: bytes, cuts: list[int]) -> tuple[bytes, bool]:
    escape, found, start = Escape(), b"", 0
    for end in [*sorted({cut for cut in cuts if cut < len(data)}), len(data)]:
        if not escape.wanted:
            found += escape.passed(data[start:end])
        start = end
    return found, escape.wanted


@given(KEYS, st.lists(st.integers(min_value=0, max_value=12), max_size=5))
def test_where_the_pieces_end_does_not_matter(data: bytes, cuts: list[int]) -> None:
    assert passed(data, cuts) == passed(data, [])


@given(st.binary(max_size=50).filter(lambda data: b"~" not in data))
def test_what_has_no_tilde_is_passed_on_as_it_is(data: bytes) -> None:
    assert passed(data, []) == (data, False)


def test_the_way_out_is_a_line_s_first_two_keys() -> None:
    for data, expected in (
        (b"~.rest", (b"", True)),
        (b"ls\r~.", (b"ls\r", True)),
        (b"ls ~.\r", (b"ls ~.\r", False)),
        (b"~~.\r", (b"~.\r", False)),
        (b"~/bin/x\r", (b"~/bin/x\r", False)),
        (b"~\r~.", (b"~\r", True)),
        (b"~", (b"", False)),
    ):
        assert passed(data, []) == expected, data
