"""exceptions.toml: which blocks and commands are not run here, why, and what others need around them."""

from __future__ import annotations

import tomllib
from pathlib import Path

import msgspec

from tests.snippets.blocks import Block

TABLE = Path(__file__).with_name("exceptions.toml")
ANY = "*"
"""In place of a first line: every block of the document."""


class Entry(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What every entry says: which blocks it means, by their document and how they begin."""

    document: str
    first: str

    def covers(self, block: Block) -> bool:
        return self.document == block.document and (self.first == ANY or block.first.startswith(self.first))


class Elsewhere(Entry, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A block that another test holds against what it is about."""

    test: str
    generated: bool = False
    """Whether the page is made from what it is about, and the test holds it against that."""


class NotRun(Entry, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A block that nothing runs."""

    reason: str


class Around(Entry, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What a program needs around it that the document says in words."""

    before: str = ""
    inside: str = ""
    """The class whose methods the block has."""
    after: str = ""


class SkippedCommand(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A command of a block whose others are run."""

    document: str
    command: str
    reason: str


class StandsFor(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A word for which the reader puts their own: `{root}` is their checkout, `{python}` their Python."""

    document: str
    text: str
    by: str


class Given(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Where the reader of a document stands, and what they have."""

    document: str
    folder: str = "."
    commands: tuple[str, ...] = ()


class Exceptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The whole of exceptions.toml."""

    elsewhere: tuple[Elsewhere, ...] = ()
    not_run: tuple[NotRun, ...] = ()
    around: tuple[Around, ...] = ()
    command: tuple[SkippedCommand, ...] = ()
    stands_for: tuple[StandsFor, ...] = ()
    given: tuple[Given, ...] = ()

    def leaves_out(self, block: Block) -> bool:
        """Whether the block is not run here."""
        return any(entry.covers(block) for entry in (*self.elsewhere, *self.not_run))


def read() -> Exceptions:
    """The table."""
    return msgspec.convert(tomllib.loads(TABLE.read_text(encoding="utf-8")), Exceptions)
