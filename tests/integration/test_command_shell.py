"""`sandport shell`: a real terminal in a sandbox, and the user's own as it was, whatever happens."""

import contextlib
import os
import signal
from collections.abc import Iterator
from datetime import datetime, timedelta
from pathlib import Path

import pytest

from tests.integration.command import Command
from tests.integration.stage import children
from tests.integration.typist import Typist

PROMPT = r"ready\$ "


@pytest.fixture(autouse=True)
def nothing_is_left(sandport: Command) -> Iterator[None]:
    """Whatever a test keeps is ended by it, or after it."""
    yield
    if kept := sandport.leased():
        assert sandport("leases", "end", *kept).code == 0
    sandport.nothing_is_left()


@contextlib.contextmanager
def shell(sandport: Command, *words: str, size: tuple[int, int] = (80, 24)) -> Iterator[Typist]:
    """A shell whose prompt is known, and was shown."""
    bash = ("--env", "PS1=ready$ ", "--program", "bash --norc -i")
    with Typist(sandport, "shell", *words, *bash, size=size) as typist:
        typist.until(PROMPT)
        yield typist


def test_a_shell_has_a_terminal_with_its_size_its_signals_and_its_jobs(sandport: Command) -> None:
    """`stty size` is right from the start and after a resize; Ctrl-C and Ctrl-Z go to the program inside."""
    with shell(sandport, size=(101, 37)) as typist:
        assert typist.modes()[3] != typist.before[3]
        typist.press("stty size; tty; echo $TERM\r")
        typist.until(r"37 101\r\n/dev/pts/\d+\r\nxterm\r\n")
        typist.resize(90, 30)
        # The size arrives some time after it was changed here; the program is told by a signal.
        typist.press("until test \"$(stty size)\" = '30 90'; do sleep 0.02; done; echo ch''anged\r")
        typist.until(r"changed\r\n")
        typist.until(PROMPT)
        # Each says itself that it runs: what is typed before that would be the shell's.
        typist.press('sh -c \'echo run""ning; exec sleep 600\'; echo "not" reached\r')
        typist.until(r"running\r\n")
        typist.press("\x03")
        typist.until(r"\^C")
        typist.until(PROMPT)
        typist.press("sh -c 'echo run\"\"ning; exec cat'\r")
        typist.until(r"running\r\n")
        typist.press("echoed\r")
        typist.until(r"echoed\r\nechoed\r\n")
        typist.press("\x1a")
        typist.until(r"Stopped\s+sh -c")
        typist.until(PROMPT)
        typist.press("fg\r")
        typist.until(r"exec cat'\r\n")
        typist.press("again\r")
        typist.until(r"again\r\nagain\r\n")
        typist.press("\x04")
        typist.until(PROMPT)
        typist.press("exit 7\r")
        assert typist.ended() == 7
        assert typist.modes() == typist.before
        assert "sandport" not in typist.shown


def test_a_shell_is_in_a_sandbox_that_is_there_or_is_kept(sandport: Command) -> None:
    (sandport.cwd / "in").mkdir()
    (sandport.cwd / "in" / "file").write_text("content\n")
    with shell(sandport, "--keep", "--name", "box", "--in", "in", "--out", "made") as typist:
        typist.press("cat file; echo 1 > made; kill -9 $$\r")
        typist.until("content")
        assert typist.ended() == 137
        assert "kept as le" in typist.shown
    assert (sandport.cwd / "made").read_text() == "1\n"
    with shell(sandport, "box", "--cwd", ".") as typist:
        assert [len(lease["inUseBy"]) for lease in sandport.leases()] == [1]
        typist.press("cat made; exit\r")
        typist.until(r"1\r\nexit")
        assert typist.ended() == 0
    assert [lease["state"] for lease in sandport.leases()] == ["kept"]


def test_without_a_program_it_is_a_shell_and_an_environment_s_variables_are_there(sandport: Command) -> None:
    sandport.configure('[environments.ci]\nprovider = "local"\nenv = { A = "1", PS1 = "other " }\n')
    with Typist(sandport, "shell", "-v", "-e", "ci") as typist:
        typist.until("sandbox sp")
        typist.press("echo $A=$((6 * 7)); exit 3\r")
        typist.until("1=42")
        assert typist.ended() == 3
        assert "exited with 3" in typist.shown


def test_a_worker_that_is_killed_leaves_the_terminal_as_it_was(sandport: Command) -> None:
    with shell(sandport) as typist:
        (worker,) = [pid for pid in children(typist.process.pid) if b"local" in _words(pid)]
        os.kill(worker, signal.SIGKILL)
        assert typist.ended() == 125
        assert typist.modes() == typist.before
        assert "\x1b[?1047l" in typist.shown, "the other screen is left"
        (line,) = [line for line in typist.shown.split("\r\n") if line.startswith("sandport: ")][:1]
        assert "Traceback" not in typist.shown
        assert "local" in line
    assert sandport("reap").code == 0


def _words(pid: int) -> bytes:
    return Path(f"/proc/{pid}/cmdline").read_bytes()


@pytest.mark.parametrize("way", ["signal", "escape"])
def test_whoever_ends_it_gets_the_terminal_back_and_a_sandbox_that_is_gone(sandport: Command, way: str) -> None:
    """A kept lease too: whoever leaves it so wants an end."""
    with shell(sandport, "--keep") as typist:
        typist.press("trap '' INT TERM HUP; sleep 600\r")
        typist.until(r"600\r\n")
        if way == "signal":
            typist.process.send_signal(signal.SIGTERM)
        else:
            typist.press("\r~.")
        assert typist.ended() == (143 if way == "signal" else 130)
        assert typist.modes() == typist.before
        assert "sandport: interrupted; what was started has been cleaned up" in typist.shown


def test_a_terminal_that_goes_away_ends_it(sandport: Command) -> None:
    with shell(sandport) as typist:
        typist.leave()
        # SIGHUP, or nobody who reads: whichever is noticed first.
        assert typist.process.wait(timeout=60) in {129, 141}


def test_a_second_signal_still_gives_the_terminal_back(sandport: Command) -> None:
    with shell(sandport) as typist:
        typist.process.send_signal(signal.SIGSTOP)
        for number in (signal.SIGTERM, signal.SIGINT):
            typist.process.send_signal(number)
        typist.process.send_signal(signal.SIGCONT)
        assert typist.ended() in {130, 143}
        assert typist.modes() == typist.before
        assert "sandport: left at once" in typist.shown
    assert sandport("reap").code == 0


# ------------------------------------------------------------------ run -t, exec -t


def test_a_command_is_run_on_this_terminal(sandport: Command) -> None:
    """Both of `run` and `exec`: the size as it changes, keys as they are, the program's code."""
    words = ("--keep", "--name", "box", "-c", "isolation=none", "--env", "A=1")
    with Typist(sandport, "run", "-t", *words, "--", "sh", size=(101, 37)) as typist:
        typist.until(r"[$#] ")
        assert typist.modes()[3] != typist.before[3]
        typist.press("stty size; echo $TERM $A; test -t 0 && test -t 2 && echo all' three'\r")
        typist.until(r"37 101\r\nxterm 1\r\nall three\r\n")
        typist.resize(90, 30)
        typist.press("until test \"$(stty size)\" = '30 90'; do sleep 0.02; done; echo ch''anged\r")
        typist.until(r"changed\r\n")
        typist.press("exit 7\r")
        assert typist.ended() == 7
        assert typist.modes() == typist.before
        assert "kept as le" in typist.shown
    (lease,) = sandport.leases()
    expires = datetime.fromisoformat(lease["expiresAt"]) - datetime.fromisoformat(lease["requestedAt"])
    assert timedelta(hours=7) < expires < timedelta(hours=9), "a person may be longer at it than a command"
    with Typist(sandport, "exec", "box", "-t", "sh", "-c", "echo re''ady; read -r line; kill -9 $$") as typist:
        typist.until(r"ready\r\n")
        typist.press("\r")
        assert typist.ended() == 137
        assert typist.modes() == typist.before


# ------------------------------------------------------------------ refused


@pytest.mark.parametrize("words", [["run"], ["exec", "box"]])
def test_a_command_gets_no_terminal_that_is_not_there(sandport: Command, words: list[str]) -> None:
    done = sandport(*words, "-t", "--", "true")
    told = f"sandport: {words[0]} -t: stdin is no terminal; without one: leave out -t"
    assert (done.code, done.lines) == (2, [told])
    for more in (["--json"], ["--stdin", "-"]):
        done = sandport(*words, "-t", *more, "--", "true")
        assert done.code == 2
        assert "the terminal's with -t; leave one of them out" in done.err
    assert not sandport.home.exists()


def test_without_a_terminal_nothing_is_started(sandport: Command) -> None:
    done = sandport("shell")
    assert (done.code, done.err) == (
        2,
        "sandport: shell: stdin is no terminal; without one: sandport run -- COMMAND\n",
    )
    master, slave = os.openpty()
    with sandport.start("shell", "box", stdin=slave) as process:
        assert b"shell: stdout is no terminal; without one: sandport exec box -- COMMAND" in process.stderr.read()
    os.close(master)
    os.close(slave)
    assert process.returncode == 2
    assert not sandport.home.exists()


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["box", "-p", "local"], "-p: is for a new sandbox, and box is one that is there"),
        ([""], "the lease's id or name is empty"),
        (["--program", "'"], "--program ': No closing quotation"),
        (["--gitignore"], "nothing is copied that it could leave something out of"),
        (["-p", "gone"], "no provider 'gone' is installed or configured"),
    ],
)
def test_what_does_not_go_together_is_refused(sandport: Command, words: list[str], complaint: str) -> None:
    with Typist(sandport, "shell", *words, size=(200, 24)) as typist:
        assert typist.ended() == 2
        assert complaint in typist.shown
        assert "Traceback" not in typist.shown


def test_a_provider_without_terminals_is_told_before_anything_is_made(sandport: Command) -> None:
    with Typist(sandport, "shell", "-p", "fake", size=(200, 24)) as typist:
        assert typist.ended() == 2
        told = "provider fake has no terminals (capabilities.pty); leave out -t, or use sandport run or exec"
        assert told in typist.shown
    assert sandport.leases("--all") == []
