"""L0: which texts are JSON, and which are not."""

from __future__ import annotations

from sandport_conformance.declaration import check
from sandport_conformance.lab import Lab
from sandport_conformance.outcomes import expect

from .l0_lines import filled
from .l0_messages import expect_one_refusal

HALF_PAIRS = ("\\ud800", "\\udfff", "x\\udc00\\ud800", "\\ud83d")
"""Halves of surrogate pairs, as JSON escapes."""


@check(
    "FRAME-8",
    why="NaN is no JSON: a reader that takes it writes it again, and the next one cannot read the line.",
    broken="leaves its JSON library at a setting that takes NaN and Infinity",
    fix="Tell the parser to refuse constants; answer ParseFailed with id null.",
    source="conbench/conbench#1163, apify/apify-client-python#87",
)
def nan_is_not_read(lab: Lab) -> None:
    """A line with NaN or an infinity is answered ParseFailed, wherever it stands."""
    for token in ("NaN", "Infinity", "-Infinity"):
        for line in (
            f'{{"jsonrpc":"2.0","id":"a","method":"ping","params":{{"x":{token}}}}}',
            f'{{"jsonrpc":"2.0","id":{token},"method":"ping"}}',
            f'{{"jsonrpc":"2.0","id":"b","method":"validateConfig","params":{{"config":{{"deep":[{token}]}}}}}}',
            token,
        ):
            expect_one_refusal(lab.worker, line.encode(), "ParseFailed")


@check(
    "FRAME-19",
    why="Half a pair is no character; what was read with it cannot be written as UTF-8 again.",
    broken="reads half a surrogate pair, and passes it on or fails later",
    fix="Answer a line with half a pair ParseFailed and id null.",
)
def half_a_pair_is_not_read(lab: Lab) -> None:
    """A line with half a surrogate pair is answered ParseFailed, and a whole pair is read."""
    worker = lab.worker
    for half in HALF_PAIRS:
        for line in (
            filled('{"jsonrpc":"2.0","id":"%","method":"ping","params":{}}', half),
            filled('{"jsonrpc":"2.0","id":"c","method":"ping","params":{"x":"%"}}', half),
            filled('{"jsonrpc":"2.0","id":"d","method":"ping","params":{"%":1}}', half),
        ):
            expect_one_refusal(worker, line.encode(), "ParseFailed")
    worker.send_line(b'{"jsonrpc":"2.0","id":"\\ud83d\\ude00 \\\\ud800","method":"ping","params":{}}')
    expect("result" in worker.answer("\U0001f600 \\ud800").body, "a whole pair was refused")
