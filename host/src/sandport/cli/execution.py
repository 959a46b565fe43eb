"""`sandport run` at work: start, acquire, copy in, run, copy out, release; and what is told about it."""

from __future__ import annotations

import asyncio
import contextlib
import os
import stat
import traceback
from collections.abc import Iterator

import anyio

from sandport.errors import NotSupported, SandportError
from sandport.host import Host
from sandport.outcome import Outcome
from sandport.sandbox import INLINE_STDIN_BYTES, Sandbox
from sandport.sync.result import SyncProgress, SyncResult
from sandport_protocol.capabilities import effective_groups

from .application import Settings
from .failures import OutputFailed, failure_of
from .messages import say, write
from .plan import Plan
from .records import Records
from .report import Phase, Report
from .status import Status, human_bytes
from .streams import Inlet, outlets
from .transfer import Transfer

_MANY_FILES = 5_000
"""Past so many files a smaller selection is worth a thought."""


def perform(plan: Plan, settings: Settings, report: Report) -> None:
    """Carry the plan out; everything that comes of it is in the report, and what a person needs on stderr."""
    anyio.run(_Run(plan, settings, report).whole, backend="asyncio")


class _Run:
    def __init__(self, plan: Plan, settings: Settings, report: Report) -> None:
        self._plan = plan
        self._settings = settings
        self._report = report
        self._interrupts = settings.interrupts
        self._records = Records(settings, usual="error" if plan.talk == "quiet" else "warning")
        self._status = Status(quiet=plan.talk == "quiet")
        self._outlets = outlets(only_stderr=plan.as_json)
        self._can_feed = False

    # -------------------------------------------------------------- around it

    async def whole(self) -> None:
        """From the first thing that is started to the last that is stopped."""
        # What is started below can be cancelled from inside only: the workers must outlive the clean-up.
        self._interrupts.guard(lambda: None)
        started = asyncio.get_running_loop().time()
        try:
            async with Host.open(self._plan.configuration, log=self._records.log) as host:
                self._report.ids.store = host.home.store_id
                self._interrupts.on_leaving(host.abandon)
                try:
                    await self._cancellable(host)
                finally:
                    stopping = asyncio.get_running_loop().time()
            self._report.timings_ms["stop"] = round((asyncio.get_running_loop().time() - stopping) * 1000)
        except Exception as error:  # noqa: BLE001 - every failure becomes a line, an exit code and a part of the report
            self._failed(error)
        finally:
            self._interrupts.relax()
        self._report.total_ms = round((asyncio.get_running_loop().time() - started) * 1000)
        self._report.warnings += self._records.errors
        self._epilogue()

    async def _cancellable(self, host: Host) -> None:
        loop = asyncio.get_running_loop()
        with anyio.CancelScope() as scope:
            self._interrupts.guard(lambda: loop.call_soon_threadsafe(scope.cancel))
            if self._interrupts.received is not None:
                scope.cancel()
            try:
                await self._leased(host)
            except Exception as error:  # noqa: BLE001 - as above; the host is still closed in order
                self._failed(error)

    async def _leased(self, host: Host) -> None:
        plan, report = self._plan, self._report
        provider = report.ids.provider or plan.environment
        with self._phase("start", f"starting the {provider} worker"):
            facts = await host.describe(provider)
        self._tell(f"{provider} worker {facts.hello.provider.version} started", "start")
        with self._phase("acquire", f"creating a {provider} sandbox"):
            lease = contextlib.AsyncExitStack()
            sandbox = await lease.enter_async_context(
                host.lease(plan.environment, config=plan.config, ttl_s=plan.ttl_s)
            )
        report.ids.sandbox = sandbox.id
        report.notes += sandbox.lease.notes
        self._tell(f"sandbox {sandbox.id} created", "acquire")
        self._can_feed = "process" in effective_groups(facts.hello.supported_methods, sandbox.lease.without)
        try:
            await self._work(sandbox)
        except Exception as error:  # noqa: BLE001 - as above; what follows is the release
            self._failed(error)
        finally:
            with self._phase("release", "destroying the sandbox"):
                await lease.aclose()
        self._tell(f"sandbox {sandbox.id} released", "release")

    async def _work(self, sandbox: Sandbox) -> None:
        for transfer in self._plan.into:
            await self._copy_in(sandbox, transfer)
        with self._phase("command", None):
            outcome = await self._command(sandbox)
        self._report.take(outcome)
        self._tell(f"{self._plan.command[0]} {_how(outcome)}", "command")
        for transfer in self._plan.out:
            try:
                await self._copy_out(sandbox, transfer)
            except SandportError as error:
                # The rest may be there; what is missing decides the exit code unless the program did.
                self._failed(error, of=transfer)

    # -------------------------------------------------------------- the command

    async def _command(self, sandbox: Sandbox) -> Outcome:
        plan = self._plan
        if plan.stdin is None:
            return await self._execute(sandbox, b"")
        inlet = Inlet(plan.stdin)
        if _small_file(plan.stdin):
            return await self._execute(sandbox, await _all_of(inlet))
        if self._can_feed:
            return await self._fed(sandbox, inlet)
        data = await _all_of(inlet, INLINE_STDIN_BYTES)
        return await self._execute(sandbox, data)

    async def _execute(self, sandbox: Sandbox, stdin: bytes) -> Outcome:
        plan = self._plan
        return await sandbox.execute(
            plan.command,
            cwd=plan.cwd,
            env=plan.env,
            stdin=stdin,
            timeout_s=plan.timeout_s,
            output_limit_bytes=0,
            on_output=lambda stream, data: self._outlets[stream].write(data),
        )

    async def _fed(self, sandbox: Sandbox, inlet: Inlet) -> Outcome:
        """Run it with an input that nobody knows the length of, passed on as it comes."""
        plan = self._plan
        async with sandbox.start(
            plan.command, cwd=plan.cwd, env=plan.env, stdin=True, timeout_s=plan.timeout_s, output_limit_bytes=0
        ) as process:

            async def feed() -> None:
                while data := await inlet.read():
                    if await process.stdin.write(data) < len(data):
                        return
                await process.stdin.close()

            feeding = asyncio.ensure_future(feed())
            try:
                async for stream, data in process.output():
                    await self._outlets[stream].write(data)
                return await process.wait()
            finally:
                feeding.cancel()
                # A program that ends before it read everything is its own business: its status says how.
                await asyncio.gather(feeding, return_exceptions=True)

    # -------------------------------------------------------------- files

    async def _copy_in(self, sandbox: Sandbox, transfer: Transfer) -> None:
        with self._phase("syncIn", f"copying {transfer.local} in"):
            result = await sandbox.sync_in(transfer.local, transfer.remote, on_progress=self._progress)
        self._report.moved_files("in", transfer, result)
        self._tell(f"{transfer.option}: {_moved(result)}", "syncIn")
        self._left_out(transfer, result)
        if result.files > _MANY_FILES and self._plan.talk != "quiet":
            say(f"{transfer.option}: {result.files:,} files were copied; copying only what is needed is faster")

    async def _copy_out(self, sandbox: Sandbox, transfer: Transfer) -> None:
        with self._phase("syncOut", f"copying {transfer.remote} out"):
            result = await sandbox.sync_out(transfer.remote, transfer.local or ".", on_progress=self._progress)
        self._report.moved_files("out", transfer, result)
        self._tell(f"{transfer.option}: {_moved(result)}", "syncOut")
        self._left_out(transfer, result)

    def _progress(self, progress: SyncProgress) -> None:
        self._status.detail(
            f"{progress.files_done:,} of {progress.files_total:,} files, "
            f"{human_bytes(progress.bytes_done)} of {human_bytes(progress.bytes_total)}"
        )

    def _left_out(self, transfer: Transfer, result: SyncResult) -> None:
        if self._plan.talk == "quiet":
            return
        for what, count, listed in (
            ("skipped", result.skipped_count, result.skipped),
            ("refused", result.refused_count, result.refused),
            ("changed while it was read", result.changed_count, result.changed),
        ):
            if count:
                first = f"{os.fsdecode(listed[0].path)}: {listed[0].reason}" if listed else ""
                say(f"{transfer.option}: {count:,} {what} ({first}{', ...' if count > 1 else ''})")

    # -------------------------------------------------------------- what is told

    @contextlib.contextmanager
    def _phase(self, phase: Phase, what: str | None) -> Iterator[None]:
        with self._report.timing(phase):
            if what is None:
                yield
            else:
                with self._status.doing(what):
                    yield

    def _tell(self, what: str, phase: Phase) -> None:
        if self._plan.talk == "verbose":
            say(f"{what} ({self._report.timings_ms.get(phase, 0) / 1000:.2f} s)")

    def _failed(self, error: Exception, *, of: Transfer | None = None) -> None:
        failure = failure_of(error, started=self._report.ids.sandbox is not None)
        self._report.failed(failure)
        if self._settings.debug:
            write("".join(traceback.format_exception(error)))
        if isinstance(error, OutputFailed) and error.closed:
            return  # as any program in a pipe: whoever closed it knows
        if self._interrupts.received is not None and self._plan.talk != "verbose":
            return  # the cancelled call says that it was cancelled; clean-up that fails is in the log
        text = failure.message if of is None else f"{of.option}: {failure.message}"
        say(text if failure.condition != "Bug" else f"a fault in sandport itself: {text}\nrun it again with --debug")

    def _epilogue(self) -> None:
        report = self._report
        if (code := self._interrupts.exit_code) is not None:
            report.interrupted(code)
            if self._plan.talk != "quiet":
                say("interrupted" if report.warnings else "interrupted; what was started has been cleaned up")
            return
        if self._plan.talk == "quiet":
            return
        if report.ended == "timedOut":
            say(f"the command was killed: it ran longer than --timeout {self._plan.timeout_s:g}")
        elif report.ended == "outOfMemory":
            say("the command was killed: it ran out of memory")
        if report.tree not in (None, "gone"):
            say(f"that everything which the command started is gone could not be proven ({report.tree})")
        for name, stream in (("stdout", report.stdout), ("stderr", report.stderr)):
            if stream is not None and stream.dropped:
                say(f"{stream.dropped} bytes of {name} were not taken in time and are lost")
            elif stream is not None and stream.end == "heldOpen":
                say(f"something that the command left behind held its {name} open; what that wrote later is not shown")
        for note in report.notes:
            say(f"note: {note}")


def _how(outcome: Outcome) -> str:
    if outcome.ended == "exited":
        return f"exited with {outcome.exit_code}"
    if outcome.ended == "signalled":
        return f"was ended by signal {outcome.signal}" + (" (core dumped)" if outcome.core_dumped else "")
    return {"timedOut": "timed out", "outOfMemory": "ran out of memory"}[outcome.ended]


def _moved(result: SyncResult) -> str:
    return f"{result.files:,} files, {human_bytes(result.total_bytes)}"


def _small_file(descriptor: int) -> bool:
    status = os.fstat(descriptor)
    return stat.S_ISREG(status.st_mode) and status.st_size <= INLINE_STDIN_BYTES


async def _all_of(inlet: Inlet, ceiling_bytes: int | None = None) -> bytes:
    """Everything up to the end.

    Raises:
        NotSupported: It is more than the ceiling.
    """
    pieces: list[bytes] = []
    size = 0
    while data := await inlet.read():
        pieces.append(data)
        size += len(data)
        if ceiling_bytes is not None and size > ceiling_bytes:
            raise NotSupported(
                f"--stdin: this provider has no processes, and takes at most {ceiling_bytes // 1024} KiB of input; "
                "copy a file in with --in instead"
            )
    return b"".join(pieces)
