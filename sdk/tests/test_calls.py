"""One answer to each call, whatever its handler does (rows B, N and C of the public faults)."""

import base64
import random
import time
from typing import Any

import pytest

from sdk.tests.rawworker import PATIENCE_S, SANDBOX_ID, RawWorker, environment

# ------------------------------------------------------------ the hello


def test_a_request_before_the_hello_is_refused_and_the_hello_works_after_it() -> None:
    """modelcontextprotocol/python-sdk#423 (N07)."""
    with RawWorker() as worker:
        error = worker.call("listLeases")["error"]
        assert error["data"] == {"condition": "NotInitialized", "dispatched": "no"}
        assert "result" in worker.greet()


def test_a_second_hello_is_refused_and_the_first_holds() -> None:
    """modelcontextprotocol/python-sdk#2605 (N08)."""
    with RawWorker().ready(chunkBytes=1000) as worker:
        assert worker.greet(chunkBytes=5000)["error"]["data"]["condition"] == "InvalidRequest"
        execute = {"sandboxId": SANDBOX_ID, "argv": ["2500"], "live": True}
        assert "result" in worker.call("execute", execute)
        pieces = [note["params"] for note in worker.notes if note["method"] == "output"]
        assert max(len(piece.get("data", "")) for piece in pieces) == 1336  # 1,000 bytes as base64


def test_a_hello_without_a_common_version_names_both_sides() -> None:
    """hashicorp/terraform#12580 (N06)."""
    with RawWorker() as worker:
        params = {"protocolVersions": [2, 3], "host": {"name": "h", "version": "1"}, "storeId": "s", "stateDir": "/"}
        error = worker.call("initialize", params)["error"]
        assert error["data"]["condition"] == "VersionMismatch"
        for text in ("specimen", "[1]", "[2, 3]", "upgrade specimen"):
            assert text in error["message"]
        assert "result" in worker.greet()


def test_the_hello_says_what_the_class_defines() -> None:
    with RawWorker() as worker:
        hello = worker.greet()["result"]
    assert hello["provider"]["name"] == "specimen"
    assert hello["provider"]["configSchema"]["$defs"]["SpecimenConfig"]["additionalProperties"] is False
    assert "execute" in hello["supportedMethods"]
    assert "startProcess" not in hello["supportedMethods"]
    assert "x-specimen/echo" in hello["features"]
    assert hello["capabilities"]["kill"] == "tree"
    assert hello["wantsEnv"] == ["SPECIMEN_TOKEN"]


def test_calls_wait_for_the_provider_to_be_ready_and_pings_do_not() -> None:
    with RawWorker(env=environment(SPECIMEN_PREPARE="waits")) as worker:
        worker.greet()
        call = worker.start("listLeases")
        assert worker.call("ping")["result"]["open"] == [call]
        worker.cancel(call)
        error = worker.answer(call)["error"]
        assert error["data"]["condition"] == "Cancelled"
        assert error["data"]["dispatched"] == "no"
        assert [note["method"] for note in worker.notes] == []


def test_a_provider_that_cannot_prepare_says_so_and_ends() -> None:
    """dask/distributed#6426 (R04): a start that failed is no crash."""
    with RawWorker(env=environment(SPECIMEN_PREPARE="fails")) as worker:
        worker.greet()
        failed = worker.note("failed")["params"]
        assert failed == {"message": "the key was refused", "condition": "AuthenticationFailed"}
        worker.read_to_end()
        assert worker.wait() == 1


# ------------------------------------------------------------ answers


@pytest.mark.parametrize(
    "what",
    [
        "SystemExit",
        "KeyboardInterrupt",
        "MemoryError",
        "GeneratorExit",
        "CancelledError",
        "RecursionError",
        "ValueError",
    ],
)
def test_whatever_a_handler_raises_is_an_error_reply_and_the_worker_lives(what: str) -> None:
    """bazelbuild/bazel#10288 (B06)."""
    with RawWorker().ready() as worker:
        error = worker.call("x-specimen/raise", {"what": what})["error"]
        assert error["data"] == {"condition": "Internal"}  # and `dispatched` is unknown, which is not written
        assert worker.call("listLeases")["result"] == {}
        assert "Traceback" in worker.logged(what)


@pytest.mark.parametrize("what", ["SystemExit", "StopIteration", "MemoryError"])
def test_whatever_a_blocking_handler_raises_is_an_error_reply_and_the_worker_lives(what: str) -> None:
    """bazelbuild/bazel#10288 (B06)."""
    with RawWorker().ready() as worker:
        assert worker.call("x-specimen/raise-in-thread", {"what": what})["error"]["data"]["condition"] == "Internal"
        assert worker.call("listLeases")["result"] == {}


def test_a_task_that_exits_does_not_end_the_worker() -> None:
    """bazelbuild/bazel#10288 (B06): the exit comes from a task that the handler started."""
    with RawWorker().ready() as worker:
        other = worker.start("x-specimen/wait")
        assert worker.call("x-specimen/exit-in-task")["error"]["data"]["condition"] == "Internal"
        worker.call("x-specimen/open")
        assert worker.answer(other)["result"] == "open"


def test_an_error_out_of_a_task_group_keeps_its_name() -> None:
    with RawWorker().ready() as worker:
        error = worker.call("x-specimen/group")["error"]
        assert error["data"]["condition"] == "QuotaExceeded"
        assert error["data"]["dispatched"] == "no"


def test_a_handler_can_say_whether_its_effect_was_dispatched() -> None:
    with RawWorker().ready() as worker:
        for dispatched in ("no", "yes", "unknown"):
            error = worker.call("x-specimen/dispatched", {"dispatched": dispatched})["error"]
            assert error["data"].get("dispatched", "unknown") == dispatched


def test_params_that_do_not_fit_are_refused_by_their_path() -> None:
    with RawWorker().ready() as worker:
        params = {"sandboxId": SANDBOX_ID, "argv": ["true"], "timeoutMs": "soon"}
        error = worker.call("execute", params)["error"]
        assert error["code"] == -32602
        assert error["data"]["detail"] == {"field": "timeoutMs"}
        assert error["data"]["dispatched"] == "no"
        assert worker.call("execute", ["positional"])["error"]["code"] == -32602


def test_a_config_key_that_is_misspelt_is_refused_with_the_nearest_name() -> None:
    with RawWorker().ready() as worker:
        params = {"sandboxId": SANDBOX_ID, "ttlMs": 1000, "config": {"imgae": "x"}}
        error = worker.call("acquireLease", params)["error"]
        assert error["data"]["condition"] == "ConfigInvalid"
        assert error["data"]["detail"] == {"field": "config.imgae"}
        assert "did you mean 'image'?" in error["message"]
        issues = worker.call("validateConfig", {"config": {"imgae": "x", "image": 7}})["result"]["issues"]
        assert [issue["field"] for issue in issues] == ["config.imgae", "config.image"]


def test_a_method_that_is_not_advertised_is_refused() -> None:
    """kubernetes-csi/csi-test#564 (N12), seen from the worker."""
    with RawWorker().ready() as worker:
        for method in ("startProcess", "releaseLease", "x-specimen/unknown", "prepare", "__init__"):
            assert worker.call(method)["error"]["code"] == -32601


@pytest.mark.parametrize("identity", [0, "0", "a", 9_007_199_254_740_993, "", -1, "\u2028"])
def test_an_id_is_echoed_exactly(identity: object) -> None:
    """modelcontextprotocol/python-sdk#192 (C07)."""
    with RawWorker().ready() as worker:
        worker.send(worker.request("listLeases", id=identity))
        answer = worker.answer(identity)
        assert answer["id"] == identity
        assert type(answer["id"]) is type(identity)


def test_a_second_request_with_an_open_id_is_refused() -> None:
    """modelcontextprotocol/python-sdk#3137 (C09)."""
    with RawWorker().ready() as worker:
        worker.send(worker.request("x-specimen/wait", id="twin"), worker.request("x-specimen/echo", "late", id="twin"))
        assert worker.answer("twin")["error"]["data"]["condition"] == "InvalidRequest"
        del worker.answers["twin"]
        worker.call("x-specimen/open")
        assert worker.answer("twin")["result"] == "open"


def test_the_advice_of_a_deadline_reaches_the_handler() -> None:
    with RawWorker().ready() as worker:
        assert worker.call("x-specimen/remaining", {})["result"] is None
        left = worker.call("x-specimen/remaining", {"_meta": {"deadlineMs": 60_000}})["result"]
        assert 0 < left <= 60


# ------------------------------------------------------------ cancel


def test_a_cancelled_call_is_answered_when_its_handler_has_ended() -> None:
    """modelcontextprotocol/python-sdk#2507 (C01), microsoft/vs-streamjsonrpc#64 (C06)."""
    with RawWorker().ready() as worker:
        calls = [worker.start("x-specimen/wait") for _ in range(50)]
        worker.logged('"message":"waiting"', 50)
        for call in calls:
            worker.cancel(call)
        for call in calls:
            error = worker.answer(call)["error"]
            assert error["data"]["condition"] == "Cancelled"
            assert error["data"].get("dispatched", "unknown") == "unknown"
        assert worker.call("probe")["result"]["checks"][0]["detail"] == "0"


def test_a_call_that_completed_although_cancelled_answers_its_result() -> None:
    with RawWorker().ready() as worker:
        call = worker.start("x-specimen/wait", {"finish": True})
        worker.logged('"message":"waiting"')
        worker.cancel(call)
        assert worker.answer(call)["result"] == "finished all the same"


def test_a_second_cancel_does_not_hit_what_the_handler_does_about_the_first() -> None:
    with RawWorker().ready() as worker:
        call = worker.start("x-specimen/tidy")
        worker.logged('"message":"waiting"')
        worker.cancel(call)
        worker.logged("tidying up")
        worker.cancel(call)
        worker.call("x-specimen/open")
        assert worker.answer(call)["error"]["data"]["condition"] == "Cancelled"
        assert "tidied up" in worker.stderr()


def test_a_call_that_is_cancelled_before_its_handler_began_changed_nothing() -> None:
    """microsoft/vscode-languageserver-node#1282 (C05), seen from the worker."""
    with RawWorker().ready() as worker:
        worker.send(worker.request("x-specimen/wait", id=7), {"method": "cancel", "params": {"id": 7}})
        assert worker.answer(7)["error"]["data"] == {"condition": "Cancelled", "dispatched": "no"}
        assert '"message":"waiting"' not in worker.stderr()


def test_a_cancel_of_an_id_that_is_not_open_is_ignored() -> None:
    """microsoft/vs-streamjsonrpc#489 (C02), seen from the worker."""
    with RawWorker().ready() as worker:
        call = worker.start("listLeases")
        worker.answer(call)
        for identity in (call, 999, "999"):
            worker.cancel(identity)
        worker.send({"method": "cancel", "params": {}}, {"method": "cancel"}, {"method": "unknown/note"})
        assert worker.call("ping")["result"] == {}


def test_a_blocking_handler_is_told_of_a_cancel_and_answers_when_it_ended() -> None:
    """nelssec/qualys-mcp#213 (B05)."""
    with RawWorker().ready() as worker:
        call = worker.start("x-specimen/block", {})
        worker.logged('"message":"blocking"')
        worker.cancel(call)
        assert worker.answer(call)["result"] == {"cancelled": True}
        call = worker.start("x-specimen/block", {"raise": True})
        worker.logged('"message":"blocking"', 2)
        worker.cancel(call)
        assert worker.answer(call)["error"]["data"]["condition"] == "Cancelled"
        assert worker.call("listLeases")["result"] == {}


def test_blocking_handlers_that_are_cancelled_give_their_threads_back() -> None:
    """bazelbuild/bazel#26292 (B08): more calls than threads, some of them before their turn."""
    with RawWorker().ready() as worker:
        calls = [worker.start("x-specimen/block", {"raise": True}) for _ in range(100)]
        worker.logged('"message":"blocking"', 32)
        for call in reversed(calls):
            worker.cancel(call)
        outcomes = [worker.answer(call)["error"]["data"] for call in calls]
        assert {outcome["condition"] for outcome in outcomes} == {"Cancelled"}
        assert [outcome.get("dispatched") for outcome in outcomes].count("no") == 68
        again = [worker.start("x-specimen/block", {"seconds": 0}) for _ in range(32)]
        assert all(worker.answer(call)["result"] == {"cancelled": False} for call in again)


def test_frames_stay_whole_when_calls_are_cancelled_at_random() -> None:
    """microsoft/vs-streamjsonrpc#55 (F19), modelcontextprotocol/python-sdk#3188 (C04): one answer to each id."""
    chance = random.Random(7)
    with RawWorker().ready() as worker:
        calls = []
        for _ in range(200):
            calls.append(worker.start("x-specimen/size", {"bytes": 256 * 1024}))
            if chance.random() < 0.5:
                worker.cancel(chance.choice(calls))
            if len(calls) % 20 == 0:
                worker.answer(calls[-1])
        for call in calls:
            answer = worker.answer(call)
            assert answer.get("result", "").count("s") == 256 * 1024 or answer["error"]["code"] == -32026


# ------------------------------------------------------------ fairness


def test_a_blocking_handler_stops_neither_pings_nor_other_calls() -> None:
    """modelcontextprotocol/python-sdk#188, ykuwai/ppt-mcp#198 (B04)."""
    with RawWorker().ready() as worker:
        call = worker.start("x-specimen/block", {})
        worker.logged('"message":"blocking"')
        assert worker.call("ping")["result"]["open"] == [call]
        assert worker.call("listLeases")["result"] == {}
        worker.cancel(call)
        worker.answer(call)


def test_a_reply_larger_than_the_pipe_does_not_stop_the_loop() -> None:
    """modelcontextprotocol/python-sdk#547 (B03)."""
    with RawWorker().ready() as worker:
        ticks = worker.start("x-specimen/ticks")
        large = worker.start("x-specimen/size", {"bytes": 10 * 1024 * 1024})
        # Nothing is read until the log shows that the loop still serves: this call's answer is stuck behind the reply.
        worker.start("x-specimen/wait")
        worker.logged('"message":"waiting"')
        worker.start("x-specimen/open")
        assert len(worker.answer(large)["result"]) == 10 * 1024 * 1024
        assert worker.answer(ticks)["result"] >= 1


def test_more_calls_than_agreed_are_refused_and_the_worker_stays_awake() -> None:
    """modelcontextprotocol/python-sdk#1333 (B10)."""
    with RawWorker().ready(inFlight=100) as worker:
        calls = [worker.start("x-specimen/wait") for _ in range(1000)]
        assert len(worker.call("ping")["result"]["open"]) == 100
        refused = [worker.answer(call)["error"]["data"] for call in calls[100:]]
        assert {(data["condition"], data["dispatched"]) for data in refused} == {("Overloaded", "no")}
        for call in calls[:100]:
            worker.cancel(call)
        for call in calls[:100]:
            assert worker.answer(call)["error"]["data"]["condition"] == "Cancelled"


def test_many_answers_to_a_slow_reader_stay_whole() -> None:
    """MongLong0214/logic-pro-mcp#232 (F21)."""
    with RawWorker().ready() as worker:
        calls = [worker.start("x-specimen/size", {"bytes": 1024 * 1024}) for _ in range(16)]
        for call in calls:
            assert len(worker.answer(call)["result"]) == 1024 * 1024


def test_a_host_that_reads_nothing_for_long_gets_everything_later() -> None:
    """modelcontextprotocol/typescript-sdk#88 (F17): far behind, its requests wait in the pipe and not in memory."""
    with RawWorker().ready() as worker:
        calls = []
        for number in range(60):
            calls.append(worker.start("x-specimen/size", {"bytes": 1024 * 1024}))
            worker.start("x-specimen/wait")
            worker.logged('"message":"waiting"', number + 1)
        # Past the bound with these ten, and then more than one read of the pipe takes: some of it must stay there.
        calls += [worker.start("x-specimen/size", {"bytes": 1024 * 1024}) for _ in range(10)]
        echoes = [worker.start("x-specimen/echo", "e" * 190_000) for _ in range(5)]
        for call in calls:
            assert len(worker.answer(call)["result"]) == 1024 * 1024
        for echo in echoes:
            assert len(worker.answer(echo)["result"]) == 190_000


def test_a_warning_that_is_raised_while_a_warning_is_logged_ends() -> None:
    """modelcontextprotocol/python-sdk#3122 (B11)."""
    with RawWorker().ready() as worker:
        assert worker.call("x-specimen/warn")["result"] is None


def test_log_lines_name_the_request_that_they_belong_to() -> None:
    with RawWorker().ready() as worker:
        call = worker.start("x-specimen/wait")
        log = worker.logged('"message":"waiting"')
        line = next(line for line in log.splitlines() if '"message":"waiting"' in line)
        assert line == f'{{"level":"INFO","message":"waiting","logger":"specimen","request":{call}}}'
        blocking = worker.start("x-specimen/block", {"seconds": 0})
        assert f'"request":{blocking}}}' in worker.logged('"message":"blocking"')


# ------------------------------------------------------------ live output


def test_live_output_stops_at_its_credit_and_goes_on_with_more() -> None:
    """nushell/nushell#6934, #11911 (B09)."""
    with RawWorker().ready(creditBytes=100_000, chunkBytes=30_000) as worker:
        call = worker.start("execute", {"sandboxId": SANDBOX_ID, "argv": ["250000"], "live": True})
        other = worker.start("x-specimen/echo", "not held back")
        assert worker.answer(other)["result"] == "not held back"
        assert worker.call("ping")["result"]["open"] == [call]
        assert _sizes(worker) == [30_000, 30_000, 30_000, 10_000]
        worker.send({"method": "credit", "params": {"id": call, "stream": "stdout", "bytes": 1_000_000}})
        assert worker.answer(call)["result"]["stdout"]["totalBytes"] == 250_000
        assert sum(_sizes(worker)) == 250_000
        pieces = [note["params"] for note in worker.notes if note["method"] == "output"]
        ends = [(piece["stream"], piece["end"]) for piece in pieces if "end" in piece]
        assert ends == [("stdout", "seen"), ("stderr", "seen")]
        offset = 0
        for piece in pieces[:-1]:  # the last one is the end of stderr
            assert piece["offset"] == offset
            offset += _size(piece)


def test_a_call_that_waits_for_credit_can_be_cancelled() -> None:
    with RawWorker().ready(creditBytes=1000) as worker:
        call = worker.start("execute", {"sandboxId": SANDBOX_ID, "argv": ["5000"], "live": True})
        worker.note("output")
        worker.cancel(call)
        assert worker.answer(call)["error"]["data"]["condition"] == "Cancelled"


def test_output_where_none_was_asked_for_is_a_fault_of_the_provider() -> None:
    with RawWorker().ready() as worker:
        error = worker.call("execute", {"sandboxId": SANDBOX_ID, "argv": ["10"]})["error"]
        assert error["data"]["condition"] == "Internal"
        assert "no live output" in error["message"]


def test_the_memory_of_a_huge_message_is_given_back() -> None:
    """microsoft/vscode-languageserver-node#544 (F18)."""
    with RawWorker().ready() as worker:
        before = _memory_bytes(worker)
        size = 15 * 1024 * 1024
        assert len(worker.call("x-specimen/echo", {"text": "e" * size})["result"]["text"]) == size
        peak = _memory_bytes(worker, "VmHWM")  # The kernel's own mark: it may be given back before we look.
        deadline = time.monotonic() + PATIENCE_S
        while (after := _memory_bytes(worker)) > before * 1.1:
            assert time.monotonic() < deadline, f"{before} bytes before, {peak} then, {after} after"
            time.sleep(0.05)
        assert peak > before + size


def test_a_large_live_output_needs_no_memory_of_its_size() -> None:
    """nushell/nushell#6934 (B09): the worker holds back what the pipe does not take."""
    with RawWorker().ready() as worker:
        call = worker.start("execute", {"sandboxId": SANDBOX_ID, "argv": [str(200 * 1024 * 1024)], "live": True})
        worker.send({"method": "credit", "params": {"id": call, "stream": "stdout", "bytes": 512 * 1024 * 1024}})
        total = pieces = peak = 0
        while call not in worker.answers:
            message = worker.read()
            assert message is not None
            if message.get("method") == "output":
                total += _size(message["params"])
                worker.notes.clear()
                pieces += 1
                if pieces % 50 == 0:
                    peak = max(peak, _memory_bytes(worker))
        assert total == 200 * 1024 * 1024
        assert peak < 64 * 1024 * 1024


def _sizes(worker: RawWorker) -> list[int]:
    """Bytes of each piece of output so far, end marks left out."""
    sizes = [_size(note["params"]) for note in worker.notes if note["method"] == "output"]
    return [size for size in sizes if size]


def _size(piece: dict[str, Any]) -> int:
    return len(base64.b64decode(piece.get("data", "")))


def _memory_bytes(worker: RawWorker, mark: str = "VmRSS") -> int:
    with open(f"/proc/{worker.process.pid}/status") as file:
        line = next(line for line in file if line.startswith(f"{mark}:"))
    return int(line.split()[1]) * 1024
