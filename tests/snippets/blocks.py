"""The blocks of every document, and of the docstrings that show how something is used."""

from __future__ import annotations

import ast
import re
import shlex
import textwrap
from collections.abc import Iterator
from pathlib import Path

import msgspec
from markdown_it import MarkdownIt

from tests.architecture.workspace import MEMBERS, ROOT, files_in_git

SHELLS = frozenset({"console", "sh"})
DRAWN = "text"
LANGUAGES = frozenset({*SHELLS, "python", "toml", "json", "yaml", DRAWN})
IN_DOCSTRING = re.compile(r"^( *)```(?:console|sh|python|toml|json)\n.*?^\1```$", re.MULTILINE | re.DOTALL)


class Block(msgspec.Struct, frozen=True):
    """What a document shows to be copied or looked at."""

    document: str
    """The file, as a path from the root."""
    line: int
    language: str
    """Empty where the document does not say."""
    text: str

    @property
    def first(self) -> str:
        return self.text.strip().partition("\n")[0]

    @property
    def place(self) -> str:
        return f"{self.document}:{self.line}"


class Command(msgspec.Struct, frozen=True):
    """One command of a block for a shell."""

    text: str
    told: str
    """What it is shown to print; empty where nothing is shown."""


def blocks() -> list[Block]:
    """All of them: of each document in its order, then of docstrings."""
    found = []
    for path in files_in_git():
        if path.suffix == ".md":
            found += list(of_markdown(path.read_text(encoding="utf-8"), name(path)))
    sources = [source for member in MEMBERS for source in sorted(member.source.rglob("*.py"))]
    for path in sources:
        text = path.read_text(encoding="utf-8")
        if "```" in text:
            found += list(of_docstrings(text, name(path)))
    return found


def name(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def of_markdown(text: str, document: str, *, above: int = 0) -> Iterator[Block]:
    """The blocks of a text that has `above` lines above it in its file."""
    for token in MarkdownIt("commonmark").parse(text):
        if token.type in {"fence", "code_block"}:
            assert token.map
            yield Block(document, above + token.map[0] + 1, token.info.strip(), token.content)


def of_docstrings(source: str, document: str) -> Iterator[Block]:
    """The fenced blocks of docstrings that name a language to run; the others are drawings for who reads the code."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            said = ast.get_docstring(node) or ""
            for found in IN_DOCSTRING.finditer(said):
                line = node.body[0].lineno + said[: found.start()].count("\n")
                yield from of_markdown(textwrap.dedent(found[0]), document, above=line - 1)


def commands(block: Block) -> list[Command]:
    """The commands of a block for a shell: with `$ ` in front and output below, or bare."""
    prompt = "$ " if block.language == "console" else ""
    lines = block.text.splitlines()
    found = []
    while lines:
        line = lines.pop(0)
        if not line.strip() or line.startswith("#"):
            continue
        assert line.startswith(prompt), f"{block.place}: {line!r} is output of nothing"
        text = line.removeprefix(prompt)
        while text.endswith("\\") and lines:
            text += "\n" + lines.pop(0)
        if here := re.search(r"<<'?(\w+)'?$", text):
            while not text.endswith("\n" + here[1]):
                text += "\n" + lines.pop(0)
        told = []
        while prompt and lines and not lines[0].startswith(prompt):
            told.append(lines.pop(0))
        found.append(Command(text, "\n".join(told).strip()))
    return found


def words(command: str) -> list[str]:
    """A command's words, without what is said about it."""
    return shlex.split(command, comments=True)
