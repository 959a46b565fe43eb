"""How a worker ends: asked to, left alone, or orphaned (rows S and O of the public faults)."""

import contextlib
import ctypes
import json
import os
import select
import signal
import subprocess
import sys
from pathlib import Path
from typing import Self

import pytest

from sdk.tests.rawworker import PATIENCE_S, TESTS, RawWorker, environment

# ------------------------------------------------------------ shutdown


def test_everything_that_takes_time_is_done_before_the_answer_to_shutdown() -> None:
    """clangd/clangd#855 (S17): the answer means that the worker may be killed."""
    with RawWorker().ready() as worker:
        assert worker.call("shutdown", {"drainMs": 1000})["result"] == {}
        # Killed at once; what close() logs is there all the same.
        worker.process.kill()
        assert "closed with 0 cancels" in worker.stderr()


def test_a_worker_ends_by_itself_after_the_answer_to_shutdown() -> None:
    with RawWorker().ready() as worker:
        worker.call("shutdown", {"drainMs": 1000})
        worker.read_to_end()
        assert worker.wait() == 0


def test_what_runs_may_finish_during_a_shutdown_and_nothing_new_begins() -> None:
    with RawWorker().ready() as worker:
        call = worker.start("x-specimen/wait")
        worker.logged('"message":"waiting"')
        shutdown = worker.start("shutdown", {"drainMs": 60_000})
        error = worker.call("listLeases")["error"]
        assert error["data"] == {"condition": "Unavailable", "retry": "later", "dispatched": "no"}
        assert worker.call("ping")["result"]["open"] == [call, shutdown]
        worker.cancel(call)
        worker.answer(shutdown)
        assert list(worker.answers).index(call) < list(worker.answers).index(shutdown)
        assert worker.answers[call]["error"]["data"]["condition"] == "Cancelled"
        assert worker.wait() == 0


def test_what_runs_longer_than_the_drain_is_cancelled() -> None:
    with RawWorker().ready() as worker:
        call = worker.start("x-specimen/wait")
        worker.logged('"message":"waiting"')
        assert worker.call("shutdown", {"drainMs": 1})["result"] == {}
        assert worker.answers[call]["error"]["data"]["condition"] == "Cancelled"
        assert "closed with 1 cancels" in worker.stderr()


def test_a_handler_that_never_ends_does_not_keep_the_worker() -> None:
    with RawWorker().ready(drainMs=50) as worker:
        call = worker.start("x-specimen/never")
        worker.logged("never ends")
        assert worker.call("shutdown", {"drainMs": 1})["result"] == {}
        assert worker.answers[call]["error"]["data"] == {"condition": "Cancelled"}
        worker.read_to_end()
        assert worker.wait() == 0


def test_two_shutdowns_wait_for_the_same_end() -> None:
    with RawWorker().ready() as worker:
        call = worker.start("x-specimen/wait")
        first = worker.start("shutdown", {"drainMs": 60_000})
        second = worker.start("shutdown", {"drainMs": 1})
        assert worker.answer(first)["result"] == worker.answer(second)["result"] == {}
        assert worker.answers[call]["error"]["data"]["condition"] == "Cancelled"


@pytest.mark.parametrize("hello", [False, True])
def test_a_shutdown_before_the_end_of_the_hello_is_served(hello: bool) -> None:
    with RawWorker() as worker:
        if hello:
            params = {"protocolVersions": [1], "host": {"name": "h", "version": "1"}, "storeId": "s", "stateDir": "/"}
            worker.call("initialize", params)
        assert worker.call("shutdown", {"drainMs": 1000})["result"] == {}
        assert worker.wait() == 0


def test_a_shutdown_while_the_provider_prepares_waits_for_nothing() -> None:
    with RawWorker(env=environment(SPECIMEN_PREPARE="waits")) as worker:
        worker.greet()
        assert worker.call("shutdown", {"drainMs": 60_000})["result"] == {}
        assert worker.wait() == 0
        assert "closed with 0 cancels" in worker.stderr()


# ------------------------------------------------------------ end of input


def test_replies_that_are_due_leave_after_the_end_of_input() -> None:
    """modelcontextprotocol/python-sdk#2678 (S05): 10 requests, then the end: 10 replies."""
    with RawWorker().ready() as worker:
        calls = [worker.request("x-specimen/echo", {"number": number}, id=str(number)) for number in range(10)]
        calls += [worker.request("x-specimen/block", {"seconds": 0.01}, id=str(number)) for number in range(10, 20)]
        worker.send(*calls)
        worker.close_input()
        worker.read_to_end()
        assert all("result" in worker.answers[str(number)] for number in range(20))
        assert worker.wait() == 0


def test_notifications_of_the_last_handler_are_not_lost_at_the_end() -> None:
    """microsoft/vscode-js-debug#1530 (S12)."""
    with RawWorker().ready() as worker:
        worker.send(worker.request("x-specimen/progress", {"count": 1000}, id="last"))
        worker.close_input()
        worker.read_to_end()
        assert len([note for note in worker.notes if note["method"] == "progress"]) == 1000
        assert worker.answers["last"]["result"] is None


def test_the_last_message_is_not_lost_at_the_end() -> None:
    """microsoft/vscode-js-debug#1530 (S12): more than the pipe holds is still on its way."""
    with RawWorker().ready() as worker:
        worker.send(worker.request("x-specimen/size", {"bytes": 8 * 1024 * 1024}, id="large"))
        worker.send(worker.request("x-specimen/echo", "last", id="last"))
        worker.close_input()
        worker.logged("closed with 0 cancels")  # nothing is left to do but to write
        worker.read_to_end()
        assert len(worker.answers["large"]["result"]) == 8 * 1024 * 1024
        assert worker.answers["last"]["result"] == "last"
        assert worker.wait() == 0


def test_the_end_of_input_cancels_what_does_not_finish() -> None:
    """microsoft/vs-streamjsonrpc#64 (C06)."""
    with RawWorker().ready() as worker:
        call = worker.start("x-specimen/wait")
        worker.logged('"message":"waiting"')
        worker.close_input()
        worker.read_to_end()
        assert worker.answers[call]["error"]["data"]["condition"] == "Cancelled"
        assert worker.wait() == 0
        assert "closed with 1 cancels" in worker.stderr()


def test_the_end_of_input_ends_a_worker_whose_threads_live_on() -> None:
    """modelcontextprotocol/python-sdk#2231, modelcontextprotocol/typescript-sdk#2002 (O02)."""
    with RawWorker().ready() as worker:
        worker.call("x-specimen/thread")
        worker.close_input()
        assert worker.wait() == 0
        assert "closed with 0 cancels" in worker.stderr()


def test_the_end_of_input_before_the_hello_ends_a_worker() -> None:
    with RawWorker() as worker:
        worker.close_input()
        assert worker.wait() == 0


def test_a_host_that_reads_no_more_is_gone() -> None:
    """anomalyco/opencode#43258 (N03), seen from the worker."""
    with RawWorker().ready() as worker:
        assert worker.process.stdout is not None
        worker.process.stdout.close()
        # The kernel may have told it already, and then nobody reads this.
        with contextlib.suppress(BrokenPipeError):
            worker.start("x-specimen/size", {"bytes": 4 * 1024 * 1024})
        assert worker.wait() == 0
        assert "closed with" in worker.stderr()


def test_a_host_that_does_not_read_the_last_answers_cannot_keep_the_worker() -> None:
    """microsoft/vscode-js-debug#1530 (S12) asks for a flush before the end; this is the bound of it."""
    with RawWorker().ready() as worker:
        worker.send(worker.request("x-specimen/size", {"bytes": 8 * 1024 * 1024}))
        worker.close_input()
        assert worker.wait() == 0
        assert "closed with 0 cancels" in worker.stderr()


# ------------------------------------------------------------ signals


def test_sigterm_finishes_what_runs_and_refuses_what_comes() -> None:
    """docker/cli#4402 (S10)."""
    with RawWorker().ready() as worker:
        call = worker.start("x-specimen/wait")
        worker.logged('"message":"waiting"')
        worker.terminate()
        late: list[int] = []
        while not late or "Unavailable" not in json.dumps(worker.answer(late[-1])):
            late.append(worker.start("listLeases"))
        worker.read_to_end()
        assert worker.answers[call]["error"]["data"]["condition"] == "Cancelled"
        assert worker.wait() == 0
        assert worker.stderr().count("closed with 1 cancels") == 1


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_that_comes_again_and_again_never_ends_a_worker_before_its_own_code_does(number: int) -> None:
    """docker/cli#4402 (S10): also in the interpreter's last moments, when nobody handles anything any more."""
    for _ in range(8):
        with RawWorker().ready() as worker:
            assert worker.call("ping")["result"] == {}
            if number == signal.SIGINT:
                worker.close_input()
            while worker.process.poll() is None:
                worker.process.send_signal(number)
                select.select([], [], [], 0.002)  # a rhythm, which somebody's fingers or supervisor keep
            assert worker.process.returncode == 0


def test_what_a_worker_starts_at_its_very_end_can_be_terminated(tmp_path: Path) -> None:
    """What is ignored or blocked is inherited; so nothing is, as long as anything can be started."""
    (tmp_path / "late.py").write_text(
        "import atexit, signal, subprocess\n"
        "from specimen.provider import Specimen\n"
        "def run(): print('late', subprocess.run(['sh', '-c', 'kill -TERM $$; exit 0']).returncode, flush=True)\n"
        "atexit.register(run)\n",
        encoding="utf-8",
    )
    program = "from sandport_sdk.worker import serve; serve('late:Specimen'); import late; late.run()"
    path = os.pathsep.join((str(tmp_path), str(TESTS)))
    with RawWorker(sys.executable, "-c", program, env=environment(PYTHONPATH=path)).ready() as worker:
        worker.terminate()
        worker.read_to_end()
        assert worker.wait() == 0
        assert worker.stderr().count(f"late {-signal.SIGTERM}") == 2


def test_ctrl_c_at_the_terminal_is_for_the_host_alone() -> None:
    """docker/cli#4402 (S10)."""
    with RawWorker().ready() as worker:
        call = worker.start("x-specimen/wait")
        worker.logged('"message":"waiting"')
        worker.process.send_signal(signal.SIGINT)
        worker.call("x-specimen/open")
        assert worker.answer(call)["result"] == "open"
        assert "Traceback" not in worker.stderr()


def test_children_of_a_handler_can_be_interrupted() -> None:
    """The worker ignores SIGINT for itself alone; a disposition of "ignore" would be inherited."""
    with RawWorker().ready() as worker:
        assert worker.call("x-specimen/interruptible")["result"] == -signal.SIGINT


def test_a_signal_for_a_forked_child_does_not_end_its_parent() -> None:
    """A process pool ends its children with SIGTERM; asyncio's wake-up descriptor is shared with them."""
    with RawWorker().ready() as worker:
        for _ in range(3):
            assert worker.call("x-specimen/pool", {"method": "fork"})["result"] == [1, 2, 3, 4]
        # Told to end before it has run a single line, over and over: none is deaf, and none ends its parent.
        assert worker.call("x-specimen/fork-and-terminate", {"count": 100})["result"] == [-signal.SIGTERM]
        assert worker.call("x-specimen/fork-handles-signal")["result"] == 33
        assert worker.call("listLeases")["result"] == {}
        assert worker.call("ping")["result"] == {}


# ------------------------------------------------------------ orphans

LAUNCHER = """
import os, subprocess, sys, time
worker = subprocess.Popen([sys.executable, "-P", "-m", "specimen"], stdin=int(sys.argv[1]), stdout=int(sys.argv[2]))
print(worker.pid, flush=True)
time.sleep(600)
"""


def test_a_worker_whose_host_was_killed_ends_though_its_input_stays_open() -> None:
    """hashicorp/go-plugin#10, flanksource/mission-control#3185 (O01): this test holds the worker's pipes."""
    with _Orphan(LAUNCHER) as orphan:
        orphan.launcher.kill()
        orphan.launcher.wait()
        orphan.wait_gone()


def test_an_orphan_ends_under_a_subreaper_too() -> None:
    """ipython/ipykernel#517 (O05): the new parent is not process 1, it is this test."""
    set_child_subreaper = 36
    libc = ctypes.CDLL(None, use_errno=True)
    assert libc.prctl(set_child_subreaper, 1, 0, 0, 0) == 0
    try:
        with _Orphan(LAUNCHER) as orphan:
            orphan.launcher.kill()
            orphan.launcher.wait()
            orphan.wait_gone()
            _, status = os.waitpid(orphan.pid, 0)
            assert os.waitstatus_to_exitcode(status) == 0
    finally:
        libc.prctl(set_child_subreaper, 0, 0, 0, 0)


ADOPTED = """
import os, sys
launcher = os.getpid()
if os.fork():
    os._exit(0)
while os.getppid() == launcher:
    pass
os.execv(sys.executable, [sys.executable, "-P", "-m", "specimen"])
"""


def test_a_worker_serves_a_parent_that_is_process_1() -> None:
    """ipython/ipykernel PR #233 (O06): a host may well be the init of its container."""
    with RawWorker(sys.executable, "-c", ADOPTED) as worker:
        worker.ready()
        assert worker.call("listLeases")["result"] == {}
        parent = worker.call("x-specimen/parent")["result"]
        assert parent != worker.process.pid
        worker.close_input()
        worker.read_to_end()


def test_a_worker_that_hears_nothing_takes_its_host_for_dead() -> None:
    """verygoodplugins/mcp-automem#137 (O03): a wrapper lives on and holds the pipe."""
    with RawWorker().ready(hostSilenceMs=1000) as worker:
        worker.read_to_end()
        assert worker.wait() == 0
        assert "closed with 0 cancels" in worker.stderr()


def test_a_host_that_was_heard_is_not_silent_however_long_a_handler_held_the_loop() -> None:
    """dask/distributed#8537 (R07): busy is not dead."""
    with RawWorker().ready(hostSilenceMs=1000) as worker:
        held = worker.start("x-specimen/hold-loop", {"seconds": 1.5})
        ping = worker.start("ping")
        assert worker.answer(ping)["result"] is not None
        assert worker.answer(held)["result"] is None


# ------------------------------------------------------------ starts that fail


@pytest.mark.parametrize(
    ("content", "target", "said"),
    [
        ("import nothing_of_this_name", "broken:X", "No module named 'nothing_of_this_name'"),
        ("raise SystemExit(0)", "broken:X", "SystemExit"),
        ("X = 1", "broken:X", "no class derived from"),
        ("", "broken:X", "has no attribute 'X'"),
        (
            "from sandport_sdk.v1 import Provider\nclass X(Provider): name = 'x'",
            "broken:X",
            "these methods are missing",
        ),
        ("from sandport_sdk.v1 import Provider\nclass X(Provider, abstract=True): pass", "broken:X", "abstract"),
        ("", "absent:X", "No module named 'absent'"),
        ("", "broken", "broken"),
    ],
)
def test_a_provider_that_cannot_be_loaded_fails_loudly(tmp_path: Path, content: str, target: str, said: str) -> None:
    """cloudfoundry/guardian#121, hashicorp/go-plugin PR #292 (L02): the reason is on stderr, the exit code is not 0."""
    (tmp_path / "broken.py").write_text(content, encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-c", f"from sandport_sdk.worker import serve; serve({target!r})"],
        stdin=subprocess.PIPE,
        capture_output=True,
        text=True,
        env=environment(PYTHONPATH=str(tmp_path)),
        check=False,
        timeout=60,
    )
    assert done.returncode == 1
    assert said in done.stderr
    assert done.stdout == ""


def test_an_init_that_raises_is_the_answer_to_the_hello(tmp_path: Path) -> None:
    source = (TESTS / "specimen" / "provider.py").read_text(encoding="utf-8")
    (tmp_path / "angry.py").write_text(
        source.replace("        self.cancels = 0\n", "        raise SystemExit('no')\n"), encoding="utf-8"
    )
    program = "from sandport_sdk.worker import serve; serve('angry:Specimen')"
    with RawWorker(sys.executable, "-c", program, env=environment(PYTHONPATH=str(tmp_path))) as worker:
        error = worker.greet()["error"]
        assert error["data"]["condition"] == "Internal"
        worker.close_input()
        assert worker.wait() == 0


class _Orphan:
    """A worker whose parent is a launcher that a test kills, while the test holds both of its pipes."""

    def __init__(self, program: str) -> None:
        to_worker, from_worker = os.pipe(), os.pipe()
        self.launcher = subprocess.Popen(
            [sys.executable, "-c", program, str(to_worker[0]), str(from_worker[1])],
            pass_fds=(to_worker[0], from_worker[1]),
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=environment(),
        )
        os.close(to_worker[0])
        os.close(from_worker[1])
        self.write, self.read = to_worker[1], from_worker[0]
        assert self.launcher.stdout is not None
        self.pid = int(self.launcher.stdout.readline())
        self.pidfd = os.pidfd_open(self.pid)
        hello = {
            "protocolVersions": [1],
            "host": {"name": "h", "version": "1"},
            "storeId": "s",
            "stateDir": "/",
            # By its silence alone it would not take its host for dead as long as a test waits.
            "limits": {"hostSilenceMs": 600_000},
        }
        message = {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": hello}
        os.write(self.write, json.dumps(message).encode() + b"\n")
        assert b"specimen" in os.read(self.read, 1 << 16)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.launcher.kill()
        self.launcher.wait()
        if not self.gone_within(0):
            signal.pidfd_send_signal(self.pidfd, signal.SIGKILL)
        assert self.launcher.stdout is not None
        self.launcher.stdout.close()
        for descriptor in (self.write, self.read, self.pidfd):
            os.close(descriptor)

    def gone_within(self, patience_s: float) -> bool:
        return bool(select.select([self.pidfd], [], [], patience_s)[0])

    def wait_gone(self) -> None:
        assert self.gone_within(PATIENCE_S), "the worker outlives its host"
