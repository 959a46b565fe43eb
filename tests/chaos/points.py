"""Crash points: every journal write and every wire message of a run, each with a name, and what dies at one of them.

A name says in which step of the run the point lies, what happens there, for the how manieth time, and on which side of
it: `execute/> execute#1:after` is right after the first `execute` of that step went to the worker. A dry run passes all
points and writes down their names; a second run with a plan dies at one of them.
"""

from __future__ import annotations

import os
import re
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Literal

import msgspec
from msgspec import Struct

When = Literal["before", "after"]
Who = Literal["host", "worker", "both", "hold"]
"""Who dies. `hold` stops the host instead (SIGSTOP), for whoever wants several hosts to die in the middle."""

_NAME = re.compile(r"(?P<step>[^/]+)/(?P<what>.+)#(?P<nth>\d+):(?P<when>before|after)")


class Point(Struct, frozen=True, order=True):
    """One moment of a run."""

    step: str
    what: str
    """`> method` to the worker, `< method` from it, `commit …` for the journal."""
    nth: int
    when: When

    def __str__(self) -> str:
        return f"{self.step}/{self.what}#{self.nth}:{self.when}"

    @classmethod
    def parse(cls, name: str) -> Point:
        """The point of a name."""
        found = _NAME.fullmatch(name)
        if found is None:
            raise ValueError(f"{name!r} names no point")
        return cls(found["step"], found["what"], int(found["nth"]), "before" if found["when"] == "before" else "after")


class Plan(Struct, frozen=True):
    """Where a run is cut, and who dies there."""

    point: Point
    who: Who


class Passed(Struct, frozen=True):
    """One line of a run's ledger."""

    point: Point
    worker: bool
    """Whether a worker lived at this moment."""
    sandbox: str = ""
    """Which sandbox a create is for."""
    hit: bool = False
    """The plan's point: somebody dies now."""


class Ledger:
    """What a run passed, on disk before it goes on: whoever is killed has written it."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def write(self, passed: Passed) -> None:
        """Add a line."""
        fd = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        try:
            os.write(fd, msgspec.json.encode(passed) + b"\n")
        finally:
            os.close(fd)

    def read(self) -> list[Passed]:
        """Every line."""
        try:
            lines = self.path.read_bytes().splitlines()
        except FileNotFoundError:
            return []
        return [msgspec.json.decode(line, type=Passed) for line in lines]


class Gate:
    """Numbers the points that a run passes, and ends whom the plan names at its point.

    Args:
        ledger: Where they are written down.
        plan: None for a dry run.
        end_workers: Kills every worker that lives, and returns once they are dead.
        worker_lives: Whether one does.
    """

    def __init__(
        self, ledger: Ledger, plan: Plan | None, *, end_workers: Callable[[], None], worker_lives: Callable[[], bool]
    ) -> None:
        self.step = "open"
        self.was_hit = False
        self._ledger = ledger
        self._plan = plan
        self._end_workers = end_workers
        self._worker_lives = worker_lives
        self._seen: Counter[tuple[str, str]] = Counter()
        self._lock = threading.Lock()

    def next(self, what: str) -> tuple[str, int]:
        """The step and the number of what is about to happen."""
        with self._lock:
            key = (self.step, what)
            self._seen[key] += 1
            return self.step, self._seen[key]

    @property
    def takes_workers(self) -> bool:
        """Whether a worker is among those who die."""
        return self._plan is not None and self._plan.who in ("worker", "both")

    def is_next(self, point: Point) -> bool:
        """Whether the plan means this point, and it was not passed yet."""
        return self._plan is not None and not self.was_hit and self._plan.point == point

    def reach(self, point: Point, *, sandbox: str = "") -> bool:
        """Be at a point. Who is to die dies; True where a worker did, and this process lives on."""
        hit = self.is_next(point)
        self.was_hit = self.was_hit or hit
        self._ledger.write(Passed(point, self._worker_lives(), sandbox, hit))
        if not hit or self._plan is None:
            return False
        if self.takes_workers:
            self._end_workers()
        if self._plan.who == "hold":
            os.kill(os.getpid(), signal.SIGSTOP)
        if self._plan.who in ("host", "both"):
            os.kill(os.getpid(), signal.SIGKILL)
            time.sleep(3600)  # the signal is on its way: not one more line
        return self._plan.who == "worker"
