"""What commands print on stdout: JSON, or a table with colour on a terminal only."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

import msgspec

from .descriptors import write_all
from .failures import OutputFailed
from .messages import printable

if TYPE_CHECKING:
    from rich.table import Table

_WHOLE = ("LEASE", "SANDBOX")
"""Columns of ids."""

Colour = Literal["green", "yellow", "red"]


def put(data: bytes) -> None:
    """Write to stdout.

    Raises:
        OutputFailed: It cannot be written.
    """
    try:
        write_all(1, data)
    except OSError as error:
        raise OutputFailed("stdout", error) from error


def put_json(value: object) -> None:
    """One JSON document."""
    put(msgspec.json.format(msgspec.json.encode(value), indent=2) + b"\n")


def put_lines(lines: Sequence[str]) -> None:
    """Lines of text, safe to print."""
    put("".join(printable(line) + "\n" for line in lines).encode("utf-8", "backslashreplace"))


def coloured(text: str, colour: Colour) -> str:
    """Text in a colour, where stdout is a terminal and nobody asked for none."""
    if not os.isatty(1) or os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb":
        return text
    code = {"green": 32, "yellow": 33, "red": 31}[colour]
    return f"\x1b[{code}m{text}\x1b[0m"


def put_table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Columns under a head; on a terminal its width is kept to."""
    rows = [[printable(cell) for cell in row] for row in rows]
    if os.isatty(1):
        _put_rich(head, rows)
        return
    widths = [max(len(row[column]) for row in [head, *rows]) for column in range(len(head))]
    put_lines(
        [
            "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
            for row in [head, *rows]
        ]
    )


def table_lines(head: Sequence[str], rows: Sequence[Sequence[str]], columns: int) -> list[str]:
    """The lines of a table on a terminal of so many columns, with the colours that it may have."""
    from io import StringIO

    from rich.console import Console

    drawn = StringIO()
    rows = [[printable(cell) for cell in row] for row in rows]
    # NO_COLOR is rich's to follow.
    Console(file=drawn, width=columns, force_terminal=True).print(_rich(head, rows))
    return drawn.getvalue().splitlines()


def _put_rich(head: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    from rich.console import Console

    # It wants a stream.
    console = Console(file=sys.stdout)
    # A line may be longer than a narrow terminal, which wraps it: an id in pieces cannot be copied.
    console.width = max(console.width, _least_width(head, rows))
    console.print(_rich(head, rows))
    sys.stdout.flush()


def _least_width(head: Sequence[str], rows: Sequence[Sequence[str]]) -> int:
    """Columns that a table needs so that no id is cut, and the rest has room to wrap."""
    return sum(
        max(len(row[column]) for row in [head, *rows]) if title in _WHOLE else len(title) + 2
        for column, title in enumerate(head)
    )


def _rich(head: Sequence[str], rows: Sequence[Sequence[str]]) -> Table:
    # Here only: importing it takes longer than everything else that a listing does.
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, header_style="bold")
    for column, title in enumerate(head):
        whole = title in _WHOLE
        least = max((len(row[column]) for row in rows), default=1) if whole else None
        table.add_column(title, overflow="fold", no_wrap=whole, min_width=least)
    for row in rows:
        # Text, not str: a provider's words are not markup.
        table.add_row(*(Text(cell) for cell in row))
    return table
