"""Acquire, attach, list, destroy: nothing is left behind, nothing foreign is touched."""

import asyncio
import json
import os
import resource
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from msgspec import Raw

from providers.local.tests.leases import CONFIG, ISOLATION, Lease, other_host, unique_sleep
from providers.local.tests.machine import (
    arguments_of,
    boot_id,
    children_of,
    descriptors_of,
    entries,
    environment_of,
    pids,
    running,
    start_ticks,
    started,
    state_of,
    until,
    wait_for_end,
)
from sandport_provider_local import lifetime
from sandport_provider_local.bubblewrap import Boundary
from sandport_provider_local.cgroup_places import why_not
from sandport_provider_local.hierarchies import leftovers
from sandport_provider_local.isolation import Isolation
from sandport_provider_local.machine import new_uid
from sandport_provider_local.places import Place
from sandport_provider_local.provider import LocalProvider
from sandport_sdk.testing import HostInMemory, new_id
from sandport_sdk.v1 import Limits, errors, types

pytestmark = pytest.mark.anyio


# ---------------------------------------------------------------- acquire


async def test_a_lease_says_what_it_is(host: HostInMemory, state_dir: Path) -> None:
    sandbox_id = new_id()
    before_ms = time.time_ns() // 1_000_000
    all_of_it = types.Egress(mode="all")
    params = types.AcquireLeaseParams(sandbox_id=sandbox_id, ttl_ms=60_000, egress=all_of_it, config=CONFIG)
    lease: types.LeaseResult = await host.call("acquireLease", params)
    after_ms = time.time_ns() // 1_000_000
    there = Lease(host, state_dir, sandbox_id)
    assert lease.handle == f"local/1/{sandbox_id}"
    assert (lease.working_directory, lease.local_root) == (there.home, os.fspath(there.path / "sandbox"))
    assert (lease.shell, lease.egress, lease.without) == ("/bin/sh", types.Egress(mode="all"), ())
    assert lease.expires_at_ms is not None
    assert before_ms + 60_000 <= lease.expires_at_ms <= after_ms + 60_000
    assert lease.notes == ()  # isolated, or what was asked for
    await host.call("destroyLease", types.DestroyLeaseParams(sandbox_id=sandbox_id))


@pytest.mark.parametrize(
    ("egress", "isolation"),
    [
        (types.Egress(mode="none"), "none"),
        (types.Egress(mode="listed", hosts=("example.org",)), "none"),
        (types.Egress(mode="listed", hosts=("example.org",)), "prefer"),
    ],
    ids=["none, not isolated", "listed, not isolated", "listed"],
)
async def test_a_grant_that_cannot_be_enforced_is_refused_before_anything_is_made(
    host: HostInMemory, state_dir: Path, egress: types.Egress, isolation: str
) -> None:
    config = Raw(json.dumps({"isolation": isolation}).encode())
    params = types.AcquireLeaseParams(sandbox_id=new_id(), ttl_ms=60_000, egress=egress, config=config)
    with pytest.raises(errors.NotSupported) as caught:
        await host.call("acquireLease", params)
    assert caught.value.dispatched == "no"
    assert entries(state_dir) == []


async def test_an_unknown_key_of_the_config_is_named(host: HostInMemory) -> None:
    """smithers#738: a misspelt option was silently ignored."""
    with pytest.raises(errors.ConfigInvalid) as caught:
        await host.call("acquireLease", {"sandboxId": new_id(), "ttlMs": 1000, "config": {"isolaton": "none"}})
    assert "isolation" in caught.value.message


@pytest.mark.parametrize("limit", ["memory_bytes", "pids", "cpus", "open_files"])
async def test_a_limit_without_isolation_is_wrong_before_a_sandbox_is_asked_for(
    host: HostInMemory, state_dir: Path, limit: str
) -> None:
    """A config that is called valid and refused at the lease (smithers#738 is its kind)."""
    config = Raw(json.dumps({"isolation": "none", limit: 64 << 20 if limit == "memory_bytes" else 100}).encode())
    said = await host.call("validateConfig", types.ValidateConfigParams(config=config))
    assert [(issue.field, "isolation" in issue.message) for issue in said.issues] == [(f"config.{limit}", True)]
    with pytest.raises(errors.ConfigInvalid):
        await host.call("acquireLease", types.AcquireLeaseParams(sandbox_id=new_id(), ttl_ms=60_000, config=config))
    assert entries(state_dir) == []


async def test_an_id_serves_one_create(lease: Lease) -> None:
    with pytest.raises(errors.InvalidParams) as caught:
        await lease.host.call("acquireLease", types.AcquireLeaseParams(sandbox_id=lease.id, ttl_ms=60_000))
    assert caught.value.dispatched == "no"
    assert (await lease.run("true")).exit_code == 0


@pytest.mark.parametrize("turns", [1, 2, 3, 10, 100])
async def test_an_acquire_that_is_cut_anywhere_leaves_nothing(state_dir: Path, turns: int) -> None:
    """agent-sandbox#1306: what was created leaked when the wait for it failed."""
    loop = asyncio.get_running_loop()
    place = Place(state_dir, new_id())
    most = 20 if why_not(("pids",)) is None else None
    making = loop.create_task(
        lifetime.create(
            loop,
            place,
            store_id="s",
            ttl_ms=60_000,
            grace_ms=60_000,
            credit_bytes=1,
            isolation=Isolation(),
            boundary=Boundary(uid=new_uid(), pids=most) if ISOLATION != "none" else None,
        )
    )
    for _ in range(turns):
        await asyncio.sleep(0)
    assert not making.done()
    assert place.exists()
    making.cancel()
    with pytest.raises(asyncio.CancelledError):
        await making
    assert entries(state_dir) == []
    assert [pid for pid in pids() if os.fsencode(place.path) in arguments_of(pid)] == []
    assert place.sandbox_id not in leftovers()


async def test_an_acquire_whose_init_does_not_come_up_leaves_nothing_and_says_why(
    host: HostInMemory, state_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.executable", "/bin/false")
    with pytest.raises(errors.Unavailable) as caught:
        await host.call("acquireLease", types.AcquireLeaseParams(sandbox_id=new_id(), ttl_ms=60_000, config=CONFIG))
    assert caught.value.dispatched == "no"
    assert entries(state_dir) == []


async def test_a_state_directory_that_cannot_be_written_is_an_answer(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    async with HostInMemory(LocalProvider, state_dir=tmp_path / "file") as host:
        with pytest.raises(errors.Unavailable) as caught:
            await host.call("acquireLease", types.AcquireLeaseParams(sandbox_id=new_id(), ttl_ms=60_000))
        assert caught.value.dispatched == "no"


async def test_an_acquire_without_descriptors_for_it_leaves_nothing(host: HostInMemory, state_dir: Path) -> None:
    """Whichever descriptor is the one that is not to be had."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    before = descriptors_of(os.getpid())
    spare = min(set(range(3, 1000)) - set(before))
    made: Lease | None = None
    dispatched: list[str] = []
    while made is None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (spare + len(dispatched), hard))
        try:
            made = await Lease.acquire(host, state_dir)
        except (errors.QuotaExceeded, errors.Unavailable) as error:
            dispatched.append(error.dispatched)
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        if made is None:
            alive = [pid for pid in pids() if any(os.fsencode(state_dir) in word for word in arguments_of(pid))]
            assert (entries(state_dir), alive, descriptors_of(os.getpid())) == ([], [], before)
    assert len(dispatched) > 6
    assert set(dispatched) == {"no"}
    await made.destroy()


async def test_a_path_longer_than_a_sockets_may_be_serves_as_well(tmp_path: Path) -> None:
    deep = tmp_path.joinpath(*["folder-with-a-long-name"] * 8)
    deep.mkdir(parents=True)
    async with HostInMemory(LocalProvider, state_dir=deep) as host:
        lease = await Lease.acquire(host, deep)
        assert (await lease.sh("pwd")).stdout.data == lease.home.encode() + b"\n"
        await lease.destroy()


# ---------------------------------------------------------------- the init's own hygiene


@pytest.fixture
def canary_pipe() -> Iterator[tuple[int, int]]:
    read, write = os.pipe()
    os.set_inheritable(read, True)
    os.set_inheritable(write, True)
    yield read, write
    os.close(read)


async def test_an_init_holds_nothing_of_its_worker(
    canary_pipe: tuple[int, int], host: HostInMemory, state_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CANARY_TOKEN", "secret-of-the-worker")
    read, write = canary_pipe
    lease = await Lease.acquire(host, state_dir)
    os.close(write)
    assert os.read(read, 1) == b"", "the end of the worker's pipe is seen though the init runs"
    held = descriptors_of(lease.init)
    assert (held[0], held[1], held[2]) == ("/dev/null", "/dev/null", os.fspath(lease.path / "init.log"))
    ours = set(descriptors_of(os.getpid()).values())
    assert {name for name in held.values() if name.startswith("pipe:")} & ours == set()
    assert {word.split(b"=")[0] for word in environment_of(lease.init) if word} == {b"SANDPORT_INIT_TOKEN", b"LANG"}
    assert os.getsid(lease.init) == lease.init
    assert (lease.path / "init.log").read_bytes() == b""
    await lease.destroy()


async def test_short_orphans_leave_no_zombies(lease: Lease) -> None:
    await lease.sh("i=0; while [ $i -lt 200 ]; do (true & (sleep 0.01 &) ); i=$((i+1)); done")
    until(lambda: children_of(lease.reaper) == [], "all orphans are reaped")


# ---------------------------------------------------------------- destroy


async def test_destroy_ends_everything_and_says_so_twice(host: HostInMemory, state_dir: Path) -> None:
    """openclaw#137025: release of something already gone never confirmed."""
    lease = await Lease.acquire(host, state_dir)
    word = unique_sleep()
    await lease.sh(f"sleep {word} >/dev/null 2>&1 & env -i setsid -f sleep {word} >/dev/null 2>&1")
    init, left = lease.init, started(word, 2)
    assert [await lease.destroy(), await lease.destroy()] == ["destroyed", "gone"]
    assert [state_of(pid) for pid in (init, *left)] == ["X", "X", "X"]
    assert not lease.path.exists()


async def test_a_sandbox_whose_folder_was_removed_by_hand_is_ended_all_the_same(lease: Lease) -> None:
    word = unique_sleep()
    await lease.sh(f"setsid -f sleep {word} >/dev/null 2>&1")
    started(word)
    shutil.rmtree(lease.path)
    assert await lease.destroy() == "destroyed"
    assert running(word) == []


async def test_destroy_removes_what_resists_removal(lease: Lease, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "kept").write_text("kept")
    await lease.sh(
        f"ln -s {outside} link; mkdir -p locked/deep; touch locked/deep/file; ln -s / root; mkfifo fifo;"
        "chmod 000 locked/deep locked; printf x > \"$(printf 'odd\\377\\nname')\"; mkdir $TMPDIR/x; chmod 000 $TMPDIR"
    )
    assert await lease.destroy() == "destroyed"
    assert (outside / "kept").read_text() == "kept"


async def test_commands_that_run_at_a_destroy_are_lost_with_what_they_wrote(lease: Lease) -> None:
    request = lease.start("sh", "-c", "echo some; touch up; sleep 600")
    await lease.sh("while ! [ -e up ]; do sleep 0.01; done")
    await lease.destroy()
    with pytest.raises(errors.SandboxLost) as caught:
        await request.result()
    assert caught.value.partial is not None
    assert caught.value.partial.stdout.data == b"some\n"


async def test_an_unattached_sandbox_is_destroyed_as_well(lease: Lease, state_dir: Path) -> None:
    """paperclip#8513: destroy was skipped since the worker was down, then forgotten."""
    word = unique_sleep()
    await lease.sh(f"sleep {word} >/dev/null 2>&1 &")
    async with other_host(state_dir) as other:
        params = types.DestroyLeaseParams(sandbox_id=lease.id)
        assert (await other.call("destroyLease", params)).state == "destroyed"
    assert (running(word), lease.path.exists()) == ([], False)


async def test_an_init_that_does_not_listen_is_ended_with_its_sandbox(
    lease: Lease, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With all of it: what wiped its environment could not be found once the init is gone."""
    monkeypatch.setattr("sandport_provider_local.sandbox.ANNOUNCE_S", 0.3)
    word = unique_sleep()
    await lease.sh(f"sleep {word} >/dev/null 2>&1 & env -i setsid -f sleep {word} >/dev/null 2>&1")
    started(word, 2)
    os.kill(lease.init, signal.SIGSTOP)
    assert await lease.destroy() == "destroyed"
    assert running(word) == []


# ---------------------------------------------------------------- an init that was killed

Strangers = Callable[[str], "subprocess.Popen[bytes]"]


@pytest.fixture
def strangers() -> Iterator[Strangers]:
    """Starts processes that have nothing to do with a sandbox but a similar variable."""
    started: list[subprocess.Popen[bytes]] = []

    def start(sandbox_id: str) -> subprocess.Popen[bytes]:
        process = subprocess.Popen(["sleep", "600"], env={"SANDPORT_SANDBOX_ID": sandbox_id + "x"})
        started.append(process)
        until(lambda: b"SANDPORT_SANDBOX_ID=" in b" ".join(environment_of(process.pid)), "it has begun")
        return process

    yield start
    for process in started:
        process.kill()
        process.wait()


async def test_a_killed_init_loses_the_command_and_destroy_leaves_nothing(lease: Lease) -> None:
    """cloudflare/sandbox-sdk#873: a broken stream ended as a result with exit 0."""
    word = unique_sleep()
    request = lease.start("sh", "-c", f"echo some; setsid sleep {word} & touch up; sleep {word}")
    await lease.sh("while ! [ -e up ]; do sleep 0.01; done")
    left = started(word, 2)
    os.kill(lease.init, signal.SIGKILL)
    with pytest.raises(errors.SandboxLost) as caught:
        await request.result()
    assert caught.value.partial is not None
    assert caught.value.partial.stdout.data == b"some\n"
    with pytest.raises(errors.SandboxLost):
        await lease.run("true")
    await asyncio.to_thread(wait_for_end, *left)  # It is the worker in this loop that ends them.
    assert await lease.destroy() == "destroyed"
    assert not lease.path.exists()


async def test_a_killed_init_is_replaced_at_the_next_attach(lease: Lease, state_dir: Path) -> None:
    word = unique_sleep()
    await lease.sh(f"echo kept > file; sleep {word} >/dev/null 2>&1 &")
    left, init = started(word), lease.init
    os.kill(init, signal.SIGKILL)
    wait_for_end(init)
    async with other_host(state_dir) as other:
        there = Lease(other, state_dir, lease.id)
        answer = await there.attach()
        assert (answer.state, answer.processes_lost) == ("attached", True)
        wait_for_end(*left)
        assert (await there.sh("cat file")).stdout.data == b"kept\n"
        assert there.init != init
        assert (await there.attach()).processes_lost is False
        await there.destroy()


async def test_commands_of_the_new_init_are_not_taken_for_survivors(lease: Lease) -> None:
    """The worker that saw the init die is still looking for survivors when the next commands run."""
    for _ in range(5):
        word = unique_sleep()
        await lease.sh(f"setsid -f sleep {word} >/dev/null 2>&1")
        (left,) = started(word)
        init = lease.init
        os.kill(init, signal.SIGKILL)
        wait_for_end(init)
        assert (await lease.attach()).processes_lost
        assert (await lease.sh("sleep 0.1; exit 3")).exit_code == 3
        wait_for_end(left)


async def test_after_a_reboot_the_files_are_there_and_the_processes_lost(
    lease: Lease, state_dir: Path, strangers: Strangers
) -> None:
    """The init's number may be anybody's by then."""
    os.kill(lease.init, signal.SIGKILL)
    wait_for_end(lease.init)
    stranger = strangers(lease.id)
    identity = {"pid": stranger.pid, "startTicks": start_ticks(stranger.pid), "bootId": "of-another-boot"}
    (lease.path / "init.json").write_text(json.dumps(identity))
    async with other_host(state_dir) as other:
        answer = await Lease(other, state_dir, lease.id).attach()
        assert (answer.state, answer.processes_lost) == ("attached", True)
        await Lease(other, state_dir, lease.id).destroy()
    assert stranger.poll() is None


@pytest.mark.parametrize("right_start", [True, False])
async def test_a_stale_record_never_costs_a_stranger_its_life(
    lease: Lease, strangers: Strangers, *, right_start: bool
) -> None:
    """A number that was used again is told by its start time; that could be equal, but not the token."""
    os.kill(lease.init, signal.SIGKILL)
    wait_for_end(lease.init)
    stranger = strangers(lease.id)
    ticks = start_ticks(stranger.pid) if right_start else 1
    identity = {"pid": stranger.pid, "startTicks": ticks, "bootId": boot_id()}
    (lease.path / "init.json").write_text(json.dumps(identity))
    assert await lease.destroy() == "destroyed"
    assert stranger.poll() is None


# ---------------------------------------------------------------- attach and list


async def test_a_new_worker_finds_files_and_what_ran_in_the_background(state_dir: Path) -> None:
    word = unique_sleep()
    async with other_host(state_dir) as first:
        lease = await Lease.acquire(first, state_dir)
        await lease.sh(f"echo kept > file; sleep {word} >/dev/null 2>&1 &")
        await lease.spawn("p", "true")
        await lease.wait("p").result()
    async with other_host(state_dir) as second:
        there = Lease(second, state_dir, lease.id)
        answer = await there.attach()
        assert (answer.state, answer.processes_lost) == ("attached", False)
        assert answer.lease is not None
        assert answer.lease.expires_at_ms == json.loads((lease.path / "record.json").read_text())["expires_at_ms"]
        assert (await there.sh("cat file")).stdout.data == b"kept\n"
        assert len(started(word)) == 1
        with pytest.raises(errors.ProcessNotFound):
            await there.wait("p").result()
        assert await there.destroy() == "destroyed"
    assert running(word) == []


async def test_commands_of_a_worker_that_vanished_are_ended_and_counted_as_lost(state_dir: Path) -> None:
    word = unique_sleep()
    async with other_host(state_dir) as first:
        lease = await Lease.acquire(first, state_dir)
        await lease.spawn("p", "sh", "-c", f"setsid sleep {word} & sleep {word}")
        left = started(word, 2)
        assert await first.end_input() == 0
    wait_for_end(*left)
    async with other_host(state_dir) as second:
        there = Lease(second, state_dir, lease.id)
        assert (await there.attach()).processes_lost
        assert await there.destroy() == "destroyed"


async def test_attach_says_gone_of_what_is_gone_and_only_of_that(lease: Lease, state_dir: Path) -> None:
    await lease.destroy()
    assert (await lease.attach()).state == "gone"
    async with other_host(state_dir) as other:
        assert (await Lease(other, state_dir, lease.id).attach()).state == "gone"


async def test_attach_of_a_create_that_was_cut_removes_what_is_left(host: HostInMemory, state_dir: Path) -> None:
    lease = Lease(host, state_dir, new_id())
    (lease.path / "sandbox").mkdir(parents=True)
    assert (await lease.attach()).state == "gone"
    assert not lease.path.exists()


async def test_an_init_that_does_not_answer_makes_the_sandbox_unreachable_and_not_gone(
    lease: Lease, state_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sandport_provider_local.channel.HELLO_S", 0.3)
    monkeypatch.setattr("sandport_provider_local.lifetime.ANNOUNCE_S", 0.3)
    init = lease.reaper
    os.kill(init, signal.SIGSTOP)
    async with other_host(state_dir) as other:
        assert (await Lease(other, state_dir, lease.id).attach()).state == "unreachable"
        os.kill(init, signal.SIGCONT)
        assert (await Lease(other, state_dir, lease.id).attach()).state == "attached"


async def test_a_handle_of_another_sandbox_is_refused(lease: Lease) -> None:
    lease.handle = f"local/1/{new_id()}"
    with pytest.raises(errors.InvalidParams):
        await lease.attach()


async def test_the_list_is_what_is_in_the_folder(lease: Lease, state_dir: Path) -> None:
    """agent-sandbox#467, inspect_k8s: a listing showed what belongs to others."""
    half = state_dir / new_id()
    half.mkdir()
    (state_dir / "something-else").mkdir()
    async with other_host(state_dir, store_id="another-store") as other:
        foreign = await Lease.acquire(other, state_dir)
        listed: types.ListLeasesResult = await lease.host.call("listLeases", types.ListLeasesParams())
        assert {entry.sandbox_id for entry in listed.leases} == {lease.id, half.name}
        one = await lease.host.call("listLeases", types.ListLeasesParams(sandbox_id=lease.id))
        assert [(e.sandbox_id, e.handle) for e in one.leases] == [(lease.id, f"local/1/{lease.id}")]
        none = await lease.host.call("listLeases", types.ListLeasesParams(sandbox_id=new_id()))
        assert none.leases == ()
        await foreign.destroy()
    assert (await Lease(lease.host, state_dir, half.name).destroy()) == "destroyed"
    (state_dir / "something-else").rmdir()


async def test_a_long_list_comes_in_pages(host: HostInMemory, state_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sandport_provider_local.provider.PAGE", 10)
    made = sorted(new_id() for _ in range(30))
    for name in made:
        (state_dir / name).mkdir()
    seen: list[str] = []
    cursor = None
    while True:
        page: types.ListLeasesResult = await host.call("listLeases", types.ListLeasesParams(cursor=cursor))
        assert len(page.leases) <= 10
        seen += [entry.sandbox_id for entry in page.leases]
        cursor = page.next_cursor
        if cursor is None:
            break
    assert seen == made
    for name in made:
        (state_dir / name).rmdir()


async def test_a_page_fits_in_a_small_frame(state_dir: Path) -> None:
    made = sorted(new_id() for _ in range(40))
    for name in made:
        Place(state_dir, name).create(store_id="store-in-memory", ttl_ms=60_000)
    async with HostInMemory(LocalProvider, state_dir=state_dir, limits=Limits(frame_bytes=4096)) as host:
        page: types.ListLeasesResult = await host.call("listLeases", types.ListLeasesParams())
        seen = [entry.sandbox_id for entry in page.leases]
        assert 10 < len(seen) < len(made)
        while page.next_cursor is not None:
            page = await host.call("listLeases", types.ListLeasesParams(cursor=page.next_cursor))
            seen += [entry.sandbox_id for entry in page.leases]
    assert seen == made
    for name in made:
        shutil.rmtree(state_dir / name)


async def test_a_probe_creates_nothing(host: HostInMemory, state_dir: Path) -> None:
    probed: types.ProbeResult = await host.call("probe", types.ProbeParams())
    assert [check.name for check in probed.checks if not check.ok] == []
    probed = await host.call("probe", {"config": {"isolation": ISOLATION}})
    assert [check.name for check in probed.checks if not check.ok] == []
    assert entries(state_dir) == []
