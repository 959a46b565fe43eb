"""What workers write on stderr, and what they see of the host's environment."""

import os
from pathlib import Path

import pytest

from sandport.worker.environment import TOKEN
from tests.integration.conftest import OpenHost
from tests.integration.stage import Journal, Records, children, worker

pytestmark = pytest.mark.anyio


async def test_after_a_line_of_ten_mebibytes_the_next_one_is_logged(open_host: OpenHost, records: Records) -> None:
    """L01, hashicorp/go-plugin PR #98: a long line ended the reading of the log."""
    async with open_host(scripted=worker("noisy")) as host, host.lease("scripted") as sandbox:
        assert (await sandbox.execute(["one long line"])).ok
        await records.until(lambda text: text == "after")
    assert sum(len(text) for text in records.texts("info") if text.startswith("x")) == 10 * 1024 * 1024


async def test_lines_of_every_form_are_passed_on_once(open_host: OpenHost, records: Records) -> None:
    """L03, cloudfoundry/guardian#121: lines that were not in the expected format vanished."""
    async with open_host(scripted=worker("noisy")) as host, host.lease("scripted") as sandbox:
        assert (await sandbox.execute(["every form"])).ok
        await records.until(lambda text: "binary" in text)
    lines = [(level, text) for level, text, fields in records.lines if fields.get("source") == "stderr"]
    assert lines == [
        ("info", "plain words"),
        ("warning", "from json"),
        ("error", "Traceback (most recent call last):"),
        ("error", '  File "x.py", line 1, in <module>'),
        ("error", "ValueError: broken"),
        ("info", "\\xff\\xfe binary"),
    ]


async def test_every_record_of_a_worker_says_whose_it_is(open_host: OpenHost, records: Records) -> None:
    async with open_host(scripted=worker("noisy")) as host, host.lease("scripted") as sandbox:
        assert (await sandbox.execute(["every form"])).ok
        pid = (await host._supervisor("scripted").worker()).process.pid
        _, _, fields = await records.until(lambda text: text == "plain words")
    assert fields == {"provider": "scripted", "pid": pid, "source": "stderr"}


def seen_by(pid: int) -> dict[str, str]:
    """The variables that a process was started with."""
    entries = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")[:-1]
    return dict(entry.decode().split("=", 1) for entry in entries)


async def test_a_secret_of_the_host_is_in_no_worker_and_in_no_command(open_host: OpenHost, journal: Journal) -> None:
    """L07, UsefulSoftwareCo/executor#1595, Temikus/denkeeper#219: workers got the host's master keys."""
    environ = {"PATH": os.environ["PATH"], "CANARY": "yellow", "GRANTED": "yes", "LC_ALL": "C.UTF-8"}
    async with (
        open_host(scripted=worker("well_behaved", journal=journal.path), environ=environ, env=("GRANTED",)) as host,
        host.lease("scripted") as sandbox,
    ):
        (pid,) = children()
        seen = seen_by(pid)
        assert set(seen) == {"PATH", "GRANTED", "LC_ALL", "PYTHONPATH", TOKEN}
        assert not any("yellow" in value for value in seen.values())
        outcome = await sandbox.execute(["env"])
        assert "yellow" not in outcome.stdout.decode()
        assert "GRANTED=yes" in outcome.stdout.decode()


async def test_the_last_lines_of_the_log_are_in_the_error_of_a_failed_start(open_host: OpenHost) -> None:
    """L09, bazelbuild/bazel#1082, #11948: the error did not say what the worker had said."""
    script = "for n in 1 2 3 4 5; do echo line $n >&2; done; exit 4"
    async with open_host(scripted=("sh", "-c", script)) as host:
        with pytest.raises(Exception, match="exited with code 4 before it was ready") as raised:
            await host.describe("scripted")
    assert "its log ends: line 3 | line 4 | line 5" in str(raised.value)
