"""The page of all checks, and what `explain` tells: the same facts, from one source."""

import re
from pathlib import Path

import pytest

from sandport_conformance import broken_examples, checks_page, cli
from sandport_conformance.catalogue import every_check
from sandport_conformance.declaration import Check
from sandport_conformance.hosting.catalogue import every_host_check
from sandport_conformance.hosting.declaration import HostCheck
from sandport_conformance.mutants import MUTANTS, every_mutant
from sandport_conformance.reports import reports_of, written_for

KIT = Path(__file__).resolve().parents[1]
PAGE = (KIT / "CHECKS.md").read_text(encoding="utf-8")
MUTANT_SOURCES = "\n".join(
    path.read_text(encoding="utf-8") for path in (KIT / "src/sandport_conformance/mutants").glob("*.py")
)


def told(capsys: pytest.CaptureFixture[str], name: str) -> str:
    assert cli.main(["explain", name]) == 0
    return capsys.readouterr().out


def test_the_page_is_the_one_that_the_checks_make() -> None:
    assert checks_page.main(["--check"]) == 0


def test_the_page_is_old_when_a_clause_has_changed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    changed = tmp_path / "CHECKS.md"
    changed.write_text(PAGE.replace("MUST", "SHOULD", 1), encoding="utf-8")
    monkeypatch.setattr(checks_page, "_PAGE", changed)
    assert checks_page.main(["--check"]) == 1
    assert checks_page.main(["--write"]) == 0
    assert changed.read_text(encoding="utf-8") == PAGE


def test_every_check_has_its_entry_with_clause_reason_source_and_what_it_catches() -> None:
    entries = {entry.partition(" ")[0][2:-2]: entry for entry in re.split(r"\n(?=\*\*[A-Z]+-\d+[/\w-]*\*\* )", PAGE)}
    checks: tuple[Check | HostCheck, ...] = (*every_check(), *every_host_check())
    for check in checks:
        entry = entries[check.id]
        assert check.title in entry
        assert check.why in entry
        assert check.broken in entry
        assert all(f"`{report}`" in entry for report in reports_of(check))
        assert f"> {check.requirement.clause} [" in PAGE
    for judge in every_check():
        for example in broken_examples.examples_of(judge):
            assert example.mutant.sentence in entries[judge.id]


def test_what_the_museum_shows_with_a_check_is_told_of_it_and_nothing_twice() -> None:
    """anomalyco/opencode#43258 (N03) stands in the check; paperclip#6883 (P148) is what it shows too."""
    (crash,) = [check for check in every_host_check() if check.id == "CALL-7"]
    assert written_for(crash) == ("anomalyco/opencode#43258",)
    assert "paperclip#6883" in reports_of(crash)
    checks: tuple[Check | HostCheck, ...] = (*every_check(), *every_host_check())
    for check in checks:
        reports = reports_of(check)
        assert len(reports) == len(set(reports))


def test_the_lines_that_break_a_worker_stand_in_its_source() -> None:
    assert every_mutant()
    for mutant in MUTANTS.values():
        code = broken_examples.code_of(mutant)
        assert code, f"{mutant.name} shows no line"
        lines = [line for line in code.splitlines() if line and not line.startswith("class ")]
        assert all(line in MUTANT_SOURCES for line in lines), mutant.name


def test_what_breaks_a_worker_is_found_in_the_class_that_it_names() -> None:
    assert every_mutant()
    for name, line in {
        "l3_commands:SaysNothingOfTheTree": 'result.pop("tree", None)',  # through a function
        "l4_leases:GrantsWithoutEnforcing": "def check_egress",  # through a class
        "l0_lines:ServesOnAfterACeiling": "class GoesOn(Healthy):",  # through its base
    }.items():
        assert line in broken_examples.code_of(MUTANTS[name])


@pytest.mark.parametrize("name", ["FRAME-6", "frame-6", " Frame-6 "])
def test_a_check_is_explained_whatever_the_case_of_its_id(capsys: pytest.CaptureFixture[str], name: str) -> None:
    story = told(capsys, name)
    assert story.startswith("FRAME-6  (L0, MUST)")
    assert "One bad line must not cost the connection:" in story
    assert "modelcontextprotocol/python-sdk#2454" in story
    assert "l0_frames:DiesOfABadLine: Ends when a line cannot be read." in story
    assert "        os._exit(1)" in story


def test_a_part_a_requirement_without_a_check_and_a_level_are_explained(capsys: pytest.CaptureFixture[str]) -> None:
    assert told(capsys, "frame-10/DEPTH").startswith("FRAME-10/depth")
    assert "it cannot hold where these fail: CALL-7" in told(capsys, "CALL-6").replace("\n    ", " ")
    assert "no check of the kit" in told(capsys, "EVO-1")
    assert told(capsys, "l1").startswith("L1  the process")
    assert "none yet" in told(capsys, "L6")


def test_a_broken_worker_is_explained_with_its_lines_and_a_way_to_see_it_fail(
    capsys: pytest.CaptureFixture[str],
) -> None:
    for name in ("NeedsAHome", "l1_stdio:needsahome"):
        story = told(capsys, name)
        assert "Reads a variable that it does not list, and fails without it." in story
        assert 'os.environ["HOME"]' in story
        assert re.search(r"sandport-conformance run --only PROC-17 -- .*l1_stdio:NeedsAHome", story)


@pytest.mark.parametrize(
    ("typed", "meant"), [("FRAM-6", "FRAME-6"), ("sync34", "SYNC-34"), ("needsahom", "NeedsAHome"), ("x", "list")]
)
def test_a_slip_is_answered_with_what_may_have_been_meant(
    capsys: pytest.CaptureFixture[str], typed: str, meant: str
) -> None:
    assert cli.main(["explain", typed]) == 2
    assert meant in capsys.readouterr().err
