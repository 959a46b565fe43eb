"""Blocks of calls: what is timed of any client that can echo."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Awaitable, Callable

from .machine import cpu_s, memory_bytes

Echo = Callable[[str], Awaitable[str]]

SMALL_CHARACTERS = 1000
IN_FLIGHT = 64
LARGE_CHARACTERS = 1024 * 1024 - 32 * 1024
"""The unit of the large echo; 16 of it, escapes and envelope included, are just below a frame's 16 MiB."""
_LINE = "The quick brown fox jumps over the lazy dog; 0123456789 +-*/= (and once more).\n"


def text_of(characters: int) -> str:
    """Plain text with a line feed in every 79 characters, as programs print it: JSON has something to escape."""
    return (_LINE * (characters // len(_LINE) + 1))[:characters]


def _check(text: str, echoed: str) -> None:
    if echoed != text:
        raise RuntimeError(f"an echo of {len(text)} characters came back as {len(echoed)} other ones")


async def sequential(echo: Echo, text: str, count: int, worker_pid: int) -> tuple[float, ...]:
    """Processor time of a call on both ends, then the seconds of each of `count` calls, one after the other."""
    clock = time.perf_counter
    times = []
    echoed = ""
    before_s = time.process_time() + cpu_s(worker_pid)
    for _ in range(count):
        begun = clock()
        echoed = await echo(text)
        times.append(clock() - begun)
    spent_s = time.process_time() + cpu_s(worker_pid) - before_s
    _check(text, echoed)
    return spent_s / count, *times


async def in_flight(echo: Echo, text: str, count: int, worker_pid: int) -> tuple[float, ...]:
    """Calls a second with 64 of them open all the time, and the processor time of a call on both ends, in seconds."""
    share = count // IN_FLIGHT

    async def caller() -> None:
        for _ in range(share):
            _check(text, await echo(text))

    before_s = time.process_time() + cpu_s(worker_pid)
    begun = time.perf_counter()
    await asyncio.gather(*(caller() for _ in range(IN_FLIGHT)))
    took = time.perf_counter() - begun
    spent_s = time.process_time() + cpu_s(worker_pid) - before_s
    return share * IN_FLIGHT / took, spent_s / (share * IN_FLIGHT)


def memory(worker_pid: int) -> tuple[float, ...]:
    """Resident and proportional bytes of this process, then of the worker."""
    return *map(float, memory_bytes(os.getpid())), *map(float, memory_bytes(worker_pid))
