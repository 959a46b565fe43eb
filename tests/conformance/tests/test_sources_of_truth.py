"""What the kit took over from the protocol is what stands there, and every requirement is judged or excused."""

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest

from sandport_conformance import catalogue, requirements
from sandport_conformance.declaration import Check
from sandport_conformance.hosting.catalogue import every_host_check
from sandport_conformance.requirements import Requirement

ROOT = Path(__file__).resolve().parents[3]
KIT = ROOT / "tests/conformance"
JUDGED_LEVELS = ("L0", "L1", "L2", "L3", "L4")


def exceptions(kind: str = "exception") -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = tomllib.loads((KIT / "exceptions.toml").read_text()).get(kind, [])
    return found


def test_the_schema_is_the_protocols() -> None:
    protocols = (ROOT / "protocol/src/sandport_protocol/schema/v1.json").read_bytes()
    assert (KIT / "src/sandport_conformance/v1.json").read_bytes() == protocols


def test_the_requirements_are_those_of_the_specification() -> None:
    assert requirements.main(["--check"]) == 0


@pytest.mark.parametrize(
    ("line", "fault"),
    [
        ("- **FRAME-1** (L0, both) A message MUST be a line.", "is no requirement"),
        ("- **FRAME-1** (L0, worker): A message may be a line.", "neither MUST nor SHOULD"),
        ("- **FRAME-1** (L0, both): It MUST.\n- **FRAME-1** (L0, both): It MUST.", "twice"),
    ],
)
def test_a_line_of_the_specification_that_cannot_be_read_is_named(line: str, fault: str) -> None:
    with pytest.raises(ValueError, match=fault):
        requirements.read_spec(line)


def test_a_requirement_has_the_severity_of_its_strongest_word() -> None:
    first, second = requirements.read_spec("- **A-1** (L0, worker): MUST, and SHOULD.\n- **A-2** (-, host): SHOULD.")
    assert (first.severity, first.level, first.binds) == ("MUST", "L0", "worker")
    assert (second.severity, second.level, second.binds) == ("SHOULD", "-", "host")


def test_whose_a_time_out_is_and_that_it_sends_a_cancel_is_written_down_and_judged() -> None:
    """modelcontextprotocol/java-sdk#147 (C12): the text did not say it, and the two sides did different things."""
    written = {
        "CANCEL-7": ("host", "a deadline, MUST send `cancel`, once"),
        "CALL-5": ("worker", "`deadlineMs` is advice", "never cancels the call itself"),
    }
    judged = {check.requirement.id for check in catalogue.every_check()}
    judged |= {check.requirement.id for check in every_host_check()}
    for name, (binds, *clauses) in written.items():
        requirement = requirements.requirement(name)
        assert requirement.binds == binds
        assert all(clause in requirement.clause for clause in clauses)
        assert name in judged


def binding_workers() -> list[Requirement]:
    return [r for r in requirements.requirements().values() if r.binds != "host" and r.level in JUDGED_LEVELS]


def shown_by_checks() -> set[str]:
    checks = catalogue.every_check()
    return {requirement.id for check in checks for requirement in (check.requirement, *check.also)}


@pytest.mark.parametrize("level", JUDGED_LEVELS)
def test_every_requirement_on_workers_has_a_check_or_a_written_exception(level: str) -> None:
    excused = {entry["requirement"] for entry in exceptions()}
    bare = [r.id for r in binding_workers() if r.level == level and r.id not in shown_by_checks() | excused]
    assert bare == []


def test_every_exception_is_needed_and_names_a_test() -> None:
    known = {requirement.id for requirement in binding_workers()}
    for entry in exceptions():
        assert set(entry) == {"requirement", "reason", "test"}
        assert entry["requirement"] in known - shown_by_checks(), f"{entry['requirement']} needs no exception"
        path, _, name = entry["test"].partition("::")
        assert f"def {name.partition('[')[0]}(" in (ROOT / path).read_text(encoding="utf-8"), entry["test"]


def test_every_requirement_on_hosts_has_a_check_of_hosts_or_a_written_reason() -> None:
    judged = {one.id for check in every_host_check() for one in (check.requirement, *check.also)}
    binding = {r.id for r in requirements.requirements().values() if r.binds != "worker" and r.level in JUDGED_LEVELS}
    excused = {entry["requirement"]: entry for entry in exceptions("on_hosts")}
    assert set(excused) == binding - judged
    for entry in excused.values():
        assert entry["reason"]
        path, _, name = entry.get("test", "").partition("::")
        assert not path or f"def {name}(" in (ROOT / path).read_text(encoding="utf-8"), entry["test"]


@pytest.mark.parametrize("check", catalogue.every_check(), ids=lambda check: check.id)
def test_a_check_tells_its_reader_what_a_failure_means(check: Check) -> None:
    assert check.title.endswith(".")
    assert check.requirement.binds != "host"
    assert check.why.endswith(".")
    assert check.fix.endswith(".")
    assert not check.broken.endswith(".")
    assert all(re.fullmatch(r"[^#,]+#\d+", source) for source in check.source.split(", ") if source)
