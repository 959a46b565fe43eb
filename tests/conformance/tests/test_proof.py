"""The kit proves itself: each check catches a worker that is broken, each broken worker is caught."""

from pathlib import Path

import pytest

from sandport_conformance import matrix, mutants
from sandport_conformance.catalogue import every_check, find
from sandport_conformance.mutants import Mutant
from sandport_conformance.mutants.healthy import Healthy
from sandport_conformance.run import judge
from sandport_conformance.times import Times
from tests.conformance.tests.conftest import settings

ROOT = Path(__file__).resolve().parents[3]
KIT = ROOT / "tests/conformance"
STDLIB_WORKER = ROOT / "examples/stdlib_worker/worker.py"


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_every_check_catches_a_broken_worker_and_every_broken_worker_is_caught() -> None:
    proof = matrix.run()
    assert proof.problems == []
    assert (KIT / "MATRIX.md").read_text(encoding="utf-8") == proof.table(), "run sandport-conformance matrix --write"


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_worker_that_is_there_to_be_copied_is_conformant() -> None:
    report = judge(["python3", str(STDLIB_WORKER)], settings=settings(), level="L3")
    assert [(result.id, result.reason) for result in report.results if result.verdict == "bad"] == []
    assert report.conformant, report.summary


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_the_smallest_workers_commands_and_local_root_carry_whole_trees() -> None:
    """Files are judged at L4, and what it offers for them is whole, though it does not keep all of L4."""
    files = ["SYNC-29", "SYNC-30", "SYNC-31", "SYNC-32", "SYNC-33"]
    report = judge(["python3", str(STDLIB_WORKER)], settings=settings(), only=files)
    assert [(result.id, result.reason) for result in report.results if result.verdict == "bad"] == []
    assert report.conformant, report.summary


@pytest.mark.parametrize("mutant", mutants.every_mutant(), ids=lambda mutant: mutant.name)
def test_a_mutant_says_what_it_does_wrong_and_which_check_must_see_it(mutant: Mutant) -> None:
    assert mutant.sentence.endswith(".")
    for name in mutant.killed_by:
        assert find(name)


def test_a_check_that_catches_nothing_and_a_mutant_that_lives_are_problems(monkeypatch: pytest.MonkeyPatch) -> None:
    harmless = Mutant(
        name=mutants.HEALTHY, sentence="Does nothing wrong.", killed_by=("FRAME-2",), made_from=mutants.HEALTHY
    )
    monkeypatch.setattr(matrix, "every_mutant", lambda: (harmless,))
    proof = matrix.run(only=["FRAME-2"])
    assert proof.problems == ["healthy:Healthy lives through FRAME-2", "FRAME-2 kills no mutant"]


def test_a_mutant_that_cannot_be_started_kills_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    missing = Mutant(
        name="healthy:NoSuchClass", sentence="Is not there.", killed_by=("FRAME-2",), made_from=mutants.HEALTHY
    )
    monkeypatch.setattr(matrix, "every_mutant", lambda: (missing,))
    problems = matrix.run(only=["FRAME-2"]).problems
    assert any("could not be started" in problem for problem in problems)


def test_a_worker_that_a_mutant_is_made_from_must_be_sound_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else the check may have caught the base's fault, or have had nothing to judge."""
    broken = "l0_frames:SplitsAtUnicodeSeparators"
    derived = Mutant(name=broken, sentence="Is made from a broken one.", killed_by=("FRAME-2",), made_from=broken)
    monkeypatch.setattr(matrix, "every_mutant", lambda: (derived,))
    monkeypatch.setattr(matrix, "measure", lambda scale: Times(factor=0.5))
    (problem,) = matrix.run(only=["FRAME-2"]).problems
    assert problem.startswith(f"{broken}, which is sound, does not pass FRAME-2")


def test_a_mutant_without_a_sentence_or_a_check_is_refused() -> None:
    class Silent(Healthy):
        pass

    class Said(Healthy):
        """Does something wrong."""

    with pytest.raises(LookupError, match="needs a docstring and the check"):
        mutants.mutant("FRAME-2")(Silent)
    with pytest.raises(LookupError, match="needs a docstring and the check"):
        mutants.mutant()(Said)


def test_the_order_of_checks_saves_starts_and_reads_the_record_last() -> None:
    checks = every_check()
    uses = [(check.uses == "record", check.level) for check in checks]
    assert uses == sorted(uses)
    assert len({check.id for check in checks}) == len(checks)
