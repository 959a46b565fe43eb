"""The page of the museum, made from its rows."""

from collections.abc import Sequence
from pathlib import Path

from tests.museum.rows import FEATURES, Also, Row

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

PEERS = {
    1: "Commands: time-outs, kills and cancels",
    27: "Commands: the end of output, what stays in the background, input",
    47: "Commands: exit codes, signals, memory",
    57: "Commands: bytes, sizes, quoting, variables",
    73: "Files and trees",
    98: "Leases: made, limited, used again",
    122: "Leases: owners that die, ends, clean-up",
    137: "The network, secrets, calls back",
    145: "Hosts and workers",
}
"""The rooms of `P`, by the number of their first row."""

HEAD = """\
# The museum of public faults

Written by `python -m tests.museum --write` from `rows.toml` and `peers.toml`; change it there.

Each row is a fault that users of others reported, and the tests that show it: they do what was done there and demand
what should have happened. A number is the museum's own and never given twice; tests carry it, or the report's name, in
their text. A test that was written for something else, and shows the fault too, says what would make it fail. "Side" is
the part of ours that would have to fail for the fault to come back: the host, the SDK, a provider, the conformance kit,
or what the protocol says.

The rooms with letters of their own are those of plugin hosts. Those of `P` are those of other systems of sandboxes; the
digits are the row of the survey that it stands in, and tests carry them too.
"""


def room_of(row: Row) -> str:
    """The title of its room.

    Raises:
        KeyError: The number stands for no room.
    """
    if not row.is_peers:
        return ROOMS[row.id[0]]
    return PEERS[max(first for first in PEERS if first <= int(row.id[1:]))]


def render(rows: Sequence[Row]) -> str:
    """The page, as Markdown.

    Raises:
        KeyError: The number of a row stands for no room.
    """
    tests = {node for row in rows for node in row.nodes}
    titles = [title for title in (*ROOMS.values(), *PEERS.values()) if title in {room_of(row) for row in rows}]
    blocks = [HEAD, f"{len(rows)} faults, {len(tests)} tests and checks.\n", _table(titles, rows)]
    for title in titles:
        blocks.append(f"## {title}\n")
        blocks += [_block(row) for row in rows if room_of(row) == title]
    waiting = [feature for feature in FEATURES if any(feature in row.waits_for for row in rows)]
    if waiting:
        blocks.append("## What is not built yet, and which faults then want a test\n")
        blocks.append("".join(_wait(feature, rows) for feature in waiting))
    return "\n".join(blocks)


def _table(titles: Sequence[str], rows: Sequence[Row]) -> str:
    lines = ["| room | faults | shown | shown in part | wait | cannot happen |", "|---|---|---|---|---|---|"]
    for title in titles:
        there = [row for row in rows if room_of(row) == title]
        shown = sum(bool(row.nodes) and not row.rest for row in there)
        part = sum(bool(row.nodes) and bool(row.rest) for row in there)
        wait = sum(bool(row.waits_for) and not row.nodes for row in there)
        absent = sum(bool(row.why_not) for row in there)
        lines.append(f"| {title} | {len(there)} | {shown} | {part} | {wait} | {absent} |")
    return "\n".join(lines) + "\n"


def _block(row: Row) -> str:
    lines = [f"### {row.id}", "", row.symptom, "", f"Reported: {', '.join(row.sources)}. Side: {row.side}.", ""]
    if row.why_not:
        lines.append(f"Cannot happen here: {row.why_not}")
    lines += [_shown(node) for node in row.tests]
    lines += [_also(one) for one in row.also]
    if row.waits_for:
        lines += ["", f"{'Not shown yet' if row.nodes else 'No test yet'}: {row.rest}. It waits for {_features(row)}."]
    elif row.rest:
        lines += ["", f"Not shown: {row.rest}."]
    return "\n".join(lines).replace("\n\n\n", "\n\n") + "\n"


def _features(row: Row) -> str:
    return ", and for ".join(FEATURES[feature] for feature in row.waits_for)


def _wait(feature: str, rows: Sequence[Row]) -> str:
    return f"- {FEATURES[feature]}: {', '.join(row.id for row in rows if feature in row.waits_for)}\n"


def _also(one: Also) -> str:
    return f"{_shown(one.test)}; fails where {one.fails}"


def _shown(node: str) -> str:
    path, _, name = node.partition("::")
    sentence = name.removeprefix("test_").replace("_", " ")
    if name.startswith("test_"):
        return f"- [{sentence}](../../{path})"
    judged = "hosts" if "/hosting/" in path else "workers"
    return f"- the kit on {judged}: [{sentence}](../../{path})"
