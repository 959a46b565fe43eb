"""One worker from its spawn to its end, as a scope: whoever opens it closes it.

What it is doing is one value, moved by the table in `states` and by nothing else.

Every wait of the closing is bounded and shielded; its end is judged by the process, not by the pipes: a child that
holds one can neither delay nor hide the exit.
"""

from __future__ import annotations

import asyncio
import secrets
import signal
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Literal

import anyio
from msgspec import Raw

from sandport.closing import finished, outliving
from sandport.errors import (
    DeadlineExceeded,
    ProtocolViolation,
    SandportError,
    WorkerCrashed,
    WorkerStartFailed,
    WorkerWedged,
)
from sandport.log import Log
from sandport.numbers import Timing
from sandport_protocol.capabilities import effective_groups, incomplete_groups, missing_mandatory
from sandport_protocol.limits import Limits
from sandport_protocol.methods import METHODS
from sandport_protocol.v1 import InitializeParams, InitializeResult, ShutdownParams

from .client import WorkerClient
from .environment import withheld
from .launch import Exit, WorkerCommand, WorkerProcess, spawn
from .log_file import LogFile
from .memory import MemoryFacts, memory_facts
from .report import CrashReport, Kind, Survivor, last_words
from .states import MEANS, USABLE, Event, State, after
from .stderr import Level, StderrPump
from .survivors import left_behind


class InputSide(asyncio.BaseProtocol):
    """What the transport of a worker's stdin tells; its end is not the end of the stdout that the client reads."""

    def __init__(self, client: WorkerClient) -> None:
        self._client = client
        self.lost: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Done when nothing can be written any more."""

    def pause_writing(self) -> None:
        """The pipe is full."""
        self._client.pause_writing()

    def resume_writing(self) -> None:
        """The pipe has room again."""
        self._client.resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        """The pipe is closed, on either side."""
        if not self.lost.done():
            self.lost.set_result(None)


class Worker:
    """A worker that is, or was, running; made by `RunningWorker`."""

    def __init__(
        self,
        command: WorkerCommand,
        process: WorkerProcess,
        *,
        limits: Limits,
        timing: Timing,
        log: Log,
        on_late: Callable[[str, Any, Raw | None], None],
        log_file: LogFile | None = None,
        on_stable: Callable[[], None] | None = None,
    ) -> None:
        self.provider = command.provider
        self.tenant = command.tenant
        self._title = command.title
        self.process = process
        self._state: State = "starting"
        self._timing = timing
        self._log_file = log_file
        self._on_stable = on_stable
        tenant = {} if command.tenant is None else {"tenant": command.tenant}
        self._log = log.bind(provider=command.provider, pid=process.pid, **tenant)
        self._loop = asyncio.get_running_loop()
        self._served = False
        self._cause = ""
        self._kind: Kind = "exit"
        self._stdin: asyncio.WriteTransport | None = None
        self._readers: list[asyncio.ReadTransport] = []
        self._stderr = StderrPump(self._from_worker, line_bytes=limits.log_line_bytes)
        self.client = WorkerClient(
            command.title,
            limits=limits,
            log=self._from_wire,
            on_late=on_late,
            on_fatal=partial(self.condemn, kind="violation"),
            on_wedged=partial(self.condemn, kind="wedge"),
        )
        self._input_side = InputSide(self.client)
        self._hello: InitializeResult | None = None
        self.ended: asyncio.Future[CrashReport] = self._loop.create_future()
        """Done when the process is gone, its pipes are read and every open call has been told."""
        self._looking: asyncio.Task[tuple[Survivor, ...]] | None = None
        process.exited.add_done_callback(self._exited)

    @property
    def state(self) -> State:
        """What it is doing: saying hello (`starting`), importing, serving, busy, wedged, broken, stopping, dead."""
        return self._state

    def _tell(self, event: Event) -> bool:
        """Move the state; whether that changed it."""
        before, self._state = self._state, after(self._state, event)
        return self._state != before

    @property
    def hello(self) -> InitializeResult:
        """What the worker said of itself."""
        if self._hello is None:
            raise WorkerStartFailed(f"the {self._title} worker has not said hello")
        return self._hello

    def _from_worker(self, level: Level, line: str) -> None:
        self._log(level, line, source="stderr")

    def _from_wire(self, level: Level, line: str) -> None:
        self._log(level, line, source="wire")

    def _log_tail(self) -> tuple[str, ...]:
        """The last lines of its log as they were written: they get into errors, and from there anywhere."""
        return tuple(map(self._log.redacted, self._stderr.tail))

    # -------------------------------------------------------------- start

    async def _connect(self) -> None:
        loop, process = self._loop, self.process
        side = self._input_side
        self._stdin, _ = await loop.connect_write_pipe(lambda: side, _file(process.stdin_fd, "wb"))
        side.lost.add_done_callback(partial(self._deaf_or_mute, "stdin"))
        self.client.write_to(self._stdin)
        self.client.input_ended.add_done_callback(partial(self._deaf_or_mute, "stdout"))
        for fd, protocol in ((process.stdout_fd, self.client), (process.stderr_fd, self._stderr)):
            transport, _ = await loop.connect_read_pipe(lambda protocol=protocol: protocol, _file(fd, "rb"))  # type: ignore[misc]
            self._readers.append(transport)

    async def _greet(self, hello: InitializeParams, environ: Mapping[str, str]) -> None:
        try:
            with anyio.fail_after(self._timing.start_s):
                self._hello = await self.client.hello(hello)
            self._check_methods(self._hello)
            self._tell("said hello")
            with anyio.fail_after(self._timing.ready_s):
                await asyncio.shield(self.client.ready)
        except TimeoutError:
            limit = self._timing.start_s if self._hello is None else self._timing.ready_s
            what = "say hello" if self._hello is None else "get ready"
            raise WorkerStartFailed(self._start_message(f"did not {what} in {limit:g} s", environ)) from None
        except WorkerCrashed as error:
            # The exit says more than the pipe: wait until it is known.
            with anyio.move_on_after(self._timing.exit_drain_s):
                await asyncio.shield(self.ended)
            report = self.ended.result() if self.ended.done() else error.report
            how = report.how() if report is not None else "ended"
            if report is not None and report.exit_code == 0 and self._hello is None:
                # It did what it was told, and that was not to serve: a script that only defines its provider.
                how += " before it said hello; does it call what serves (in Python `sandport_sdk.v1.serve`), and wait?"
            else:
                how += " before it was ready"
            message = self._start_message(how, environ)
            raise WorkerStartFailed(message, report=report) from None
        except SandportError as error:
            said = str(error) if str(error).startswith("the ") else f"cannot be used: {error}"
            raise WorkerStartFailed(self._start_message(said, environ)) from error
        self._tell("got ready")
        self._served = True

    def _check_methods(self, hello: InitializeResult) -> None:
        """Ability is declared at the start: what is missing is named here, never a surprise in the middle."""
        if absent := missing_mandatory(hello.supported_methods):
            lacks = ", ".join(absent)
            raise ProtocolViolation(f"the {hello.provider.name} worker does not serve {lacks}", dispatched="no")
        for group, missing in incomplete_groups(hello.supported_methods).items():
            lacks = ", ".join(missing)
            self._log("warning", f"the group {group} is not used: the worker serves a part of it and lacks {lacks}")

    def _start_message(self, what: str, environ: Mapping[str, str]) -> str:
        text = what if what.startswith("the ") else f"the {self._title} worker {what}"
        text += last_words(self._log_tail())
        if self._hello is not None:
            missing = withheld(environ, self._hello.wants_env, self.process.given_env)
            if missing:
                names = ", ".join(f'"{name}"' for name in missing)
                text += f"; withheld from it: {', '.join(missing)} (grant with env = [{names}] in "
                text += f"[providers.{self.provider}])"
        if self._log_file is not None:
            self._log_file("error", text, {"pid": self.process.pid})
            if place := self._log_file.place():
                text += f"; all of its log is in {place}"
        return text

    @property
    def groups(self) -> frozenset[str]:
        """The optional groups that it serves whole; a part of one counts for nothing."""
        return effective_groups(self.hello.supported_methods)

    # -------------------------------------------------------------- life

    async def beat(self) -> None:
        """Ping at every heartbeat; a late pong makes it busy, none for the wedge limit condemns it."""
        limits = self.client.connection.limits
        while not self.ended.done():
            await asyncio.wait((self.ended,), timeout=limits.heartbeat_ms / 1000)
            if self.ended.done():
                return
            late = self._loop.call_later(self._timing.busy_s, self._pong_is_late)
            try:
                await self.client.ping(deadline_s=limits.wedge_ms / 1000)
            except DeadlineExceeded:
                self.condemn(f"it answered no ping for {limits.wedge_ms / 1000:g} s", kind="wedge")
                return
            except (WorkerCrashed, WorkerWedged):
                return  # its end is under way
            finally:
                late.cancel()
            if self._tell("pong"):
                self._log("info", "the worker answers again")
            if self._on_stable is not None and self.process.uptime_s >= self._timing.restart.stable_s:
                told, self._on_stable = self._on_stable, None
                told()

    def heart_stopped(self, beating: asyncio.Task[None]) -> None:
        """Told of the end of `beat`: a worker that nobody watches any more must not go on."""
        if not beating.cancelled() and (error := beating.exception()) is not None:
            self.condemn(f"its heartbeat failed: {error!r}", kind="violation")

    def _pong_is_late(self) -> None:
        if self._tell("pong late"):
            wedge_s = self.client.connection.limits.wedge_ms / 1000
            self._log("info", f"the worker is busy: {MEANS[self._state]}; it is ended after {wedge_s:g} s of silence")

    async def prove_alive(self) -> None:
        """End a worker that left a cancel unanswered and answers no ping either, where nobody else loses by it.

        A closing must not wait out the wedge limit on a worker that is stuck: a new one ends the sandbox.
        """
        if not self.usable or not self.client.suspect:
            return
        patience_s = self._timing.suspect_s
        try:
            await self.client.ping(deadline_s=patience_s)
        except DeadlineExceeded:
            if self.client.suspect:
                self.condemn(f"it answered neither a cancel nor a ping within {patience_s:g} s", kind="wedge")
                await asyncio.wait((self.ended,), timeout=self._timing.stop.kill_s)
        except (WorkerCrashed, WorkerWedged):
            return  # its end is under way

    def condemn(self, cause: str, *, kind: Kind) -> None:
        """Kill the worker at once: it broke the wire or is wedged. Open calls are told when it is gone."""
        if not self._cause:
            self._cause, self._kind = cause, kind
            self._tell("wedge" if kind == "wedge" else "violation")
            self._log("error", f"worker is ended: {cause}")
        self.process.signal_group(signal.SIGKILL)

    @property
    def usable(self) -> bool:
        """Whether calls may be sent to it: it serves, and nothing is known against it."""
        return self._state in USABLE and not self._cause and not self.process.exited.done()

    def _deaf_or_mute(self, which: str, _: asyncio.Future[None]) -> None:
        """One of its pipes is closed: it has ended, which is told by its process, or can serve no more."""
        if self._state in ("stopping", "dead"):
            return
        self._loop.call_later(self._timing.exit_drain_s, self._condemn_if_open, which)

    def _condemn_if_open(self, which: str) -> None:
        if not self.process.exited.done() and self._state not in ("stopping", "dead"):
            self.condemn(f"it closed its {which} and did not end", kind="violation")

    def _exited(self, exited: asyncio.Future[Exit]) -> None:
        # Read what it still wrote; but a grandchild may hold the pipes for ever.
        waiting = [f for f in (self.client.input_ended, self._stderr.ended) if not f.done()]
        if not waiting:
            self._look_for_survivors(exited.result())
            return
        timer = self._loop.call_later(self._timing.exit_drain_s, self._look_for_survivors, exited.result())

        def one_ended(_: asyncio.Future[None]) -> None:
            if all(f.done() for f in waiting):
                timer.cancel()
                self._look_for_survivors(exited.result())

        for future in waiting:
            future.add_done_callback(one_ended)

    def _look_for_survivors(self, exited: Exit) -> None:
        if self.ended.done() or self._looking is not None:
            return
        # Its group was killed with it; what took itself out of the group carries the token all the same.
        looking = left_behind(self.process.identity)
        self._looking = outliving(looking, name=f"sandport survivors of {self.process.pid}")
        # Whoever waits for the end does not wait longer for what may be a machine out of breath.
        timer = self._loop.call_later(self._timing.survivors_s, self._end, exited)
        self._looking.add_done_callback(partial(self._looked, exited, timer))

    def _looked(self, exited: Exit, timer: asyncio.TimerHandle, looking: asyncio.Task[tuple[Survivor, ...]]) -> None:
        timer.cancel()
        survivors: tuple[Survivor, ...] = ()
        if not looking.cancelled():
            if (error := looking.exception()) is not None:
                self._log("warning", f"what the worker left could not be looked for: {error!r}")
            else:
                survivors = looking.result()
        for survivor in survivors:
            self._log("warning", f"the worker left a process outside of its group, which is left alone: {survivor}")
        self._end(exited, survivors)

    def _end(self, exited: Exit, survivors: tuple[Survivor, ...] = ()) -> None:
        if self.ended.done():
            return
        expected = self._state == "stopping" and not self._cause
        killed = exited.signal == signal.SIGKILL and not self._cause and not expected
        report = CrashReport(
            id=secrets.token_hex(4),
            provider=self.provider,
            tenant=self.tenant,
            pid=self.process.pid,
            exit_code=exited.exit_code,
            signal=exited.signal,
            uptime_s=self.process.uptime_s,
            phase=self._state,
            cause=self._cause,
            kind=self._kind,
            log_tail=self._log_tail(),
            open_methods=self.client.open_methods,
            peak_memory_bytes=exited.peak_memory_bytes,
            memory=memory_facts(self.process.kills_before) if killed else MemoryFacts(),
            log_path=self._log_file.place() if self._log_file is not None and not expected else "",
            survivors=survivors,
        )
        if not expected and self._served:
            self._log("error", report.summary(), crash=report.id)
        self._tell("gone")
        self.ended.set_result(report)
        self.client.close(report, "it was stopped" if expected else "it crashed")

    # -------------------------------------------------------------- stop

    def let_go(self) -> None:
        """End its input without waiting: it finishes what it was told and exits by itself."""
        if self._stdin is not None:
            self.client.finish_writing()
            self._stdin.close()

    async def stop(self) -> CrashReport:
        """Shutdown with drain, end of input, SIGTERM, SIGKILL: each bounded, in this order, until it is gone."""
        ladder = self._timing.stop
        served = self._state in USABLE
        self._tell("stop")
        if served:
            await self._ask_to_stop(ladder.drain_s)
        self.let_go()
        for patience_s, number in (
            (ladder.eof_s, signal.SIGTERM),
            (ladder.term_s, signal.SIGKILL),
            (ladder.kill_s, None),
        ):
            if await self._gone_within(patience_s):
                break
            if number is not None:
                self._log("warning", f"worker does not end by itself: {signal.Signals(number).name}")
                self.process.signal_group(number)
        else:
            self._log("error", "worker survived SIGKILL; it is stuck in the kernel and left behind")
        if self._stdin is not None and not self._input_side.lost.done():
            self._stdin.abort()  # what it did not read, nobody will
        for transport in self._readers:
            transport.close()
        if not self.ended.done():
            self._end(Exit(None, None, None))
        return self.ended.result()

    async def _ask_to_stop(self, drain_s: float) -> None:
        try:
            call = await self.client.begin(
                METHODS["shutdown"], ShutdownParams(drain_ms=round(drain_s * 1000)), deadline_s=None
            )
        except SandportError:
            return  # it is going already
        await asyncio.wait((call.future, self.ended), timeout=drain_s + 0.5, return_when=asyncio.FIRST_COMPLETED)

    async def _gone_within(self, patience_s: float) -> bool:
        await asyncio.wait((self.ended,), timeout=patience_s)
        return self.ended.done()


class RunningWorker:
    """A worker that serves, for the length of an `async with`; no process of its group outlives the block.

    It is no generator: those that are open when a loop is shut down are all closed at once, and a worker must serve
    the blocks of its host until the last of them is left.

    Args:
        command: What to start.
        hello: What to say to it.
        environ: The host's own environment.
        timing: The waits.
        log: Where its records go.
        on_late: Told of results that came after their callers were told something else.
        instance: The host's instance id, for the worker's token.
        root: The host's home, for the record of the worker.
        log_file: The file that its log goes to as well, for messages.
        on_stable: Told once when it has served for the stable time and still answers.
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
        log_file: LogFile | None = None,
        on_stable: Callable[[], None] | None = None,
    ) -> None:
        self._hello = hello
        self._environ = environ
        self._spawn = partial(spawn, command, environ, instance=instance, root=root)
        self._made = partial(
            Worker,
            command,
            limits=hello.limits,
            timing=timing,
            log=log,
            on_late=on_late,
            log_file=log_file,
            on_stable=on_stable,
        )
        self._worker: Worker
        self._beating: asyncio.Task[None]

    async def __aenter__(self) -> Worker:
        """Start it.

        Raises:
            WorkerStartFailed: It could not be spawned, said no usable hello, or did not get ready; it is gone already.
        """
        self._worker = worker = self._made(process=self._spawn())
        try:
            await worker._connect()
            await worker._greet(self._hello, self._environ)
        except BaseException:  # a cancel too: nobody else knows of the process yet
            await finished(worker.stop())
            raise
        self._beating = outliving(worker.beat(), name=f"sandport heartbeat of {worker.process.pid}")
        self._beating.add_done_callback(worker.heart_stopped)
        return worker

    async def __aexit__(self, *raised: object) -> None:
        """Stop it."""
        self._beating.cancel()
        try:
            await asyncio.wait((self._beating,))
        finally:
            await finished(self._worker.stop())


def _file(fd: int, mode: Literal["rb", "wb"]) -> Any:
    return open(fd, mode, buffering=0)
