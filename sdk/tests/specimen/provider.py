"""A provider whose handlers do what a test asks for; what they print must never reach the wire."""

import asyncio
import atexit
import logging
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
import warnings
from typing import Any

from sandport_sdk.v1 import Call, Capabilities, Config, Provider, Session, errors, extension, types

print("printed at import")
os.write(1, b"written to descriptor 1 at import\n")
atexit.register(print, "printed at exit")

log = logging.getLogger("specimen")


class SpecimenConfig(Config, frozen=True, kw_only=True):
    image: str = "plain"


class Specimen(Provider):
    name = "specimen"
    version = "0.1.0"
    Config = SpecimenConfig
    capabilities = Capabilities(kill="tree")
    wants_env = ("SPECIMEN_TOKEN",)

    def __init__(self, session: Session) -> None:
        super().__init__(session)
        self.cancels = 0
        self.live = 0
        self.gate = asyncio.Event()

    async def prepare(self) -> None:
        print("printed while preparing")
        if os.environ.get("SPECIMEN_PREPARE") == "fails":
            raise errors.AuthenticationFailed("the key was refused")
        if os.environ.get("SPECIMEN_PREPARE") == "waits":
            await self.gate.wait()

    async def close(self) -> None:
        log.info("closed with %d cancels", self.cancels)

    async def probe(self, params: types.ProbeParams, call: Call) -> types.ProbeResult:
        return types.ProbeResult(checks=(types.ProbeCheck(name="live", ok=True, detail=str(self.live)),))

    async def acquire_lease(self, params: types.AcquireLeaseParams, call: Call) -> types.LeaseResult:
        config: SpecimenConfig = self.config_of(params)
        return types.LeaseResult(handle=config.image, working_directory="/")

    async def attach_lease(self, params: types.AttachLeaseParams, call: Call) -> types.AttachLeaseResult:
        return types.AttachLeaseResult(state="gone")

    async def list_leases(self, params: types.ListLeasesParams, call: Call) -> types.ListLeasesResult:
        return types.ListLeasesResult()

    async def destroy_lease(self, params: types.DestroyLeaseParams, call: Call) -> types.DestroyLeaseResult:
        return types.DestroyLeaseResult(state="gone")

    async def execute(self, params: types.ExecuteParams, call: Call) -> types.ExecuteResult:
        """`argv` is the number of bytes to send to stdout."""
        assert params.argv is not None
        left = int(str(params.argv[0]))
        while left:
            piece = min(left, 300_000)
            await call.output("stdout", b"o" * piece)
            left -= piece
        for stream in ("stdout", "stderr"):
            await call.end(stream, "seen")
        return types.ExecuteResult(
            ended="exited", exit_code=0, stdout=types.StreamResult(total_bytes=call.sent("stdout"))
        )

    # ------------------------------------------------------------ values

    @extension("x-specimen/echo")
    async def echo(self, params: Any, call: Call) -> Any:
        return params

    @extension("x-specimen/size")
    async def size(self, params: Any, call: Call) -> Any:
        return "s" * params["bytes"]

    @extension("x-specimen/nan")
    async def nan(self, params: Any, call: Call) -> Any:
        return {"deep": [{"number": float("nan")}]}

    @extension("x-specimen/remaining")
    async def remaining(self, params: Any, call: Call) -> Any:
        return call.remaining_s()

    @extension("x-specimen/progress")
    async def report(self, params: Any, call: Call) -> Any:
        for number in range(params["count"]):
            await call.progress(done=number)
        return None

    @extension("x-specimen/environment")
    def environment(self, params: Any, call: Call) -> Any:
        """Where the standard descriptors lead, and what a child of this worker inherits."""
        child = subprocess.run(["ls", "/proc/self/fd"], capture_output=True, text=True, check=True)
        return {"fd": {n: os.readlink(f"/proc/self/fd/{n}") for n in (0, 1, 2)}, "child": child.stdout.split()}

    # ------------------------------------------------------------ ways to end

    @extension("x-specimen/raise")
    async def fail(self, params: Any, call: Call) -> Any:
        raise {
            "SystemExit": SystemExit(7),
            "KeyboardInterrupt": KeyboardInterrupt(),
            "MemoryError": MemoryError(),
            "GeneratorExit": GeneratorExit(),
            "CancelledError": asyncio.CancelledError(),
            "RecursionError": RecursionError(),
            "ValueError": ValueError("half a surrogate: \udc80"),
        }[params["what"]]

    @extension("x-specimen/raise-in-thread")
    def fail_in_thread(self, params: Any, call: Call) -> Any:
        raise {"SystemExit": SystemExit(7), "StopIteration": StopIteration(), "MemoryError": MemoryError()}[
            params["what"]
        ]

    @extension("x-specimen/exit-in-task")
    async def exit_in_task(self, params: Any, call: Call) -> Any:
        async def exits() -> None:
            sys.exit(5)

        async with asyncio.TaskGroup() as group:
            group.create_task(exits())

    @extension("x-specimen/group")
    async def fail_in_group(self, params: Any, call: Call) -> Any:
        async def fails() -> None:
            raise errors.QuotaExceeded("no more", dispatched="no")

        async with asyncio.TaskGroup() as group:
            group.create_task(fails())

    @extension("x-specimen/dispatched")
    async def refine(self, params: Any, call: Call) -> Any:
        call.dispatched = params["dispatched"]
        raise ValueError("after the vendor's call")

    # ------------------------------------------------------------ waiting

    @extension("x-specimen/wait")
    async def wait(self, params: Any, call: Call) -> Any:
        self.live += 1
        log.info("waiting")
        try:
            await self.gate.wait()
        except asyncio.CancelledError:
            self.cancels += 1
            if params.get("finish"):
                return "finished all the same"
            raise
        finally:
            self.live -= 1
        return "open"

    @extension("x-specimen/tidy")
    async def tidy(self, params: Any, call: Call) -> Any:
        log.info("waiting")
        try:
            await asyncio.sleep(3600)
        finally:
            log.info("tidying up")
            await self.gate.wait()
            log.info("tidied up")

    @extension("x-specimen/open")
    async def open_gate(self, params: Any, call: Call) -> Any:
        self.gate.set()
        return None

    @extension("x-specimen/block")
    def block(self, params: Any, call: Call) -> Any:
        """Blocks its thread until it is cancelled; then it may go on for a while."""
        log.info("blocking")
        cancelled = call.cancelled.block(params.get("seconds"))
        if cancelled and params.get("raise"):
            call.raise_if_cancelled()
        return {"cancelled": cancelled}

    @extension("x-specimen/never")
    def never(self, params: Any, call: Call) -> Any:
        log.info("never ends")
        threading.Event().wait()

    @extension("x-specimen/ticks")
    async def ticks(self, params: Any, call: Call) -> Any:
        """How often the loop turned while a reply waited for its reader."""
        turns = 0
        while not self.gate.is_set():
            await asyncio.sleep(0.005)
            turns += 1
        return turns

    # ------------------------------------------------------------ the outside

    @extension("x-specimen/noise")
    async def noise(self, params: Any, call: Call) -> Any:
        print("printed in a handler")
        print("without a line feed", end="", flush=True)
        os.write(1, b"written to descriptor 1\n")
        sys.__stdout__.write("through the first stdout\n")  # type: ignore[union-attr]
        handler = logging.StreamHandler(sys.stdout)
        log.addHandler(handler)
        log.warning("logged to stdout")
        log.removeHandler(handler)
        child = await asyncio.create_subprocess_exec("sh", "-c", "echo printed by a child")
        await child.wait()
        return "quiet"

    @extension("x-specimen/child-reads")
    async def child_reads(self, params: Any, call: Call) -> Any:
        child = await asyncio.create_subprocess_exec("cat", stdout=asyncio.subprocess.PIPE)
        output, _ = await child.communicate()
        return {"read": len(output), "code": child.returncode, "own": len(sys.stdin.read())}

    @extension("x-specimen/pool")
    def pool(self, params: Any, call: Call) -> Any:
        with multiprocessing.get_context(params["method"]).Pool(2) as pool:
            return pool.map(abs, [-1, -2, -3, -4])

    @extension("x-specimen/fork")
    def fork(self, params: Any, call: Call) -> Any:
        """A forked child looks where this worker's descriptors lead in itself, and tells it."""
        read, write = os.pipe()
        child = os.fork()
        if child == 0:
            os.write(write, "\n".join({_leads_to(number) for number in range(64)}).encode())
            os._exit(0)
        os.close(write)
        with os.fdopen(read) as report:
            found = report.read().split("\n")
        os.waitpid(child, 0)
        return found

    @extension("x-specimen/fork-and-terminate")
    def fork_and_terminate(self, params: Any, call: Call) -> Any:
        """Children that are sent SIGTERM as soon as they have a number; their exit codes."""
        codes = set()
        for _ in range(params["count"]):
            child = os.fork()
            if child == 0:
                time.sleep(20)
                os._exit(1)
            os.kill(child, signal.SIGTERM)
            codes.add(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
        return sorted(codes)

    @extension("x-specimen/fork-handles-signal")
    def fork_handles_signal(self, params: Any, call: Call) -> Any:
        """A forked child that handles SIGTERM itself; its exit code."""
        child = os.fork()
        if child == 0:
            signal.signal(signal.SIGTERM, lambda number, frame: os._exit(33))
            os.kill(os.getpid(), signal.SIGTERM)
            os._exit(1)
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])

    @extension("x-specimen/interruptible")
    async def interruptible(self, params: Any, call: Call) -> Any:
        child = await asyncio.create_subprocess_exec("sh", "-c", "kill -INT $$; exit 0")
        return await child.wait()

    @extension("x-specimen/parent")
    async def parent(self, params: Any, call: Call) -> Any:
        return os.getppid()

    @extension("x-specimen/warn")
    async def warn(self, params: Any, call: Call) -> Any:
        class Warns(logging.Handler):
            def emit(self, record: logging.LogRecord) -> None:
                warnings.warn("a warning while a warning is logged", stacklevel=1)

        handler = Warns()
        logging.captureWarnings(True)
        logging.getLogger("py.warnings").addHandler(handler)
        try:
            warnings.simplefilter("default")
            log.warning("warned")
            warnings.warn("a warning", stacklevel=1)
        finally:
            logging.getLogger("py.warnings").removeHandler(handler)
            logging.captureWarnings(False)
        return None

    @extension("x-specimen/thread")
    async def start_thread(self, params: Any, call: Call) -> Any:
        """A thread that nobody ends, and that is no daemon."""
        threading.Thread(target=threading.Event().wait, daemon=False).start()
        return None

    @extension("x-specimen/hold-loop")
    async def hold_loop(self, params: Any, call: Call) -> Any:
        time.sleep(params["seconds"])  # noqa: ASYNC251 - the loop is meant to stand still
        return None


def _leads_to(descriptor: int) -> str:
    try:
        return os.readlink(f"/proc/self/fd/{descriptor}")
    except FileNotFoundError:
        return "closed"
