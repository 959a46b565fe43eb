"""`sandport run`, from the words to the exit code, in real sandboxes of this machine."""

import os
import signal
import subprocess
import threading
from pathlib import Path

import pytest

from tests.integration.command import Command


@pytest.mark.parametrize("code", [0, 1, 125, 127, 255])
def test_a_programs_exit_code_becomes_ours(sandport: Command, code: int) -> None:
    assert sandport("run", "--", "sh", "-c", f"exit {code}").code == code


def test_output_is_handed_on_byte_for_byte_each_stream_to_its_own(sandport: Command) -> None:
    data = bytes(range(256)) * 20
    (sandport.cwd / "data").write_bytes(data)
    done = sandport(
        "run", "-q", "--in", "data", "--", "sh", "-c", "cat data; printf 'err\\377' >&2", stderr=subprocess.STDOUT
    )
    assert sorted(done.out) == sorted(data + b"err\xff")
    with sandport.start("run", "-q", "--in", "data", "--", "sh", "-c", "cat data; printf 'err\\377' >&2") as process:
        assert process.communicate() == (data, b"err\xff")


def test_streams_that_share_a_pipe_keep_their_order(sandport: Command) -> None:
    script = "for i in 1 2 3 4 5; do echo out $i; sleep 0.01; echo err $i >&2; sleep 0.01; done"
    done = sandport("run", "-q", "--", "sh", "-c", script, stderr=subprocess.STDOUT)
    assert done.out.decode().split("\n")[:-1] == [f"{name} {i}" for i in range(1, 6) for name in ("out", "err")]


def test_output_appears_while_the_program_runs(sandport: Command) -> None:
    """The program ends only after its first line was seen."""
    with sandport.start(
        "run", "-q", "--stdin", "-", "--", "sh", "-c", "echo ready; read x; echo got $x", stdin=subprocess.PIPE
    ) as process:
        assert process.stdout.readline() == b"ready\n"
        process.stdin.write(b"word\n")
        process.stdin.close()
        assert process.stdout.read() == b"got word\n"
        assert process.wait() == 0


def test_words_behind_a_plain_program_are_the_programs(sandport: Command) -> None:
    done = sandport("run", "-p", "local", "-q", "printf", "%s|", "-l", "--json", "--", "-q")
    assert (done.code, done.out) == (0, b"-l|--json|--|-q|")


def test_arguments_and_variables_may_be_any_bytes(sandport: Command) -> None:
    done = sandport(
        "run", "-q", "--env", b"V=\xff\xfe", "--", "sh", "-c", 'printf "%s %s" "$V" "$1"', "sh", b"\xf0\x28"
    )
    assert done.out == b"\xff\xfe \xf0\x28"


def test_variables_reach_the_program_and_ours_do_not(sandport: Command) -> None:
    done = sandport("run", "-q", "--env", "A=1=2", "--env", "EMPTY=", "--", "env", env={"SECRET_OF_OURS": "x"})
    lines = done.out.decode().splitlines()
    assert {"A=1=2", "EMPTY="} <= set(lines)
    assert not any(line.startswith(("SECRET_OF_OURS", "SANDPORT_HOME")) for line in lines)


def test_an_environments_config_and_variables_are_used(sandport: Command) -> None:
    sandport.configure(
        '[environments.ci]\nprovider = "local"\nconfig = { isolation = "none" }\nenv = { A = "1", B = "2" }\n'
    )
    done = sandport("run", "-e", "ci", "-q", "--env", "B=3", "--", "sh", "-c", "echo $A $B")
    assert (done.code, done.out) == (0, b"1 3\n")


def test_an_environment_does_not_hide_the_provider_that_is_named(sandport: Command) -> None:
    sandport.configure('[environments.local]\nprovider = "gone"\n')
    assert sandport("run", "-p", "local", "--", "true").code == 0
    assert sandport("run", "--", "true").code == 0
    assert sandport("run", "-e", "local", "--", "true").code == 2


def test_the_command_runs_where_cwd_says(sandport: Command) -> None:
    done = sandport("run", "-q", "--", "sh", "-c", "mkdir sub; cd sub; pwd")
    assert done.out.endswith(b"/sub\n")
    missing = sandport("run", "--cwd", "gone", "--", "true")
    assert missing.code == 125
    assert "gone" in missing.err


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSEGV])
def test_a_program_that_a_signal_ends_gives_128_and_its_number(sandport: Command, number: int) -> None:
    done = sandport("run", "--json", "--", "sh", "-c", f"kill -{int(number)} $$")
    found = done.object
    assert done.code == found["code"] == 128 + number
    assert (found["codeFrom"], found["ended"], found["signal"], found["exitCode"]) == (
        "program",
        "signalled",
        number,
        None,
    )


def test_a_program_that_takes_too_long_is_killed_and_gives_124(sandport: Command) -> None:
    done = sandport("run", "--timeout", "1.5", "--", "sh", "-c", "echo begun; sleep 60 & sleep 60")
    assert (done.code, done.out) == (124, b"begun\n")
    assert "it ran longer than --timeout 1.5" in done.err


def test_a_time_out_is_our_code_and_not_the_programs(sandport: Command) -> None:
    done = sandport("run", "--json", "--timeout", "0.3", "--", "sleep", "60")
    found = done.object
    assert (done.code, found["code"], found["codeFrom"], found["ended"]) == (124, 124, "sandport", "timedOut")


@pytest.mark.parametrize(
    ("program", "code", "condition"), [("./gone", 127, "CommandNotFound"), ("./plain", 126, "CommandNotExecutable")]
)
def test_a_program_that_is_not_there_or_cannot_run_is_told_as_a_shell_does(
    sandport: Command, program: str, code: int, condition: str
) -> None:
    (sandport.cwd / "plain").write_text("no program")
    done = sandport("run", "--json", "--in", "plain", "--", program)
    assert (done.code, done.object["codeFrom"], done.object["error"]["condition"]) == (code, "sandport", condition)
    assert program in done.err


@pytest.mark.parametrize(
    ("override", "complaint"),
    [
        ("netwrok=true", "-c netwrok: unknown key; did you mean 'network'?"),
        ("isolation=7", "config.isolation"),
        ("pids=0", "config.pids"),
    ],
)
def test_a_wrong_config_is_named_and_nothing_was_created(sandport: Command, override: str, complaint: str) -> None:
    done = sandport("run", "--json", "-c", override, "--", "touch", "ran")
    assert (done.code, done.object["error"]["dispatched"]) == (2, "no")
    assert complaint in done.err
    assert sandport.sandboxes() == []


def test_a_worker_that_does_not_start_is_ours(sandport: Command) -> None:
    sandport.configure('[providers.local]\ncommand = ["sh", "-c", "echo no licence >&2; exit 3"]\n')
    done = sandport("run", "--", "true")
    assert done.code == 125
    assert "exited with code 3" in done.err
    assert "no licence" in done.err
    assert "Traceback" not in done.err


# ------------------------------------------------------------------ input


def test_input_is_empty_unless_it_is_asked_for(sandport: Command) -> None:
    assert sandport("run", "-q", "--", "cat", stdin=b"not for it").out == b""


@pytest.mark.parametrize("size", [0, 3_000_000])
@pytest.mark.parametrize("source", ["file", "redirected", "pipe"])
def test_input_of_any_size_arrives_whole(sandport: Command, size: int, source: str) -> None:
    data = os.urandom(size)
    path = sandport.cwd / "input"
    path.write_bytes(data)
    run = "sandport run -q --stdin"
    lines = {"file": f"{run} input -- cat", "redirected": f"{run} - -- cat <input", "pipe": f"cat input | {run} - cat"}
    done = sandport.shell(lines[source])
    assert done.code == 0
    assert done.out == data


@pytest.mark.parametrize("given", ["0>/dev/null", "0>written"])
def test_an_input_that_cannot_be_read_ends_the_command_and_is_named(sandport: Command, given: str) -> None:
    """The program waited for ever for an input that nobody read any more."""
    done = sandport.shell(f"sandport run -q --stdin - -- cat {given}")
    assert done.code != 0
    assert "--stdin" in done.err


def test_a_program_that_leaves_its_input_unread_ends_when_it_wants(sandport: Command) -> None:
    with sandport.start("run", "-q", "--stdin", "-", "--", "head", "-c", "3", stdin=subprocess.PIPE) as process:
        process.stdin.write(b"abcdef")
        process.stdin.flush()
        # Its input stays open: only the program's own end can end the command.
        assert process.wait(timeout=60) == 0
        assert process.stdout.read() == b"abc"


# ------------------------------------------------------------------ files


def test_a_folders_contents_go_to_the_working_directory_and_a_file_beside_them(sandport: Command) -> None:
    (sandport.cwd / "tree" / "deep").mkdir(parents=True)
    (sandport.cwd / "tree" / "deep" / "x").write_text("x")
    (sandport.cwd / "a:b").write_text("colon")
    done = sandport(
        "run", "-q", "--in", "tree", "--in", "a\\:b", "--in", "a\\:b:sub/c", "--", "sh", "-c", "cat deep/x a:b sub/c"
    )
    assert (done.code, done.out) == (0, b"xcoloncolon")


def test_what_is_made_comes_back_also_after_a_failure(sandport: Command) -> None:
    script = "mkdir report; echo 1 > report/a; echo 2 > b; exit 7"
    done = sandport("run", "--json", "--out", "report", "--out", "b:renamed", "--", "sh", "-c", script)
    assert done.code == 7
    assert (sandport.cwd / "report" / "a").read_text() == "1\n"
    assert (sandport.cwd / "renamed").read_text() == "2\n"
    assert [(m["direction"], m["remote"], m["local"], m["files"]) for m in done.object["moved"]] == [
        ("out", "report", "report", 1),
        ("out", "b", "renamed", 1),
    ]


def test_an_out_keeps_what_is_here_already(sandport: Command) -> None:
    (sandport.cwd / "report").mkdir()
    (sandport.cwd / "report" / "mine").write_text("kept")
    assert sandport("run", "--out", "report", "--", "sh", "-c", "mkdir report; echo 1 > report/a").code == 0
    assert {path.name for path in (sandport.cwd / "report").iterdir()} == {"mine", "a"}


def test_something_missing_after_a_success_is_a_failure_of_ours(sandport: Command) -> None:
    done = sandport("run", "--json", "--out", "gone", "--out", "there", "--", "touch", "there")
    found = done.object
    assert (done.code, found["code"], found["codeFrom"], found["exitCode"]) == (125, 125, "sandport", 0)
    assert found["error"]["message"]
    assert "--out gone: " in done.err
    assert (sandport.cwd / "there").exists()


def test_something_missing_after_a_failure_leaves_the_programs_code(sandport: Command) -> None:
    done = sandport("run", "--json", "--out", "gone", "--", "sh", "-c", "exit 9")
    assert (done.code, done.object["codeFrom"]) == (9, "program")
    assert "--out gone: " in done.err


def test_the_end_of_a_worker_is_told_once(sandport: Command) -> None:
    """Without isolation a command can reach it."""
    script = "set -- $(cat /proc/$PPID/stat); grep -q sandport_provider_local /proc/$4/cmdline && kill -9 $4; sleep 20"
    done = sandport("run", "-c", "isolation=none", "--", "sh", "-c", script)
    assert done.code == 125
    assert done.err.count("was killed by SIGKILL") == 1


def test_what_was_refused_on_its_way_out_is_no_success(sandport: Command) -> None:
    script = "mkdir d; ln -s /etc/passwd d/p; mkfifo d/pipe; echo 1 >d/1; exit $0"
    done = sandport("run", "-q", "--json", "--out", "d:dd", "--", "sh", "-c", script, "0")
    found = done.object
    assert (done.code, found["code"], found["codeFrom"], found["exitCode"]) == (125, 125, "sandport", 0)
    assert found["warnings"] == ["--out d:dd: not all of it came out: 1 refused"]
    assert "--out d:dd: refused: p: it leads to an absolute path" in done.err
    assert (sandport.cwd / "dd" / "1").read_text() == "1\n"
    assert sandport("run", "--out", "d:dd", "--", "sh", "-c", script, "9").code == 9
    assert sandport("run", "--out", "d/pipe", "--out", "d/1", "--", "sh", "-c", script, "0").code == 125  # no file


def test_what_is_skipped_on_its_way_out_is_listed(sandport: Command) -> None:
    done = sandport("run", "--out", "d", "--", "sh", "-c", "mkdir d; mkfifo d/pipe; echo 1 >d/1")
    assert done.code == 0
    assert "--out d: skipped: pipe: " in done.err


def test_many_files_bring_a_hint(sandport: Command) -> None:
    tree = sandport.cwd / "tree"
    tree.mkdir()
    for number in range(5001):
        (tree / str(number)).touch()
    done = sandport("run", "--in", "tree", "--", "true")
    assert done.code == 0
    assert "--in tree: 5,001 files; --exclude PATTERN and --gitignore leave out" in done.err


# ------------------------------------------------------------------ what is told


def test_json_is_the_only_thing_on_stdout_and_counts_everything(sandport: Command) -> None:
    (sandport.cwd / "in").write_text("1234")
    done = sandport("run", "--json", "--in", "in", "--", "sh", "-c", "printf 12345; printf 123 >&2; exit 4")
    found = done.object
    assert done.code == 4
    assert found["code"] == found["exitCode"] == 4
    assert (found["codeFrom"], found["ended"], found["signal"], found["coreDumped"]) == (
        "program",
        "exited",
        None,
        False,
    )
    assert (found["stdout"], found["stderr"]) == (
        {"bytes": 5, "dropped": 0, "end": "seen"},
        {"bytes": 3, "dropped": 0, "end": "seen"},
    )
    assert found["error"] is None
    assert found["ids"]["provider"] == "local"
    assert found["ids"]["sandbox"].startswith("sp")
    assert found["ids"]["store"] == (sandport.home / "store-id").read_text().strip()
    assert set(found["timingsMs"]) == {"start", "acquire", "syncIn", "command", "release", "stop"}
    assert found["totalMs"] >= sum(found["timingsMs"].values()) - len(found["timingsMs"])
    assert (found["moved"][0]["files"], found["moved"][0]["bytes"]) == (1, 4)
    assert "12345" in done.err
    assert "123" in done.err


def test_quiet_says_nothing_but_errors(sandport: Command) -> None:
    meant = ("-c", "isolation=none")
    assert sandport("run", "-q", *meant, "--timeout", "0.2", "--", "sleep", "60").err == ""
    assert sandport("run", "-q", *meant, "--", "./gone").err != ""


def test_that_nothing_isolates_is_said_before_anything_runs_whatever_is_asked_for(sandport: Command) -> None:
    barred = sandport.folder / "bin" / "bwrap"
    barred.parent.mkdir()
    barred.write_text("#!/bin/sh\ncase $1 in --version) echo bubblewrap 0.8.0; exit;; esac\nexit 1\n")
    barred.chmod(0o755)
    env = {"PATH": f"{barred.parent}{os.pathsep}{sandport.env['PATH']}"}
    note = "sandport: note: nothing isolates this sandbox: its commands run with all rights of "
    rights = "root" if os.geteuid() == 0 else "this user"
    kept = sandport("run", "-q", "--keep", "--name", "bare", "--", "sh", "-c", "echo ran >&2", env=env)
    told = kept.lines[0]
    assert told.startswith(f"{note}{rights} on this machine")
    assert "-c isolation=none" in told
    assert kept.lines[1] == "ran"
    again = sandport("exec", "-q", "bare", "--", "sh", "-c", "echo ran >&2", env=env)
    assert again.lines[0].startswith(note)
    assert again.lines[1:] == ["ran"]
    assert sandport("leases", "end", "bare", env=env).code == 0
    assert sandport("run", "-c", "isolation=none", "--", "true", env=env).err == ""
    for log_format in ("plain", "json"):
        loud = sandport("run", "--log-format", log_format, "--", "true", env=env).lines
        assert len([line for line in loud if "nothing isolates" in line]) == 1


def test_verbose_says_what_is_done(sandport: Command) -> None:
    err = sandport("run", "-v", "--", "true").err
    for part in ("worker 0.1.0 started", "created (", "true exited with 0", "released ("):
        assert part in err


def test_a_stream_that_is_held_open_is_named_after_the_output(sandport: Command) -> None:
    done = sandport("run", "--", "sh", "-c", "sleep 30 & echo done")
    assert (done.code, done.out) == (0, b"done\n")
    assert "something that the command left behind held its stdout open" in done.err
    assert sandport.sandboxes() == []


def test_nothing_is_left_after_a_run(sandport: Command) -> None:
    assert sandport("run", "--", "sh", "-c", "touch x; (sleep 60 &)").code == 0
    assert sandport.sandboxes() == []


def test_log_records_can_be_json(sandport: Command) -> None:
    done = sandport("run", "--log-format", "json", "--log-level", "debug", "-q", "--", "true")
    assert done.code == 0
    assert all(line.startswith("{") for line in done.lines)


# ------------------------------------------------------------------ output that nobody takes


def test_a_reader_that_has_enough_ends_the_command_with_141(sandport: Command) -> None:
    with sandport.start("run", "-q", "--", "yes") as process:
        assert process.stdout.readline() == b"y\n"
        process.stdout.close()
        assert process.stderr.read() == b""
        assert process.wait(timeout=60) == 141
    assert sandport.sandboxes() == []


def test_a_disk_that_is_full_is_a_failure_of_ours(sandport: Command) -> None:
    with Path("/dev/full").open("wb") as full:
        done = sandport("run", "--", "echo", "x", stdout=full)
    assert done.code == 125
    assert "stdout cannot be written: No space left on device" in done.err


def test_a_closed_stdout_is_an_error_and_never_somebody_elses_pipe(sandport: Command) -> None:
    done = sandport.shell("sandport run -q -- echo x >&-")
    assert done.code == 125
    assert "stdout cannot be written: Bad file descriptor" in done.err


def test_everything_may_be_closed(sandport: Command) -> None:
    assert sandport.shell("sandport run -q -- sh -c 'exit 5' <&- >&- 2>&-").code == 5


def test_a_slow_reader_slows_the_program_and_loses_nothing(sandport: Command) -> None:
    size = 8_000_000
    with sandport.start("run", "-q", "--", "sh", "-c", f"yes | head -c {size}; echo end >&2") as process:
        received = []

        def read_on() -> None:
            while data := process.stdout.read1(65536):
                received.append(data)

        # Nobody reads yet: what is under way is bounded by credit and pipes, so the program cannot be at its end.
        first = process.stdout.read(10)
        assert process.poll() is None
        reader = threading.Thread(target=read_on)
        reader.start()
        assert process.stderr.read() == b"end\n"
        reader.join()
        assert process.wait() == 0
    assert first + b"".join(received) == (b"y\n" * (size // 2))
