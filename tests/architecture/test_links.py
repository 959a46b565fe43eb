"""A link in a document leads somewhere."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.architecture.workspace import MEMBERS, ROOT, files_in_git

PAGES = [path for path in files_in_git() if path.suffix == ".md"]
FENCE = re.compile(r"^ {0,3}(```|~~~).*?^ {0,3}\1", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"!?\[[^\]]*\]\(\s*<?([^)\s>]+)>?(?:\s+\"[^\"]*\")?\s*\)|^\[[^\]]+\]:\s*<?(\S+?)>?\s*$", re.MULTILINE)


def prose(page: Path) -> str:
    """A page without its code blocks: a bracket in code is no link, a # no heading."""
    return FENCE.sub("", page.read_text(encoding="utf-8"))


def links(page: Path) -> Iterator[str]:
    for match in LINK.finditer(re.sub(r"`[^`\n]*`", "", prose(page))):
        target = match[1] or match[2]
        if not re.match(r"[a-z][a-z0-9+.-]*:", target, re.IGNORECASE):
            yield target


def anchors(page: Path) -> set[str]:
    """What a heading of the page can be called in a link, as code hosts make it from the heading's text."""
    found: set[str] = set(re.findall(r"<a (?:id|name)=\"([^\"]+)\"", page.read_text(encoding="utf-8")))
    for heading in re.findall(r"^#{1,6} +(.+?) *#*$", prose(page), re.MULTILINE):
        text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading)
        slug = re.sub(r"[^\w\- ]", "", text.lower()).replace(" ", "-")
        repeat = 0
        while (name := slug if not repeat else f"{slug}-{repeat}") in found:
            repeat += 1
        found.add(name)
    return found


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_every_relative_link_leads_to_a_file_and_a_heading(page: Path) -> None:
    broken = []
    for link in links(page):
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        if (
            not target.exists()
            or not target.is_relative_to(ROOT)
            or (anchor and target.suffix == ".md" and anchor not in anchors(target))
        ):
            broken.append(link)
    assert broken == []


def test_the_pages_that_a_reader_starts_from_are_there() -> None:
    expected = {ROOT / name for name in ("README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "CHANGELOG.md")}
    expected |= {dist.path / "README.md" for dist in MEMBERS}
    assert expected - set(PAGES) == set()
