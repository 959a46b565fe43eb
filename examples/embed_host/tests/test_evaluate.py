"""The example does what its README says."""

import asyncio
from pathlib import Path

import pytest

from examples.embed_host.evaluate import evaluate, table, tasks


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
