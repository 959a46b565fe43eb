"""An evaluation loop on the host's public API: a sandbox for each task, twenty at once, a table of what came of it.

    python examples/embed_host/evaluate.py
    python examples/embed_host/evaluate.py --environment staging --at-once 8 --json
    python examples/embed_host/evaluate.py --isolation prefer

A task is a program and the answer that it should print. Most of those here are well; one hangs, one floods its output,
one dies and one leaves a daemon behind. None of them can hurt the loop or each other: each is a row of the table, and
when the loop ends, after a Ctrl-C too, so has everything that it started.

What a model wrote is nothing to run with your own rights: where `local` cannot isolate a sandbox, nothing is judged,
unless --isolation says otherwise; then the host warns of each lease, on stderr.

Exit codes: 0 every task was judged, well or not; 1 some could not be; 2 none can be, and why; 130 interrupted.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from sandport import Host, SandportError
from sandport.errors import NotSupported, UsageError, WorkerStartFailed

TIMEOUT_S = 3.0
KEPT_BYTES = 4096
"""More of a task's output is counted, not kept."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """What is to be done, and how it is judged."""

    name: str
    program: str
    """POSIX shell; what a model wrote, for instance."""
    answer: str
    """What it must print."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """One row of the table."""

    task: str
    passed: bool
    why: str
    """How it ended, in words."""
    seconds: float
    output_bytes: int


def tasks() -> list[Task]:
    """Sixteen that are well, and those that are not."""
    well = [
        Task(name=f"square of {n}", program=f"expr {n} '*' {n} >answer; cat answer", answer=str(n * n))
        for n in range(1, 17)
    ]
    ill = [
        Task(name="wrong", program="echo 41", answer="42"),
        Task(name="hangs", program="echo thinking; sleep 3600", answer="42"),
        Task(name="floods", program="yes 42 | head -c 50000000", answer="42"),
        Task(name="dies", program="echo 42; kill -SEGV $$", answer="42"),
        Task(name="fails", program="echo 42; exit 3", answer="42"),
        Task(name="leaves a daemon", program="sleep 3600 >/dev/null 2>&1 & echo 42", answer="42"),
    ]
    return well + ill


async def judged(host: Host, environment: str, config: dict[str, Any], task: Task) -> Verdict:
    """Run one task in a sandbox of its own.

    Raises:
        UsageError, NotSupported, WorkerStartFailed: Nothing can be judged here: a wrong name, wrong settings, no
            isolation, a broken provider.
    """
    began = time.monotonic()

    def verdict(why: str, *, passed: bool = False, output_bytes: int = 0) -> Verdict:
        seconds = round(time.monotonic() - began, 2)
        return Verdict(task=task.name, passed=passed, why=why, seconds=seconds, output_bytes=output_bytes)

    try:
        async with host.lease(environment, config=config, run="evaluation", ttl_s=60 + 10 * TIMEOUT_S) as sandbox:
            await sandbox.write_bytes("program.sh", task.program.encode())
            outcome = await sandbox.execute(["sh", "program.sh"], timeout_s=TIMEOUT_S, output_limit_bytes=KEPT_BYTES)
    except (UsageError, NotSupported, WorkerStartFailed):
        raise  # no other task would fare better
    except SandportError as error:
        # Not the program's doing: no sandbox, a lost connection. The task may be tried again; this is no verdict.
        return verdict(f"not judged: {str(error).splitlines()[0]}")
    count = outcome.stdout.total_bytes
    if outcome.ended == "timedOut":
        return verdict(f"timed out after {TIMEOUT_S:g} s", output_bytes=count)
    if outcome.ended != "exited":
        return verdict(f"{outcome.ended}, signal {outcome.signal}", output_bytes=count)
    if outcome.exit_code != 0:
        return verdict(f"exit code {outcome.exit_code}", output_bytes=count)
    if outcome.stdout.dropped_bytes:
        return verdict("too much output", output_bytes=count)
    # An exit code of 0 is the program's own, and every byte of its output was received.
    said = outcome.stdout.decode().strip()
    return verdict(
        "right" if said == task.answer else f"said {said!r:.40}", passed=said == task.answer, output_bytes=count
    )


async def evaluate(
    environment: str, work: Sequence[Task], *, at_once: int, config: dict[str, Any] | None = None
) -> list[Verdict]:
    """Judge every task, so many at once; the verdicts come in the order of the tasks.

    Args:
        environment: Where sandboxes come from.
        work: The tasks.
        at_once: How many sandboxes there are at a time.
        config: The provider's, for each of them.

    Raises:
        ExceptionGroup: Of what `judged` raises; whatever ran beside it was cancelled, and has ended.
    """
    places = asyncio.Semaphore(at_once)
    done = 0

    async with Host.open() as host:

        async def one(task: Task) -> Verdict:
            nonlocal done
            async with places:
                found = await judged(host, environment, config or {}, task)
            done += 1
            print(f"{done}/{len(work)} {task.name}: {found.why}", file=sys.stderr)
            return found

        async with asyncio.TaskGroup() as group:
            judging = [group.create_task(one(task)) for task in work]
        return [task.result() for task in judging]


def table(verdicts: Sequence[Verdict]) -> str:
    """The verdicts for a person."""
    lines = [f"{'task':20} {'':6} {'seconds':>8} {'output':>10}  how it ended"]
    lines += [
        f"{v.task:20} {'pass' if v.passed else 'FAIL':6} {v.seconds:8.2f} {v.output_bytes:10}  {v.why}"
        for v in verdicts
    ]
    return "\n".join([*lines, f"{sum(v.passed for v in verdicts)} of {len(verdicts)} passed"])


def main(arguments: Sequence[str] | None = None) -> int:
    """The command; answers its exit code."""
    parser = argparse.ArgumentParser(description="Judge a list of tasks, each in a sandbox of its own.")
    parser.add_argument("--environment", default="local", help="a provider, or an environment of sandport.toml")
    parser.add_argument(
        "--isolation",
        choices=("require", "prefer", "none"),
        help="of provider local; require unless told otherwise",
    )
    parser.add_argument("--at-once", type=int, default=20, help="how many sandboxes at once (default: %(default)s)")
    parser.add_argument("--json", action="store_true", help="one JSON document instead of the table")
    chosen = parser.parse_args(arguments)
    if chosen.at_once < 1:
        parser.error("--at-once: give 1 or more")
    isolation = chosen.isolation or ("require" if chosen.environment == "local" else None)
    config = {} if isolation is None else {"isolation": isolation}
    try:
        verdicts = asyncio.run(evaluate(chosen.environment, tasks(), at_once=chosen.at_once, config=config))
    except KeyboardInterrupt:
        print("interrupted; the sandboxes have ended", file=sys.stderr)
        return 130
    except SandportError as error:  # the host itself does not open
        print(error, file=sys.stderr)
        return 2
    except ExceptionGroup as failed:
        print(failed.exceptions[0], file=sys.stderr)
        return 2
    print(json.dumps([asdict(v) for v in verdicts]) if chosen.json else table(verdicts))
    return 1 if any(v.why.startswith("not judged") for v in verdicts) else 0


if __name__ == "__main__":
    sys.exit(main())
