"""What is left of workers: found by the token that every process inherits from its worker, reported, seldom ended.

Two who look: a host after the end of each of its workers (`left_behind`), and a host that cleans up after one that was
killed (`end_workers`). Only what is proven to be in the worker's own process group is ever signalled; a daemon that
took itself out of it may be anything, also something that the operator wants.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

from sandport.apart import apart

from .identity import Identity, boot_id, facts_of, pidfd_of, signal_exactly, token_of
from .records import WorkerRecord, records_of
from .report import Survivor

_T = TypeVar("_T")
_ARGUMENT_BYTES = 4096
_ENDING_S = 0.2
"""What ends together with its worker is gone within this, or it is told as left."""
_LAST_WAIT_S = 2.0
"""What was killed is gone within this, unless it sleeps in the kernel."""


def find(prefix: str, records: Sequence[WorkerRecord] = (), *, limit_s: float = 10.0) -> list[Survivor]:
    """Every living process whose worker token begins with this, the oldest first.

    Reads all of /proc, so it belongs in a thread: 100 processes take about a millisecond.

    Args:
        prefix: An instance's id and a dot, or a whole token; not empty.
        records: What is on disk of these workers: without it nothing is known to be a worker.
        limit_s: It stops looking after this.

    Raises:
        ValueError: The prefix is empty: that would be every worker of everybody.
    """
    if not prefix:
        raise ValueError("an empty prefix is everybody's")
    end = time.monotonic() + limit_s
    this_boot = boot_id()
    workers = {record.identity.token: record.identity for record in records if record.identity.boot_id == this_boot}
    found = []
    for name in os.listdir("/proc") if os.path.isdir("/proc") else []:
        if name.isdigit() and time.monotonic() < end:
            survivor = _looked_at(int(name), prefix, workers)
            if survivor is not None:
                found.append(survivor)
    return sorted(found, key=lambda survivor: (survivor.start_ticks, survivor.pid))


def _looked_at(pid: int, prefix: str, workers: dict[str, Identity]) -> Survivor | None:
    token = token_of(pid)
    facts = facts_of(pid) if token.startswith(prefix) and token else None
    if facts is None:
        return None
    worker = workers.get(token)
    # A process older than the worker cannot have its token from it, and a group older than it is not its own.
    known = worker is not None and facts.started_ticks >= worker.started_ticks
    is_worker = known and worker is not None and (pid, facts.started_ticks) == (worker.pid, worker.started_ticks)
    return Survivor(
        pid=pid,
        start_ticks=facts.started_ticks,
        token=token,
        argv=_argv(pid),
        since_ms=_unix_ms(facts.started_ticks),
        group=facts.group,
        is_worker=is_worker,
        in_group=known and worker is not None and facts.group == facts.session == worker.pid,
    )


async def left_behind(identity: Identity) -> tuple[Survivor, ...]:
    """What still carries a dead worker's token, outside of its group, which was killed with it."""
    found = await _in_thread(lambda: find(identity.token))
    left = [survivor for survivor in found if survivor.group != identity.pid]
    if left:
        # What ends because its worker did, as a watcher at the other end of a pipe does, is left by nobody.
        await _ended_within(left, _ENDING_S)
        there = {(one.pid, one.start_ticks) for one in await _in_thread(lambda: find(identity.token))}
        left = [survivor for survivor in left if (survivor.pid, survivor.start_ticks) in there]
    return tuple(left)


async def end_workers(root: Path, instance: str, *, patience_s: float) -> list[Survivor]:
    """End what a dead instance's workers left in their process groups; tell of everything else, and leave it alone.

    A worker ends by itself when its host is gone, so it is waited for first. Then what a record proves to be in the
    worker's own group is killed, each process by a descriptor after its start time, token and group were read again.

    Args:
        root: The home of the dead host.
        instance: Its instance id. Whoever calls has made sure that it is dead.
        patience_s: How long the workers may take to end by themselves.

    Returns:
        What still carries a token of that instance.

    Raises:
        ValueError: No instance was named.

    Repeat: finds what is left then; nothing, where all ended.
    Cancel: what was killed is killed, the rest is left for the next time.
    """
    if not instance or "/" in instance:
        raise ValueError(f"{instance!r} is no instance")
    prefix = f"{instance}."
    loop = asyncio.get_running_loop()
    records, broken = await _in_thread(lambda: records_of(root, instance))
    end = loop.time() + patience_s
    kill_until = end + _LAST_WAIT_S
    while True:
        found = await _in_thread(lambda: find(prefix, records))
        ours = [survivor for survivor in found if survivor.in_group]
        now = loop.time()
        if not ours or now >= kill_until:
            break
        if now < end:
            await _ended_within(ours, end - now)
            continue
        for survivor in ours:
            identity = Identity(survivor.pid, survivor.start_ticks, boot_id(), survivor.token)
            signal_exactly(identity, signal.SIGKILL, group=survivor.group)
        await _ended_within(ours, kill_until - now)
    left = {survivor.token for survivor in found if survivor.in_group}
    for record in records:
        if record.identity.token not in left:
            record.forget()
    for path in broken:
        with contextlib.suppress(OSError):  # somebody else cleans up too
            path.unlink()
    return found


async def _ended_within(survivors: Sequence[Survivor], limit_s: float) -> None:
    """Wait until all of these have ended, at most so long; where there are no descriptors to wait on, a moment."""
    loop = asyncio.get_running_loop()
    waiting: dict[int, asyncio.Future[None]] = {}
    for survivor in survivors:
        pidfd = pidfd_of(survivor.pid)
        if pidfd is not None:
            waiting[pidfd] = loop.create_future()
    try:
        for pidfd, ended in waiting.items():
            loop.add_reader(pidfd, _done, loop, pidfd, ended)
        if waiting:
            await asyncio.wait(waiting.values(), timeout=limit_s)
        else:
            await asyncio.sleep(min(limit_s, 0.05))
    finally:
        for pidfd in waiting:
            loop.remove_reader(pidfd)
            os.close(pidfd)


def _done(loop: asyncio.AbstractEventLoop, pidfd: int, ended: asyncio.Future[None]) -> None:
    loop.remove_reader(pidfd)
    if not ended.done():
        ended.set_result(None)


async def _in_thread(work: Callable[[], _T]) -> _T:
    """The result of work that reads /proc, without a hold of the loop while there is a thread for it."""
    try:
        reading = apart(work, name="sandport-survivors")
    except RuntimeError:
        # Without a thread the loop is held for as long as the look takes: whoever waits for it has nothing else to do.
        return work()
    return await reading


def _argv(pid: int) -> tuple[str, ...]:
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            words = file.read(_ARGUMENT_BYTES).rstrip(b"\0").split(b"\0")
    except OSError:
        return ()  # it ended meanwhile
    return tuple(word.decode("utf-8", "backslashreplace") for word in words if word)


def _unix_ms(start_ticks: int) -> int:
    ticks_per_s = os.sysconf("SC_CLK_TCK")
    since_start_s = time.clock_gettime(time.CLOCK_BOOTTIME) - start_ticks / ticks_per_s
    return round((time.time() - since_start_s) * 1000)
