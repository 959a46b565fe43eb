"""`sandport exec`: the same output, codes and signals as `run`, in a sandbox that stays as it was."""

import signal
import subprocess
from collections.abc import Iterator

import pytest

from tests.integration.command import Command


@pytest.fixture(autouse=True)
def box(sandport: Command) -> Iterator[None]:
    """A kept sandbox of that name, ended afterwards; nothing else may be there then."""
    done = sandport("run", "-q", "--keep", "--name", "box", "--", "sh", "-c", "echo kept > file")
    assert done.code == 0, done
    yield
    assert len(sandport.leased()) == 1
    assert sandport("leases", "end", "box").code == 0
    sandport.nothing_is_left()


def test_exit_codes_and_streams_are_the_program_s(sandport: Command) -> None:
    done = sandport("exec", "-q", "box", "--", "sh", "-c", "cat file; printf 'err\\377' >&2; exit 7", stderr=-2)
    assert (done.code, sorted(done.out)) == (7, sorted(b"kept\nerr\xff"))
    done = sandport("exec", "box", "--json", "--", "sh", "-c", "kill -9 $$")
    found = done.object
    assert (done.code, found["signal"], found["codeFrom"]) == (137, 9, "program")
    assert (found["kept"], found["name"], found["ids"]["provider"]) == (True, "box", "local")
    assert {"attach", "command", "stop"} == set(found["timingsMs"])
    assert sandport("exec", "box", "--timeout", "0.2", "--", "sleep", "60").code == 124
    assert sandport("exec", "box", "./gone").code == 127


def test_options_stand_on_both_sides_of_the_lease(sandport: Command) -> None:
    """Behind the first word of the command they are its own."""
    script = 'echo "$PWD" "$A" "$*"'
    (sandport.cwd / "in").write_text("in")
    assert sandport("exec", "-q", "box", "--in", "in:sub/in", "--", "true").code == 0
    for words in (
        ["exec", "-q", "--cwd", "sub", "--env", "A=1", "box", "sh", "-c", script, "sh", "--cwd", "-q"],
        ["exec", "box", "--cwd=sub", "-q", "--env", "A=1", "--", "sh", "-c", script, "sh", "--cwd", "-q"],
        ["exec", "--cwd", "sub", "box", "-q", "--env", "A=1", "--", "sh", "-c", script, "sh", "--cwd", "-q"],
    ):
        assert sandport(*words).out.endswith(b"/sub 1 --cwd -q\n"), words


def test_files_go_in_and_come_out(sandport: Command) -> None:
    (sandport.cwd / "words").write_text("one two\n")
    done = sandport("exec", "box", "--json", "--in", "words", "--out", "count", "--", "sh", "-c", "wc -w words > count")
    assert done.code == 0
    assert (sandport.cwd / "count").read_text().split()[0] == "2"
    assert [moved["direction"] for moved in done.object["moved"]] == ["in", "out"]


def test_a_copy_that_cannot_be_made_is_named_and_nothing_runs(sandport: Command) -> None:
    assert sandport("exec", "box", "--", "touch", "busy").code == 0
    (sandport.cwd / "tree").mkdir()
    for option, value in (("--in", "tree:busy"), ("--in", "tree:/elsewhere"), ("--out", "/elsewhere/x")):
        done = sandport("exec", "box", option, value, "--", "touch", "ran")
        assert done.code == 125
        assert f"sandport: {option} {value}: " in done.err
    assert sandport("exec", "box", "--", "test", "-e", "ran").code == 1


@pytest.mark.parametrize("size", [5, 3_000_000])
def test_input_arrives_whole(sandport: Command, size: int) -> None:
    data = bytes(range(256)) * (size // 256 + 1)
    done = sandport("exec", "-q", "box", "--stdin", "-", "--", "cat", stdin=data)
    assert (done.code, done.out) == (0, data)


def test_two_at_once_in_one_sandbox_do_not_disturb_each_other(sandport: Command) -> None:
    """Each waits for what the other one writes."""
    with (
        sandport.start("exec", "-q", "box", "--stdin", "-", "--", "cat", stdin=subprocess.PIPE) as one,
        sandport.start(
            "exec", "-q", "box", "--", "sh", "-c", "echo ready; until test -e go; do sleep 0.02; done"
        ) as two,
    ):
        assert two.stdout.readline() == b"ready\n"
        one.stdin.write(b"one\n")
        one.stdin.flush()
        assert one.stdout.readline() == b"one\n"
        assert len(sandport.leases()[0]["inUseBy"]) == 2
        assert sandport("exec", "-q", "box", "--", "touch", "go").code == 0
        assert two.wait(timeout=60) == 0
        one.stdin.close()
        assert one.wait(timeout=60) == 0
    assert sandport.leases()[0]["inUseBy"] == []


@pytest.mark.parametrize("times", [1, 2], ids=["once", "twice"])
def test_a_signal_ends_the_command_and_leaves_the_sandbox(sandport: Command, times: int) -> None:
    script = "trap '' INT TERM; echo ready; sleep 600; sleep 600"
    with sandport.start("exec", "box", "--", "sh", "-c", script) as process:
        assert process.stdout.readline() == b"ready\n"
        for number in (signal.SIGINT, signal.SIGTERM)[:times]:
            process.send_signal(number)
        err = process.stderr.read().decode()
        # Of two at once either may be seen first: each of the process's threads can take one.
        assert process.wait(timeout=60) in (130, 143)[:times]
    assert err == (
        "sandport: interrupted; the lease is as it was\n"
        if times == 1
        else "sandport: left at once; what is not ended yet is ended by the next command, or by: sandport reap\n"
    )
    done = sandport("exec", "-q", "box", "--", "cat", "file")
    assert done.out == b"kept\n"


def test_a_lease_that_has_ended_is_told_and_nothing_runs(sandport: Command) -> None:
    """docker/sbx-releases#504: no such sandbox could not be told from a program that exits with 1."""
    assert sandport("run", "-q", "--keep", "--name", "other", "--", "true").code == 0
    assert sandport("leases", "end", "other").code == 0
    done = sandport("exec", "other", "--json", "--", "touch", "ran")
    assert (done.code, done.object["codeFrom"], done.object["ended"]) == (125, "sandport", None)
    assert (done.object["error"]["condition"], done.object["error"]["dispatched"]) == ("LeaseLost", "no")
    (line,) = done.lines
    assert "it has ended (ended by request)" in line


def test_a_lease_that_nobody_knows_is_told_with_the_command_that_lists_them(sandport: Command) -> None:
    done = sandport("exec", "nope", "--", "true")
    assert (done.code, done.lines[0]) == (2, "sandport: there is no lease 'nope'")
    assert "'sandport leases' lists" in done.lines[1]
