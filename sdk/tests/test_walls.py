"""Sandboxes behind walls: what is looked for inside of them, the process that keeps them, and one that is half made.

Sources: a helper that holds a pipe, so that its reader never sees the end (`golang/go#23019`), and a resource that was
begun and that whoever starts again must find (`NVIDIA-NeMo/Gym#1572`).
"""

import asyncio
import contextlib
import os
import select
import signal
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from sandport_sdk.testing import new_id
from sandport_sdk.v1 import errors, machine, types
from sdk.tests.sandboxes import ENV, HANG_S, Worker, eventually, keeper_of, kill_keeper, running_worker

STAYS = ("sh", "-c", "echo $$; exec >/dev/null; while :; do sleep 1000 & wait; done")


@pytest.fixture
def other(worker: Worker) -> Iterator[Worker]:
    """Another worker of the same sandboxes."""
    with running_worker(worker.state_dir) as made:
        yield made


@pytest.fixture
def sandbox(worker: Worker) -> machine.Sandbox:
    """One that is there, without walls as yet."""
    return worker.create()


def ensure(sandbox: machine.Sandbox, argv: tuple[str, ...] = STAYS) -> bool:
    """Have its first process run; whether this call started it."""
    return machine.Init(sandbox).ensure(argv, env=ENV)


def acquire(*, ttl_ms: int = 600_000, keep: bool = False) -> types.AcquireLeaseParams:
    return types.AcquireLeaseParams(sandbox_id=new_id(), ttl_ms=ttl_ms, keep=keep)


def attach(asked: types.AcquireLeaseParams) -> types.AttachLeaseParams:
    """What somebody asks who knows that a sandbox was asked for, and not whether it was made."""
    return types.AttachLeaseParams(sandbox_id=asked.sandbox_id, handle=f"test/1/{asked.sandbox_id}")


# ------------------------------------------------------------ what is there, seen from outside


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A small root: programs of every kind, and links that lead out of it where they are followed by this machine."""
    root = tmp_path / "root"
    (root / "bin").mkdir(parents=True)
    (root / "work" / "deep").mkdir(parents=True)
    for name, text in {
        "script": "#!/bin/true-elf\n",
        "relative": "#!true-elf\n",
        "orphan": "#!/bin/absent\n",
        "plain": "no format\n",
        "empty": "",
        "loop": "#!/bin/loop\n",
    }.items():
        (root / "bin" / name).write_text(text)
        (root / "bin" / name).chmod(0o755)
    (root / "bin" / "true-elf").write_bytes(b"\x7fELF" + b"\0" * 100)
    (root / "bin" / "true-elf").chmod(0o755)
    (root / "bin" / "closed").write_text("#!/bin/true-elf\n")
    (root / "bin" / "folder").mkdir()
    (root / "usr").mkdir()
    (root / "usr" / "bin").symlink_to("/bin")
    (root / "up").symlink_to("../../../../../../bin/true-elf")
    (root / "round").symlink_to("round")
    (root / "out").symlink_to(sys.executable)
    (root / "bin" / "needs-loader").write_bytes(Path(sys.executable).resolve().read_bytes())
    (root / "bin" / "needs-loader").chmod(0o755)
    return root


@pytest.mark.parametrize(
    ("program", "cwd", "found"),
    [
        ("script", "/", None),
        ("true-elf", "/work/deep", None),
        ("/usr/bin/script", "/", None),
        ("../bin/script", "/work", None),
        ("bin/../../../bin/script", "/", None),
        ("./relative", "/bin", None),
        ("/up", "/", None),
        ("absent", "/", errors.CommandNotFound),
        ("", "/", errors.CommandNotFound),
        ("orphan", "/", errors.CommandNotFound),
        ("needs-loader", "/", errors.CommandNotFound),
        ("./script/x", "/bin", errors.CommandNotFound),
        ("/out", "/", errors.CommandNotFound),
        (sys.executable, "/", errors.CommandNotFound),
        ("plain", "/", errors.CommandNotExecutable),
        ("empty", "/", errors.CommandNotExecutable),
        ("closed", "/", errors.CommandNotExecutable),
        ("folder", "/", errors.CommandNotExecutable),
        ("loop", "/", errors.CommandNotExecutable),
        ("/round", "/", errors.CommandNotExecutable),
        ("script", "/absent", errors.PathNotFound),
        ("script", "/bin/script", errors.PathNotFound),
        ("script", "/round", errors.PathNotFound),
    ],
)
def test_what_is_looked_for_inside_is_what_a_process_of_the_sandbox_would_find(
    root: Path, program: str, cwd: str, found: type[errors.WireError] | None
) -> None:
    """CMD-5."""
    look = {"program": os.fsencode(program), "cwd": os.fsencode(cwd), "path": b"/absent:/usr/bin"}
    if found is None:
        machine.look_inside(root, **look)
        return
    with pytest.raises(errors.WireError) as told:
        machine.look_inside(root, **look)
    assert (type(told.value), told.value.dispatched) == (found, "no")
    assert told.value.detail is not None


def test_a_look_inside_leaves_no_descriptor_open(root: Path) -> None:
    before = len(os.listdir("/proc/self/fd"))
    for program in (b"script", b"absent", b"/up", b"plain"):
        for cwd in (b"/work/deep", b"/absent"):
            with contextlib.suppress(errors.WireError):
                machine.look_inside(root, program, cwd=cwd, path=b"/bin")
    assert len(os.listdir("/proc/self/fd")) == before


# ------------------------------------------------------------ the first process


def test_a_first_process_stays_when_its_worker_goes_and_ends_with_its_sandbox(
    worker: Worker, other: Worker, sandbox: machine.Sandbox
) -> None:
    assert ensure(sandbox)
    pid = machine.Init(sandbox).pid
    assert pid is not None
    attached = other.attach(sandbox)
    assert attached is not None
    worker.sandboxes.close()
    assert not ensure(attached)
    assert machine.Init(attached).pid == pid
    assert not attached.processes_lost
    ended = os.pidfd_open(pid)
    assert other.destroy(sandbox.sandbox_id) == "destroyed"
    assert select.select([ended], [], [], HANG_S)[0]
    os.close(ended)


def test_a_first_process_that_was_killed_or_lost_its_keeper_is_made_anew(
    worker: Worker, sandbox: machine.Sandbox
) -> None:
    init = machine.Init(sandbox)
    assert ensure(sandbox)
    first = init.pid
    assert first is not None
    os.kill(first, signal.SIGKILL)
    eventually(lambda: init.pid is None)
    assert ensure(sandbox)
    second = init.pid
    kill_keeper(keeper_of(sandbox))
    eventually(lambda: init.pid is None)
    with pytest.raises(errors.NotAttached):
        ensure(sandbox)
    attached = worker.attach(sandbox)
    assert attached is not None
    assert attached.processes_lost
    assert ensure(sandbox)
    assert init.pid not in (None, first, second)


def test_workers_that_build_the_walls_at_once_build_them_once(sandbox: machine.Sandbox) -> None:
    with ThreadPoolExecutor(6) as pool:
        built = list(pool.map(ensure, [sandbox] * 6))
    assert sum(built) == 1


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (("sh", "-c", "echo it cannot be >&2; exit 1"), "it cannot be"),
        (("sh", "-c", "echo nonsense"), "nonsense"),
        (("/absent/unshare",), "/absent/unshare"),
    ],
)
def test_walls_that_cannot_be_built_say_why_and_leave_no_sandbox(
    worker: Worker, argv: tuple[str, ...], said: str
) -> None:
    with pytest.raises(errors.Unavailable, match=said) as told:
        worker.sandboxes.create(acquire(), fill=lambda new: ensure(new, argv))
    assert told.value.dispatched == "no"
    assert worker.listed() == []


# ------------------------------------------------------------ half made


def test_a_sandbox_counts_as_made_only_when_it_is_filled(worker: Worker, other: Worker) -> None:
    """LEASE-24: nobody can attach it before, everybody can list it, and its time begins when it is there (LEASE-26)."""
    params = acquire(ttl_ms=5_000, keep=True)
    seen: list[object] = []
    keepers: list[int] = []

    def fill(new: machine.Sandbox) -> None:
        keepers.append(os.pidfd_open(keeper_of(new)))
        seen.append(new.expires_at_ms)
        seen.append(other.listed())
        with pytest.raises(machine.Unfinished) as told:
            other.sandboxes.attach(attach(params))
        seen.append(told.value.condition)

    sandbox = worker.sandboxes.create(params, fill=fill)
    assert seen == [None, [params.sandbox_id], "Unavailable"]
    attached = other.attach(sandbox)
    assert attached is not None
    assert attached.expires_at_ms == sandbox.expires_at_ms
    assert (sandbox.folder / "kept").exists()
    assert select.select(keepers, [], [], HANG_S)[0]  # by its expiry, of which it heard when the sandbox was filled
    os.close(*keepers)
    assert worker.listed() == []


def test_a_sandbox_whose_worker_was_killed_while_it_was_filled_can_be_destroyed_and_not_attached(
    worker: Worker,
) -> None:
    """LEASE-24."""
    params = acquire()
    child = os.fork()
    if child == 0:
        killed = Worker(worker.state_dir)
        killed.sandboxes.create(params, fill=lambda new: os.kill(os.getpid(), signal.SIGKILL))
        os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
    assert worker.listed() == [params.sandbox_id]
    with pytest.raises(machine.Unfinished):
        worker.sandboxes.attach(attach(params))
    assert worker.destroy(params.sandbox_id) == "destroyed"
    assert worker.sandboxes.attach(attach(params)) is None


def test_a_fill_that_fails_leaves_nothing_and_says_what_it_said(worker: Worker) -> None:
    def fill(new: machine.Sandbox) -> None:
        asyncio.run(_leave_a_daemon(new))
        raise errors.ConfigInvalid("no", dispatched="no")

    with pytest.raises(errors.ConfigInvalid):
        worker.sandboxes.create(acquire(), fill=fill)
    assert worker.listed() == []


async def _leave_a_daemon(sandbox: machine.Sandbox) -> None:
    fd = os.open(os.devnull, os.O_RDWR)
    try:
        process = await sandbox.start(("sh", "-c", "setsid sleep 1000 &"), fd, fd, fd, env=ENV)
        await process.wait()
    finally:
        os.close(fd)
