"""-c KEY=VALUE: what a value on the command line means."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandport.configuration import overridden, parse_overrides
from sandport.errors import ConfigurationInvalid


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("true", True),
        ("false", False),
        ("3", 3),
        ("-3", -3),
        ("0x10", 16),
        ("2.5", 2.5),
        ('"3"', "3"),
        ("'true'", "true"),
        ('["a", "b"]', ["a", "b"]),
        ("{a = 1}", {"a": 1}),
        ("", ""),
        ("True", "True"),
        ("python:3.13", "python:3.13"),
        ("a=b", "a=b"),
        ("1.2.3", "1.2.3"),
        ("2024-01-01", "2024-01-01"),
        ("12:30:00", "12:30:00"),
        ("nan", "nan"),
        ("inf", "inf"),
        ("3#4", "3#4"),
        ("1,2", "1,2"),
        ("1,", "1,"),
        ("1]", "1]"),
        ("1\nb = 2", "1\nb = 2"),
        ("99999999999999999999", "99999999999999999999"),
        ("[" * 3000, "[" * 3000),
        ('"unclosed', '"unclosed'),
    ],
)
def test_a_value_is_tomls_where_it_is_one_and_a_string_elsewhere(text: str, value: object) -> None:
    config = parse_overrides([f"k={text}"])
    assert config == {"k": value}
    assert type(config["k"]) is type(value)


def test_dots_nest_and_the_later_value_holds() -> None:
    pairs = ["a.b=1", "a.c.d=x", "n=1", "n=2"]
    assert parse_overrides(pairs) == {"a": {"b": 1, "c": {"d": "x"}}, "n": 2}


@pytest.mark.parametrize(
    "pairs", [["k"], ["=v"], ["a..b=1"], [".a=1"], ["a.=1"], ["a=1", "a.b=2"], ["a.b=1", "a=2"], [""]]
)
def test_what_is_no_key_and_value_is_refused_by_name(pairs: list[str]) -> None:
    with pytest.raises(ConfigurationInvalid, match=r"^-c "):
        parse_overrides(pairs)


def test_overrides_are_merged_into_tables_and_replace_the_rest() -> None:
    base = {"image": "a", "limits": {"cpu": 1, "memory": 2}, "list": [1]}
    merged = overridden(base, {"limits": {"cpu": 4}, "list": [2], "image": {"x": 1}})
    assert merged == {"image": {"x": 1}, "limits": {"cpu": 4, "memory": 2}, "list": [2]}
    assert base["limits"] == {"cpu": 1, "memory": 2}


@given(st.text())
def test_any_text_gives_a_value_of_json(text: str) -> None:
    value: Any = parse_overrides([f"k={text}"])["k"]
    json.dumps(value, allow_nan=False)
    assert not isinstance(value, str) or value == text or text[:1] + text[-1:] in {"''", '""'} or text != text.strip()
