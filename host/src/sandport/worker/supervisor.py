"""The workers of one provider, one after the other: started on demand, started again after a failure, within bounds.

A failed start is told to whoever asked and never loops; what was counted lives in `restarts`, outside of what
restarts; a stopping host starts nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal

import anyio
from msgspec import Raw, Struct

from sandport.errors import WorkerError, WorkerStartFailed
from sandport.log import Log
from sandport.numbers import Timing
from sandport_protocol.v1 import InitializeParams

from .launch import WorkerCommand
from .lifetime import RunningWorker, Worker
from .log_file import LogFile
from .report import CrashReport
from .restarts import Closing, Count, Fault, GivenUp, Go, Restarts
from .states import MEANS, State

Isolation = Literal["tenant", "shared"]
"""Whether each tenant has a worker of its own, or all of them share one."""
WorkerKey = tuple[str, str | None]
"""Provider and tenant; no tenant where they share one, or where the embedder names none."""

Standing = State | Literal["none", "waiting", "given up"]


def worker_key(provider: str, tenant: str | None, isolation: Isolation = "tenant") -> WorkerKey:
    """Which worker serves this tenant."""
    return (provider, tenant if isolation == "tenant" else None)


class WorkerStatus(Struct, frozen=True, kw_only=True):
    """What is known of a provider's worker now, for people and for logs."""

    provider: str
    tenant: str | None
    state: Standing
    """What the worker is doing; `none` where none runs, `waiting` before a start, `given up` where it failed too often.
    """
    means: str
    """The state in words; for `given up`, why, and when it will be tried again."""
    pid: int | None = None
    uptime_s: float | None = None
    starts: int = 0
    counts: dict[Fault, Count]
    """Failures by kind."""
    again_in_s: float | None = None
    """Seconds until it may be started, where it has to wait."""
    last: CrashReport | None = None
    """How the last worker ended that ended by itself or was killed."""
    log_path: str = ""


class Supervisor:
    """Keeps at most one worker of a provider alive; `run` is its task, `worker` what the others call.

    Args:
        command: How a worker is started.
        hello: What is said to it.
        environ: The host's own environment.
        timing: The waits.
        log: Where records go.
        on_late: Told of results that came after their callers were told something else.
        instance: The host's instance id, for the tokens of its workers.
        root: The host's home: workers' log files and records are kept there; none are where it is None.
        restarts: When a worker may be started; by default by the policy in `timing`.
    """

    def __init__(
        self,
        command: WorkerCommand,
        hello: InitializeParams,
        *,
        environ: Mapping[str, str],
        timing: Timing,
        log: Log,
        on_late: Callable[[str, Any, Raw | None], None],
        instance: str = "",
        root: Path | None = None,
        restarts: Restarts | None = None,
    ) -> None:
        self.command = command
        self._hello = hello
        self._environ = dict(environ)
        self._timing = timing
        self._on_late = on_late
        self._instance = instance
        self._root = root
        self._log_file = None if root is None else LogFile(root, command.provider, command.tenant, log=log)
        self._log = log if self._log_file is None else log.and_to(self._log_file, threshold="debug")
        self._restarts = restarts or Restarts(timing.restart)
        self._current: Worker | None = None
        self._wanted: asyncio.Future[Worker] | None = None
        self._demand = asyncio.Event()
        self._last: CrashReport | None = None
        self.starts = 0
        """How many workers were spawned so far."""

    @property
    def key(self) -> WorkerKey:
        """Whose worker this is."""
        return (self.command.provider, self.command.tenant)

    @property
    def current(self) -> Worker | None:
        """The worker that serves now, if one does."""
        worker = self._current
        return worker if worker is not None and worker.usable else None

    def status(self) -> WorkerStatus:
        """What is known now; looks at nothing outside of this process."""
        worker = self._current
        state: Standing = "none"
        means, again_in_s = "no worker runs; one is started on demand", None
        answer = self._restarts.may_start()
        if worker is not None:
            state, means = worker.state, MEANS[worker.state]
        elif isinstance(answer, GivenUp):
            state, means, again_in_s = "given up", f"it {answer}", answer.wait_s
        elif self._restarts.state == "starting":
            state, means = "starting", "it is being started"
        elif isinstance(answer, Go) and self._wanted is not None:
            state, means, again_in_s = "waiting", "it is started after a delay, since it failed", answer.delay_s
        return WorkerStatus(
            provider=self.command.provider,
            tenant=self.command.tenant,
            state=state,
            means=means,
            pid=worker.process.pid if worker is not None else None,
            uptime_s=worker.process.uptime_s if worker is not None else None,
            starts=self.starts,
            counts=self._restarts.counts(),
            again_in_s=again_in_s,
            last=self._last,
            log_path=str(self._log_file.path) if self._log_file is not None else "",
        )

    async def worker(self) -> Worker:
        """The worker that serves; starts one where none does, and waits for it.

        Raises:
            WorkerStartFailed: It did not come up, or failed too often of late; the message says when it is tried
                again.
        """
        worker = self.current
        if worker is not None:
            return worker
        answer = self._restarts.may_start()
        if not isinstance(answer, Go):
            raise self._refusal(answer)
        if self._wanted is None:
            self._wanted = asyncio.get_running_loop().create_future()
            self._demand.set()
        # Shielded: one caller that gives up must not take the start away from the others.
        return await asyncio.shield(self._wanted)

    def _refusal(self, answer: GivenUp | Closing) -> WorkerStartFailed:
        if isinstance(answer, Closing):
            return WorkerStartFailed(f"the host is closing; no {self.command.title} worker is started")
        return WorkerStartFailed(f"the {self.command.title} worker {answer}", report=self._last)

    async def run(self) -> None:
        """Serve demands until cancelled; the worker that runs then is stopped."""
        try:
            while True:
                await self._demand.wait()
                self._demand.clear()
                answer = self._restarts.may_start()
                if not isinstance(answer, Go):
                    self._fail(self._refusal(answer))
                    continue
                await anyio.sleep(answer.delay_s)
                await self._one()
        finally:
            self._restarts.stop()
            self._fail(self._refusal(Closing()))
            if self._log_file is not None:
                self._log_file.close()

    async def _one(self) -> None:
        self.starts += 1
        self._restarts.starting()
        try:
            async with RunningWorker(
                self.command,
                self._hello,
                environ=self._environ,
                timing=self._timing,
                log=self._log,
                on_late=self._on_late,
                instance=self._instance,
                root=self._root,
                log_file=self._log_file,
                on_stable=self._restarts.stable,
            ) as worker:
                self._restarts.served()
                self._current = worker
                worker.ended.add_done_callback(self._count)
                wanted, self._wanted = self._wanted, None
                if wanted is not None and not wanted.done():
                    wanted.set_result(worker)
                await asyncio.shield(worker.ended)
        except WorkerStartFailed as error:
            self._last = error.report or self._last
            self._failed("start failure", str(error))
            self._fail(error)
        finally:
            self._current = None

    def _count(self, ended: asyncio.Future[CrashReport]) -> None:
        # Before any call is told of the crash: whoever asks for a worker then must find it counted.
        report = ended.result()
        if report.phase == "stopping" and not report.cause:
            self._restarts.ended()
            return
        self._last = report
        self._failed("wedge" if report.kind == "wedge" else "crash", report.cause or report.how())

    def _failed(self, fault: Fault, why: str) -> None:
        self._restarts.failed(fault, why)
        answer = self._restarts.may_start()
        if isinstance(answer, GivenUp):
            whose = {} if self.command.tenant is None else {"tenant": self.command.tenant}
            self._log("error", f"given up: the worker {answer}", provider=self.command.provider, **whose)

    def _fail(self, error: WorkerError) -> None:
        wanted, self._wanted = self._wanted, None
        if wanted is not None and not wanted.done():
            wanted.set_exception(error)
            wanted.exception()  # seen: a caller that was cancelled does not come back for it
