"""A program that runs workers and kills them: before a chosen step of a call, or after a chosen time.

It reads orders, one JSON object a line, and answers each in the same way. For each it forks, so that a worker costs
some milliseconds and not the start of an interpreter. What counts as a step is what the interpreter tells an audit hook
of: files, folders, sockets, locks, processes and signals. Nothing in the provider is replaced.
"""

import asyncio
import json
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

from msgspec import Raw

from sandport_provider_local.provider import LocalProvider
from sandport_sdk.testing import HostInMemory, new_id
from sandport_sdk.v1 import Limits, types

FAMILIES = ("os.", "socket.", "fcntl.", "open", "signal.")


def is_step(event: str, arguments: tuple[Any, ...]) -> bool:
    """Whether a worker that is killed here could leave something other than one that is killed elsewhere."""
    if not event.startswith(FAMILIES):
        return False
    path = arguments[0] if arguments and isinstance(arguments[0], str | bytes) else ""
    return not os.fsdecode(path).startswith("/proc/") or "/fd/" in os.fsdecode(path)


def config_of(order: dict[str, Any]) -> Raw:
    return Raw(json.dumps({"isolation": order["isolation"]}).encode())


async def call(host: HostInMemory, order: dict[str, Any], arm: Callable[[], None]) -> None:
    """The one call of an order; what it needs before is no step of it."""
    sandbox_id = order["sandboxId"]
    attach = types.AttachLeaseParams(sandbox_id=sandbox_id, handle=f"local/1/{sandbox_id}", keep=order.get("keep"))
    if order.get("attached"):
        assert (await host.call("attachLease", attach)).state == "attached"
    arm()
    if order["verb"] == "acquire":
        keep = bool(order.get("keep"))
        params = types.AcquireLeaseParams(sandbox_id=sandbox_id, ttl_ms=600_000, keep=keep, config=config_of(order))
        await host.call("acquireLease", params)
    elif order["verb"] == "attach":
        await host.call("attachLease", attach)
    else:
        await host.call("destroyLease", types.DestroyLeaseParams(sandbox_id=sandbox_id))


async def life(host: HostInMemory, order: dict[str, Any]) -> NoReturn:
    """Make, use and end sandboxes, kept and not, until killed."""
    while True:
        for keep in (False, True):
            sandbox_id = new_id()
            params = types.AcquireLeaseParams(sandbox_id=sandbox_id, ttl_ms=600_000, keep=keep, config=config_of(order))
            await host.call("acquireLease", params)
            shell = f"setsid -f sleep {order['word']} >/dev/null 2>&1"
            await host.call("execute", types.ExecuteParams(sandbox_id=sandbox_id, shell=shell))
            host.start("execute", types.ExecuteParams(sandbox_id=sandbox_id, argv=("sleep", order["word"])))
            handle = f"local/1/{sandbox_id}"
            await host.call("attachLease", types.AttachLeaseParams(sandbox_id=sandbox_id, handle=handle, keep=not keep))
            await host.call("destroyLease", types.DestroyLeaseParams(sandbox_id=sandbox_id))


async def work(order: dict[str, Any], told: int) -> None:
    """Be a worker that does what the order says; ends by a kill at the latest after the last step."""
    left = order.get("step", -1)
    counting = False

    def arm() -> None:
        nonlocal counting
        counting = True

    def on_event(event: str, arguments: tuple[Any, ...]) -> None:
        nonlocal counting, left
        if counting and is_step(event, arguments):
            if left == 0:
                counting = False  # The kill is an event too.
                os.write(told, event.encode())
                os.kill(os.getpid(), signal.SIGKILL)
            left -= 1

    sys.addaudithook(on_event)
    limits = Limits(orphan_grace_ms=order["graceMs"])
    async with HostInMemory(LocalProvider, state_dir=Path(order["stateDir"]), store_id="s", limits=limits) as host:
        if order["verb"] == "life":
            await life(host, order)
        await call(host, order, arm)
        counting = False
        os.kill(os.getpid(), signal.SIGKILL)


def obey(order: dict[str, Any]) -> dict[str, Any]:
    """Fork a worker, see to its end, and say at which step that came (none: it was through) and how."""
    said, told = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.close(said)
            asyncio.run(work(order, told))
        except BaseException as error:  # noqa: BLE001 - whatever it is, the test is told
            os.write(told, f"failed: {error!r}".encode())
        os._exit(1)
    os.close(told)
    if "delayS" in order:
        time.sleep(order["delayS"])
        os.kill(pid, signal.SIGKILL)
    _, status = os.waitpid(pid, 0)
    step = os.read(said, 65536).decode()
    os.close(said)
    return {"step": step, "killed": os.WIFSIGNALED(status)}


if __name__ == "__main__":
    for line in sys.stdin:
        sys.stdout.write(json.dumps(obey(json.loads(line))) + "\n")
        sys.stdout.flush()
