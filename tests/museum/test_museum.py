"""Every fault that is known of has its place in the museum, and what the museum says is true."""

from pathlib import Path

import msgspec
import pytest

from tests.museum.__main__ import main
from tests.museum.page import ROOMS, render
from tests.museum.rows import Row, mentions, problems_of, read_rows

NUMBERS = (
    *("F01", "F02", "F03", "F04", "F06", "F07", "F08", "F09", "F11", "F12", "F13", "F14", "F16", "F17", "F18", "F19"),
    *("F21", "F22", "F23"),
    *("B01", "B03", "B04", "B05", "B06", "B08", "B09", "B10", "B11"),
    *("N01", "N02", "N03", "N04", "N06", "N07", "N08", "N09", "N11", "N12"),
    *("C01", "C02", "C04", "C05", "C06", "C07", "C09", "C10", "C11", "C12"),
    *("S02", "S03", "S04", "S05", "S07", "S08", "S09", "S10", "S12", "S13", "S14", "S15", "S17"),
    *("O01", "O02", "O03", "O05", "O06", "O07", "O08", "O10", "O11", "O12", "O13"),
    *("R02", "R03", "R04", "R05", "R07", "R08", "R09", "R10"),
    *("L01", "L02", "L03", "L04", "L06", "L07", "L08", "L09", "L11", "L12"),
)
"""What the museum must have; the numbers between belong to no row."""

SOUND = Row(
    id="F01", sources=("owner/repo#1",), symptom="It broke.", side="host", tests=("test_it.py::test_it_does_not_break",)
)
TEST = 'def test_it_does_not_break() -> None:\n    """owner/repo#1: it broke."""\n'


def test_every_known_fault_has_a_row_and_no_number_is_given_twice() -> None:
    numbers = [row.id for row in read_rows()]
    assert set(NUMBERS) - set(numbers) == set()
    assert len(set(numbers)) == len(numbers)


def test_rows_stand_in_the_order_of_the_rooms() -> None:
    rooms = list(ROOMS)
    places = [(rooms.index(row.id[0]), row.id) for row in read_rows()]
    assert places == sorted(places)


@pytest.mark.parametrize("row", read_rows(), ids=lambda row: row.id)
def test_every_test_that_a_row_names_is_there_and_names_the_fault(row: Row) -> None:
    assert problems_of(row) == []


def test_the_page_is_what_the_rows_say() -> None:
    assert main(["--check"]) == 0, "run python -m tests.museum --write"


def test_the_page_tells_of_every_row_and_links_every_test() -> None:
    page = render(read_rows())
    for row in read_rows():
        assert f"### {row.id}\n\n{row.symptom}\n" in page
        assert all(f"](../../{node.partition('::')[0]})" in page for node in row.tests)


def test_a_page_that_is_old_is_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    old = tmp_path / "MUSEUM.md"
    monkeypatch.setattr("tests.museum.__main__.PAGE", old)
    assert main(["--check"]) == 1
    assert main(["--write"]) == 0
    assert main(["--check"]) == 0
    old.write_text(old.read_text(encoding="utf-8") + "More.\n", encoding="utf-8")
    assert main(["--check"]) == 1


def test_a_row_that_cannot_happen_says_why_on_the_page() -> None:
    row = msgspec.structs.replace(SOUND, tests=(), why_not="there is no such thing.")
    assert problems_of(row) == []
    assert "Cannot happen here: there is no such thing.\n" in render([row])


@pytest.mark.parametrize(
    ("content", "changed", "problem"),
    [
        (TEST, {}, ""),
        ('@check("A-1", source="owner/repo#1")\ndef holds(): ...\n', {"tests": ("test_it.py::holds",)}, ""),
        (TEST, {"tests": ("test_it.py::test_gone",)}, "is no test and no check"),
        (TEST, {"tests": ("test_gone.py::test_it_does_not_break",)}, "is no test and no check"),
        ("def helper():\n    'F01'\n", {"tests": ("test_it.py::helper",)}, "is no test and no check"),
        ("def test_it_does_not_break(): ...\n", {}, "names neither F01 nor one of its sources"),
        (TEST.replace("#1", "#12"), {}, "names neither F01 nor one of its sources"),
        (TEST, {"tests": ()}, "needs tests, or why there are none"),
        (TEST, {"why_not": "it cannot."}, "needs tests, or why there are none"),
        (TEST.replace("owner/repo#1", "F01"), {"sources": ()}, "names no source"),
        (TEST, {"sources": ("owner/repo#1", "repo#2")}, "'repo#2' is no owner/repository#number"),
        (TEST, {"symptom": "It broke"}, "the symptom is one sentence"),
        (TEST, {"id": "F1"}, "a number is a letter and two digits"),
    ],
)
def test_a_row_that_does_not_hold_is_told(
    tmp_path: Path, content: str, changed: dict[str, object], problem: str
) -> None:
    (tmp_path / "test_it.py").write_text(content, encoding="utf-8")
    found = problems_of(msgspec.structs.replace(SOUND, **changed), tmp_path)
    assert [problem in line for line in found] == ([True] if problem else [])


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("F01: it broke", True),
        ("owner/repo PR #1 (1)", True),
        ("owner/repo#1, #2", True),
        ("F011", False),
        ("owner/repo#10", False),
        ("other-owner/repo#1", False),
    ],
)
def test_a_number_or_a_source_is_named_whole_or_not_at_all(text: str, named: bool) -> None:
    assert mentions(text, SOUND) is named


def test_a_member_that_is_misspelt_is_refused() -> None:
    row = '[[row]]\nid = "F01"\nsources = ["o/r#1"]\nsymptom = "It broke."\nside = "host"\n'
    assert len(read_rows(row)) == 1
    for wrong in (row + 'test = "x"\n', row.replace("host", "hosts"), row.replace("symptom", "symptoms")):
        with pytest.raises(msgspec.ValidationError):
            read_rows(wrong)
