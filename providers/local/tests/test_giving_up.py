"""An init that does not come up is ended with what it left, and nobody else waits for that."""

import asyncio
import contextlib
import os
import signal
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from providers.local.tests.leases import Lease, other_host
from providers.local.tests.machine import wait_for_end
from sandport_sdk.testing import HostInMemory, Request, new_id
from sandport_sdk.v1 import errors

pytestmark = pytest.mark.anyio


class Hydra:
    """Something with a sandbox's mark that is there again each time it was killed.

    Attributes:
        killed: Set once it was killed.
    """

    def __init__(self, sandbox_id: str) -> None:
        self.killed = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        self._tired = threading.Event()
        self._process = self._start(sandbox_id)
        self._thread = threading.Thread(target=self._live, args=(sandbox_id,))
        self._thread.start()

    @staticmethod
    def _start(sandbox_id: str) -> "subprocess.Popen[bytes]":
        return subprocess.Popen(["sleep", "600"], env={"PATH": "/usr/bin:/bin", "SANDPORT_SANDBOX_ID": sandbox_id})

    def _live(self, sandbox_id: str) -> None:
        while self._process.wait() == -signal.SIGKILL and not self._tired.is_set():
            self._loop.call_soon_threadsafe(self.killed.set)
            self._process = self._start(sandbox_id)

    def die(self) -> None:
        """Be killed once more, and stay away."""
        self._tired.set()
        while self._thread.is_alive():
            self._process.kill()
            self._thread.join(0.01)


@contextlib.contextmanager
def hydra(sandbox_id: str) -> Iterator[Hydra]:
    one = Hydra(sandbox_id)
    try:
        yield one
    finally:
        one.die()


@pytest.fixture
def no_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """No init comes up in time, and one that does not end by itself is not waited for; what it left is, for long."""
    monkeypatch.setattr("sandport_provider_local.sandbox.START_S", 0.0)
    monkeypatch.setattr("sandport_provider_local.sandbox.ANNOUNCE_S", 0.0)
    monkeypatch.setattr("sandport_provider_local.survivors.SWEEP_S", 60.0)


def ask(host: HostInMemory, sandbox_id: str) -> Request:
    return host.start("acquireLease", {"sandboxId": sandbox_id, "ttlMs": 60_000, "config": {"isolation": "require"}})


@pytest.mark.usefixtures("no_patience")
async def test_other_sandboxes_are_served_while_what_a_failed_one_left_is_ended(
    host: HostInMemory, state_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patient:
        patient.setattr("sandport_provider_local.sandbox.START_S", 10.0)
        lease = await Lease.acquire(host, state_dir)
    sandbox_id = new_id()
    with hydra(sandbox_id) as what_is_left:
        asked = ask(host, sandbox_id)
        await what_is_left.killed.wait()
        assert (await lease.run("true")).exit_code == 0
        assert not asked.ended, "it is still at it"
    with pytest.raises(errors.Unavailable):
        await asked.result()
    assert os.listdir(state_dir) == [lease.id]
    await lease.destroy()


@pytest.mark.usefixtures("no_patience")
async def test_a_cancel_waits_until_what_a_failed_sandbox_left_has_ended(host: HostInMemory, state_dir: Path) -> None:
    sandbox_id = new_id()
    with hydra(sandbox_id) as what_is_left:
        asked = ask(host, sandbox_id)
        await what_is_left.killed.wait()
        asked.cancel()
        await host.call("ping")
        what_is_left.killed.clear()
        await what_is_left.killed.wait()
        assert not asked.ended, "it is still at it"
    with pytest.raises(errors.Cancelled):
        await asked.result()
    assert os.listdir(state_dir) == []


@pytest.mark.usefixtures("no_patience")
async def test_a_cancelled_attach_ends_what_a_killed_init_left_before_it_lets_go_of_the_lock(
    host: HostInMemory, state_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Or it would take the next init, which somebody else starts, for what this one left."""
    async with other_host(state_dir) as other:
        with monkeypatch.context() as patient:
            patient.setattr("sandport_provider_local.sandbox.START_S", 10.0)
            lease = await Lease.acquire(other, state_dir, keep=True)
    os.kill(lease.init, signal.SIGKILL)
    wait_for_end(lease.init)
    with hydra(lease.id) as what_is_left:
        asked = host.start("attachLease", {"sandboxId": lease.id, "handle": lease.handle})
        await what_is_left.killed.wait()
        asked.cancel()
        await host.call("ping")
        what_is_left.killed.clear()
        await what_is_left.killed.wait()
        assert not asked.ended, "it is still at it"
    with pytest.raises(errors.Cancelled):
        await asked.result()
    assert await lease.seen_by(host).destroy() == "destroyed"
