"""What the checks of the record see in a line."""

import json

import pytest

from sandport_conformance.checks.l0_record import Record, read_message
from sandport_conformance.messages import read
from sandport_conformance.session import Session

NO: dict[str, object] = {"condition": "MethodNotFound", "dispatched": "no"}
ERROR = {"code": -32601, "message": "no", "data": NO}


def broken(session: Session, line: bytes) -> set[str]:
    message = read(0.0, line)
    assert message is not None
    record = Record()
    read_message(record, session, message)
    return set(record.broken)


def error(**changes: object) -> bytes:
    return json.dumps({"jsonrpc": "2.0", "id": 1, "error": {**ERROR, **changes}}).encode()


@pytest.mark.parametrize(
    ("line", "requirements"),
    [
        (b'{"jsonrpc":"2.0","id":"a","result":{"open":[]}}', set()),
        (b'{"jsonrpc":"2.0","method":"ready","params":{}}', set()),
        (b'{"jsonrpc":"2.0","id":"a","result":{"free":1.5,"form":1e3}}', set()),
        (b"debug", {"FRAME-1"}),
        (b'\xff{"jsonrpc":"2.0"}', {"FRAME-5"}),
        (b'\xef\xbb\xbf{"jsonrpc":"2.0","id":1,"result":{}}', {"FRAME-5"}),
        (b'{"jsonrpc":"2.0","id":1,"result":{"a":NaN}}', {"FRAME-7"}),
        (b'{"jsonrpc":"2.0","id":"\\ud800","result":{}}', {"FRAME-18"}),
        (b'{"jsonrpc":"2.0","id":"a","result":{"\\udc00":[]}}', {"FRAME-18"}),
        (b'{"jsonrpc":"2.0","id":"\\ud83d\\ude00 \\\\ud800","result":{}}', set()),
        (b'{"id":1,"result":{}}', {"MSG-2"}),
        (b'[{"jsonrpc":"2.0","id":1,"result":{}}]', {"MSG-2"}),
        (b'{"jsonrpc":"2.0","id":1}', {"MSG-6"}),
        (b'{"jsonrpc":"2.0","id":1,"result":{},"error":null}', {"MSG-6", "ERR-1"}),
        (b'{"jsonrpc":"2.0","id":1,"method":"ask"}', {"MSG-16"}),
        (b'{"jsonrpc":"2.0","id":1.0,"result":{}}', {"MSG-1", "MSG-17"}),
        (b'{"jsonrpc":"2.0","method":"output","params":{"id":1,"stream":"stdout","offset":1e1}}', {"MSG-17"}),
        (b'{"jsonrpc":"2.0","id":1,"id":2,"result":{}}', {"MSG-18"}),
        (b'{"jsonrpc":"2.0","id":1,"result":{"a":{"b":1,"b":1}}}', {"MSG-18"}),
        (error(), set()),
        (error(code=-1), {"ERR-1", "ERR-2"}),
        (error(code=True), {"ERR-1", "ERR-2"}),
        (error(message=" "), {"ERR-1"}),
        (error(data=None), {"ERR-2"}),
        (error(data={"condition": "Internal"}), {"ERR-2"}),
        (error(data={"condition": "MethodNotFound"}), {"ERR-2"}),
        (error(data={"condition": "MethodNotFound", "dispatched": "no", "retry": "perhaps"}), {"ERR-2"}),
        (error(code=-32603, data={"condition": "Internal"}), set()),
        (error(data=NO | {"retryAfterMs": -1}), {"MSG-23"}),
        (error(data=NO | {"partial": {"stdout": {"totalBytes": -1}}}), {"MSG-23"}),
        (b'{"jsonrpc":"2.0","method":"progress","params":{"id":1,"done":-1}}', {"MSG-23"}),
        (b'{"jsonrpc":"2.0","method":"progress","params":{"id":1,"done":null,"message":"it is x, above 5"}}', set()),
    ],
)
def test_a_line_breaks_these_requirements_and_no_others(session: Session, line: bytes, requirements: set[str]) -> None:
    assert broken(session, line) == requirements


def test_a_duration_is_an_integer_where_the_schema_says_so(session: Session) -> None:
    session.requests.append(("x", "execute", {}))
    result = b'{"jsonrpc":"2.0","id":"x","result":{"ended":"exited","exitCode":0,"durationMs":%s}}'
    assert broken(session, result % b"12") == set()
    assert broken(session, result % b"12.0") == {"MSG-17"}


@pytest.mark.parametrize(
    ("members", "requirements"),
    [
        (b'"ended":"exited","exitCode":255', set()),
        (b'"ended":"exited","exitCode":256', {"MSG-23"}),
        (b'"ended":"exited","exitCode":-1', {"MSG-23"}),
        (b'"ended":"signalled","signal":64', set()),
        (b'"ended":"signalled","signal":0', {"MSG-23"}),
        (b'"ended":"signalled","signal":128', {"MSG-23"}),
        (b'"ended":"exited","exitCode":0,"durationMs":-1', {"MSG-23"}),
        (b'"ended":"exited","exitCode":0,"stdout":{"totalBytes":9007199254740992}', {"MSG-23"}),
    ],
)
def test_every_number_of_an_answer_is_held_to_its_range(
    session: Session, members: bytes, requirements: set[str]
) -> None:
    session.requests.append(("x", "execute", {}))
    assert broken(session, b'{"jsonrpc":"2.0","id":"x","result":{%s}}' % members) == requirements
