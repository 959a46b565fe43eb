"""What the site is made of: the table of pages, and the files of the repository that they lead to."""

from __future__ import annotations

import posixpath
import re
import shutil
import subprocess
import tomllib
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import unquote

import msgspec
from markdown_it import MarkdownIt

ROOT = Path(__file__).resolve().parents[2]
TABLE = Path(__file__).with_name("pages.toml")
FRONT = "index"
"""The front page's name in the site; in the repository it is called README.md, as everywhere."""


class Part(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One part of the navigation."""

    title: str
    pages: tuple[str, ...]


class LeftOut(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A document that is no page."""

    path: str
    reason: str


class Table(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The whole of pages.toml."""

    front: str
    part: tuple[Part, ...]
    left_out: tuple[LeftOut, ...] = ()

    @property
    def pages(self) -> tuple[str, ...]:
        """Every page, the front one first."""
        return (self.front, *(page for part in self.part for page in part.pages))


def read_table() -> Table:
    """The table of pages."""
    return msgspec.convert(tomllib.loads(TABLE.read_text(encoding="utf-8")), Table)


def tracked(root: Path = ROOT) -> frozenset[str]:
    """Every file that git knows, and new ones that it would, as paths from the root."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=root, check=True, capture_output=True).stdout
    return frozenset(name for name in listed.decode().split("\0") if name and (root / name).is_file())


def targets(text: str) -> Iterator[str]:
    """Where the links and pictures of a document lead that lead to another file, without what follows a #."""
    for block in MarkdownIt("commonmark").enable("table").parse(text):
        for token in block.children or ():
            target = str(token.attrs.get("href") or token.attrs.get("src") or "")
            if target and not re.match(r"[a-z][a-z0-9+.-]*:|#", target, re.IGNORECASE):
                yield unquote(target.partition("#")[0])


def beside(page: str, target: str) -> str:
    """The path from the root of what a page calls `target`."""
    return posixpath.normpath(posixpath.join(posixpath.dirname(page), target))


def files_below(folder: str, files: frozenset[str]) -> tuple[str, ...]:
    """The files of a folder, in order."""
    return tuple(sorted(name for name in files if name.startswith(folder + "/")))


class Sources(msgspec.Struct, frozen=True):
    """What the pages lead to that is no page: each is shown as it is, on a page of its own."""

    files: tuple[str, ...]
    folders: tuple[str, ...]


def sources_of(table: Table, files: frozenset[str], root: Path = ROOT) -> Sources:
    """Everything that a link of a page leads to and that is no page, with all files of the folders among them.

    Raises:
        FileNotFoundError: A link leads to something that is no part of the repository.
    """
    shown: set[str] = set()
    folders: set[str] = set()
    for page in table.pages:
        for target in targets((root / page).read_text(encoding="utf-8")):
            path = beside(page, target)
            if path in files:
                shown.add(path)
            elif below := files_below(path, files):
                folders.add(path)
                shown.update(below)
            else:
                raise FileNotFoundError(f"{page}: the link {target} leads to nothing in the repository")
    return Sources(tuple(sorted(shown - set(table.pages))), tuple(sorted(folders)))


def assemble(folder: Path, table: Table, root: Path = ROOT) -> None:
    """Lay every page out below `folder` where it stands in the repository, and pictures with them."""
    shutil.rmtree(folder, ignore_errors=True)
    for page in table.pages:
        text = (root / page).read_text(encoding="utf-8")
        front = page == table.front
        place = folder / (f"{FRONT}.md" if front else page)
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(text + (navigation(table) if front else ""), encoding="utf-8")
        for path in {beside(page, target) for target in targets(text)}:
            if path.endswith((".svg", ".png")):
                (folder / path).parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(root / path, folder / path)


def navigation(table: Table) -> str:
    """What stands at the side of every page; no document of the repository has it."""
    lines = []
    for part in table.part:
        names = [page.removesuffix(".md") for page in part.pages]
        lines += ["", "```{toctree}", ":hidden:", f":caption: {part.title}", *names, "```"]
    return "\n".join([*lines, ""])
