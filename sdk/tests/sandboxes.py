"""A worker's side of the sandboxes of this machine, and what tests ask of their keepers."""

import asyncio
import contextlib
import os
import select
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from sandport_sdk.sandbox_folder import SandboxFolder
from sandport_sdk.testing import new_id
from sandport_sdk.v1 import Limits, Session, machine, types

ENV = {"PATH": "/usr/bin:/bin"}
HANG_S = 60.0
"""Only ends a hang."""


class Worker:
    """What a worker has of it."""

    def __init__(self, state_dir: Path, *, grace_s: float = 60.0, store_id: str = "st1") -> None:
        limits = Limits(orphan_grace_ms=int(grace_s * 1000))
        self.state_dir = state_dir
        self.store_id = store_id
        self.sandboxes = machine.Sandboxes(Session(store_id, state_dir, limits=limits), "test")

    def create(self, *, ttl_s: float = 600.0, keep: bool = False) -> machine.Sandbox:
        return self.sandboxes.create(types.AcquireLeaseParams(sandbox_id=new_id(), ttl_ms=int(ttl_s * 1000), keep=keep))

    def attach(self, sandbox: machine.Sandbox, keep: bool | None = None) -> machine.Sandbox | None:
        params = types.AttachLeaseParams(sandbox_id=sandbox.sandbox_id, handle=sandbox.handle, keep=keep)
        return self.sandboxes.attach(params)

    def destroy(self, sandbox_id: str) -> str:
        return self.sandboxes.destroy(types.DestroyLeaseParams(sandbox_id=sandbox_id)).state

    def listed(self) -> list[str]:
        return [lease.sandbox_id for lease in self.sandboxes.list(types.ListLeasesParams()).leases]

    def folder(self, sandbox_id: str) -> SandboxFolder:
        return SandboxFolder(self.state_dir, sandbox_id, self.store_id)


@contextlib.contextmanager
def running_worker(state_dir: Path, store_id: str = "st1") -> Iterator[Worker]:
    made = Worker(state_dir, store_id=store_id)
    try:
        yield made
    finally:
        made.sandboxes.close()


@contextlib.contextmanager
def running_workers(state_dir: Path, count: int) -> Iterator[list[Worker]]:
    with contextlib.ExitStack() as stack:
        yield [stack.enter_context(running_worker(state_dir)) for _ in range(count)]


@contextlib.contextmanager
def null() -> Iterator[int]:
    fd = os.open(os.devnull, os.O_RDWR)
    try:
        yield fd
    finally:
        os.close(fd)


async def start(sandbox: machine.Sandbox, *argv: str) -> machine.Process:
    with null() as fd:
        return await sandbox.start(argv, fd, fd, fd, env=ENV)


def run(sandbox: machine.Sandbox, *argv: str) -> int:
    """Run a command to its end; its exit code."""

    async def to_its_end() -> int:
        return await (await start(sandbox, *argv)).wait()

    return asyncio.run(to_its_end())


def keeper_of(sandbox: machine.Sandbox) -> int:
    """Its keeper's number, which a command sees as its parent's."""
    assert run(sandbox, "sh", "-c", "echo $PPID >keeper") == 0
    return int((sandbox.files / "keeper").read_text())


def eventually(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + HANG_S
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def ended(pid: int) -> bool:
    try:
        stat = Path(f"/proc/{pid}/stat").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return True
    return stat.rpartition(b")")[2].split()[0] in (b"Z", b"X")


def kill_keeper(pid: int) -> None:
    """Kill a keeper, as a machine short of memory may."""
    held = os.pidfd_open(pid)
    try:
        os.kill(pid, signal.SIGKILL)
        assert select.select([held], [], [], HANG_S)[0]
    finally:
        os.close(held)
