"""A vendor that is asked too much: the kit comes back as a host would, and not for ever."""

from __future__ import annotations

import pytest

from sandport_conformance.outcomes import Failed
from sandport_conformance.session import Session
from sandport_conformance.throttling import pause_s
from tests.conformance.tests.conftest import TIMES, Spawn, python


def rate_limited(**data: object) -> dict[str, object]:
    said = {"condition": "RateLimited", "retry": "later", **data}
    return {"jsonrpc": "2.0", "id": 1, "error": {"code": -32015, "message": "the vendor counts", "data": said}}


def a_session(spawn: Spawn, held_back: int, dispatched: str = "no") -> Session:
    """With a worker that answers RateLimited so often, and then results."""
    code = f"""
import json
for n, line in enumerate(sys.stdin):
    told = {{"condition": "RateLimited", "retry": "later", "retryAfterMs": 1, "dispatched": {dispatched!r}}}
    error = {{"error": {{"code": -32015, "message": "the vendor counts", "data": told}}}}
    answer = error if n < {held_back} else {{"result": {{"leases": []}}}}
    print(json.dumps({{"jsonrpc": "2.0", "id": json.loads(line)["id"], **answer}}), flush=True)
"""
    return Session(spawn(python(code)), times=TIMES, hello_params={})


def test_what_was_held_back_is_asked_again(spawn: Spawn) -> None:
    session = a_session(spawn, held_back=3)
    assert session.call("listLeases") == {"leases": []}
    assert [method for _, method, _ in session.requests] == ["listLeases"] * 4


def test_what_may_have_happened_is_not_asked_again(spawn: Spawn) -> None:
    session = a_session(spawn, held_back=1, dispatched="unknown")
    with pytest.raises(Failed, match="RateLimited"):
        session.call("listLeases")
    assert len(session.requests) == 1


def test_what_was_cancelled_is_not_asked_again(spawn: Spawn) -> None:
    session = a_session(spawn, held_back=9)
    request_id = session.request("listLeases")
    session.cancel(request_id)
    assert session.error_of(request_id, "RateLimited")["code"] == -32015
    assert session.unthrottled(request_id) == request_id


@pytest.mark.parametrize(
    ("answer", "tries", "expected"),
    [
        (rate_limited(dispatched="no", retryAfterMs=2500), 1, 2.5),
        (rate_limited(dispatched="no"), 1, 0.5),
        (rate_limited(dispatched="no"), 20, 30.0),
        (rate_limited(), 1, None),
        ({"jsonrpc": "2.0", "id": 1, "result": {}}, 1, None),
        ({"jsonrpc": "2.0", "id": 1, "error": {"code": "?"}}, 1, None),
    ],
)
def test_a_host_waits_as_long_as_it_is_told(answer: dict[str, object], tries: int, expected: float | None) -> None:
    assert pause_s(answer, tries=tries) == expected
