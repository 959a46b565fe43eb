"""One worker for each test, with one sandbox."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from examples.stdlib_worker.tests.raw_host import Worker

PROGRAM = Path(__file__).resolve().parents[1] / "worker.py"


@pytest.fixture
def worker(tmp_path: Path) -> Iterator[Worker]:
    words = [sys.executable, str(PROGRAM)]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        try:
            worker = Worker(process, tmp_path)
            yield worker
            assert worker.answer(worker.ask("destroyLease", sandboxId=worker.sandbox_id)) == {"state": "destroyed"}
        finally:
            with contextlib.suppress(BrokenPipeError):
                process.stdin.close()  # type: ignore[union-attr]
