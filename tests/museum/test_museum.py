"""Every fault that is known of has its place in the museum, and what the museum says is true."""

from pathlib import Path

import msgspec
import pytest

from tests.museum.__main__ import main
from tests.museum.page import PEERS, ROOMS, render, room_of
from tests.museum.rows import FEATURES, Also, Row, mentions, problems_of, read_rows

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
"""What the museum must have of plugin hosts; the numbers between belong to no row."""

PEERS_NUMBERS = (
    *(1, 2, 3, 4, 6, 7, 8, 9, 11, 12, 13, 14, 16, 17, 18, 19, 21, 22, 23, 24, 26),
    *(27, 28, 29, 31, 32, 33, 34, 36, 37, 38, 39, 41, 42, 43, 44, 46),
    *(47, 48, 49, 51, 52, 53, 54, 56),
    *(57, 58, 59, 61, 62, 63, 64, 66, 67, 68, 69, 71, 72),
    *(73, 74, 76, 77, 78, 79, 81, 82, 83, 84, 86, 87, 88, 89, 91, 92, 93, 94, 96, 97),
    *(98, 99, 101, 102, 103, 104, 106, 107, 108, 109, 111, 112, 113, 114, 116, 117, 118, 119, 121),
    *(122, 123, 124, 126, 127, 128, 129, 131, 132, 133, 134, 136),
    *(137, 139, 140, 142, 143, 144),
    *(145, 147, 148, 149, 150, 152, 153, 154, 155, 157, 158, 159, 160, 162, 163, 164, 165),
)
"""What it must have of other systems of sandboxes, by the rows of the survey; a line is a room."""

SOUND = Row(
    id="F01", sources=("owner/repo#1",), symptom="It broke.", side="host", tests=("test_it.py::test_it_does_not_break",)
)
PEER = msgspec.structs.replace(SOUND, id="P001")
OTHER = Also(test=SOUND.tests[0], fails="it breaks")
SILENT = msgspec.structs.replace(OTHER, fails=" ")
TEST = 'def test_it_does_not_break() -> None:\n    """owner/repo#1: it broke."""\n'


def test_every_known_fault_has_a_row_and_no_number_is_given_twice() -> None:
    numbers = [row.id for row in read_rows()]
    wanted = {*NUMBERS, *(f"P{number:03d}" for number in PEERS_NUMBERS)}
    assert wanted - set(numbers) == set()
    assert len(set(numbers)) == len(numbers)


def test_rows_stand_in_the_order_of_the_rooms() -> None:
    rooms = [*ROOMS.values(), *PEERS.values()]
    places = [(rooms.index(room_of(row)), row.id) for row in read_rows()]
    assert places == sorted(places)
    assert {room for room, _ in places} == set(range(len(rooms)))


def test_everything_that_is_to_be_built_is_waited_for() -> None:
    assert {feature for row in read_rows() for feature in row.waits_for} == set(FEATURES)


@pytest.mark.parametrize("row", read_rows(), ids=lambda row: row.id)
def test_every_test_that_a_row_names_is_there_and_names_the_fault(row: Row) -> None:
    assert problems_of(row) == []


def test_the_page_is_what_the_rows_say() -> None:
    assert main(["--check"]) == 0, "run python -m tests.museum --write"


def test_the_page_tells_of_every_row_and_links_every_test() -> None:
    page = render(read_rows())
    for row in read_rows():
        assert f"### {row.id}\n\n{row.symptom}\n" in page
        assert all(f"](../../{node.partition('::')[0]})" in page for node in row.nodes)
        assert all(f"; fails where {one.fails}\n" in page for one in row.also)
        assert f": {row.rest}." in page if row.rest else True


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


def test_a_row_that_is_shown_in_part_says_on_the_page_what_is_not_and_what_that_waits_for() -> None:
    row = msgspec.structs.replace(SOUND, waits_for=("docker", "ssh"), rest="the other half")
    page = render([row])
    assert "Not shown yet: the other half. It waits for a provider for Docker, and for a provider over SSH.\n" in page
    assert "- a provider over SSH: F01\n" in page
    assert f"| {ROOMS['F']} | 1 | 0 | 1 | 0 | 0 |\n" in page
    assert "Not shown: the other half.\n" in render([msgspec.structs.replace(row, waits_for=())])
    page = render([msgspec.structs.replace(row, tests=())])
    assert "No test yet: the other half. It waits for " in page
    assert f"| {ROOMS['F']} | 1 | 0 | 0 | 1 | 0 |\n" in page


def test_a_row_of_a_peer_has_the_room_of_its_number() -> None:
    rooms = {number: room_of(msgspec.structs.replace(PEER, id=f"P{number:03d}")) for number in PEERS_NUMBERS}
    assert {number: rooms[number] for number in PEERS} == PEERS
    assert [rooms[number] for number in (26, 46, 56, 72, 97, 121, 136, 144, 165)] == list(PEERS.values())


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
        (TEST, {"id": "F001"}, "a number is a letter and two digits"),
        (TEST, {"waits_for": ("docker",), "rest": "half of it"}, ""),
        (TEST, {"waits_for": ("docker",), "rest": "all of it", "tests": ()}, ""),
        (TEST, {"waits_for": ("docker",)}, "its rest says not with what"),
        (TEST, {"rest": "half of it"}, ""),
        (TEST, {"rest": "x", "tests": (), "why_not": "it cannot."}, "nothing that it is the rest of"),
        (TEST, {"waits_for": ("dokcer",), "rest": "half of it"}, "'dokcer' is nothing that is to be built"),
        (TEST, {"waits_for": ("docker",), "rest": "x", "why_not": "it cannot."}, "needs tests, or why there are none"),
        (TEST, {"tests": SOUND.tests * 2}, "names a test twice"),
        (TEST.replace("owner/repo#1", "x"), {"tests": (), "also": (OTHER,)}, ""),
        (TEST.replace("owner/repo#1", "x"), {"tests": (), "also": (SILENT,)}, "says not what makes it fail"),
        (TEST, {"tests": (), "also": (OTHER,)}, "belongs among the tests"),
        ("", {"tests": (), "also": (OTHER,)}, "is no test and no check"),
    ],
)
def test_a_row_that_does_not_hold_is_told(
    tmp_path: Path, content: str, changed: dict[str, object], problem: str
) -> None:
    (tmp_path / "test_it.py").write_text(content, encoding="utf-8")
    found = problems_of(msgspec.structs.replace(SOUND, **changed), tmp_path)
    assert [problem in line for line in found] == ([True] if problem else [])


@pytest.mark.parametrize(
    ("sources", "problem"),
    [
        (("owner/repo#1",), ""),
        (("repo#1", "the manual of repo, its defaults"), ""),
        (("owner repo#1",), ""),
        (("repo#",), "is no owner/repository#number"),
        (("repo #1",), "is no owner/repository#number"),
    ],
)
def test_a_source_of_a_peer_is_as_the_survey_has_it(tmp_path: Path, sources: tuple[str, ...], problem: str) -> None:
    (tmp_path / "test_it.py").write_text(TEST.replace("owner/repo#1", "owner/repo#1, P001"), encoding="utf-8")
    found = problems_of(msgspec.structs.replace(PEER, sources=sources), tmp_path)
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


@pytest.mark.parametrize(
    ("source", "text", "named"),
    [
        ("repo#1", "owner/repo#1", True),
        ("repo#1", "repo#1: it broke", True),
        ("repo#1", "other-repo#1", False),
        ("repo#1", "repo#12", False),
        ("owner repo#1", "owner/repo#1", True),
        ("owner repo#1", "owner repo#1", True),
        ("owner repo#1", "repo#1", False),
        ("owner/repo#1", "repo#1", False),
        ("owner/repo#1", "another/repo#1", False),
        ("a manual", "(P001) it broke", True),
    ],
)
def test_a_source_of_a_peer_is_found_with_its_owner_and_without(source: str, text: str, named: bool) -> None:
    assert mentions(text, msgspec.structs.replace(PEER, sources=(source,))) is named


def test_a_member_that_is_misspelt_is_refused() -> None:
    row = '[[row]]\nid = "F01"\nsources = ["o/r#1"]\nsymptom = "It broke."\nside = "host"\n'
    assert len(read_rows(row)) == 1
    for wrong in (row + 'test = "x"\n', row.replace("host", "hosts"), row.replace("symptom", "symptoms")):
        with pytest.raises(msgspec.ValidationError):
            read_rows(wrong)
