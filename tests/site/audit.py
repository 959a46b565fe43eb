"""Reads the built site as a browser would: does every link lead somewhere, and is nothing fetched from elsewhere?"""

from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote

import msgspec

ELSEWHERE = re.compile(r"(?:[a-z][a-z0-9+.-]*:)?//", re.IGNORECASE)
IN_STYLE = re.compile(r"""@import\s+(?:url\()?\s*["']?([^"')\s;]+)|\burl\(\s*["']?([^"')]+)""", re.IGNORECASE)
IN_PLACE = re.compile(r"(?:data|mailto|javascript):", re.IGNORECASE)


class Page(msgspec.Struct):
    """What one page of HTML has and wants."""

    names: set[str] = msgspec.field(default_factory=set)
    """What can stand behind a #."""
    links: list[str] = msgspec.field(default_factory=list)
    """Where a reader can go."""
    resources: list[str] = msgspec.field(default_factory=list)
    """What a browser gets without being asked."""


class Reader(HTMLParser):
    """Fills a Page."""

    def __init__(self) -> None:
        super().__init__()
        self.page = Page()
        self.in_style = False

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.in_style = tag == "style"
        for name, value in attrs:
            if value is None:
                continue
            if name == "id" or (tag == "a" and name == "name"):
                self.page.names.add(value)
            elif name == "href" and tag in {"a", "area"}:
                self.page.links.append(value)
            elif name in {"src", "href", "xlink:href", "data", "poster"} and not value.startswith("#"):
                self.page.resources.append(value)
            elif name == "srcset":
                self.page.resources += [part.split()[0] for part in value.split(",") if part.strip()]
            elif name == "style":
                self.page.resources += wanted_by_style(value)

    def handle_endtag(self, tag: str) -> None:
        self.in_style = False

    def handle_data(self, data: str) -> None:
        if self.in_style:
            self.page.resources += wanted_by_style(data)


def wanted_by_style(text: str) -> list[str]:
    """What a style sheet has a browser get."""
    return [found[1] or found[2] for found in IN_STYLE.finditer(text)]


def read(text: str) -> Page:
    """One page."""
    reader = Reader()
    reader.feed(text)
    reader.close()
    return reader.page


def audit(folder: Path) -> list[str]:
    """Everything that is wrong with a built site, in words: the file, and what it names."""
    pages = {path: read(path.read_text(encoding="utf-8")) for path in sorted(folder.rglob("*.html"))}
    faults = [] if folder / "index.html" in pages else ["index.html: there is none"]
    for path, page in pages.items():
        where = path.relative_to(folder).as_posix()
        faults += [f"{where}: {fault}" for link in page.links if (fault := link_fault(path, link, folder, pages))]
        faults += [f"{where}: {fault}" for found in page.resources if (fault := resource_fault(path, found))]
    for path in sorted([*folder.rglob("*.css"), *folder.rglob("*.svg")]):
        text = path.read_text(encoding="utf-8")
        wanted = wanted_by_style(text) if path.suffix == ".css" else read(text).resources
        where = path.relative_to(folder).as_posix()
        faults += [f"{where}: {fault}" for found in wanted if (fault := resource_fault(path, found))]
    return faults


def link_fault(path: Path, link: str, folder: Path, pages: dict[Path, Page]) -> str | None:
    """What is wrong with a link to a page of the site; one to elsewhere is the reader's to follow."""
    if ELSEWHERE.match(link) or IN_PLACE.match(link):
        return None
    name, _, anchor = unquote(link).partition("#")
    target = (path.parent / name).resolve() if name else path
    if not target.is_file() or not target.is_relative_to(folder.resolve()):
        return f"the link {link} leads nowhere"
    if anchor and target in pages and anchor not in pages[target].names:
        return f"the link {link} leads to no place of that page"
    return None


def resource_fault(path: Path, found: str) -> str | None:
    """What is wrong with what a browser would get for a page."""
    if IN_PLACE.match(found):
        return None
    if ELSEWHERE.match(found):
        return f"{found} is fetched from elsewhere"
    name = re.split(r"[?#]", unquote(found))[0]
    return None if not name or (path.parent / name).is_file() else f"{found} is not there"
