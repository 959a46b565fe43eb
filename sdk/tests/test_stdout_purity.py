"""Nothing but frames on the wire, whatever the provider and its children do (rows F of the public faults)."""

import subprocess
import sys
from pathlib import Path

import pytest

from sdk.tests.rawworker import RawWorker, environment

SEPARATORS = "a\u2028b\u2029c\u0085d\ve\ff\x1cg\x1dh\x1ei\rj"


def test_a_print_at_import_before_the_hello_lands_in_the_log() -> None:
    """hashicorp/go-plugin#164 (F01)."""
    with RawWorker() as worker:
        hello = worker.greet()
        assert hello["result"]["provider"]["name"] == "specimen"
        assert worker.lines == 1
        log = worker.logged("written to descriptor 1 at import")
        assert "printed at import" in log


def test_a_stray_print_never_reaches_the_wire() -> None:
    """espressif/esp-idf#19087, mcp-hangar/mcp-hangar#563 (F06), openlawlibrary/pygls#240 (F04)."""
    with RawWorker().ready() as worker:
        assert worker.call("x-specimen/noise")["result"] == "quiet"
        assert worker.call("listLeases")["result"] == {}
        log = worker.logged("printed by a child")
    for text in (
        "printed in a handler",
        "without a line feed",
        "written to descriptor 1\n",
        "through the first stdout",
        "logged to stdout",
    ):
        assert text in log


def test_a_handlers_child_that_reads_its_input_returns_at_once() -> None:
    """modelcontextprotocol/python-sdk#671 (F08)."""
    with RawWorker().ready() as worker:
        first = worker.start("x-specimen/child-reads")
        second = worker.start("x-specimen/echo", {"still": "here"})
        assert worker.answer(first)["result"] == {"read": 0, "code": 0, "own": 0}
        assert worker.answer(second)["result"] == {"still": "here"}


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_a_process_pool_in_a_handler_returns(method: str) -> None:
    """modelcontextprotocol/python-sdk#817 (F09)."""
    with RawWorker().ready() as worker:
        assert worker.call("x-specimen/pool", {"method": method})["result"] == [1, 2, 3, 4]
        assert worker.call("listLeases")["result"] == {}


def test_a_print_after_serving_works_and_the_exit_code_is_0() -> None:
    """modelcontextprotocol/python-sdk#1933 (F11)."""
    with RawWorker().ready() as worker:
        worker.close_input()
        worker.read_to_end()
        assert worker.wait() == 0
        assert "printed after serving ended" in worker.stderr()
        assert "printed at exit" in worker.stderr()
        assert "Traceback" not in worker.stderr()


def test_line_separators_of_other_worlds_are_content() -> None:
    """earendil-works/pi#1910, anthropics/claude-agent-sdk-typescript#137 (F12)."""
    with RawWorker().ready() as worker:
        assert worker.call("x-specimen/echo", {"text": SEPARATORS})["result"] == {"text": SEPARATORS}
        raw = '{"jsonrpc":"2.0","id":"raw","method":"x-specimen/echo","params":"a\u2028b\u0085c"}\n'
        worker.send_bytes(raw.encode())
        assert worker.answer("raw")["result"] == "a\u2028b\u0085c"


def test_a_line_that_is_no_text_costs_one_error_and_nothing_else() -> None:
    """modelcontextprotocol/python-sdk#2454 (F13), seen from the worker."""
    with RawWorker().ready() as worker:
        worker.send_bytes(b"\xff\xfe\n")
        assert worker.answer(None)["error"]["code"] == -32700
        assert worker.call("listLeases")["result"] == {}


def test_a_number_that_json_cannot_say_is_an_internal_error() -> None:
    """conbench/conbench#1163, apify/apify-client-python#87 (F14)."""
    with RawWorker().ready() as worker:
        error = worker.call("x-specimen/nan")["error"]
        assert error["data"]["condition"] == "Internal"
        assert "nan" in error["message"]
        worker.send_bytes(b'{"jsonrpc":"2.0","id":"n","method":"x-specimen/echo","params":{"x":NaN}}\n')
        assert worker.answer(None)["error"]["code"] == -32700
        assert worker.call("listLeases")["result"] == {}


@pytest.mark.parametrize("size", [4095, 4097, 65_535, 65_537, 5 * 1024 * 1024])
def test_a_reply_of_any_size_arrives_whole(size: int) -> None:
    """TokenRhythm/opensquilla#953, lilhammerfun/clumsies#100 (F16)."""
    with RawWorker().ready() as worker:
        assert worker.call("x-specimen/size", {"bytes": size})["result"] == "s" * size
        text = "e" * size
        assert worker.call("x-specimen/echo", {"text": text})["result"] == {"text": text}


def test_a_reply_beyond_the_frame_ceiling_is_an_error_that_names_it() -> None:
    with RawWorker().ready(frameBytes=100_000) as worker:
        error = worker.call("x-specimen/size", {"bytes": 100_000})["error"]
        assert error["data"]["condition"] == "TooLarge"
        assert "100000" in error["message"]
        assert worker.call("listLeases")["result"] == {}


def test_a_flood_without_a_line_feed_ends_the_worker_with_an_error_that_names_the_ceiling() -> None:
    """modelcontextprotocol/typescript-sdk#2245 (F17), seen from the worker."""
    with RawWorker().ready() as worker:
        try:
            for _ in range(64):
                worker.send_bytes(b"x" * 1024 * 1024)
        except BrokenPipeError:
            pass  # it stopped reading, as it should
        error = worker.answer(None)["error"]
        assert "frameBytes" in error["message"]
        worker.read_to_end()
        assert worker.wait() == 2


def test_notifications_keep_their_order() -> None:
    """microsoft/vscode-languageserver-node#634 (F22)."""
    with RawWorker().ready() as worker:
        worker.call("x-specimen/progress", {"count": 10_000})
        done = [note["params"].get("done", 0) for note in worker.notes if note["method"] == "progress"]
        assert done == list(range(10_000))


def test_standard_descriptors_lead_away_from_the_wire_and_children_inherit_no_other() -> None:
    """ElementsProject/lightning#4385 (F07), evanw/esbuild#2727 (S14), seen from the worker."""
    with RawWorker().ready() as worker:
        found = worker.call("x-specimen/environment")["result"]
        assert found["fd"]["0"] == "/dev/null"
        assert found["fd"]["1"] == found["fd"]["2"]
        # 3 is the folder that `ls` itself lists.
        assert found["child"] == ["0", "1", "2", "3"]


def test_a_forked_child_cannot_reach_the_wire() -> None:
    with RawWorker().ready() as worker:
        # What the child sees: its own report's pipe, and no pipe that the worker shares with its host.
        assert worker.process.stdin is not None
        ours = {Path(f"/proc/self/fd/{fd}").readlink().name for fd in (worker.process.stdin.fileno(), worker.output)}
        found = set(worker.call("x-specimen/fork")["result"])
        assert "/dev/null" in found
        assert found.isdisjoint(ours)


@pytest.mark.parametrize("closed", ["2>&-", "0<&- 2>&-"])
def test_a_worker_whose_stderr_arrived_closed_keeps_its_log_off_the_wire(closed: str) -> None:
    """ElementsProject/lightning#4385 (F07): a descriptor below 3 that is free becomes somebody's pipe."""
    if closed == "2>&-":
        with RawWorker("sh", "-c", f'exec "$0" -P -m specimen {closed}', sys.executable).ready() as worker:
            assert worker.call("x-specimen/noise")["result"] == "quiet"
            assert worker.call("x-specimen/environment")["result"]["fd"] == dict.fromkeys("012", "/dev/null")
            worker.close_input()
            worker.read_to_end()
            assert worker.wait() == 0
    else:
        with RawWorker("sh", "-c", f'exec "$0" -P -m specimen {closed}', sys.executable) as worker:
            worker.read_to_end()
            assert worker.wait() == 1


@pytest.mark.parametrize(
    ("redirection", "said"),
    [
        ("<&-", "stdin is closed"),
        (">&-", "stdout is closed"),
        ("</dev/null", "stdin is no pipe"),
        (">/dev/null", "stdout is no pipe"),
    ],
)
def test_a_worker_without_a_wire_says_so_and_fails(redirection: str, said: str) -> None:
    done = subprocess.run(
        ["sh", "-c", f'exec "$0" -P -m specimen {redirection}', sys.executable],
        stdin=subprocess.PIPE,
        capture_output=True,
        text=True,
        env=environment(),
        check=False,
        timeout=60,
    )
    assert done.returncode == 1
    assert said in done.stderr
    assert "printed at import" not in done.stderr
