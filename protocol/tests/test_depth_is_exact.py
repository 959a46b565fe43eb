"""The ceiling on nesting counts what JSON counts, no more and no less, and for any bytes in bounded work."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.tests.strategies import json_values
from sandport_protocol import codec

nested_values = st.recursive(
    st.one_of(json_values, st.text('[]{}"\\', max_size=8)),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.text('[]{}"\\a', max_size=4), inner)),
    max_leaves=30,
)


def depth_by_hand(text: str) -> int:
    """The deepest nesting, one character after the other; what closes too much counts as nothing."""
    deepest = level = 0
    in_string = escaped = False
    for character in text:
        if in_string:
            if escaped:
                escaped = False
            elif character == "\\":
                escaped = True
            elif character == '"':
                in_string = False
        elif character == '"':
            in_string = True
        elif character in "[{":
            level += 1
            deepest = max(deepest, level)
        elif character in "]}":
            level = max(0, level - 1)
    return deepest


def depth_of(value: object) -> int:
    if isinstance(value, dict):
        return 1 + max((depth_of(each) for each in value.values()), default=0)
    if isinstance(value, list):
        return 1 + max((depth_of(each) for each in value), default=0)
    return 0


def assert_exact(line: bytes, depth: int) -> None:
    for ceiling in {1, depth - 2, depth - 1, depth, depth + 1, 64}:
        if ceiling > 0:
            assert codec.deeper_than(line, ceiling) == (depth > ceiling), ceiling


@given(nested_values, st.booleans())
def test_the_depth_of_json_is_exact(value: object, ascii_only: bool) -> None:
    text = json.dumps(value, ensure_ascii=ascii_only)
    assert depth_by_hand(text) == depth_of(value)
    assert_exact(text.encode(), depth_of(value))


@given(nested_values, st.data())
def test_the_depth_of_a_part_of_json_is_exact(value: object, data: st.DataObject) -> None:
    text = json.dumps(value)
    part = text[: data.draw(st.integers(0, len(text)))]
    assert_exact(part.encode(), depth_by_hand(part))


@given(st.text("[]{}x,", max_size=200))
def test_brackets_that_do_not_match_count_as_they_open(text: str) -> None:
    assert_exact(text.encode(), depth_by_hand(text))


@pytest.mark.parametrize("depth", [1, 2, 63, 64, 65, 500])
@pytest.mark.parametrize(("opening", "closing"), [("[", "]"), ('{"a":', "}"), ('[{"[[":', "}]")])
def test_the_ceiling_itself_passes(opening: str, closing: str, depth: int) -> None:
    count, rest = divmod(depth, 2 if opening.startswith("[{") else 1)
    text = "[" * rest + opening * count + "1" + closing * count + "]" * rest
    assert json.loads(text) is not None
    assert_exact(text.encode(), depth)


def test_a_printed_line_with_many_brackets_is_not_deep() -> None:
    """What a program prints by mistake costs it one violation, not its worker."""
    printed = repr([[number] for number in range(100)])[:-1].encode()
    with pytest.raises(codec.Unreadable) as refused:
        codec.read(printed, depth=64)
    assert not refused.value.fatal


@pytest.mark.parametrize("line", [b"[" * 65 + b'"' + b'\\"' * 2**21, b"[" * 65 + b'"' * 2**21, b"][" * 2**20])
def test_a_line_without_an_end_costs_no_more_than_its_length(line: bytes) -> None:
    """Work that grew with the square of these lines would take days: the suite's time limit ends it."""
    assert codec.deeper_than(line, 64) == line.startswith(b"[")
