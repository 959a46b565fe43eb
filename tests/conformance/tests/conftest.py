"""What the tests of the engine share."""

import os
import sys
from collections.abc import Callable, Iterator, Mapping

import pytest

from sandport_conformance.bench import Bench
from sandport_conformance.declaration import Check, Needs, Uses
from sandport_conformance.lab import Lab
from sandport_conformance.masking import Masker
from sandport_conformance.mutants import HEALTHY, command_of
from sandport_conformance.outcomes import Severity
from sandport_conformance.requirements import requirement
from sandport_conformance.session import Session
from sandport_conformance.settings import Settings, parse
from sandport_conformance.times import Times
from sandport_conformance.worker import WorkerProcess

TIMES = Times(factor=2.0)
HEALTHY_COMMAND = command_of(HEALTHY)


def settings(**sections: object) -> Settings:
    """An author's file with these sections, and this machine's PATH."""
    return parse(sections, os.environ)


def python(code: str) -> tuple[str, ...]:
    """A worker that is a few lines of Python."""
    return (sys.executable, "-S", "-E", "-c", "import os, sys, time\n" + code)


def a_check(
    run: Callable[[Lab], None],
    *,
    requirement_id: str = "FRAME-1",
    uses: Uses = Uses.SHARED,
    needs: Needs | None = None,
    severity: Severity = Severity.MUST,
    scored: bool = True,
) -> Check:
    """A check that is in no catalogue."""
    return Check(
        id=requirement_id,
        requirement=requirement(requirement_id),
        also=(),
        uses=uses,
        needs=needs or Needs(),
        run=run,
        title="A worker does what it should.",
        why="It matters.",
        broken="does something else",
        fix="Do what it should.",
        source="",
        severity=severity,
        scored=scored,
    )


Spawn = Callable[..., WorkerProcess]


@pytest.fixture
def spawn() -> Iterator[Spawn]:
    """Starts worker processes, and ends them after the test."""
    started: list[WorkerProcess] = []

    def start(
        command: tuple[str, ...],
        *,
        environ: Mapping[str, str] | None = None,
        secrets: tuple[str, ...] = (),
        full_stderr: bool = False,
    ) -> WorkerProcess:
        token = f"token-{len(started)}-{os.getpid()}"
        whole = {"PATH": os.environ["PATH"], "SANDPORT_WORKER_TOKEN": token, **(environ or {})}
        process = WorkerProcess(command, environ=whole, token=token, masker=Masker(secrets), full_stderr=full_stderr)
        started.append(process)
        return process

    yield start
    for process in started:
        process.end(eof_s=0.1, term_s=0.1)
        process.release(grace_s=0.0)


@pytest.fixture
def bench() -> Iterator[Bench]:
    """A bench with the healthy worker, started."""
    made = Bench(HEALTHY_COMMAND, settings=settings(), times=TIMES, seed=1)
    made.start()
    yield made
    made.finish()


@pytest.fixture
def session(bench: Bench) -> Session:
    """A healthy worker that serves."""
    return bench.shared()
