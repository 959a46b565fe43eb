"""The page of the museum, made from its rows."""

from collections.abc import Sequence
from pathlib import Path

from tests.museum.rows import Row

PAGE = Path(__file__).with_name("MUSEUM.md")

ROOMS = {
    "F": "The wire: what else is written to it, where a frame ends, how text is read",
    "B": "Waiting: full pipes, busy handlers, slots that are not given back",
    "N": "Starting: programs that do not come up, and two sides that do not agree",
    "C": "Calls: cancels, ids, and answers that come too late",
    "S": "Ending: who is asked, who is waited for, and what is left",
    "O": "Owners: hosts that die, processes that stay, and numbers that mean somebody else",
    "R": "Restarts: what is counted, what is busy, and what an end is blamed on",
    "L": "Logs and environments: what is read, what is shown, and what is handed on",
}
"""What the first letter of a number stands for, in the order of the page."""

HEAD = """\
# The museum of public faults

Written by `python -m tests.museum --write` from `rows.toml`; change it there.

Each row is a fault that users of other plugin hosts reported, and the tests that show it: they do what was done there
and demand what should have happened. A number is the museum's own and never given twice; tests carry it, or the
report's name, in their text. "Side" is the part of ours that would have to fail for the fault to come back: the host,
the SDK, the conformance kit, or what the protocol says.
"""


def render(rows: Sequence[Row]) -> str:
    """The page, as Markdown.

    Raises:
        KeyError: The number of a row has a letter that stands for no room.
    """
    tests = {node for row in rows for node in row.tests}
    absent = sum(not row.tests for row in rows)
    blocks = [HEAD, f"{len(rows)} faults, {len(tests)} tests and checks, {absent} that cannot happen here.\n"]
    for letter in {row.id[0]: ROOMS[row.id[0]] for row in rows}:
        blocks.append(f"## {ROOMS[letter]}\n")
        blocks += [_block(row) for row in rows if row.id[0] == letter]
    return "\n".join(blocks)


def _block(row: Row) -> str:
    lines = [f"### {row.id}", "", row.symptom, "", f"Reported: {', '.join(row.sources)}. Side: {row.side}.", ""]
    lines += [f"Cannot happen here: {row.why_not}"] if row.why_not else [_shown(node) for node in row.tests]
    return "\n".join(lines) + "\n"


def _shown(node: str) -> str:
    path, _, name = node.partition("::")
    sentence = name.removeprefix("test_").replace("_", " ")
    if name.startswith("test_"):
        return f"- [{sentence}](../../{path})"
    judged = "hosts" if "/hosting/" in path else "workers"
    return f"- the kit on {judged}: [{sentence}](../../{path})"
