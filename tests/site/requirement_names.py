"""The ids of requirements, as they stand in the documents, and where each leads."""

from __future__ import annotations

import re
from collections.abc import Iterator

from tests.site.contents import ROOT

SPECIFICATION = "protocol/SPEC"
CHECKS = "tests/conformance/CHECKS"
CLAUSE = re.compile(r"^- \*\*([A-Z]+-\d+)\*\* \(", re.MULTILINE)
ENTRY = re.compile(r"^#### ([A-Z]+-\d+)( \(host\))?$", re.MULTILINE)
NAMED = re.compile(r"\b[A-Z]+-\d+\b")


def anchors(specification: str) -> dict[str, str]:
    """Where each requirement's clause stands in the page of the specification."""
    return {name: name.lower() for name in CLAUSE.findall(specification)}


def entries(checks: str) -> dict[str, str]:
    """Where each requirement's checks stand in the page of the checks; those of workers where there are both."""
    found: dict[str, str] = {}
    for name, host in ENTRY.findall(checks):
        found.setdefault(name, f"{name.lower()}-host" if host else name.lower())
    return found


def pieces(text: str, known: dict[str, str]) -> Iterator[tuple[str, str | None]]:
    """A text in pieces, each with the anchor that it leads to or None."""
    at = 0
    for match in NAMED.finditer(text):
        if match[0] in known:
            yield text[at : match.start()], None
            yield match[0], known[match[0]]
            at = match.end()
    yield text[at:], None


ANCHORS = anchors((ROOT / f"{SPECIFICATION}.md").read_text(encoding="utf-8"))
ENTRIES = entries((ROOT / f"{CHECKS}.md").read_text(encoding="utf-8"))
