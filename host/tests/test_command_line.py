"""What can be wrong with a command is said before anything is sent."""

import math
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandport.command import CommandLine, command_line
from sandport.errors import UsageError
from sandport_protocol.octets import unpack


def line(argv: Any = None, **given: Any) -> CommandLine:
    members: dict[str, Any] = {"shell": None, "cwd": None, "env": None, "user": None, "timeout_s": None}
    return command_line(argv, **(members | given))


@pytest.mark.parametrize(
    ("argv", "given", "said"),
    [
        ("ls -l", {}, "argv is a list of words"),
        (b"ls", {}, "argv is a list of words"),
        (None, {}, "give either argv"),
        (["ls"], {"shell": "ls"}, "give either argv"),
        ([], {}, "argv is empty"),
        (["ls", 3], {}, "int"),
        (["ls"], {"env": {"A": None}}, "NoneType"),
        (["ls"], {"env": {3: "x"}}, "a variable's name is text, not 3"),
        (["\ud800"], {}, "surrogate"),
        (["ls"], {"timeout_s": 0}, "above 0"),
        (["ls"], {"timeout_s": -1}, "above 0"),
        (["ls"], {"timeout_s": math.nan}, "above 0"),
        (["ls"], {"timeout_s": math.inf}, "None for no limit"),
        (["ls"], {"timeout_s": 1e300}, "None for no limit"),
    ],
)
def test_what_makes_no_sense_is_a_usage_error(argv: Any, given: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError) as raised:
        line(argv, **given)
    assert said in str(raised.value)
    assert raised.value.dispatched == "no"


@given(words=st.lists(st.one_of(st.binary(min_size=1), st.text(alphabet=st.characters(exclude_categories=["Cs"])))))
def test_every_word_reaches_the_wire_as_the_bytes_that_it_is(words: list[str | bytes]) -> None:
    """OpenSandbox#1893, #1837, sandcat#101 (66): values with newlines, spaces or dollars were corrupted."""
    argv = ["program", *words]
    packed = line(argv).argv
    assert packed is not None
    assert [unpack(word) for word in packed] == [word if isinstance(word, bytes) else word.encode() for word in argv]


def test_paths_and_bytes_are_as_good_as_text() -> None:
    made = line([Path("/bin/true"), b"\xff"], cwd=Path("sub"), env={"A": b"\xfe"})
    assert made.argv is not None
    assert [unpack(word) for word in made.argv] == [b"/bin/true", b"\xff"]
    assert made.cwd == "sub"
    assert unpack(made.env["A"]) == b"\xfe"


def test_what_the_system_could_not_decode_is_the_byte_that_it_was() -> None:
    made = line(["x\udcff"])
    assert made.argv is not None
    assert unpack(made.argv[0]) == b"x\xff"


def test_the_program_is_named_for_messages() -> None:
    assert line(["pytest", "-q"]).name() == "pytest"
    assert line([b"\xff"]).name() == "b'\\xff'"
    assert line(shell="ls").name() == "shell command"


@pytest.mark.parametrize(("timeout_s", "timeout_ms"), [(None, None), (1.5, 1500), (0.0001, 1), (1e-9, 1)])
def test_a_time_out_never_becomes_none_by_being_small(timeout_s: float | None, timeout_ms: int | None) -> None:
    assert line(["x"], timeout_s=timeout_s).timeout_ms == timeout_ms
