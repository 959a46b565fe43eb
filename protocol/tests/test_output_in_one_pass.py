"""Output as our own encoder writes it is read in one pass; what comes of a line is the same as in two.

A space before a line changes nothing of what it says, and it is then read as any other message.
"""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.tests.peers import OPEN_PHASES, host_in, worker_in
from sandport_protocol import codec
from sandport_protocol.events import HostEvent, NotificationReceived, ViolationFound
from sandport_protocol.limits import Limits
from sandport_protocol.states import SERVING, Phase
from sandport_protocol.v1 import OutputParams

PIECE = OutputParams(id=7, stream="stdout", offset=5, data=b"a\0\xff\n", end="seen")


def line_of(piece: OutputParams = PIECE) -> bytes:
    return worker_in(SERVING).send_output(piece)


def said(events: list[HostEvent]) -> list[Any]:
    """What a caller makes of the events."""
    seen: list[Any] = []
    for event in events:
        if isinstance(event, NotificationReceived):
            try:
                seen.append((event.method, codec.read_as(OutputParams, event.params)))
            except ValueError as error:
                seen.append((event.method, _placeless(str(error))))
        else:
            assert isinstance(event, ViolationFound)
            seen.append((_placeless(event.rule), event.fatal))
    return seen


def _placeless(text: str) -> str:
    """Without the place of a fault, which the space before the line has moved."""
    return re.sub(r"byte \d+", "byte", text)


def both_ways(line: bytes, phase: Phase = SERVING) -> list[Any]:
    """What is made of a line, which must not depend on how it is read."""
    limits = Limits(depth=8)
    at_once = said(host_in(phase, limits=limits).receive(line))
    assert at_once == said(host_in(phase, limits=limits).receive(b" " + line))
    return at_once


def test_a_piece_is_read_in_one_pass() -> None:
    (event,) = host_in(SERVING).receive(line_of())
    assert event == NotificationReceived("output", PIECE)


@given(
    st.builds(
        OutputParams,
        id=st.integers(0, 2**63 - 1) | st.text(),
        stream=st.sampled_from(["stdout", "stderr", "pty"]),
        offset=st.integers(-1, 2**63 - 1),
        data=st.binary(),
        end=st.sampled_from([None, "seen", "heldOpen"]),
    )
)
def test_every_piece_is_what_was_sent(piece: OutputParams) -> None:
    assert both_ways(line_of(piece)) == [("output", piece)]


@pytest.mark.parametrize("phase", OPEN_PHASES)
def test_output_is_allowed_in_the_same_phases(phase: Phase) -> None:
    both_ways(line_of(), phase)


@pytest.mark.parametrize(
    "broken",
    [
        b'{"method":"output","params":{"id":7},"jsonrpc":"2.0"}\n',
        b'{"method":"output","params":{"id":7,"stream":"stdout","offset":0},"jsonrpc":"1.0"}\n',
        b'{"method":"output","params":{"id":7,"stream":"stdout","offset":0}}\n',
        b'{"method":"output","params":{"id":7,"stream":"stdout","offset":0},"jsonrpc":"2.0","id":1}\n',
        b'{"method":"output","params":{"id":7,"stream":"stdout","offset":0},"jsonrpc":"2.0","id":null}\n',
        b'{"method":"output","params":{"id":7,"stream":"stdout","offset":0},"jsonrpc":"2.0","result":1}\n',
        b'{"method":"output","params":{"id":7,"stream":"stdout","offset":0},"jsonrpc":"2.0","new":1}\n',
        b'{"method":"output","params":{"id":7,"stream":"stdout","offset":0},"method":"ready","jsonrpc":"2.0"}\n',
        b'{"method":"output","params":{"id":7,"stream":"stdout","offset":0,"new":[1]},"jsonrpc":"2.0"}\n',
        b'{"method":"output","params":{"id":7,"stream":"stdout","offset":0,"new":[[[[[[[[]]]]]]]]},"jsonrpc":"2.0"}\n',
        b'{"method":"output","params":{"id":7,"stream":"stdout","offset":0,"new":"\xc3\xa9"},"jsonrpc":"2.0"}\n',
        b'{"method":"output","params":{"id":7,"stream":"stdout","offset":0,"new":"\xff"},"jsonrpc":"2.0"}\n',
        b'{"method":"output","params":{"id":7,"stream":"stdout","offset":0,"data":"!"},"jsonrpc":"2.0"}\n',
        b'{"method":"output","params":{"id":7,"stream":"stdout","offset":0},"jsonrpc":"2.0"} x\n',
        b'{"method":"output","params":{"id":7,"stream":"stdout","offset":0},"jsonrpc":"2.0"\n',
        b'{"method":"output","params":{\n',
    ],
)
def test_what_is_not_as_it_should_be_is_told_as_before(broken: bytes) -> None:
    both_ways(broken)


@given(st.data())
def test_a_byte_that_was_changed_is_told_as_before(data: st.DataObject) -> None:
    line = bytearray(line_of())
    place = data.draw(st.integers(0, len(line) - 2))
    line[place] = data.draw(st.integers(0, 255).filter(lambda byte: byte != 0x0A))
    both_ways(bytes(line))


def test_the_order_of_the_members_does_not_matter() -> None:
    message = {"jsonrpc": "2.0", "params": {"offset": 5, "id": 7, "stream": "stdout", "data": "", "end": "seen"}}
    line = json.dumps({**message, "method": "output"}).encode() + b"\n"
    assert both_ways(line) == [("output", OutputParams(id=7, stream="stdout", offset=5, end="seen"))]
