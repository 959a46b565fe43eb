"""Measures calls of the host to a worker of the SDK: deadlines, ids, cancellation and typed errors in place."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import sys
import time
from typing import Any, Self

from msgspec import Raw

from sandport.log import Log
from sandport.numbers import DEFAULT_TIMING
from sandport.worker.client import WorkerClient
from sandport.worker.launch import WorkerCommand, spawn
from sandport.worker.lifetime import RunningWorker
from sandport.worker.stderr import Level, StderrPump
from sandport_protocol import codec, versions
from sandport_protocol.limits import DEFAULTS
from sandport_protocol.methods import METHODS, Method
from sandport_protocol.v1 import InitializeParams, Params, PeerInfo, ProbeParams, ProbeResult, Result, ShutdownParams

from . import blocks
from .order import ROOT, Order

DEADLINE_S = 60.0


class EchoParams(Params, frozen=True, kw_only=True):
    """What the extension takes."""

    text: str


class EchoResult(Result, frozen=True, kw_only=True):
    """What it answers."""

    text: str


ECHO = Method(
    name="x-bench/echo",
    params=EchoParams,
    result=EchoResult,
    repeatable=True,
    group="extension",
    repeat="echoes again",
    cancel="leaves nothing behind",
    errors=(),
)
HELLO = InitializeParams(
    protocol_versions=versions.SUPPORTED,
    host=PeerInfo(name="bench", version="0"),
    store_id="st" + "a" * 26,
    state_dir="/",
    limits=DEFAULTS,
)


def worker_command(module: str) -> WorkerCommand:
    """A worker of this folder, started as the host starts one of an installed provider."""
    return WorkerCommand(
        provider="bench",
        argv=(sys.executable, "-P", "-m", f"tests.bench.{module}"),
        settings_env=(("PYTHONPATH", str(ROOT)),),
    )


def _opened(fd: int, mode: str) -> Any:
    return os.fdopen(fd, mode, buffering=0)


def _late(method: str, params: Any, result: Raw | None) -> None:
    raise RuntimeError(f"{method} answered after its caller was told otherwise")


class SandportCalls:
    """The whole way of a call."""

    def __init__(self) -> None:
        self._stack = contextlib.AsyncExitStack()

    async def __aenter__(self) -> Self:
        self._worker = await self._stack.enter_async_context(self._running("echo_worker"))
        self._client = self._worker.client
        await self._echo("up")
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._stack.aclose()

    @staticmethod
    def _running(module: str) -> Any:
        return RunningWorker(
            worker_command(module), HELLO, environ=os.environ, timing=DEFAULT_TIMING, log=Log(), on_late=_late
        )

    async def _echo(self, text: str) -> str:
        answer = await self._client.call(ECHO, EchoParams(text=text), EchoResult, deadline_s=DEADLINE_S)
        return str(answer.text)

    async def _probe(self, text: str) -> str:
        params = ProbeParams(config=Raw(codec.encode({"text": text})))
        answer = await self._client.call(METHODS["probe"], params, ProbeResult, deadline_s=DEADLINE_S)
        return str(answer.checks[0].detail)

    async def do(self, order: Order) -> tuple[float, ...]:
        """Carry out one order."""
        gc.collect()
        text = blocks.text_of(order.size_bytes)
        worker_pid = self._worker.process.pid
        match order.do:
            case "calls" | "large":
                return await blocks.sequential(self._echo, text, order.count, worker_pid)
            case "typed calls":
                return await blocks.sequential(self._probe, text, order.count, worker_pid)
            case "in flight":
                return await blocks.in_flight(self._echo, text, order.count, worker_pid)
            case "memory":
                return blocks.memory(self._worker.process.pid)
            case "start":
                return tuple([await self._start() for _ in range(order.count)])
            case "heavy start":
                return tuple([second for _ in range(order.count) for second in await self._heavy_start()])
        raise ValueError(f"calls do not do {order.do!r}")

    async def _start(self) -> float:
        """Seconds from the spawn to the first answer of a call, the hello and `ready` included."""
        begun = time.perf_counter()
        async with self._running("echo_worker") as worker:
            await worker.client.call(ECHO, EchoParams(text="up"), EchoResult, deadline_s=DEADLINE_S)
            return time.perf_counter() - begun

    async def _heavy_start(self) -> tuple[float, float]:
        """Seconds from the spawn to the hello, and to `ready`, of a worker with a heavy import."""
        loop = asyncio.get_running_loop()
        log = Log()

        def note(level: Level, line: str) -> None:
            log(level, line)

        def fatal(cause: str) -> None:
            raise RuntimeError(f"the worker cannot be used: {cause}")

        begun = time.perf_counter()
        process = spawn(worker_command("heavy_worker"), os.environ)
        client = WorkerClient("bench", limits=DEFAULTS, log=note, on_late=_late, on_fatal=fatal)
        stderr = StderrPump(note, line_bytes=DEFAULTS.log_line_bytes)
        writer, _ = await loop.connect_write_pipe(lambda: client, _opened(process.stdin_fd, "wb"))
        client.write_to(writer)
        await loop.connect_read_pipe(lambda: client, _opened(process.stdout_fd, "rb"))
        await loop.connect_read_pipe(lambda: stderr, _opened(process.stderr_fd, "rb"))
        await client.hello(HELLO)
        hello_s = time.perf_counter() - begun
        await client.ready
        ready_s = time.perf_counter() - begun
        call = await client.begin(METHODS["shutdown"], ShutdownParams(drain_ms=1000), deadline_s=None)
        await call.future
        writer.close()
        await process.exited
        return hello_s, ready_s
