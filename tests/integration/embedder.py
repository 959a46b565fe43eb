"""A program that embeds a host, for tests that close its descriptors, measure its memory, signal it or kill it.

`python -m tests.integration.embedder DO HOME COMMAND...` runs one of the functions below with a host whose provider
`scripted` is started by the command. What a test wants to know is printed as one JSON object a line.
"""

import asyncio
import contextlib
import json
import os
import sys
from pathlib import Path
from typing import Any

from msgspec import Raw

from sandport.errors import SandportError
from sandport.host import Host
from sandport.log import Log
from sandport_protocol.codec import encode
from sandport_protocol.limits import Limits
from sandport_protocol.methods import METHODS
from sandport_protocol.v1 import ProbeParams, ProbeResult
from tests.integration.stage import configuration

MIB = 1024 * 1024


def tell(**facts: Any) -> None:
    """One line for the test; descriptor 3 where the test closed the standard ones."""
    os.write(int(os.environ.get("TELL", "1")), json.dumps(facts).encode() + b"\n")


def memory() -> dict[str, int]:
    """VmHWM and VmRSS of this process, in bytes."""
    status = Path("/proc/self/status").read_text()
    lines = [line.split() for line in status.splitlines() if line.startswith(("VmHWM", "VmRSS"))]
    return {words[0].rstrip(":"): int(words[1]) * 1024 for words in lines}


def forget_peak() -> None:
    """Let VmHWM count from here."""
    Path("/proc/self/clear_refs").write_text("5")


async def run_one(host: Host) -> None:
    """A lease and a command; says how it ended."""
    async with host.lease("scripted") as sandbox:
        outcome = await sandbox.execute(["echo", "hello"])
        tell(exit_code=outcome.exit_code, stdout=outcome.stdout.decode())


async def overflow(host: Host) -> None:
    """An answer that never ends; says how much memory that took."""
    async with host.lease("scripted") as sandbox:
        forget_peak()
        before = memory()["VmHWM"]
        try:
            await sandbox.execute(["x"])
        except SandportError as error:
            tell(error=str(error), kind=type(error).__name__, grown=memory()["VmHWM"] - before)


async def large_answer(host: Host) -> None:
    """A very large answer; says what memory is left of it."""

    async def probe(size: int) -> int:
        client = (await host._supervisor("scripted").worker()).client
        params = ProbeParams(config=Raw(encode({"bytes": size})))
        result = await client.call(METHODS["probe"], params, ProbeResult, deadline_s=60)
        return len(result.checks[0].detail)

    await probe(1000)
    before = memory()["VmRSS"]
    size = await probe(100 * MIB)
    await probe(1000)
    tell(size=size, before=before, after=memory()["VmRSS"], peak=memory()["VmHWM"])


async def stalled(host: Host) -> None:
    """A consumer that takes a few pieces of an endless stream and then none; says how much memory that takes."""
    async with host.lease("scripted") as sandbox:
        enough = asyncio.Event()
        taken = 0

        async def consume(stream: str, data: bytes) -> None:
            nonlocal taken
            taken += len(data)
            if taken > 4 * MIB:
                enough.set()
                await asyncio.Event().wait()

        forget_peak()
        call = asyncio.ensure_future(sandbox.execute(["yes"], on_output=consume, output_limit_bytes=MIB))
        await enough.wait()
        running = await host._supervisor("scripted").worker()
        for _ in range(20):
            await running.client.ping(deadline_s=30)
            await asyncio.sleep(0.01)
        tell(peak=memory()["VmHWM"], taken=taken, worker=_rss(running.process.pid))
        call.cancel()
        await asyncio.wait((call,))


def _rss(pid: int) -> int:
    status = Path(f"/proc/{pid}/status").read_text()
    return next(int(line.split()[1]) * 1024 for line in status.splitlines() if line.startswith("VmHWM"))


async def idle(host: Host) -> None:
    """A worker that has nothing to do; says its pid, and stays until somebody ends this program."""
    await host.describe("scripted")
    tell(worker=(await host._supervisor("scripted").worker()).process.pid)
    await asyncio.Event().wait()


async def busy(host: Host) -> None:
    """A command that does not end; says the worker's pid, and stays until somebody ends this program."""
    async with host.lease("scripted") as sandbox:
        tell(worker=(await host._supervisor("scripted").worker()).process.pid)
        await sandbox.execute(["sleep", "600"])


DOINGS = {doing.__name__: doing for doing in (run_one, overflow, large_answer, stalled, idle, busy)}


async def embed(what: str, home: str, command: tuple[str, ...]) -> None:
    limits = Limits(
        frame_bytes=int(os.environ.get("FRAME_BYTES", Limits().frame_bytes)),
        host_silence_ms=int(os.environ.get("HOST_SILENCE_MS", Limits().host_silence_ms)),
        heartbeat_ms=min(Limits().heartbeat_ms, int(os.environ.get("HOST_SILENCE_MS", Limits().host_silence_ms)) // 10),
    )
    log = Log(lambda level, event, fields: print(f"{level}: {event}", file=sys.stderr), threshold="warning")
    settings = configuration({"scripted": command}, limits=limits)
    async with Host.open(settings, home=home, log=log) as host:
        await DOINGS[what](host)


def main() -> None:
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(embed(sys.argv[1], sys.argv[2], tuple(sys.argv[3:])))
    tell(ended=True)


if __name__ == "__main__":
    main()
