"""Lets `sandport-conformance host` judge Sandport's own host; the contract is in HOSTS.md.

`sandport-conformance host -- python tests/conformance/adapters/sandport_host.py`
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import sys
import time
from collections.abc import AsyncIterator, Awaitable
from typing import Any

import msgspec

from sandport import Configuration, Host, Outcome, Sandbox, SandportError
from sandport.configuration import EnvironmentSettings, HostSettings, ProviderSettings
from sandport.log import Log
from sandport.numbers import StopLadder, Timing
from sandport_protocol.limits import Limits

_CONDITIONS = {
    "WorkerStartFailed": "startFailed",
    "WorkerCrashed": "crashed",
    "WorkerWedged": "wedged",
    "DeadlineExceeded": "deadline",
    "CallCancelled": "cancelled",
}


def write(level: str, event: str, fields: dict[str, Any]) -> None:
    """A record of the log, as a line of stderr."""
    line = json.dumps({"level": level, "event": event, **fields}, default=str, ensure_ascii=False)
    sys.stderr.write(line + "\n")


def configuration(settings: dict[str, Any], worker: list[str]) -> Configuration:
    """The host's settings, from the kit's."""
    defaults = Timing()
    timing = msgspec.structs.replace(
        defaults,
        start_s=settings.get("startS", defaults.start_s),
        command_margin_s=settings.get("marginS", defaults.command_margin_s),
        stop=StopLadder(drain_s=1.0, eof_s=0.5, term_s=0.5) if "startS" in settings else defaults.stop,
    )
    return Configuration(
        host=HostSettings(timing=timing),
        providers={
            "impostor": ProviderSettings(
                command=tuple(worker), limits=msgspec.convert(settings.get("limits", {}), Limits)
            )
        },
        environments={"judged": EnvironmentSettings(provider="impostor", config=settings.get("config", {}))},
    )


async def told(work: Awaitable[Outcome]) -> dict[str, Any]:
    """How a command ended for its caller."""
    began = time.monotonic()
    outcome: Outcome | None = None
    error: dict[str, Any] | None = None
    try:
        outcome = await work
    except TimeoutError:
        error = {"condition": "cancelled", "message": "given up", "dispatched": "unknown"}
    except SandportError as raised:
        name = type(raised).__name__
        error = {"condition": _CONDITIONS.get(name, name), "message": str(raised), "dispatched": raised.dispatched}
    return {
        "ended": outcome.ended if outcome else None,
        "exitCode": outcome.exit_code if outcome else None,
        "stdoutBytes": outcome.stdout.total_bytes if outcome else None,
        "error": error,
        "tookS": time.monotonic() - began,
    }


class Adapter:
    """One run.

    Args:
        host: The host that is judged.
        options: What the kit asked for.
    """

    def __init__(self, host: Host, options: argparse.Namespace) -> None:
        self.host, self.options = host, options

    async def execute(self, sandbox: Sandbox) -> Outcome:
        """The command."""
        return await sandbox.execute(
            self.options.argv, timeout_s=self.options.timeout, output_limit_bytes=self.options.keep
        )

    @contextlib.asynccontextmanager
    async def lease(self) -> AsyncIterator[Sandbox]:
        """A lease, given up after `--give-up` seconds."""
        async with contextlib.AsyncExitStack() as stack:
            async with asyncio.timeout(self.options.give_up):
                sandbox = await stack.enter_async_context(self.host.lease("judged"))
            yield sandbox

    async def lease_and_execute(self) -> Outcome:
        """A command in a lease of its own."""
        async with self.host.lease("judged") as sandbox:
            return await self.execute(sandbox)

    async def started(self, sandbox: Sandbox) -> Outcome:
        """The command as a process."""
        writers = self.options.write
        async with sandbox.start(self.options.argv, stdin=writers > 0, timeout_s=self.options.timeout) as process:
            await asyncio.gather(*(process.stdin.write(b"x") for _ in range(writers)))
            if writers:
                await process.stdin.close()
            return await process.wait()

    async def stalled(self, sandbox: Sandbox) -> dict[str, Any]:
        """The command with a consumer that takes nothing until another command has ended."""
        first, go_on = asyncio.Event(), asyncio.Event()

        async def take(stream: str, data: bytes) -> None:
            first.set()
            await go_on.wait()

        slow = asyncio.ensure_future(
            told(sandbox.execute(self.options.argv, timeout_s=self.options.timeout, on_output=take))
        )
        begun = asyncio.ensure_future(first.wait())
        await asyncio.wait((slow, begun), return_when=asyncio.FIRST_COMPLETED)
        begun.cancel()
        beside = await told(self.execute(sandbox))
        go_on.set()
        return {**await slow, "beside": beside}

    async def transfers(self, sandbox: Sandbox, which: str) -> dict[str, Any]:
        """Files into the sandbox, or out of it, where the kit asks for that."""
        options = self.options
        if which == "sent" and options.send:
            return {"sent": await told(_without_result(sandbox.sync_in(options.send, "sent")))}
        if which == "fetched" and options.fetch:
            return {"fetched": await told(_without_result(sandbox.sync_out("made", options.fetch)))}
        return {}

    async def first(self) -> dict[str, Any]:
        """The command in the way that the options say."""
        options = self.options
        answer: dict[str, Any] = {}

        async def in_lease() -> Outcome:
            nonlocal answer
            async with self.lease() as sandbox:
                moved = await self.transfers(sandbox, "sent")
                if options.stall:
                    answer = await self.stalled(sandbox)
                elif options.start:
                    answer = await told(self.started(sandbox))
                else:
                    answer, *others = await asyncio.gather(
                        *(told(self.execute(sandbox)) for _ in range(options.parallel))
                    )
                    answer["others"] = others
                answer = {**answer, **moved, **await self.transfers(sandbox, "fetched")}
                await asyncio.sleep(options.linger)
            return _NONE

        lease_ended = await told(in_lease())
        if not answer:
            await asyncio.sleep(options.linger)
        return answer or lease_ended

    async def run(self) -> dict[str, Any]:
        """The whole answer."""
        answer = await self.first()
        if self.options.again:
            answer["next"] = await told(self.lease_and_execute())
        return answer


_NONE = Outcome(ended="exited", exit_code=None)


async def _without_result(work: Awaitable[object]) -> Outcome:
    """Work of which only the error is told."""
    await work
    return _NONE


def parsed(arguments: list[str]) -> argparse.Namespace:
    """The words of the kit."""
    parser = argparse.ArgumentParser()
    parser.add_argument("do", choices=["run"])
    parser.add_argument("--timeout", type=float, required=True)
    parser.add_argument("--keep", type=int, default=1 << 20)
    parser.add_argument("--parallel", type=int, default=1)
    parser.add_argument("--give-up", type=float)
    parser.add_argument("--linger", type=float, default=0.0)
    parser.add_argument("--again", action="store_true")
    parser.add_argument("--start", action="store_true")
    parser.add_argument("--write", type=int, default=0)
    parser.add_argument("--stall", action="store_true")
    parser.add_argument("--send")
    parser.add_argument("--fetch")
    parser.add_argument("argv", nargs="+")
    return parser.parse_args(arguments)


async def main() -> None:
    """Do what the kit asks and print the answer."""
    settings = json.loads(os.environ.get("SANDPORT_HOST_SETTINGS", "{}"))
    worker = json.loads(os.environ["SANDPORT_HOST_WORKER"])
    async with Host.open(configuration(settings, worker), log=Log(write)) as host:
        answer = await Adapter(host, parsed(sys.argv[1:])).run()
    sys.stdout.write(json.dumps(answer) + "\n")


if __name__ == "__main__":
    asyncio.run(main())
