"""A program in which runs are cut: it takes orders, one JSON object a line, and answers each with an account.

It is the reaper of every orphan below it, so nothing that a victim left can hide by losing its parent. Each victim is
forked from it: a process of its own for a host of its own, without the start of an interpreter.
"""

from __future__ import annotations

import asyncio
import ctypes
import faulthandler
import os
import signal
import sys
import traceback
from pathlib import Path

import msgspec
from msgspec import Struct

from sandport import host as _host  # noqa: F401 - imported once, here, and not by each victim
from sandport.cli import main as _main  # noqa: F401 - likewise
from sandport.home import Home
from sandport.lease import book as _book  # noqa: F401 - likewise
from sandport.store import changes, file, queries, sqlite, writer  # noqa: F401 - likewise
from sandport_provider_fake import provider as _fake  # noqa: F401 - likewise
from sandport_provider_fake.testing import Fake
from sandport_provider_local import provider as _local  # noqa: F401 - likewise

from .jobs import JOBS, Job
from .moments import Moment, strike
from .place import Place, Row
from .points import Ledger, Passed, Plan
from .seams import Seams
from .stock import WITHIN_S, files_left, kernel_left, processes_left

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
STAGE_WITHIN_S = 60.0
"""A victim that takes longer says where it is, and ends."""

UNTENDED_S = 1.0
"""Where nobody cleans up there is nothing to wait for."""


class Stage(Struct, frozen=True, kw_only=True):
    """One victim."""

    job: str
    plan: Plan | None = None
    moment: Moment | None = None

    @property
    def host_dies(self) -> bool:
        """Whether it does not come to its own end."""
        return any(cut is not None and cut.who in ("host", "both") for cut in (self.plan, self.moment))


class FakeOrder(Struct, frozen=True):
    """A fault of the fake vendor, for every time with a probability."""

    point: str
    action: str
    probability: float = 1.0


class Order(Struct, frozen=True, kw_only=True):
    """One run: some victims one after the other, then the next start, then the stock."""

    provider: str
    stages: tuple[Stage, ...]
    recovers: bool = True
    """Whether the next start cleans up; where it does not, whatever was left is found."""
    seed: int = 0
    orders: tuple[FakeOrder, ...] = ()
    """Faults of the fake vendor."""
    settle_s: float = 0.0
    """How long its creates may take to be listed."""
    keep: bool = False
    """Leave the folder where it is, for a person."""


class Account(Struct, frozen=True, kw_only=True):
    """What came of a run."""

    faults: tuple[str, ...] = ()
    """Leftovers, and whatever else should not be."""
    hits: tuple[bool, ...] = ()
    """Of each victim, whether it came to its point."""
    struck: bool = False
    """Whether the moment came at which somebody was to be killed."""
    passed: tuple[tuple[Passed, ...], ...] = ()
    """Of each victim, the points that it passed."""
    double_creates: int = 0
    double_executions: int = 0
    rows: tuple[Row, ...] = ()
    """The journal when the last victim was killed, else when it had ended."""
    folder: str = ""


# ------------------------------------------------------------------ victims


def victim(place: Place, order: Order, number: int, stage: Stage) -> int:
    """Fork one; its pid."""
    sys.stdout.flush()
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        die_with_parent()
        log = os.open(place.log(number), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        null = os.open(os.devnull, os.O_RDONLY)
        for fd, target in ((null, 0), (log, 1), (log, 2)):
            os.dup2(fd, target)
        for fd in (null, log):
            os.close(fd)
        faulthandler.dump_traceback_later(STAGE_WITHIN_S, exit=True)
        os.environ["TMPDIR"] = str(place.tmp)
        job = Job(place, order.provider, number, Seams(place.ledger(number), stage.plan), seed=order.seed)
        asyncio.run(_run(job, stage.job))
        if stage.job == "settle" and stage.plan is None:
            job.list_all()
        code = 0
    except BaseException:  # noqa: BLE001 - whatever it is, it is in the log, and the code tells
        traceback.print_exc()
    finally:
        os._exit(code)


async def _run(job: Job, name: str) -> None:
    job.seams.install()
    await JOBS[name](job)


def wait_for(pid: int) -> int | None:
    """How a victim ended; None where it was stopped to be held. Orphans that end meanwhile are reaped."""
    while True:
        child, status = os.waitpid(-1, os.WUNTRACED)
        if child == pid:
            return None if os.WIFSTOPPED(status) else status


def how(status: int, log: Path) -> str:
    """What went wrong with a victim, with the end of its log."""
    tail = log.read_text(errors="replace")[-3000:]
    return f"ended with {os.waitstatus_to_exitcode(status)}:\n{tail}"


# ------------------------------------------------------------------ runs


def run(order: Order, within: Path | None = None) -> Account:
    """Do what an order says, take stock, and leave nothing."""
    place = Place.make(within=within)
    _set_up(place, order)
    faults: list[str] = []
    struck: list[Row] | None = None
    held: list[int] = []
    kept: set[str] = set()
    last = len(order.stages)
    for number, stage in enumerate(order.stages):
        if stage.job in ("settle", "glance"):
            _end(held)
            kept |= _kept(place)
        pid = victim(place, order, number, stage)
        if stage.moment is not None:
            struck = strike(place, pid, stage.moment)
        status = wait_for(pid)
        if status is None:
            held.append(pid)
            continue
        if status != 0 and not (stage.host_dies and os.waitstatus_to_exitcode(status) == -signal.SIGKILL):
            faults.append(f"victim {number} {how(status, place.log(number))}")
    _end(held)
    kept |= _kept(place)
    # Of a host that was killed its journal says it, of one that lives on only the look at that moment.
    live_on = bool(struck) and not order.stages[-1].host_dies
    rows = struck if struck is not None and live_on else place.rows()
    if order.recovers:
        status = wait_for(victim(place, order, last, Stage(job="settle")))
        if status != 0:
            faults.append(f"the next start {'stopped' if status is None else how(status, place.log(last))}")
    faults += processes_left(place, within_s=WITHIN_S if order.recovers else UNTENDED_S)
    faults += kernel_left(place) + files_left(place)
    faults += [f"said: {event.detail}" for event in place.said("fault")]
    works = {event.sandbox for event in place.said("kept works")}
    faults += [f"a kept lease was lost: {sandbox}" for sandbox in sorted(kept - works)] if order.recovers else []
    faults += [f"a row is left: {row}" for row in place.rows() if row.state != "gone"]
    account = _counted(place, order, faults, rows, struck=struck is not None)
    if not order.keep:
        place.remove()
    return account


def _set_up(place: Place, order: Order) -> None:
    if any(stage.moment is not None for stage in order.stages):
        # What is cut is a run of many; the first opening of a home has points of its own, and no sandbox.
        Home.open(place.home)
    if not order.orders and not order.settle_s:
        return
    fake = Fake(place.home)
    fake.set_up(create_settle_s=order.settle_s)
    fake.seed(order.seed)
    for one in order.orders:
        fake.order(one.point, one.action, probability=one.probability, times=0)


def _kept(place: Place) -> set[str]:
    """Sandboxes that the next start must find as they are."""
    return {row.sandbox for row in place.rows() if row.kept and row.state == "leased"}


def _end(held: list[int]) -> None:
    for pid in held:
        os.kill(pid, signal.SIGKILL)
    while held:  # in whichever order they come
        child, status = os.waitpid(-1, 0)
        if child in held and not os.WIFSTOPPED(status):
            held.remove(child)


def _counted(place: Place, order: Order, faults: list[str], rows: list[Row], *, struck: bool) -> Account:
    passed = [tuple(Ledger(place.ledger(number)).read()) for number in range(len(order.stages) + order.recovers)]
    ran = place.ran()
    for event in place.said("ran"):
        if event.dispatched == "no" and ran[event.nonce]:
            faults.append(f"{event.nonce} ran, and its caller was told that it did not: {event.detail}")
        if event.how == "exited" and ran[event.nonce] != 1:
            faults.append(f"{event.nonce} exited, and ran {ran[event.nonce]} times")
    asked = [one.sandbox for points in passed for one in points if one.sandbox and one.point.when == "after"]
    made = [str(line["sandboxId"]) for line in place.vendor_journal() if line["what"] in ("create", "create refused")]
    twice = {one for created in (asked, made) for one in created if created.count(one) > 1}
    return Account(
        faults=tuple(faults),
        hits=tuple(any(one.hit for one in points) for points in passed[: len(order.stages)]),
        struck=struck,
        passed=tuple(passed),
        double_creates=len(twice),
        double_executions=sum(count - 1 for count in ran.values()),
        rows=tuple(rows),
        folder=str(place.root) if order.keep else "",
    )


def become_reaper() -> None:
    """Have orphans below this process come to it, and not to the machine's first process."""
    _prctl(PR_SET_CHILD_SUBREAPER, 1)


def die_with_parent() -> None:
    """Have this process killed when the one that forked it is: a held victim would wait for ever."""
    _prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def _prctl(option: int, value: int) -> None:
    if ctypes.CDLL(None, use_errno=True).prctl(option, ctypes.c_ulong(value), *(ctypes.c_ulong(0),) * 3) != 0:
        raise OSError(ctypes.get_errno(), "prctl")


def main() -> None:
    """Obey until the end of input."""
    become_reaper()
    for line in sys.stdin.buffer:
        account = run(msgspec.json.decode(line, type=Order))
        sys.stdout.buffer.write(msgspec.json.encode(account) + b"\n")
        sys.stdout.buffer.flush()


if __name__ == "__main__":
    main()
