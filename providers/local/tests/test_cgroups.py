"""Cgroups of the kernel that runs this: of version 1 or 2, whichever has the controllers. Nothing here is a double."""

import contextlib
import errno
import os
import secrets
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from providers.local.tests.machine import state_of, until
from sandport_provider_local import cgroup_files, cgroup_places, cgroups
from sandport_provider_local.cgroups import Cgroup
from sandport_provider_local.hierarchies import Hierarchy, find_hierarchies, leftovers

PYTHON = [sys.executable, "-I", "-S", "-c"]
SOURCE = str(Path(cgroups.__file__).parents[1])
"""Where a keeper, which runs without installed packages, finds what is ours."""
MIB = 1024 * 1024
WANTED = {"memory_bytes": 48 * MIB, "pids": 40, "cpus": 0.5}
FILES = {
    ("memory", 1): ["memory.limit_in_bytes"],
    ("memory", 2): ["memory.max"],
    ("pids", 1): ["pids.max"],
    ("pids", 2): ["pids.max"],
    ("cpu", 1): ["cpu.cfs_quota_us", "cpu.cfs_period_us"],
    ("cpu", 2): ["cpu.max"],
}

SWAP = {"memory.memsw.limit_in_bytes": str(48 * MIB), "memory.swap.max": "0", "memory.swappiness": "0"}

Make = Callable[..., Cgroup]


def new_name() -> str:
    return "sp" + secrets.token_hex(13)


@pytest.fixture
def make() -> Iterator[Make]:
    """Makes cgroups and ends them; whatever a test did, nothing of it is left anywhere."""
    names: list[str] = []

    def create(name: str | None = None, **limits: float | None) -> Cgroup:
        names.append(name or new_name())
        return Cgroup.create(names[-1], **limits)  # type: ignore[arg-type]

    yield create
    for name in names:
        Cgroup.discard(name)
    assert not set(names) & set(leftovers())


@contextlib.contextmanager
def started(cgroup: Cgroup | None, program: str) -> Iterator[subprocess.Popen[bytes]]:
    """A Python program that begins once it is in the cgroup, and is gone at the end."""
    gate = ["/bin/sh", "-c", 'read go && exec "$@"', "sh", *PYTHON, program]
    with subprocess.Popen(gate, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None
        try:
            if cgroup is not None:
                cgroup.add(process.pid)
            process.stdin.write(b"go\n")
            process.stdin.flush()
            yield process
        finally:
            process.kill()


def line_of(process: subprocess.Popen[bytes]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().decode().strip()


SLEEPS = "import signal; print('runs', flush=True); signal.pause()"
GREEDY = f"x = b'x' * {256 * MIB}"
FORKS_TO_THE_LIMIT = """
import os, signal
children = 0
while True:
    try:
        if os.fork() == 0:
            signal.pause()
    except OSError as error:
        print(children, error.errno, flush=True)
        signal.pause()
    children += 1
"""
RELAY = """
import os
print("runs", flush=True)
while True:
    if os.fork():
        os._exit(0)
    os.setsid()
"""
"""Never the same process for long: each forks the next one and ends."""


def limit_files(cgroup: Cgroup, controller: str) -> list[str]:
    """What the kernel says the limit is, read past the module."""
    for path in cgroup.paths:
        for version in (1, 2):
            if os.path.exists(os.path.join(path, FILES[controller, version][0])):
                return [Path(path, name).read_text().strip() for name in FILES[controller, version]]
    raise AssertionError(f"no limit of {controller} in {cgroup.paths}")


def test_every_limit_can_be_had_here_or_the_reason_is_told() -> None:
    # Also what a machine shows first that cannot run the tests below: they do not skip, they fail with this text.
    assert cgroup_places.why_not() is None


def test_a_process_over_its_memory_is_killed_and_counted_there_alone_and_its_neighbour_goes_on(make: Make) -> None:
    limited, other = make(memory_bytes=48 * MIB), make(memory_bytes=48 * MIB)
    counter = limited.open_counter()
    assert counter is not None
    try:
        assert (limited.oom_kills(), cgroups.read_counter(counter)) == (0, 0)
        with started(limited, SLEEPS) as neighbour, started(limited, GREEDY) as greedy:
            assert line_of(neighbour) == "runs"
            assert greedy.wait() == -signal.SIGKILL
            assert (limited.oom_kills(), cgroups.read_counter(counter), other.oom_kills()) == (1, 1, 0)
            assert neighbour.poll() is None
            assert limited.members() == [neighbour.pid]
    finally:
        os.close(counter)


def test_fork_fails_at_the_limit_of_processes_and_a_kill_ends_them_all(make: Make) -> None:
    cgroup = make(pids=5)
    with started(cgroup, FORKS_TO_THE_LIMIT) as process:
        assert line_of(process) == f"4 {errno.EAGAIN}"
        there = cgroup.members()
        assert len(there) == 5
        assert cgroup.kill() == []
        assert cgroup.members() == []
        assert process.wait() == -signal.SIGKILL
    assert all(state_of(pid) in "ZX" for pid in there)


@pytest.mark.parametrize(
    ("cpus", "quota_us"), [(0.5, 50_000), (1.5, 150_000), (0.01, 1000), (2, 200_000), (1e9, 409_600_000)]
)
def test_the_quota_of_the_cpu_is_the_share_that_was_asked_for(make: Make, cpus: float, quota_us: int) -> None:
    files = limit_files(make(cpus=cpus), "cpu")
    assert " ".join(files) == f"{quota_us} 100000"


def test_limits_stand_in_the_files_and_swap_is_no_way_out(make: Make) -> None:
    cgroup = make(**WANTED)
    assert limit_files(cgroup, "memory") == [str(48 * MIB)]
    assert limit_files(cgroup, "pids") == ["40"]
    assert limit_files(cgroup, "cpu")[0].split()[0] == "50000"
    files = {
        name: Path(path, name) for path in cgroup.paths for name in SWAP if os.path.exists(os.path.join(path, name))
    }
    # The first is there unless the kernel accounts for no swap; then version 1 is told not to swap at all.
    first = next(name for name in SWAP if name in files)
    assert files[first].read_text().strip() == SWAP[first]


def test_more_than_the_kernel_can_count_is_no_limit_and_no_error(make: Make) -> None:
    cgroup = make(memory_bytes=2**70, pids=2**40, cpus=1e300)
    assert limit_files(cgroup, "pids") in (["4194304"], ["max"])


@pytest.mark.parametrize(
    "limits",
    [
        {"memory_bytes": 0},
        {"memory_bytes": -1},
        {"pids": 0},
        {"cpus": 0.0},
        {"cpus": -1.0},
        {"cpus": float("nan")},
        {"cpus": float("inf")},
        {"cpus": 0.001},
    ],
)
def test_a_limit_that_makes_no_sense_is_refused_and_makes_nothing(limits: dict[str, float]) -> None:
    name = new_name()
    with pytest.raises(ValueError, match=next(iter(limits))):
        Cgroup.create(name, **limits)  # type: ignore[arg-type]
    assert name not in leftovers()


@pytest.mark.parametrize(
    "name", ["", ".", "..", "a/b", "../x", "tasks", "memory.max", "cgroup.procs", "a b", "é", "a\0", "x" * 201, "-\n"]
)
def test_a_name_that_could_lead_elsewhere_is_refused(name: str) -> None:
    for use in (Cgroup.create, Cgroup.open, Cgroup.discard):
        with pytest.raises(ValueError, match="not the name of a sandbox"):
            use(name)


def test_a_kill_catches_what_forks_away_from_it_in_new_sessions(make: Make) -> None:
    cgroup = make(memory_bytes=64 * MIB)  # Without a limit of processes: with version 1 the kill brings its own.
    with started(cgroup, RELAY) as process:
        assert line_of(process) == "runs"
        assert process.wait() == 0
        assert cgroup.kill() == []
    assert cgroup.members() == []
    # Version 2 kills all in one write; with version 1 it is this that leaves no room to fork away into.
    stops = [file for path in cgroup.paths for file in ("cgroup.kill", "pids.max") if os.path.exists(f"{path}/{file}")]
    assert stops == ["pids.max"] or "cgroup.kill" in stops
    assert "cgroup.kill" in stops or limit_files(cgroup, "pids") == ["0"]


def test_a_kill_by_number_stops_first_where_nothing_else_keeps_them_from_forking(make: Make) -> None:
    cgroup = make(memory_bytes=64 * MIB)
    only = Cgroup(cgroup.name, [path for path in cgroup.paths if not os.path.exists(os.path.join(path, "pids.max"))])
    if not only.paths:  # Version 2: one directory for all.
        only = cgroup
    with started(cgroup, "import os; os.fork(); os.fork(); " + SLEEPS) as process:
        for _ in range(4):
            assert line_of(process) == "runs"
        assert len(only.members()) == 4
        assert only.kill() == []
        assert process.wait() == -signal.SIGKILL
    assert cgroup.members() == []


def test_nobody_kills_the_cgroup_that_they_are_in(make: Make) -> None:
    cgroup = make(pids=40)
    name = cgroup.name
    program = f"""
import sys
sys.path.insert(0, {SOURCE!r})
from sandport_provider_local import cgroups
cgroup = cgroups.Cgroup.open({name!r})
cgroup.add(0)
try:
    cgroup.kill()
except ValueError as error:
    print(error, flush=True)
"""
    with started(None, program) as process:
        assert line_of(process) == f"this process is itself in the cgroup {name}"
        assert process.wait() == 0


def test_our_own_cgroup_is_not_touched(make: Make) -> None:
    def own() -> list[str]:
        trees = find_hierarchies().all()
        control = [Path(tree.chain[-1], "cgroup.subtree_control") for tree in trees]
        return [Path("/proc/self/cgroup").read_text(), *(file.read_text() for file in control if file.exists())]

    before = own()
    cgroup = make(**WANTED)
    with started(cgroup, SLEEPS) as process:
        assert line_of(process) == "runs"
        cgroup.kill()
    cgroup.remove()
    assert own() == before


def test_what_is_removed_is_gone_whole_with_what_the_sandbox_made_below_it(make: Make) -> None:
    cgroup = make(**WANTED)
    for path in cgroup.paths:
        Path(path, "inner", "deep").mkdir(parents=True)
    cgroup.remove()
    cgroup.remove()
    assert not any(os.path.exists(path) for path in cgroup.paths)
    assert cgroup.name not in leftovers()
    with pytest.raises(FileNotFoundError):
        Cgroup.open(cgroup.name)
    with pytest.raises(FileNotFoundError):
        cgroup.oom_kills()


def test_a_kill_below_is_counted_above(make: Make) -> None:
    cgroup = make(memory_bytes=48 * MIB)
    inner = [os.path.join(path, "inner") for path in cgroup.paths]
    for path in inner:
        os.mkdir(path)
    with started(Cgroup("inner", inner), GREEDY) as greedy:
        assert greedy.wait() == -signal.SIGKILL
    assert cgroup.oom_kills() == 1


def test_a_cgroup_with_processes_is_not_removed_and_says_which(make: Make) -> None:
    cgroup = make(pids=40)
    with started(cgroup, SLEEPS) as process:
        assert line_of(process) == "runs"
        with pytest.raises(OSError, match=str(process.pid)) as refused:
            cgroup.remove(timeout_s=0.0)
        assert refused.value.errno == errno.EBUSY
        assert process.poll() is None
        assert Cgroup.open(cgroup.name).members() == [process.pid]


def test_a_process_that_nobody_has_reaped_does_not_keep_its_cgroup(make: Make) -> None:
    cgroup = make(**WANTED)
    with started(cgroup, SLEEPS) as process:
        assert line_of(process) == "runs"
        assert cgroup.kill() == []
        until(lambda: state_of(process.pid) == "Z", "it is a zombie")
        cgroup.remove()
        assert not any(os.path.exists(path) for path in cgroup.paths)


def test_a_process_is_added_to_each_of_its_directories(make: Make) -> None:
    cgroup = make(**WANTED)
    with started(cgroup, SLEEPS) as process:
        assert [Path(path, "cgroup.procs").read_text() for path in cgroup.paths] == [f"{process.pid}\n"] * len(
            cgroup.paths
        )


@pytest.mark.parametrize("threads", [0, 2])
def test_a_process_adds_itself_whole_and_so_all_that_it_starts(make: Make, threads: int) -> None:
    cgroup = make(**WANTED)
    program = f"""
import os, sys, threading
sys.path.insert(0, {SOURCE!r})
from sandport_provider_local import cgroups
for _ in range({threads}):
    threading.Thread(target=threading.Event().wait, daemon=True).start()
cgroups.Cgroup.open({cgroup.name!r}).add(0)
print(len(os.listdir("/proc/self/task")), flush=True)
if os.fork():
    os.wait()
else:
    sys.stdin.read()
"""
    with started(None, program) as process:
        assert line_of(process) == str(threads + 1)
        until(lambda: len(cgroup.members()) == 2, "its child is there")
        for path in cgroup.paths:
            inside = Path(path, "cgroup.procs").read_text().split()
            assert str(process.pid) in inside
            assert len(inside) == 2
        where = [path.read_text() for path in Path(f"/proc/{process.pid}/task").glob("*/cgroup")]
        assert len(where) == threads + 1
        assert len(set(where)) == 1
        assert where[0].count(f"/sandport/{cgroup.name}\n") == len(cgroup.paths)
        assert cgroup.kill() == []


def test_a_process_that_is_gone_cannot_be_added(make: Make) -> None:
    cgroup = make(pids=40)
    with started(None, "pass") as process:
        process.wait()
    with pytest.raises(ProcessLookupError):
        cgroup.add(process.pid)


def test_what_a_killed_creator_leaves_is_found_by_its_name_and_ended(make: Make) -> None:
    name = new_name()
    # It is in the fixture's list, should this test fail before it has discarded it.
    make(name).remove()
    program = f"""
import os, signal, sys
sys.path.insert(0, {SOURCE!r})
from sandport_provider_local import cgroups
cgroup = cgroups.Cgroup.create({name!r}, memory_bytes={48 * MIB}, pids=40)
child = os.fork()
if child == 0:
    os.setsid()
    cgroup.add(0)
    print(os.getpid(), flush=True)
    signal.pause()
signal.pause()
"""
    with started(None, program) as creator:
        child = int(line_of(creator))
        creator.kill()
        creator.wait()
        assert name in leftovers("sp")
        assert name not in leftovers("sq")
        assert Cgroup.open(name).members() == [child]
        assert Cgroup.discard(name) is True
    assert state_of(child) in "ZX"
    assert Cgroup.discard(name) is False


def test_the_half_of_a_cgroup_is_found_refused_to_a_creator_and_removed(make: Make) -> None:
    whole = make(**WANTED)
    for half in whole.paths:
        make(whole.name + "x").remove()
        path = Path(half).parent / (whole.name + "x")
        path.mkdir()
        assert Cgroup.open(path.name).paths == (str(path),)
        with pytest.raises(FileExistsError):
            Cgroup.create(path.name, memory_bytes=48 * MIB, pids=40, cpus=0.5)
        # What it had made before it met the half is gone again, and the half is still there.
        assert Cgroup.open(path.name).paths == (str(path),)
        assert Cgroup.discard(path.name) is True


def test_sandboxes_that_come_and_go_at_once_do_not_take_the_directory_above_from_each_other() -> None:
    def come_and_go(name: str) -> None:
        Cgroup.create(name, memory_bytes=48 * MIB, pids=40, cpus=0.5).remove()

    with ThreadPoolExecutor(max_workers=4) as threads:
        list(threads.map(come_and_go, [new_name() for _ in range(100)]))


def test_a_keeper_loads_it_with_little_of_the_library_and_nothing_else_of_ours() -> None:
    loads = f"import sys; sys.path.insert(0, {SOURCE!r}); before = set(sys.modules); "
    shows = "print(*set(sys.modules) - before)"
    # What an init imports anyway is the measure.
    library = "import __future__, errno, math, os, signal, time; "
    loaded = loads + "import sandport_provider_local.cgroups; " + shows
    with started(None, loaded) as ours, started(None, loads + library + shows) as theirs:
        names = set(line_of(ours).split())
        own = {name for name in names if name.startswith("sandport_provider_local")}
        assert names - own == set(line_of(theirs).split())
    assert {name.rpartition(".")[2] for name in own} == {
        *("sandport_provider_local", "cgroups", "cgroup_files", "cgroup_limits", "cgroup_places", "hierarchies"),
    }


# ------------------------------------------------------------------ version 2's own ways, on whichever tree there is


@pytest.fixture
def unified(tmp_path: Path) -> dict[str, str]:
    """The machine's tree of version 2 alone, as `root` and `proc`: with hybrid it has no controllers, but all else."""
    tree = find_hierarchies().v2
    assert tree is not None, "no cgroups of version 2 are mounted"
    own = tree.chain[-1].removeprefix(tree.mount) or "/"
    (tmp_path / "self").mkdir()
    (tmp_path / "self/cgroup").write_text(f"0::{own}\n")
    (tmp_path / "self/mountinfo").write_text("41 31 0:38 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n")
    return {"root": tree.mount, "proc": str(tmp_path)}


def test_version_2_kills_a_whole_tree_in_one_write(unified: dict[str, str]) -> None:
    name = new_name()
    cgroup = Cgroup.create(name, **unified)  # type: ignore[arg-type]
    try:
        assert len(cgroup.paths) == 1
        assert (Path(cgroup.paths[0]) / "cgroup.kill").exists()
        with started(cgroup, RELAY) as process:
            assert line_of(process) == "runs"
            assert process.wait() == 0
            assert Cgroup.open(name, **unified).kill() == []
        assert cgroup.oom_kills() == 0
        assert cgroup.open_counter() is None
    finally:
        assert Cgroup.discard(name, **unified) is True
    assert leftovers(name, **unified) == []


def test_version_2_without_its_kill_freezes_first(unified: dict[str, str]) -> None:
    name = new_name()
    cgroup = Cgroup.create(name, **unified)  # type: ignore[arg-type]
    try:
        with started(cgroup, "import os; os.fork(); os.setsid(); " + SLEEPS) as process:
            assert [line_of(process), line_of(process)] == ["runs", "runs"]
            (path,) = cgroup.paths
            # What a kernel before 5.14 has to do, through the same functions.
            assert cgroup_files.write_if_there(os.path.join(path, "cgroup.freeze"), "1")
            cgroups._kill_each(path, stop_first=False)
            until(lambda: cgroup.members() == [], "frozen processes are killed")
            assert process.wait() == -signal.SIGKILL
    finally:
        assert Cgroup.discard(name, **unified) is True


@pytest.fixture
def handed_down(unified: dict[str, str]) -> Iterator[tuple[Hierarchy, str]]:
    """The tree of version 2 with a controller of its that can be handed down; what it handed down before it does again.

    A hybrid machine's has none of the three that limit a sandbox; the kernel's rules are the same for each that is not
    `threaded`, as memory is not.
    """
    tree = find_hierarchies(**unified).v2
    assert tree is not None
    controller = next(name for name in ("memory", "hugetlb", "io", "rdma", "misc") if tree.offers(name))
    place = cgroup_places._place(tree, [controller])
    control = Path(place, "cgroup.subtree_control")
    before = control.read_text().split()
    yield Hierarchy(2, place, (place,), read_only=False), controller
    if controller not in before:
        control.write_text(f"-{controller}")


def test_version_2_has_its_controllers_also_when_sandboxes_come_and_go_at_once(
    handed_down: tuple[Hierarchy, str],
) -> None:
    # The directory above is removed and made anew between any two steps; its controllers show before they are there.
    tree, controller = handed_down

    def come_and_go(name: str) -> bool:
        cgroup = Cgroup(name, [cgroups._make(2, tree.mount, name, [controller])])
        try:
            has_files = any(file.startswith(controller + ".") for file in os.listdir(cgroup.paths[0]))
            said = Path(cgroup.paths[0], "cgroup.controllers").read_text().split()
            return has_files and controller in said
        finally:
            cgroup.remove()

    with ThreadPoolExecutor(max_workers=4) as threads:
        assert all(threads.map(come_and_go, [new_name() for _ in range(200)]))


def test_version_2_has_its_controllers_also_when_the_directory_above_was_made_anew_at_the_worst_moment(
    handed_down: tuple[Hierarchy, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    tree, controller = handed_down
    name = new_name()
    made = os.mkdir

    def made_last(path: str, mode: int = 0o777) -> None:
        if path.endswith(name):  # Somebody else's last sandbox goes and their next one comes, just before ours.
            os.rmdir(os.path.dirname(path))
            made(os.path.dirname(path))
        made(path, mode)

    monkeypatch.setattr(os, "mkdir", made_last)
    cgroup = Cgroup(name, [cgroups._make(2, tree.mount, name, [controller])])
    try:
        assert controller in Path(cgroup.paths[0], "cgroup.controllers").read_text().split()
    finally:
        cgroup.remove()


def test_version_2_lets_no_cgroup_with_processes_hand_down_and_we_say_so_before_it_does(
    handed_down: tuple[Hierarchy, str],
) -> None:
    tree, controller = handed_down
    cgroup = Cgroup("x", [cgroups._make(2, tree.mount, new_name(), [controller])])
    try:
        (path,) = cgroup.paths
        assert cgroup_places._hindrance(2, path, [controller]) is None
        with started(cgroup, SLEEPS) as process:
            assert line_of(process) == "runs"
            assert "holds processes itself" in str(cgroup_places._hindrance(2, path, [controller]))
            with pytest.raises(OSError, match="busy") as refused:
                Path(path, "cgroup.subtree_control").write_text(f"+{controller}")
            assert refused.value.errno == errno.EBUSY
            assert cgroup.kill() == []
    finally:
        cgroup.remove()
