"""The end of a sandbox that nobody asks for: its expiry, by the wall clock, and one grace without a worker."""

import asyncio
import json
import os
import signal
import time
from pathlib import Path

import pytest

from providers.local.tests.leases import CONFIG, Lease, other_host, unique_sleep
from providers.local.tests.machine import PATIENCE_S, descriptors_of, entries, running, state_of, until, wait_for_end
from sandport_protocol.ranges import INSTANT_MS
from sandport_provider_local.places import LATEST_MS
from sandport_sdk.testing import HostInMemory, new_id
from sandport_sdk.v1 import errors, types

pytestmark = pytest.mark.anyio


async def test_a_lease_that_expires_ends_everything_and_removes_its_files(host: HostInMemory, state_dir: Path) -> None:
    """verifiers#1520, AutoGPT#12774: sandboxes were left after a crash."""
    lease = await Lease.acquire(host, state_dir, ttl_ms=3_000)
    word = unique_sleep()
    request = lease.start("sh", "-c", f"setsid sleep {word} & sleep {word}")
    init = lease.init
    with pytest.raises(errors.SandboxLost):
        await request.result()
    wait_for_end(init)
    assert (lease.path.exists(), running(word)) == (False, [])
    with pytest.raises(errors.LeaseNotFound):
        await lease.run("true")
    assert (await lease.attach()).state == "gone"


async def test_a_lease_ends_at_its_expiry_and_not_before_by_the_wall_clock(host: HostInMemory, state_dir: Path) -> None:
    sandbox_id = new_id()
    made: types.LeaseResult = await host.call(
        "acquireLease", types.AcquireLeaseParams(sandbox_id=sandbox_id, ttl_ms=3_000, config=CONFIG)
    )
    init = Lease(host, state_dir, sandbox_id).init
    async with asyncio.timeout(PATIENCE_S):
        while (state_dir / sandbox_id / "record.json").exists():  # Its end begins with the removal of that.
            await host.call("ping")
    assert made.expires_at_ms is not None
    assert time.time_ns() // 1_000_000 >= made.expires_at_ms
    await asyncio.to_thread(until, lambda: entries(state_dir) == [], "its files are removed")
    await asyncio.to_thread(wait_for_end, init)


async def test_expiry_is_kept_by_a_timer_that_follows_when_the_wall_clock_is_set(lease: Lease) -> None:
    """The kernel's own account of the timer: which clock, absolute or not, and how long it is to run."""
    (timer,) = (fd for fd, name in descriptors_of(lease.init).items() if "timerfd" in name)
    said = timer_of(lease.init, timer)
    assert int(said["clockid"]) == time.CLOCK_REALTIME
    assert int(said["settime flags"], 8) & 1, "absolute"
    left_s = int(said["it_value"].strip(" ()").split(",")[0])
    assert left_s <= lease.record["expires_at_ms"] / 1000 - time.time() + 2


def timer_of(pid: int, fd: int) -> dict[str, str]:
    """What the kernel says of a timer."""
    return dict(line.split(":", 1) for line in Path(f"/proc/{pid}/fdinfo/{fd}").read_text().splitlines())


@pytest.mark.parametrize("ttl_ms", [2**40, 2**53, 10**18])
async def test_a_lease_may_last_longer_than_any_clock(host: HostInMemory, state_dir: Path, ttl_ms: int) -> None:
    assert INSTANT_MS.most == LATEST_MS
    lease = await Lease.acquire(host, state_dir, ttl_ms=ttl_ms)
    assert (await lease.run("true")).exit_code == 0
    await lease.destroy()


async def test_an_expired_lease_without_its_init_is_removed_at_the_attach(host: HostInMemory, state_dir: Path) -> None:
    lease = await Lease.acquire(host, state_dir)
    os.kill(lease.init, signal.SIGKILL)
    wait_for_end(lease.init)
    record = json.loads((lease.path / "record.json").read_text())
    (lease.path / "record.json").write_text(json.dumps(record | {"expires_at_ms": 1}))
    assert (await lease.attach()).state == "gone"
    assert not lease.path.exists()


async def test_a_sandbox_without_a_worker_ends_after_one_grace(state_dir: Path) -> None:
    word = unique_sleep()
    async with other_host(state_dir, grace_ms=200) as host:
        lease = await Lease.acquire(host, state_dir)
        await lease.sh(f"setsid -f sleep {word} >/dev/null 2>&1")
        init = lease.init
        assert state_of(init) not in "ZX"
    wait_for_end(init)
    assert (lease.path.exists(), running(word)) == (False, [])


async def test_the_grace_is_that_of_the_last_worker(state_dir: Path) -> None:
    async with other_host(state_dir, grace_ms=60_000) as first:
        lease = await Lease.acquire(first, state_dir)
    async with other_host(state_dir, grace_ms=100) as second:
        assert (await Lease(second, state_dir, lease.id).attach()).state == "attached"
        init = lease.init
    wait_for_end(init)
    assert not lease.path.exists()


async def test_sigterm_ends_the_init_in_order(host: HostInMemory, state_dir: Path) -> None:
    lease = await Lease.acquire(host, state_dir)
    word = unique_sleep()
    await lease.sh(f"setsid -f sleep {word} >/dev/null 2>&1")
    init = lease.init
    os.kill(init, signal.SIGTERM)
    wait_for_end(init)
    assert (lease.path.exists(), running(word)) == (False, [])
    with pytest.raises(errors.LeaseNotFound):
        await lease.run("true")
