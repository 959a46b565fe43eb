"""Ctrl-C, SIGTERM and SIGHUP at any moment of `sandport run`: the right code, and nothing left."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from tests.integration.command import SANDPORT, Command
from tests.integration.nursery import Account, Order

MOMENTS = 20
QUICK = ("sh", "-c", "sleep 0.15")
NUMBERS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def account(sandport: Command, order: Order) -> Account:
    """What came of it, told by the reaper of all its orphans."""
    done = subprocess.run(
        [sys.executable, Path(__file__).with_name("nursery.py"), msgspec.json.encode(order).decode()],
        env=sandport.env,
        cwd=sandport.cwd,
        capture_output=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr.decode()
    return msgspec.json.decode(done.stdout, type=Account)


def run(*command: str) -> tuple[str, ...]:
    return (str(SANDPORT), "run", "--", *command)


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("times", [1, 2], ids=["once", "twice"])
def test_a_signal_at_any_moment_leaves_nothing(sandport: Command, times: int) -> None:
    assert account(sandport, Order(argv=run(*QUICK))).code == 0
    usual_s = account(sandport, Order(argv=run(*QUICK))).left_s
    for moment in range(MOMENTS):
        number = NUMBERS[moment % len(NUMBERS)]
        # Another one as the second: the same again so soon would count as the first one's echo.
        signals = (number, NUMBERS[(moment + 1) % len(NUMBERS)])[:times]
        order = Order(argv=run(*QUICK), signals=signals, after_s=moment * usual_s / MOMENTS, gap_s=0.01)
        ended = account(sandport, order)
        seen = f"{signal.Signals(number).name} at {moment}/{MOMENTS}: {ended}"
        assert ended.survivors == (), seen
        assert sandport.sandboxes() == [], seen
        if ended.code < 0 or "Fatal Python error" in ended.err or "init_import_site" in ended.err:
            # Python was not up yet: it ends in its own way, before a line of ours has run. Only the first moments are
            # so early, and a program that never gets further would not have passed the runs above.
            assert moment < MOMENTS // 2, seen
            continue
        # 0: the command was over. Where it did not get to run in between, the system hands over both at once.
        assert ended.code in {0, *(128 + one for one in signals)}, seen
        assert "Traceback" not in ended.err, seen


@pytest.mark.parametrize("number", NUMBERS, ids=lambda number: signal.Signals(number).name)
def test_the_first_signal_cleans_up_and_tells_so(sandport: Command, number: int) -> None:
    ended = account(
        sandport, Order(argv=run("sh", "-c", "echo ready; sleep 60 & sleep 60"), signals=(number,), on_output=True)
    )
    assert (ended.code, ended.out) == (128 + number, "ready\n")
    assert ended.err == "sandport: interrupted; what was started has been cleaned up\n"
    assert ended.survivors == ()
    assert sandport.sandboxes() == []


def test_the_second_signal_leaves_at_once_and_the_worker_cleans_up(sandport: Command) -> None:
    # It ignores what asks it to end, so that a clean-up in order would have to wait for it.
    stubborn = "trap '' INT TERM HUP; echo ready; sleep 60; sleep 60"
    order = Order(
        argv=run("sh", "-c", stubborn), signals=(signal.SIGINT, signal.SIGTERM), on_output=True, patience_s=60
    )
    ended = account(sandport, order)
    assert (ended.code, ended.out) == (130, "ready\n")
    # A clean-up in order ends with another line about it.
    assert ended.err.startswith("sandport: left at once; ")
    assert ended.err.endswith("by: sandport reap\n")
    assert ended.survivors == ()
    assert sandport.sandboxes() == []


def test_a_signal_that_is_sent_twice_at_once_is_one(sandport: Command) -> None:
    """docker/cli#4402: a terminal tells the whole group, and a wrapper passes it on; timeout(1) does the same."""
    order = Order(
        argv=run("sh", "-c", "trap '' INT; echo ready; sleep 60"), signals=(signal.SIGINT,) * 2, on_output=True
    )
    ended = account(sandport, order)
    assert ended.code == 130
    assert ended.err == "sandport: interrupted; what was started has been cleaned up\n"


def test_an_interrupt_is_told_in_json(sandport: Command) -> None:
    with sandport.start("run", "--json", "--", "sh", "-c", "echo ready; sleep 60") as process:
        assert process.stderr.readline() == b"ready\n"
        process.send_signal(signal.SIGINT)
        found = msgspec.json.decode(process.stdout.read())
        assert process.wait() == 130
    assert (found["code"], found["codeFrom"], found["ended"]) == (130, "sandport", None)


def test_an_interrupt_brings_nothing_out(sandport: Command) -> None:
    script = "echo half > result; echo ready; sleep 60"
    with sandport.start("run", "-q", "--out", "result", "--", "sh", "-c", script) as process:
        assert process.stdout.readline() == b"ready\n"
        process.send_signal(signal.SIGINT)
        assert process.wait() == 130
    assert not (sandport.cwd / "result").exists()


def test_an_interrupt_is_heard_while_nobody_reads_our_output(sandport: Command) -> None:
    """A pager that does not read must not take Ctrl-C away."""
    with sandport.start("run", "-q", "--", "yes") as process:
        assert process.stdout.readline() == b"y\n"
        process.send_signal(signal.SIGINT)
        # Its stdout is not read to the end: it has to end with its writer still waiting.
        assert process.wait(timeout=60) == 130
    assert sandport.sandboxes() == []


def test_an_interrupt_is_heard_while_nobody_types(sandport: Command) -> None:
    with sandport.start(
        "run", "-q", "--stdin", "-", "--", "sh", "-c", "echo ready; cat", stdin=subprocess.PIPE
    ) as process:
        assert process.stdout.readline() == b"ready\n"
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=60) == 143


@pytest.mark.parametrize("number", [signal.SIGHUP, signal.SIGINT], ids=["nohup", "background"])
def test_a_signal_that_the_caller_ignores_stays_ignored(sandport: Command, number: int) -> None:
    """nohup ignores SIGHUP, and a shell ignores SIGINT for its background jobs."""

    def ignore() -> None:
        signal.signal(number, signal.SIG_IGN)

    script = "echo ready; read x; echo $x"
    with sandport.start(
        "run", "-q", "--stdin", "-", "--", "sh", "-c", script, stdin=subprocess.PIPE, preexec_fn=ignore
    ) as process:
        assert process.stdout.readline() == b"ready\n"
        process.send_signal(number)
        process.stdin.write(b"alive\n")
        process.stdin.close()
        assert process.stdout.read() == b"alive\n"
        assert process.wait() == 0


def test_a_reader_that_leaves_ends_what_was_started(sandport: Command) -> None:
    done = sandport.shell("sandport run -q -- sh -c 'yes & yes' | head -1")
    assert (done.out, done.err) == (b"y\n", "")
    assert sandport.sandboxes() == []


def test_a_killed_command_leaves_nothing_either(sandport: Command) -> None:
    """SIGKILL cannot be caught: the worker sees that nobody listens, and ends what it holds after its grace."""
    sandport.configure("[providers.local.limits]\norphan_grace_ms = 500\n")
    order = Order(
        argv=run("sh", "-c", "echo ready; sleep 60"), signals=(signal.SIGKILL,), on_output=True, patience_s=60
    )
    ended = account(sandport, order)
    assert ended.code == -signal.SIGKILL
    assert ended.survivors == ()


def test_probing_can_be_interrupted(sandport: Command) -> None:
    ready = sandport.cwd / "ready"
    os.mkfifo(ready)
    sandport.configure(f'[providers.silent]\ncommand = ["sh", "-c", "echo > {ready}; exec sleep 60"]\n')
    with sandport.start("providers", "--probe") as process:
        # The worker is up, and never says hello.
        ready.read_bytes()
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=60) == 130
        assert b"Traceback" not in process.stderr.read()
