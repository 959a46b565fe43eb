"""What the integration tests share: worker commands, a log that can be waited for, journals, facts from /proc."""

import asyncio
import contextlib
import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from sandport.configuration import Configuration, HostSettings, ProviderSettings
from sandport.log import Log
from sandport.numbers import Restart, StopLadder, Timing
from sandport.worker.environment import TOKEN
from sandport.worker.stderr import Level
from sandport_protocol.limits import Limits

ROOT = Path(__file__).resolve().parents[2]
PATIENCE_S = 60.0
"""How long a test waits for something that must come; it ends a hang and judges nothing."""

QUICK = Timing(
    close_grace_s=5.0,
    command_margin_s=5.0,
    stop=StopLadder(drain_s=2.0, eof_s=2.0, term_s=1.0, kill_s=5.0),
    restart=Restart(
        at_most=1000, start_failures_at_most=1000, wedges_at_most=1000, first_delay_s=0.001, longest_delay_s=0.001
    ),
)
"""Waits for tests: what should not pass is long, what should is short."""


def worker(name: str, *arguments: str, journal: Path | None = None) -> tuple[str, ...]:
    """The command of one of the test workers."""
    written = ("--journal", str(journal)) if journal else ()
    module = f"tests.integration.workers.{name}"
    return ("env", f"PYTHONPATH={ROOT}", sys.executable, "-S", "-m", module, *written, *arguments)


def configuration(
    commands: dict[str, tuple[str, ...]],
    *,
    timing: Timing = QUICK,
    limits: Limits | None = None,
    env: tuple[str, ...] = (),
) -> Configuration:
    """Providers that are started by these commands."""
    return Configuration(
        host=HostSettings(timing=timing),
        providers={
            name: ProviderSettings(command=command, limits=limits or Limits(), env=env)
            for name, command in commands.items()
        },
    )


class Records:
    """A host's log, kept."""

    def __init__(self) -> None:
        self.lines: list[tuple[Level, str, dict[str, Any]]] = []
        self.log = Log(self._take, threshold="debug")
        self._changed: list[asyncio.Event] = []

    def _take(self, level: Level, event: str, fields: dict[str, Any]) -> None:
        self.lines.append((level, event, fields))
        for changed in self._changed:
            changed.set()

    def texts(self, *levels: Level) -> list[str]:
        """The events of these levels, or all."""
        return [event for level, event, _ in self.lines if not levels or level in levels]

    async def until(self, wanted: Callable[[str], bool]) -> tuple[Level, str, dict[str, Any]]:
        """The first record whose text is wanted."""
        changed = asyncio.Event()
        self._changed.append(changed)
        try:
            async with asyncio.timeout(PATIENCE_S):
                while True:
                    changed.clear()
                    for record in self.lines:
                        if wanted(record[1]):
                            return record
                    await changed.wait()
        finally:
            self._changed.remove(changed)


class Journal:
    """What a worker wrote down; every generation of it appends."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __iter__(self) -> Iterator[dict[str, Any]]:
        if self.path.exists():
            for line in self.path.read_bytes().split(b"\n")[:-1]:
                yield json.loads(line)

    def of(self, event: str, **facts: Any) -> list[dict[str, Any]]:
        """Its entries of one kind."""
        return [e for e in self if e["event"] == event and all(e.get(k) == v for k, v in facts.items())]

    def received(self, method: str) -> int:
        """How many messages of a method came."""
        return len(self.of("received", method=method))

    async def until(self, event: str, count: int = 1, **facts: Any) -> list[dict[str, Any]]:
        """Wait for so many entries."""
        await eventually(lambda: len(self.of(event, **facts)) >= count)
        return self.of(event, **facts)


async def eventually(holds: Callable[[], bool], *, within_s: float = PATIENCE_S) -> None:
    """Wait for a fact outside of this process, which gives no event; fails where it does not come to hold."""
    limit = time.monotonic() + within_s
    while not holds():
        assert time.monotonic() < limit, "what was waited for did not come"
        await asyncio.sleep(0.005)


# ------------------------------------------------------------------ /proc


def alive(pid: int) -> bool:
    """Whether a process runs; one that only waits to be reaped does not."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_bytes()
    except OSError:
        return False
    return stat[stat.rindex(b")") + 2 :].split()[0] not in (b"Z", b"X")


def hold_the_loop_while_alive(pid: int) -> None:
    """Have the end of a process and all that it said before come in one and the same turn of the loop."""
    limit = time.monotonic() + PATIENCE_S
    while alive(pid):
        assert time.monotonic() < limit, "it does not end"
        time.sleep(0.005)


_FROM_BEFORE: set[int] = set()


def leave_alone_what_is_there() -> None:
    """Begin anew: what earlier tests of this process have left, elsewhere in the tree, is none of the next one's."""
    _FROM_BEFORE.clear()
    # Processes that outlive their worker, where the worker was a part of this process: nobody else reaps them.
    with contextlib.suppress(ChildProcessError):  # there is none
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    _FROM_BEFORE.update(children())


def children(pid: int | None = None) -> list[int]:
    """The direct children of a process, dead and unreaped ones included; of this one those of this test."""
    own = os.getpid() if pid is None else pid
    found: list[int] = []
    for task in Path(f"/proc/{own}/task").iterdir():
        with contextlib.suppress(FileNotFoundError):  # a thread that ended meanwhile; its children are another's now
            found += [int(child) for child in (task / "children").read_text().split()]
    return sorted(child for child in found if pid is not None or child not in _FROM_BEFORE)


def marked_with(token: str) -> list[int]:
    """Every process that has a worker's token in its environment."""
    mark = f"{TOKEN}={token}".encode()
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                if mark in (entry / "environ").read_bytes().split(b"\0") and alive(int(entry.name)):
                    found.append(int(entry.name))
            except OSError:
                continue  # it went away meanwhile, or is somebody else's
    return found


def open_descriptors() -> int:
    """How many descriptors this process has open."""
    return len(os.listdir("/proc/self/fd"))


def mentioning(text: str) -> dict[int, str]:
    """Every living process that has a text in its arguments or its environment, with its arguments."""
    found = {}
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            command = (entry / "cmdline").read_bytes()
            if text.encode() in command + (entry / "environ").read_bytes() and alive(int(entry.name)):
                found[int(entry.name)] = command.replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue  # it went away meanwhile, or is somebody else's
    return found
