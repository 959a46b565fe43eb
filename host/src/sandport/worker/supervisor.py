"""The workers of one provider, one after the other: started on demand, started again after a crash, within bounds.

Counters live here, outside of what restarts. A failed start is told to whoever asked and never loops; crashes are
counted in a window; a stopping host starts nothing.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any

import anyio
from msgspec import Raw

from sandport.errors import WorkerError, WorkerStartFailed
from sandport.log import Log
from sandport.numbers import Timing
from sandport_protocol.v1 import InitializeParams

from .launch import WorkerCommand
from .lifetime import Worker, running_worker
from .report import CrashReport


class Supervisor:
    """Keeps at most one worker of a provider alive; `run` is its task, `worker` what the others call."""

    def __init__(
        self,
        command: WorkerCommand,
        hello: InitializeParams,
        *,
        environ: Mapping[str, str],
        timing: Timing,
        log: Log,
        on_late: Callable[[str, Any, Raw | None], None],
    ) -> None:
        self.command = command
        self._hello = hello
        self._environ = dict(environ)
        self._timing = timing
        self._log = log
        self._on_late = on_late
        self._current: Worker | None = None
        self._wanted: asyncio.Future[Worker] | None = None
        self._demand = asyncio.Event()
        self._crashes: deque[float] = deque()
        self._stopping = False
        self.starts = 0
        """How many workers were spawned so far."""

    @property
    def current(self) -> Worker | None:
        """The worker that serves now, if one does."""
        worker = self._current
        return worker if worker is not None and worker.usable else None

    async def worker(self) -> Worker:
        """The worker that serves; starts one where none does, and waits for it.

        Raises:
            WorkerStartFailed: It did not come up, or crashed too often of late.
        """
        worker = self.current
        if worker is not None:
            return worker
        if self._stopping:
            raise WorkerStartFailed(f"the host is closing; no {self.command.provider} worker is started")
        self._refuse_if_given_up()
        if self._wanted is None:
            self._wanted = asyncio.get_running_loop().create_future()
            self._demand.set()
        # Shielded: one caller that gives up must not take the start away from the others.
        return await asyncio.shield(self._wanted)

    def _refuse_if_given_up(self) -> None:
        restart = self._timing.restart
        now = time.monotonic()
        while self._crashes and self._crashes[0] < now - restart.window_s:
            self._crashes.popleft()
        if len(self._crashes) > restart.at_most:
            wait_s = self._crashes[0] + restart.window_s - now
            raise WorkerStartFailed(
                f"the {self.command.provider} worker crashed {len(self._crashes)} times in {restart.window_s:g} s; "
                f"it is not started again for {wait_s:.0f} s"
            )

    def _delay_s(self) -> float:
        restart = self._timing.restart
        if not self._crashes:
            return 0.0
        longest = min(restart.longest_delay_s, restart.first_delay_s * 2 ** (len(self._crashes) - 1))
        return float(longest * random.uniform(0.5, 1.0))

    async def run(self) -> None:
        """Serve demands until cancelled; the worker that runs then is stopped."""
        try:
            while True:
                await self._demand.wait()
                self._demand.clear()
                await anyio.sleep(self._delay_s())
                await self._one()
        finally:
            self._stopping = True
            self._fail(WorkerStartFailed(f"the host is closing; no {self.command.provider} worker is started"))

    async def _one(self) -> None:
        self.starts += 1
        try:
            async with running_worker(
                self.command,
                self._hello,
                environ=self._environ,
                timing=self._timing,
                log=self._log,
                on_late=self._on_late,
            ) as worker:
                self._current = worker
                worker.ended.add_done_callback(self._count)
                wanted, self._wanted = self._wanted, None
                if wanted is not None and not wanted.done():
                    wanted.set_result(worker)
                await asyncio.shield(worker.ended)
        except WorkerStartFailed as error:
            self._fail(error)
        finally:
            self._current = None

    def _count(self, ended: asyncio.Future[CrashReport]) -> None:
        # Before any call is told of the crash: whoever asks for a worker then must find it counted.
        if ended.result().phase != "stopping":
            self._crashes.append(time.monotonic())

    def _fail(self, error: WorkerError) -> None:
        wanted, self._wanted = self._wanted, None
        if wanted is not None and not wanted.done():
            wanted.set_exception(error)
            wanted.exception()  # seen: a caller that was cancelled does not come back for it
