"""The example does what its README says."""

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from examples.embed_host import evaluate as example
from examples.embed_host.evaluate import evaluate, main, table, tasks


@pytest.mark.slow
def test_each_task_is_judged_and_none_hurts_another(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SANDPORT_HOME", str(tmp_path / "home"))
    work = tasks()
    verdicts = {v.task: v for v in asyncio.run(evaluate("local", work, at_once=20))}
    assert list(verdicts) == [task.name for task in work]
    assert all(v.passed for name, v in verdicts.items() if name.startswith("square"))
    assert {name: v.why for name, v in verdicts.items() if not name.startswith("square")} == {
        "wrong": "said '41'",
        "hangs": "timed out after 3 s",
        "floods": "too much output",
        "dies": "signalled, signal 11",
        "fails": "exit code 3",
        "leaves a daemon": "right",
    }
    assert verdicts["floods"].output_bytes == 50_000_000
    assert list((tmp_path / "home" / "workers" / "local").glob("sp*")) == []
    assert "17 of 22 passed" in table(list(verdicts.values()))


def test_a_name_that_nobody_has_is_told_once_with_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("SANDPORT_HOME", str(tmp_path / "home"))
    assert main(["--environment", "lcoal"]) == 2
    what, to_do = capsys.readouterr().err.splitlines()
    assert "there is no environment or provider 'lcoal'; did you mean 'local'?" in what
    assert "pip install" in to_do
    assert "sandport.toml" in to_do


def test_a_home_that_cannot_be_used_is_told_in_two_lines(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("SANDPORT_HOME", str(tmp_path / "file" / "home"))
    assert main([]) == 2
    assert "SANDPORT_HOME" in capsys.readouterr().err.splitlines()[1]


def test_without_isolation_nothing_is_judged_unless_that_is_meant(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setenv("SANDPORT_HOME", str(tmp_path / "home"))
    barred = tmp_path / "bin" / "bwrap"
    barred.parent.mkdir()
    barred.write_text("#!/bin/sh\ncase $1 in --version) echo bubblewrap 0.8.0; exit;; esac\nexit 1\n")
    barred.chmod(0o755)
    monkeypatch.setenv("PATH", f"{barred.parent}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setattr(example, "tasks", lambda: tasks()[:1])
    assert main([]) == 2
    out, err = capsys.readouterr()
    assert (out, caplog.text) == ("", "")
    assert "isolat" in err
    assert main(["--isolation", "prefer"]) == 0
    assert "1 of 1 passed" in capsys.readouterr().out
    assert caplog.text.count("nothing isolates this sandbox") == 1
    caplog.clear()
    assert main(["--isolation", "none"]) == 0
    assert caplog.text == ""


@pytest.mark.slow
def test_a_ctrl_c_in_the_middle_leaves_nothing(tmp_path: Path) -> None:
    environ = {**os.environ, "SANDPORT_HOME": str(tmp_path / "home")}
    command = [sys.executable, example.__file__, "--isolation", "prefer"]
    with subprocess.Popen(
        command, env=environ, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    ) as process:
        assert process.stderr is not None
        first = process.stderr.readline()  # others run, one of them for three seconds
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
    assert (process.returncode, out) == (130, ""), first + err
    assert err.splitlines()[-1] == "interrupted; the sandboxes have ended"
    assert list((tmp_path / "home" / "workers" / "local").glob("sp*")) == []
    with pytest.raises(ProcessLookupError):
        os.killpg(process.pid, 0)
