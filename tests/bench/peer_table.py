"""The peers' part of a run, as Markdown."""

from __future__ import annotations

from .rows_peers import OURS, PEERS, Peer, PeerLine, PeerRecord
from .table import markdown, number, told_spread

_HEADERS = ("row", "what", "peer", "ours", "the peer's", "peer / ours", "quartiles", "min..max", "rounds")


def peer_text(record: PeerRecord) -> str:
    """What was measured of whom, their numbers beside ours, what was cut, and what failed."""
    if record.absent:
        return f"None in this run: {record.absent}."
    named = "\n".join(f"- {peer.name} ({peer.pin} {record.versions[peer.name]}): {peer.way}." for peer in PEERS)
    cut = "\n".join(f"- {peer.name}: {_cut(peer)}, as {peer.why}." for peer in PEERS if peer.why)
    failed = "".join(
        f"\n- {name} failed {why}. That round does not count, and there is none after it."
        for name, why in record.failures.items()
    )
    return f"""What other ways to call a Python process take for the same echo. Ours was measured anew beside them,
in turns within each round; below 1 the peer is faster, but for R2, where more is better.

{named}

In each round there are fewer samples of a peer that would take most of the run:

{cut}
{
        failed
        and f'''
Not measured to the end:
{failed}
'''
    }
{markdown(_HEADERS, map(_cells, record.lines))}"""


def _cells(line: PeerLine) -> tuple[str, ...]:
    row = line.row
    values = (f"{number(spread.median)} {row.unit}" for spread in (line.ours, line.theirs))
    return (row.id, row.what, line.peer, *values, *told_spread(line.ratio), str(line.rounds))


def _cut(peer: Peer) -> str:
    least = (
        (peer.calls_share > 1, f"1/{peer.calls_share} of our calls for R1"),
        (peer.flight_share > 1, f"1/{peer.flight_share} of our calls for R2"),
        (peer.large < OURS.large, f"{peer.large} of our {OURS.large} echoes of 16 MiB"),
        (peer.starts < OURS.starts, f"{peer.starts} of our {OURS.starts} starts"),
    )
    return ", ".join(part for cut, part in least if cut)
