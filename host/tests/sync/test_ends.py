"""How a copy ends when it does not end well: at a ceiling, on a full disk, by the caller's wish."""

from __future__ import annotations

import errno
import os
import resource
import subprocess
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from host.tests.sync.conftest import Sandbox
from host.tests.sync.trees import Directory, File, Link, Node, look, make, names_below, scratch_below
from sandport.sync import (
    SpaceExhaustedError,
    SyncCancelledError,
    SyncProgress,
    SyncResult,
    TargetBusyError,
    TooLargeError,
    copy_in,
    copy_out,
)


def many_files(count: int, size: int = 10) -> Directory:
    return Directory(
        {
            b"d%d" % (n % 7): Directory({b"f%d" % m: File(b"x" * size) for m in range(n % 7, count, 7)})
            for n in range(min(count, 7))
        }
    )


def staged_files(path: Path) -> set[bytes]:
    """Files on their way: under a reserved name, or inside of one."""
    return {name for name in scratch_below(path) if not (path / os.fsdecode(name)).is_dir()}


# Ceilings


@pytest.mark.parametrize(("max_entries", "max_bytes", "named"), [(106, 1_000, "max_entries"), (107, 999, "max_bytes")])
def test_past_a_ceiling_nothing_is_written(
    sandbox: Sandbox, tmp_path: Path, max_entries: int, max_bytes: int, named: str
) -> None:
    """airflow#71676, deer-flow#4811: listing and reading were unbounded."""
    make(sandbox.path / "out", many_files(100))
    with pytest.raises(TooLargeError, match=f"raise {named}"):
        copy_out(sandbox.fd, b"out", tmp_path / "made/back", max_entries=max_entries, max_bytes=max_bytes)
    assert not (tmp_path / "made").exists()
    assert copy_out(sandbox.fd, b"out", tmp_path / "made/back", max_entries=107, max_bytes=1_000).files == 100


def test_a_single_file_past_the_ceiling_is_not_written(sandbox: Sandbox, tmp_path: Path) -> None:
    (sandbox.path / "big").write_bytes(b"x" * 100)
    with pytest.raises(TooLargeError):
        copy_out(sandbox.fd, b"big", tmp_path / "made/back", max_bytes=99)
    assert not (tmp_path / "made").exists()
    assert copy_out(sandbox.fd, b"big", tmp_path / "made/back", max_bytes=100).total_bytes == 100


def test_holes_count_against_the_ceiling(sandbox: Sandbox, tmp_path: Path) -> None:
    with (sandbox.path / "bomb").open("wb") as file:
        file.truncate(9 << 30)
    with pytest.raises(TooLargeError):
        copy_out(sandbox.fd, b".", tmp_path / "back")
    assert not (tmp_path / "back").exists()


def test_fifos_and_links_count_as_entries_too(sandbox: Sandbox, tmp_path: Path) -> None:
    for number in range(20):
        os.mkfifo(sandbox.path / f"fifo{number}")
        (sandbox.path / f"link{number}").symlink_to("x")
    with pytest.raises(TooLargeError):
        copy_out(sandbox.fd, b".", tmp_path / "back", max_entries=39)
    assert not (tmp_path / "back").exists()


def test_a_tree_that_grows_past_the_ceiling_after_it_was_counted_stops_there(sandbox: Sandbox, tmp_path: Path) -> None:
    make(sandbox.path / "out", Directory({b"%d" % number: File(b"x" * 100) for number in range(10)}))
    (tmp_path / "back").mkdir()

    def grow_once_something_was_written() -> bool:
        if any((tmp_path / "back").iterdir()):
            for path in (sandbox.path / "out").iterdir():
                os.truncate(path, 1_000)
        return False

    with pytest.raises(TooLargeError):
        copy_out(sandbox.fd, b"out", tmp_path / "back", max_bytes=1_000, cancelled=grow_once_something_was_written)
    assert sum(path.stat().st_size for path in (tmp_path / "back").iterdir()) <= 1_000
    assert scratch_below(tmp_path / "back") == set()


def test_entries_that_appear_after_the_count_stop_at_the_ceiling(sandbox: Sandbox, tmp_path: Path) -> None:
    make(sandbox.path / "out", Directory({b"a": Directory({b"f": File()}), b"b": Directory({b"f": File()})}))
    (tmp_path / "back").mkdir()

    def grow_once_something_was_written() -> bool:
        if any((tmp_path / "back").iterdir()):
            for name in ("a", "b"):
                for number in range(10):
                    (sandbox.path / "out" / name / f"more{number}").touch()
        return False

    with pytest.raises(TooLargeError):
        copy_out(sandbox.fd, b"out", tmp_path / "back", max_entries=4, cancelled=grow_once_something_was_written)
    assert len(names_below(tmp_path / "back")) <= 4
    assert scratch_below(tmp_path / "back") == set()


def test_a_file_that_grows_for_ever_comes_to_an_end(sandbox: Sandbox, tmp_path: Path) -> None:
    """harbor's tar helper: a file that is appended to in a loop."""
    log = sandbox.path / "log"
    log.write_bytes(b"x" * 1_000_000)
    stop = threading.Event()

    def append() -> None:
        with log.open("ab") as file:
            while not stop.is_set() and file.tell() < 1 << 30:
                file.write(b"y" * 100_000)
                file.flush()

    writer = threading.Thread(target=append)
    writer.start()
    try:
        size_at_least = log.stat().st_size
        result = copy_out(sandbox.fd, b".", tmp_path / "back")
    finally:
        stop.set()
        writer.join()
    assert size_at_least <= result.total_bytes <= log.stat().st_size
    assert (tmp_path / "back/log").stat().st_size == result.total_bytes


# Full disks


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system with room for 16 MiB."""
    place = tmp_path / "small"
    place.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=16m,mode=0777", "tmpfs", place],
        capture_output=True,
        check=False,
        text=True,
    )
    if mounted.returncode:
        pytest.skip(f"cannot mount a small file system: {mounted.stderr.strip()}")
    yield place
    subprocess.run(["umount", place], check=True)


@pytest.mark.parametrize("tree", [many_files(400, 50_000), Directory({b"big": File(b"x" * 20_000_000)})])
@pytest.mark.parametrize("way", ["out", "in", "in, replace", "in, delete"])
def test_a_full_disk_is_named_and_leaves_no_scratch(
    sandbox: Sandbox, tmp_path: Path, small_disk: Path, tree: Directory, way: str
) -> None:
    make(tmp_path / "source", tree)
    old = Directory({b"mine": File(b"mine"), b"d1": Directory({b"mine": File(b"mine")})})
    make(small_disk / "there", old)
    root_fd = os.open(small_disk, os.O_RDONLY)
    source_fd = os.open(tmp_path, os.O_RDONLY)

    def copy(name: str) -> SyncResult:
        if way == "out":
            return copy_out(source_fd, b"source", small_disk / name)
        return copy_in(
            tmp_path / "source", root_fd, name.encode(), replace=way == "in, replace", delete=way == "in, delete"
        )

    try:
        for name in ("there", "fresh"):
            with pytest.raises(SpaceExhaustedError, match="free space") as caught:
                copy(name)
            assert isinstance(caught.value.__cause__, OSError)
            assert caught.value.__cause__.errno == errno.ENOSPC
            assert name.encode() in caught.value.path
            assert scratch_below(small_disk) == set()
            kept = {b"there/" + path for path in (b"mine", b"d1", b"d1/mine")}
            assert names_below(small_disk) >= kept, "what was there before is gone though the copy failed"
            if way == "in, replace":
                assert names_below(small_disk) == {b"there"} | kept
            sent = look(tmp_path / "source")
            for at, what in look(small_disk).items():
                if what[0] == "file" and at[-1] != b"mine":
                    assert what == sent[at[1:]]
    finally:
        os.close(root_fd)
        os.close(source_fd)


@pytest.mark.parametrize("target", ["existing", "fresh"])
def test_a_limit_on_file_size_is_named_and_leaves_no_scratch(
    sandbox: Sandbox, tmp_path: Path, in_child: Callable[[Callable[[], None]], None], target: str
) -> None:
    make(sandbox.path / "out", Directory({b"d": Directory({b"big": File(b"x" * 3_000_000)})}))
    (tmp_path / "existing").mkdir()

    def copy() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (1_000_000, resource.RLIM_INFINITY))
        with pytest.raises(SpaceExhaustedError) as caught:
            copy_out(sandbox.fd, b"out", tmp_path / target)
        assert caught.value.path == os.fsencode(tmp_path / target / "d/big")

    in_child(copy)
    assert names_below(tmp_path / target) == {b"d"}


# The caller's wish


@pytest.mark.parametrize("fresh", [False, True])
@pytest.mark.parametrize("asked_before", [0, 1, 5, 60, 100, 105])
def test_a_cancelled_copy_leaves_whole_files_and_no_scratch(
    sandbox: Sandbox, tmp_path: Path, asked_before: int, fresh: bool
) -> None:
    tree = many_files(60, 3_000)
    make(tmp_path / "source", tree)
    if not fresh:
        (sandbox.path / "work").mkdir()
    questions = iter(range(1_000_000))
    with pytest.raises(SyncCancelledError):
        copy_in(tmp_path / "source", sandbox.fd, b"work", cancelled=lambda: next(questions) >= asked_before)
    assert scratch_below(sandbox.path) == set()
    sent = look(tmp_path / "source")
    for at, what in look(sandbox.path).items():
        if what[0] == "file":
            assert what == sent[at[1:]]
        elif at[1:]:
            assert what[:2] == sent[at[1:]][:2]
    # The same call again completes what was begun.
    copy_in(tmp_path / "source", sandbox.fd, b"work")
    assert names_below(sandbox.path / "work") == names_below(tmp_path / "source")


@pytest.mark.parametrize("existing", [False, True])
def test_cancelling_inside_a_big_file_removes_what_was_staged(sandbox: Sandbox, tmp_path: Path, existing: bool) -> None:
    make(tmp_path / "source", Directory({b"d": Directory({b"big": File(b"x" * 20_000_000)})}))
    make(sandbox.path / "work", Directory({b"d": Directory({b"big": File(b"old")} if existing else {})}))
    when_cancelled: list[int] = []

    def cancelled() -> bool:
        when_cancelled[:] = [os.stat(sandbox.path / os.fsdecode(name)).st_size for name in staged_files(sandbox.path)]
        return bool(when_cancelled and when_cancelled[0])

    with pytest.raises(SyncCancelledError):
        copy_in(tmp_path / "source", sandbox.fd, b"work", cancelled=cancelled)
    assert 0 < when_cancelled[0] < 20_000_000, "it was not in the middle"
    assert names_below(sandbox.path) == ({b"work", b"work/d", b"work/d/big"} if existing else {b"work", b"work/d"})
    if existing:
        assert (sandbox.path / "work/d/big").read_bytes() == b"old"


@pytest.mark.parametrize("kind", [RuntimeError, KeyboardInterrupt])
def test_what_the_callers_own_function_raises_passes_through(
    sandbox: Sandbox, tmp_path: Path, kind: type[BaseException]
) -> None:
    make(tmp_path / "source", Directory({b"big": File(b"x" * 200_000)}))

    def fail(progress: SyncProgress) -> None:
        if progress.bytes_done:
            raise kind("mine")

    with pytest.raises(kind, match="mine") as caught:
        copy_in(tmp_path / "source", sandbox.fd, b"work", progress=fail)
    assert not hasattr(caught.value, "__notes__")
    assert scratch_below(sandbox.path) == set()


def test_progress_tells_the_totals_first_and_all_of_it_at_the_end(sandbox: Sandbox, tmp_path: Path) -> None:
    make(tmp_path / "source", many_files(50, 1_000))
    with (tmp_path / "source/sparse").open("wb") as file:
        file.truncate(1 << 20)

    def reported(copy: Callable[[Callable[[SyncProgress], None]], SyncResult]) -> None:
        reports: list[SyncProgress] = []
        result = copy(reports.append)
        files, size = result.files, result.total_bytes
        assert reports[0] == SyncProgress(files_done=0, files_total=files, bytes_done=0, bytes_total=size)
        assert reports[-1] == SyncProgress(files_done=files, files_total=files, bytes_done=size, bytes_total=size)
        done = [(report.files_done, report.bytes_done) for report in reports]
        assert done == sorted(done)

    reported(lambda report: copy_in(tmp_path / "source", sandbox.fd, b"work", progress=report))
    reported(lambda report: copy_out(sandbox.fd, b"work", tmp_path / "back", progress=report))
    reported(lambda report: copy_out(sandbox.fd, b"work/d1/f1", tmp_path / "one", progress=report))


# Others who write to the target


def test_a_directory_that_appears_under_the_final_name_wins_and_no_scratch_is_left(
    as_user: Callable[[Callable[[Path], None]], None],
) -> None:
    def copy(base: Path) -> None:
        deep = Directory({b"shut": Directory({b"f": File(b"x")}, 0o500)}, 0o000)
        make(base / "source", Directory({b"a": Directory({b"b": deep}, 0o500), b"f": File(b"x" * 100_000)}))
        os.chmod(base / "source/a/b", 0o500)
        (base / "sandbox").mkdir()
        root_fd = os.open(base / "sandbox", os.O_RDONLY)

        def occupy() -> bool:
            if scratch_below(base / "sandbox"):
                (base / "sandbox/work").mkdir(exist_ok=True)
                (base / "sandbox/work/theirs").touch()
            return False

        with pytest.raises(TargetBusyError) as caught:
            copy_in(base / "source", root_fd, b"work", cancelled=occupy)
        assert caught.value.path == b"work"
        assert names_below(base / "sandbox") == {b"work", b"work/theirs"}

    as_user(copy)


def test_names_that_others_make_inside_a_staged_directory_are_taken_over(sandbox: Sandbox, tmp_path: Path) -> None:
    (tmp_path / "outside").write_bytes(b"precious")
    tree = Directory({b"f": File(b"text"), b"g": File(b"text"), b"d": Directory({b"h": File(b"text")})})
    make(tmp_path / "source", tree)

    def meddle() -> bool:
        for staged in sandbox.path.glob(".sandport-*"):
            for name in ("f", "g"):
                if not (staged / name).exists():
                    (staged / name).symlink_to(tmp_path / "outside")
            (staged / "d").mkdir(exist_ok=True)
        return False

    copy_in(tmp_path / "source", sandbox.fd, b"work", cancelled=meddle)
    assert look(sandbox.path / "work") == look(tmp_path / "source")
    assert (tmp_path / "outside").read_bytes() == b"precious"


def test_scratch_names_that_others_take_are_left_to_them(sandbox: Sandbox, tmp_path: Path) -> None:
    (tmp_path / "outside").write_bytes(b"precious")
    entries: dict[bytes, Node] = {b"l%d" % number: Link(b"f1") for number in range(5)}
    entries |= {b"f%d" % number: File(b"x" * 100_000) for number in range(5)}
    make(tmp_path / "source", Directory({**entries, b"d": Directory({b"f": File(b"text")})}))
    (sandbox.path / "work").mkdir()
    seen: set[Path] = set()

    def take() -> bool:
        seen.update((sandbox.path / "work").glob(".sandport-*"))
        for name in seen:
            if not os.path.lexists(name):
                name.symlink_to(tmp_path / "outside")
        return False

    copy_in(tmp_path / "source", sandbox.fd, b"work", cancelled=take)
    assert len(seen) > 1
    copied = names_below(sandbox.path / "work") - {os.fsencode(name.name) for name in seen}
    assert copied == names_below(tmp_path / "source")
    assert (tmp_path / "outside").read_bytes() == b"precious"


def test_a_staged_directory_that_somebody_takes_away_is_a_typed_error(sandbox: Sandbox, tmp_path: Path) -> None:
    make(tmp_path / "source", many_files(30))

    def take_away() -> bool:
        for staged in sandbox.path.glob(".sandport-*"):
            staged.rename(tmp_path / "taken")
        return False

    with pytest.raises(Exception, match="work") as caught:
        copy_in(tmp_path / "source", sandbox.fd, b"work", cancelled=take_away)
    assert type(caught.value).__module__ == "sandport.sync.errors"
    assert names_below(sandbox.path) == set()
