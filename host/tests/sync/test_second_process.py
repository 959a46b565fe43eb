"""Small files by two processes: what arrives and what is told is as by one, whatever becomes of the second."""

from __future__ import annotations

import contextlib
import os
import resource
import select
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from host.tests.sync.conftest import MEMORY, NOBODY, Sandbox
from host.tests.sync.test_faithful import files, link_targets, mtimes
from host.tests.sync.trees import Directory, File, Link, Node, Seen, content_of, look, make, names_below, scratch_below
from sandport.sync import (
    SpaceExhaustedError,
    SyncCancelledError,
    SyncResult,
    TargetBusyError,
    TooLargeError,
    copy_in,
    copy_out,
)
from sandport.sync.copy import Account, Bounds, copy_tree
from sandport.sync.fast_lane import Sharing
from sandport.sync.meter import Meter
from sandport.sync.mirror import KnownPaths
from sandport.sync.second_process import SecondProcess
from sandport.sync.small_files import PROGRAM, UNDONE, Making, copy_small
from sandport.sync.target import TargetTree

HANG_S = 60.0
"""Only ends a hang."""

TWO = 2
"""Processors, for what is to have a second process here: also on a machine of one, where a copy would do without."""


def until(happened: Callable[[], object]) -> None:
    deadline_s = time.monotonic() + HANG_S
    while not happened():
        assert time.monotonic() < deadline_s, "it did not happen"
        time.sleep(0.001)


Before = Callable[[Sequence[bytes], int, int], None]
Act = Callable[["Watched"], None]


class Watched(SecondProcess):
    """A second process that has made a file of its first stretch before this process makes any."""

    given = 0
    before: Before
    act: Act

    def give(self, names: Sequence[bytes], source_fd: int, target_fd: int, most_bytes: int, making: Making) -> None:
        self.given += 1
        if self.given > 1:
            super().give(names, source_fd, target_fd, most_bytes, making)
            return
        self.before(names, source_fd, target_fd)
        there = len(os.listdir(target_fd))
        super().give(names, source_fd, target_fd, most_bytes, making)
        until(lambda: len(os.listdir(target_fd)) > there)
        self.act(self)


def nothing(*_: object) -> None:
    """What most tests do to it."""


class Observed:
    """A way to share, and what became of it.

    Args:
        before: Called with names, source and target before the first stretch is given.
        act: Called once a file of it is made.
    """

    def __init__(self, act: Act = nothing, before: Before = nothing) -> None:
        self.started: list[Watched] = []
        self._act = act
        self._before = before

    def start(self) -> SecondProcess | None:
        second = Watched.start(processor_count=TWO)
        assert second is not None, "no second process was started"
        second.before = self._before
        second.act = self._act
        # Known to this process's own look, too: it is ready when it is started.
        until(second.is_ready)
        self.started.append(second)
        return second

    @property
    def sharing(self) -> Sharing:
        return Sharing(1, self.start)

    def over(self) -> bool:
        """Whether all that were started have ended, and are no zombies."""
        return bool(self.started) and not any(os.path.exists(f"/proc/{second.pid}") for second in self.started)


def alone() -> Sharing:
    return Sharing(1, lambda: None)


def copied(
    source: Path | str,
    target: Path,
    sharing: Sharing,
    *,
    cancelled: Callable[[], bool] | None = None,
    bounds: Bounds | None = None,
    owner: tuple[int, int] | None = None,
    known: KnownPaths | None = None,
) -> SyncResult:
    """Copy a tree to `target/work`, which is made."""
    source_fd = os.open(source, os.O_RDONLY | os.O_DIRECTORY)
    target_fd = os.open(target, os.O_RDONLY | os.O_DIRECTORY)
    try:
        return copy_tree(
            source_fd,
            TargetTree(target_fd, label=b"", owner=owner),
            b"work",
            meter=Meter(cancelled, None),
            bounds=bounds or Bounds(),
            account=Account(known),
            sharing=sharing,
        )
    finally:
        os.close(source_fd)
        os.close(target_fd)


def flat(count: int, size_bytes: int = 500) -> Directory:
    return Directory({b"f%d" % number: File(b"%d" % number + b"x" * size_bytes) for number in range(count)})


def told(result: SyncResult) -> tuple[object, ...]:
    """What a copy says, whatever order the system lists names in."""
    return (
        result.files,
        result.directories,
        result.links,
        result.total_bytes,
        sorted((notice.path, notice.reason) for notice in result.skipped),
        sorted((notice.path, notice.reason) for notice in result.refused),
        sorted((notice.path, notice.reason) for notice in result.changed),
        (result.skipped_count, result.refused_count, result.changed_count),
    )


@pytest.fixture
def place() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(dir=MEMORY) as name:
        yield Path(name)


# ------------------------------------------------------------------ the same tree and the same words

modes = st.sampled_from([0o644, 0o600, 0o755, 0o777, 0o400])
plain = st.builds(File, st.binary(max_size=30), modes, mtimes, st.just(0))
odd_ones: st.SearchStrategy[Node] = st.one_of(files, st.builds(Link, link_targets, mtimes))


@st.composite
def wide_trees(draw: st.DrawFn, depth: int = 1) -> Directory:
    """Directories with enough small files to be shared, and a few other things among them."""
    some = draw(st.lists(plain, min_size=1, max_size=4))
    children: dict[bytes, Node] = {
        b"p%d" % number: some[number % len(some)] for number in range(draw(st.integers(48, 80)))
    }
    for number in range(draw(st.integers(0, 4))):
        children[b"o%d" % number] = draw(odd_ones)
    if draw(st.booleans()):
        children[b"big"] = File(b"x" * 70_000)
    for number in range(draw(st.integers(0, 2 if depth else 0))):
        children[b"d%d" % number] = draw(wide_trees(depth - 1))
    return Directory(children, draw(st.sampled_from([0o755, 0o700, 0o1777])), draw(mtimes))


@settings(max_examples=12, deadline=None)
@given(wide_trees(), st.booleans(), st.sampled_from([None, 8 << 20]))
def test_two_processes_make_the_same_tree_and_tell_the_same_as_one(
    tree: Directory, has_fifo: bool, max_bytes: int | None
) -> None:
    with tempfile.TemporaryDirectory(dir=MEMORY) as name:
        base = Path(name)
        make(base / "source", tree)
        if has_fifo:
            os.mkfifo(base / "source/fifo")
            (base / "source/.sandport-0").touch()
            os.utime(base / "source", ns=(0, tree.mtime_ns))
        observed = Observed()
        results: list[tuple[object, ...]] = []
        seen: list[Seen] = []
        known: list[KnownPaths] = []
        for sharing in (alone(), observed.sharing):
            target = base / f"target{len(results)}"
            target.mkdir()
            paths = KnownPaths()
            results.append(
                told(copied(base / "source", target, sharing, bounds=Bounds(max_bytes=max_bytes), known=paths))
            )
            seen.append(look(target / "work"))
            known.append(paths)
            assert scratch_below(target) == set()
        assert results[0] == results[1]
        assert seen[0] == seen[1]
        every = names_below(base / "source")
        assert [known[0].holds(path) for path in sorted(every)] == [known[1].holds(path) for path in sorted(every)]
        assert observed.started[0].given
        assert observed.over()


def test_files_whose_sizes_mean_nothing_are_told_of_by_both(place: Path) -> None:
    observed = Observed()
    results = []
    for number, sharing in enumerate((alone(), observed.sharing)):
        (place / f"target{number}").mkdir()
        results.append(copied("/proc/sys/net/ipv4/conf", place / f"target{number}", sharing))
    assert observed.started[0].given
    assert told(results[0]) == told(results[1])
    assert results[0].changed_count == results[0].files > 0
    assert names_below(place / "target0") == names_below(place / "target1")


def test_large_files_among_small_ones_are_none_of_its_business(place: Path) -> None:
    kinds = {b"small": 500, b"large": 70_000}
    parts = {name: flat(150, size_bytes) for name, size_bytes in kinds.items()}
    mixed = {b"%b-%b" % (name, file): node for name in parts for file, node in parts[name].children.items()}
    make(place / "source", Directory({**parts, b"mixed": Directory(mixed)}))
    (place / "target").mkdir()
    observed = Observed()
    result = copied(place / "source", place / "target", observed.sharing)
    assert observed.started[0].given
    assert look(place / "target/work") == look(place / "source")
    assert result.files == 600


def test_who_gets_the_files_gets_those_of_the_second_process_too(place: Path) -> None:
    owner = (NOBODY, NOBODY) if os.geteuid() == 0 else (os.getuid(), os.getgid())
    make(place / "source", flat(200))
    (place / "target").mkdir()
    observed = Observed()
    copied(place / "source", place / "target", observed.sharing, owner=owner)
    assert observed.started[0].given
    statuses = [os.lstat(place / "target/work" / os.fsdecode(name)) for name in names_below(place / "source")]
    assert len(statuses) == 200
    assert {(status.st_uid, status.st_gid) for status in statuses} == {owner}


def test_a_tree_of_many_files_goes_in_and_out_whole_and_leaves_no_process(sandbox: Sandbox, place: Path) -> None:
    parts: dict[bytes, Node] = {b"d%d" % number: flat(200, 50) for number in range(15)}
    make(place / "source", Directory(parts))
    result = copy_in(place / "source", sandbox.fd, b"work")
    assert result.files == 3000
    assert look(sandbox.path / "work") == look(place / "source")
    copy_out(sandbox.fd, b"work", place / "back")
    assert look(place / "back") == look(place / "source")
    assert children_of(os.getpid()) == []


def children_of(parent: int) -> list[int]:
    """The second processes of a process."""
    found = []
    for name in os.listdir("/proc"):
        # Others end while this looks.
        with contextlib.suppress(OSError):
            if name.isdigit() and PROGRAM.encode() in Path("/proc", name, "cmdline").read_bytes().split(b"\0"):
                status = Path("/proc", name, "status").read_text(encoding="utf-8")
                if f"\nPPid:\t{parent}\n" in status:
                    found.append(int(name))
    return found


# ------------------------------------------------------------------ what may become of it


def kill(second: Watched) -> None:
    os.kill(second.pid, signal.SIGKILL)


def stop(second: Watched) -> None:
    os.kill(second.pid, signal.SIGSTOP)


@pytest.mark.parametrize("act", [kill, stop])
def test_one_that_is_killed_or_stopped_in_the_middle_changes_nothing(place: Path, act: Act) -> None:
    tree = Directory({b"d": flat(2000), b"e": flat(100)})
    make(place / "source", tree)
    (place / "target").mkdir()
    observed = Observed(act)
    result = copied(place / "source", place / "target", observed.sharing)
    assert observed.started[0].given
    assert look(place / "target/work") == look(place / "source")
    assert (result.files, result.total_bytes) == (2100, sum(len(content) for content in contents(tree)))
    assert (result.skipped_count, result.changed_count) == (0, 0)
    assert observed.over()


def contents(tree: Directory) -> Iterator[bytes]:
    for node in tree.children.values():
        if isinstance(node, File):
            yield node.content
        elif isinstance(node, Directory):
            yield from contents(node)


@pytest.mark.parametrize("stopped", [False, True])
@pytest.mark.parametrize("kind", [SyncCancelledError, KeyboardInterrupt])
def test_a_copy_that_is_cut_short_ends_it_before_anything_is_put_away(
    place: Path, kind: type[BaseException], stopped: bool
) -> None:
    make(place / "source", flat(2000))
    (place / "target").mkdir()
    given: list[Watched] = []

    def act(second: Watched) -> None:
        given.append(second)
        if stopped:
            stop(second)

    def cancelled() -> bool:
        if given and kind is KeyboardInterrupt:
            raise KeyboardInterrupt
        return bool(given)

    observed = Observed(act)
    with pytest.raises(kind) as caught:
        copied(place / "source", place / "target", observed.sharing, cancelled=cancelled)
    assert not hasattr(caught.value, "__notes__")
    assert observed.over()
    assert scratch_below(place / "target") == set()
    sent = look(place / "source")
    arrived = look(place / "target/work")
    assert {at: what for at, what in arrived.items() if at} == {at: sent[at] for at in arrived if at}
    assert 0 < len(arrived) < 2000


def test_what_it_cannot_write_is_an_error_of_the_copy_and_nothing_half_made_stays(
    place: Path, in_child: Callable[[Callable[[], None]], None]
) -> None:
    tree = flat(200)
    # In a directory of its own, which comes after all files of the first.
    make(place / "source", Directory({**tree.children, b"g": flat(100, 60_000)}))
    (place / "target").mkdir()

    def copy() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, resource.RLIM_INFINITY))
        observed = Observed()
        with pytest.raises(SpaceExhaustedError) as caught:
            copied(place / "source", place / "target", observed.sharing)
        assert caught.value.path.startswith(b"work/g/")
        assert observed.over()

    in_child(copy)
    sent = look(place / "source")
    arrived = look(place / "target/work")
    assert {at: what for at, what in arrived.items() if at} == {at: sent[at] for at in arrived if at}


def test_a_ceiling_holds_for_what_both_copy_together(place: Path) -> None:
    make(place / "source", Directory({b"d%d" % number: flat(300, 60_000) for number in range(2)}))
    (place / "target").mkdir()
    # Room for the first directory, whatever its small files hold, and not for all of the second.
    ceiling = 300 * (64 << 10) + 1_000_000
    observed = Observed()
    with pytest.raises(TooLargeError):
        copied(place / "source", place / "target", observed.sharing, bounds=Bounds(max_bytes=ceiling))
    assert observed.started[0].given
    arrived = [len(content_of(what)) for what in look(place / "target").values()]
    assert 0 < sum(arrived) <= ceiling


def test_a_directory_in_the_way_of_a_shared_file_is_named(place: Path) -> None:
    make(place / "source", flat(300))
    (place / "target").mkdir()
    taken: list[bytes] = []

    def occupy(names: Sequence[bytes], _source_fd: int, target_fd: int) -> None:
        taken.append(names[100])
        os.mkdir(names[100], dir_fd=target_fd)

    observed = Observed(before=occupy)
    with pytest.raises(TargetBusyError) as caught:
        copied(place / "source", place / "target", observed.sharing)
    assert caught.value.path == b"work/" + taken[0]
    assert observed.over()


def test_names_that_others_take_in_the_new_directory_are_taken_over(place: Path) -> None:
    """The sandbox's own user may write where the two processes do."""
    make(place / "source", flat(1000))
    (place / "target").mkdir()
    (place / "outside").write_bytes(b"precious")

    def meddle(names: Sequence[bytes], _source_fd: int, target_fd: int) -> None:
        for name in names[::50]:
            os.symlink(place / "outside", name, dir_fd=target_fd)

    result = copied(place / "source", place / "target", Observed(before=meddle).sharing)
    assert look(place / "target/work") == look(place / "source")
    assert result.files == 1000
    assert (place / "outside").read_bytes() == b"precious"


def test_files_that_are_swapped_for_links_meanwhile_are_not_read_through(place: Path) -> None:
    make(place / "source", flat(1000))
    (place / "target").mkdir()
    (place / "outside").write_bytes(b"secret")

    swapped: list[bytes] = []

    def swap(names: Sequence[bytes], source_fd: int, _target_fd: int) -> None:
        swapped.extend(names[::2])
        for name in swapped:
            os.unlink(name, dir_fd=source_fd)
            os.symlink(place / "outside", name, dir_fd=source_fd)

    result = copied(place / "source", place / "target", Observed(before=swap).sharing)
    assert all(b"secret" not in what for what in look(place / "target").values())
    assert sorted(notice.path for notice in result.changed) == sorted(swapped)
    assert result.files == 1000 - len(swapped) < 1000
    assert {notice.reason for notice in result.changed} == {
        "it was replaced by something of another kind before it could be read"
    }


# ------------------------------------------------------------------ the process itself


def ended(pidfd: int) -> bool:
    return bool(select.select([pidfd], [], [], HANG_S)[0])


@pytest.mark.parametrize("keeps_a_copy", [False, True])
def test_it_ends_with_the_process_that_started_it(keeps_a_copy: bool) -> None:
    """Also where a copy of the socket lives on, in a process that the first one forked."""
    near, far = socket.socketpair()
    child = os.fork()
    if child == 0:
        second = SecondProcess.start(processor_count=TWO)
        assert second is not None
        until(second.is_ready)
        if keeps_a_copy and os.fork() == 0:
            near.close()
            far.sendall(b"kept")
            far.recv(1)  # until the test is over
            os._exit(0)
        far.sendall(b"%d" % second.pid)
        far.recv(1)
        os._exit(0)
    far.close()
    with near:
        # One word, or two in any order.
        said = b""
        wanted = len(b"kept") if keeps_a_copy else 0
        while not said.replace(b"kept", b"") or len(said) <= wanted:
            more = near.recv(100)
            assert more
            said += more
        pidfd = os.pidfd_open(int(said.replace(b"kept", b"")))
        try:
            near.send(b".")  # to whichever reads first: both of them end with the socket at the latest
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            assert ended(pidfd)
        finally:
            os.close(pidfd)


def test_it_ends_when_its_socket_does(place: Path) -> None:
    near, far = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with near, subprocess.Popen([sys.executable, "-I", "-S", PROGRAM], stdin=far.fileno()) as process:
        far.close()
        assert near.recv(100) == b"ready"
        near.close()
        assert process.wait(HANG_S) == 0


@pytest.mark.parametrize("name", ["", "/usr/sbin/uwsgi", "/opt/product/bin/product"])
def test_a_program_that_is_no_interpreter_is_not_started(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setattr(sys, "executable", name)
    assert SecondProcess.start(processor_count=TWO) is None


def test_a_frozen_program_is_not_started(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "frozen", True, raising=False)
    assert SecondProcess.start(processor_count=TWO) is None


def test_on_one_processor_there_is_none(in_child: Callable[[Callable[[], None]], None]) -> None:
    def on_one() -> None:
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
        assert SecondProcess.start() is None

    in_child(on_one)
    assert SecondProcess.start(processor_count=1) is None


def test_it_has_no_variable_of_the_process_that_started_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """A secret in the host's environment would stand in that of a child, where whoever may look finds it."""
    monkeypatch.setenv("CANARY", "canary-7f3a")
    second = SecondProcess.start(processor_count=TWO)
    assert second is not None
    try:
        until(second.is_ready)
        assert b"canary" not in Path(f"/proc/{second.pid}/environ").read_bytes()
    finally:
        second.end()


@pytest.mark.parametrize("text", ["exit 0", "exec sleep 600", "echo hello >&0; exec sleep 600"])
def test_a_program_that_does_not_say_that_it_is_ready_is_ended_and_not_asked(
    place: Path, monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    program = place / "python3"
    program.write_text(f"#!/bin/sh\n{text}\n", encoding="utf-8")
    program.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(program))
    make(place / "source", flat(1000))
    (place / "target").mkdir()
    started: list[int] = []

    def start() -> SecondProcess | None:
        second = SecondProcess.start(processor_count=TWO)
        if second is not None:
            started.append(second.pid)
        return second

    result = copied(place / "source", place / "target", Sharing(1, start))
    assert result.files == 1000
    assert look(place / "target/work") == look(place / "source")
    assert len(started) == 1
    assert not os.path.exists(f"/proc/{started[0]}")


# ------------------------------------------------------------------ one file


def test_a_file_that_does_not_go_smoothly_leaves_nothing(place: Path) -> None:
    make(place / "source", Directory({b"big": File(b"x" * 101), b"f": File(b"text"), b"l": Link(b"f")}))
    os.mkfifo(place / "source/fifo")
    (place / "target").mkdir()
    (place / "target/taken").touch()
    (place / "source/taken").touch()
    source_fd, target_fd = (os.open(place / name, os.O_RDONLY) for name in ("source", "target"))
    making = Making(0, None)
    try:
        for name in (b"big", b"l", b"fifo", b"taken", b"missing"):
            assert copy_small(name, source_fd, target_fd, 100, making) == UNDONE
        assert copy_small(b"f", source_fd, target_fd, 100, making) == 4
    finally:
        os.close(source_fd)
        os.close(target_fd)
    assert names_below(place / "target") == {b"f", b"taken"}
    assert making.odd == []
