"""Tables put into a file and taken out of it: nothing else of it changes, and what is not safe is refused."""

from __future__ import annotations

import tomllib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandport.cli.toml_text import NotEditable, value_text, with_table, without_table

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
VALUES = st.recursive(
    st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats(allow_nan=False, allow_infinity=False) | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=6,
)

FILE = """\
# mine
version = 1   # the only one

[providers.mine]
command = ["/opt/x", # a comment
  "[environments.ci]"]

# about ci
[environments.ci]
provider = "local"
config = { a = [1, 2], b = "#" }   # why

[environments.ci.env]
A = "1"

# about the other one
[environments."a.b"]
provider = 'mine'
"""


@given(TEXT, VALUES)
def test_what_is_written_is_read_as_it_was(key: str, value: object) -> None:
    members = {key: value}
    added = with_table("version = 1\n", ("environments", key), members)
    assert tomllib.loads(added) == {"version": 1, "environments": {key: members}}
    assert without_table(added, ("environments", key)) == "version = 1\n"


def test_what_toml_has_not_is_not_written() -> None:
    with pytest.raises(ValueError, match="NoneType"):
        value_text({"a": [None]})


def test_comments_and_everything_else_stay() -> None:
    added = with_table(FILE, ("environments", "new"), {"provider": "local", "config": {"x": {"y": True}}})
    assert added == FILE + '\n[environments.new]\nprovider = "local"\nconfig = { x = { y = true } }\n'
    assert without_table(added, ("environments", "new")) == FILE
    without = without_table(FILE, ("environments", "ci"))
    start, end = FILE.index("[environments.ci]\nprovider"), FILE.index("# about the other one")
    assert without == FILE[:start] + FILE[end:]
    without = without_table(FILE, ("environments", "a.b"))
    assert without == FILE[: FILE.index('[environments."a.b"]')], "what its comment was about is not ours to know"


@pytest.mark.parametrize(
    "text",
    [
        'environments = { ci = { provider = "local" } }\n',
        '[environments]\nci = { provider = "local" }\n',
        'environments.ci.provider = "local"\n',
        '[environments]\nci.provider = "local"\n',
        "environments = 3\n",
    ],
)
def test_a_table_without_a_head_of_its_own_is_left_alone(text: str) -> None:
    with pytest.raises(NotEditable):
        without_table(text, ("environments", "ci"))


def test_a_table_that_cannot_be_added_is_refused() -> None:
    for text in ('environments = { ci = { provider = "local" } }\n', "environments = 3\n", "[environments.new]\n"):
        with pytest.raises(NotEditable):
            with_table(text, ("environments", "new"), {"provider": "local"})


def test_a_line_of_a_longer_value_that_looks_like_a_head_is_no_harm() -> None:
    text = '[environments.ci]\nprovider = "x"\nnote = """\n[environments.ci]\n[other]\n"""\n'
    with pytest.raises(NotEditable):
        without_table(text, ("environments", "ci"))
