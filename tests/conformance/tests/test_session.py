"""The connection in messages: every wait ends, and says what came instead."""

import pytest

from sandport_conformance.bench import Bench
from sandport_conformance.messages import read
from sandport_conformance.outcomes import Failed, TimedOut, WorkerGone
from sandport_conformance.session import Session, is_heartbeat
from tests.conformance.tests.conftest import TIMES, Spawn, python

ANSWER = '{"jsonrpc":"2.0","id":%s,"result":{}}'


def answering(text: str) -> str:
    """A worker that answers the first line with this text, and then listens for ever."""
    return f"sys.stdin.readline(); print({text!r}, flush=True); sys.stdin.read()"


def a_session(spawn: Spawn, code: str) -> Session:
    return Session(spawn(python(code)), times=TIMES, hello_params={})


@pytest.mark.parametrize(
    ("line", "requirement"),
    [
        (b"debug", "FRAME-1"),
        (b'{"jsonrpc":"2.0","id":1,"result":{}}{}', "FRAME-1"),
        (b"[" * 100_000, "FRAME-1"),
        (b'"\xff"', "FRAME-5"),
        ("\ufeff{}".encode(), "FRAME-5"),
        (b'{"jsonrpc":"2.0","id":1,"result":{"a":NaN}}', "FRAME-7"),
        (b'{"jsonrpc":"2.0","id":1,"result":{"a":-Infinity}}', "FRAME-7"),
        (b"[]", "MSG-2"),
        (b"1", "MSG-2"),
        (b'{"id":1,"result":{}}', "MSG-2"),
        (b'{"jsonrpc":"2.0"}', "MSG-2"),
        (b'{"jsonrpc":"2.0","id":true,"result":{}}', "MSG-1"),
        (b'{"jsonrpc":"2.0","id":1.0,"result":{}}', "MSG-1"),
        (b'{"jsonrpc":"2.0","id":1}', "MSG-6"),
        (b'{"jsonrpc":"2.0","id":1,"result":{},"error":{}}', "MSG-6"),
        (b'{"jsonrpc":"2.0","id":1,"method":"sampling"}', "MSG-16"),
    ],
)
def test_a_line_that_is_no_message_is_sorted_by_the_rule_that_it_breaks(line: bytes, requirement: str) -> None:
    message = read(0.0, line)
    assert message is not None
    assert (message.kind, message.breaks) == ("fault", requirement)


@pytest.mark.parametrize("line", [b"", b" ", b"\t\r"])
def test_a_blank_line_is_no_message_and_no_fault(line: bytes) -> None:
    assert read(0.0, line) is None


def test_ids_are_the_same_in_type_and_value_only() -> None:
    message = read(0.0, (ANSWER % "1").encode())
    assert message is not None
    assert message.answers(1)
    assert not any(message.answers(other) for other in ("1", True, 1.0, None))


def test_an_answer_under_another_id_is_named_when_the_right_one_does_not_come(spawn: Spawn) -> None:
    session = a_session(spawn, answering(ANSWER % '"1"'))
    request = session.request("ping")
    with pytest.raises(TimedOut, match=r'no answer to ping \(id 1\) .*; an answer came whose "id" is "1"$'):
        session.answer(request, timeout_s=0.5)


def test_a_worker_that_ends_instead_of_answering_is_told_with_its_exit(spawn: Spawn) -> None:
    session = a_session(spawn, "sys.stdin.readline(); sys.exit('out of cheese')")
    request = session.request("ping")
    with pytest.raises(WorkerGone, match=r"ended with exit code 1 instead of .* ping .*out of cheese"):
        session.answer(request)


def test_junk_between_messages_is_kept_and_passed_over(spawn: Spawn) -> None:
    session = a_session(spawn, answering("junk\n\n" + ANSWER % 1))
    assert session.call("ping") == {}
    assert [message.line for message in session.faults()] == [b"junk"]
    assert session.faults("FRAME-5") == []


def test_a_result_that_does_not_fit_the_schema_is_the_workers_fault(spawn: Spawn) -> None:
    session = a_session(spawn, answering('{"jsonrpc":"2.0","id":1,"result":{"open":"none"}}'))
    with pytest.raises(Failed, match=r"ping does not fit the schema: result\.open is 'none', not of type array"):
        session.ping()


def test_an_error_where_a_result_is_due_is_named(session: Session) -> None:
    with pytest.raises(Failed, match=r"execute should succeed, but was answered with NotAttached \(-32011\)"):
        session.call("execute", {"sandboxId": "sp" + "a" * 26, "argv": ["true"]})


def test_another_error_than_the_one_that_is_due_is_named(session: Session) -> None:
    with pytest.raises(Failed, match="expected InvalidParams, but the answer is MethodNotFound"):
        session.refused("noSuchMethod", {}, "InvalidParams")
    with pytest.raises(Failed, match="expected InvalidParams, but the answer is a result"):
        session.refused("ping", {}, "InvalidParams")


def test_credit_is_given_while_output_flows_without_losing_the_answer(bench: Bench, session: Session) -> None:
    """What comes in while a credit goes out must wake whoever waits for the end."""
    sandbox = bench.acquire(session, {})
    for _ in range(20):
        live = sandbox.run_live(["sh", "-c", "yes | head -c 3000000"])
        assert len(live.data()) == 3_000_000
        assert live.result["exitCode"] == 0


def test_a_wait_for_the_exit_is_bounded(session: Session) -> None:
    with pytest.raises(TimedOut, match=r"still lives 0\.1 s after"):
        session.exit(0.1)
    assert session.alive()


def test_a_session_that_has_forgotten_messages_is_no_record(bench: Bench) -> None:
    session = bench.shared()
    session.ping()
    assert session in bench.record_of()
    session.forget()
    assert session.messages == []
    assert session not in bench.record_of()
    session.ping()


def test_a_worker_hears_pings_while_a_check_says_nothing(bench: Bench) -> None:
    """Else a sound worker takes the kit for a dead host (PROC-13), and ends in the middle of a long check."""
    session = bench.spawn()
    limits = {**session.offered["limits"], "hostSilenceMs": 1_500, "heartbeatMs": 200}
    session.greet(limits=limits)

    def heard() -> int:
        return sum(is_heartbeat(message.body.get("id")) for message in session.messages)

    assert session.pump(lambda: heard() >= 12, 60)
    assert session.alive(), "with its silence it would have ended by now"
    assert session.ping() == [], "a heartbeat is nobody's call"
    assert not any(is_heartbeat(sent) for sent, _, _ in session.requests)


def test_nothing_is_slipped_into_the_middle_of_a_line(bench: Bench) -> None:
    session = bench.shared()
    ping = b'{"jsonrpc":"2.0","id":"whole","method":"ping"}\n'
    session.send_bytes(ping[:20])
    assert not session.process.slip_in(ping.replace(b"whole", b"other"), silence_s=0.0)
    session.send_bytes(ping[20:])
    assert session.process.slip_in(ping.replace(b"whole", b"other"), silence_s=0.0)
    assert "result" in session.answer("whole").body
    assert "result" in session.answer("other").body


def test_a_worker_that_does_not_end_is_told_with_what_should_have_ended_it(spawn: Spawn) -> None:
    session = a_session(spawn, answering(ANSWER % "1") + "; time.sleep(600)")
    session.request("shutdown")
    session.answer(1)
    session.process.close_input()
    with pytest.raises(TimedOut, match=r"after the answer to shutdown \(id 1\) and the end of its input"):
        session.exit(0.1)
