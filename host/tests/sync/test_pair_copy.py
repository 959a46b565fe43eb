"""Big files by two threads: every byte in its place, and one end for both."""

from __future__ import annotations

import errno
import os
import resource
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from host.tests.sync.conftest import MEMORY, Sandbox
from sandport.sync import SpaceExhaustedError, SyncCancelledError, SyncProgress, copy_in, copy_out
from sandport.sync.kernel_copy import BLOCK_BYTES, PIECE_BYTES
from sandport.sync.pair_copy import PAIR_FROM_BYTES, PairCopy

BIG = PAIR_FROM_BYTES + 3 * BLOCK_BYTES + 17


@pytest.fixture
def place() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(dir=MEMORY) as name:
        yield Path(name)


@pytest.fixture(autouse=True)
def no_thread_stays() -> Iterator[None]:
    before = threading.enumerate()
    yield
    assert threading.enumerate() == before


def content_of(size_bytes: int) -> bytes:
    """Bytes of which no two blocks are the same."""
    return b"".join(b"%8d" % number for number in range(size_bytes // 8 + 1))[:size_bytes]


class Pair:
    """A source of some bytes, an empty target, and a copy between them."""

    def __init__(self, place: Path, content: bytes) -> None:
        self.source, self.target = place / "source", place / "target"
        self.source.write_bytes(content)
        self.told: list[int] = []

    def copy(self, start: int, end: int, act: Callable[[], None] = lambda: None, *, flags: int = os.O_RDWR) -> int:
        def advance(size_bytes: int) -> None:
            self.told.append(size_bytes)
            act()

        source_fd = os.open(self.source, os.O_RDONLY)
        target_fd = os.open(self.target, os.O_CREAT | flags, 0o600)
        try:
            return PairCopy().copy(source_fd, target_fd, start, end, advance)
        finally:
            os.close(source_fd)
            os.close(target_fd)


@settings(max_examples=10, deadline=None)
@given(st.integers(0, 5 * BLOCK_BYTES), st.integers(1, 5 * BLOCK_BYTES), st.integers(0, BLOCK_BYTES))
@example(0, BLOCK_BYTES, 0)
@example(0, BLOCK_BYTES + 1, 0)
@example(3, 4 * BLOCK_BYTES, BLOCK_BYTES)
def test_any_range_arrives_whole_and_ends_where_the_source_does(start: int, size_bytes: int, missing: int) -> None:
    with tempfile.TemporaryDirectory(dir=MEMORY) as name:
        end = start + size_bytes
        there = max(start, end - missing)
        content = content_of(there)
        pair = Pair(Path(name), content)
        assert pair.copy(start, end) == there
        arrived = pair.target.read_bytes()
        assert len(arrived) == (there if there > start or missing else 0)
        assert arrived[start:] == content[start:]
        assert arrived[:start].count(0) == len(arrived[:start])
        assert sum(pair.told) == there - start


def test_a_source_that_is_cut_short_meanwhile_ends_the_copy_there(place: Path) -> None:
    content = content_of(BIG)
    pair = Pair(place, content)

    def cut() -> None:
        os.truncate(pair.source, 4 * BLOCK_BYTES + 5)

    reached = pair.copy(0, BIG, cut)
    assert reached < BIG
    assert pair.target.read_bytes() == content[:reached]


def test_a_target_that_is_cut_short_meanwhile_hurts_nobody(place: Path) -> None:
    """The sandbox may do that to its own file: what it gets then is its own matter, and no signal ends this process."""
    pair = Pair(place, content_of(BIG))
    assert pair.copy(0, BIG, lambda: os.truncate(pair.target, 0)) == BIG


def test_a_copy_that_is_stopped_has_one_thread_again_and_went_not_far_ahead(place: Path) -> None:
    pair = Pair(place, content_of(4 * PIECE_BYTES))

    def stop() -> None:
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        pair.copy(0, 4 * PIECE_BYTES, stop)
    assert len(pair.told) == 1
    assert pair.target.stat().st_size <= PIECE_BYTES + 4 * BLOCK_BYTES


def test_a_fault_of_either_thread_is_raised(place: Path) -> None:
    pair = Pair(place, content_of(BIG))
    with pytest.raises(OSError, match=os.strerror(errno.EBADF)) as caught:
        pair.copy(0, BIG, flags=os.O_RDONLY)
    assert caught.value.errno == errno.EBADF


def test_a_big_file_goes_in_and_out_whole_and_its_holes_stay(sandbox: Sandbox, place: Path) -> None:
    content = content_of(BIG)
    (place / "source").mkdir()
    with (place / "source/big").open("wb") as file:
        file.write(content)
        file.seek(64 << 20, os.SEEK_CUR)
        file.write(content)
        file.truncate(file.tell() + (64 << 20))
    whole = (place / "source/big").read_bytes()
    reports: list[SyncProgress] = []
    result = copy_in(place / "source", sandbox.fd, b"work", progress=reports.append)
    assert (result.total_bytes, result.changed_count) == (len(whole), 0)
    assert reports[-1].bytes_done == len(whole)
    copy_out(sandbox.fd, b"work", place / "back")
    for copy in (sandbox.path / "work/big", place / "back/big"):
        assert copy.read_bytes() == whole
        assert copy.stat().st_blocks * 512 < 3 * len(content)


def test_a_file_that_is_cut_short_while_it_is_copied_is_told_of(sandbox: Sandbox, place: Path) -> None:
    (place / "source").mkdir()
    content = content_of(BIG)
    (place / "source/big").write_bytes(content)

    def cut() -> bool:
        if any(path.stat().st_size for path in sandbox.path.rglob("big")):
            os.truncate(place / "source/big", 1000)
        return False

    result = copy_in(place / "source", sandbox.fd, b"work", cancelled=cut)
    arrived = (sandbox.path / "work/big").read_bytes()
    assert result.total_bytes == len(arrived) < BIG
    assert arrived == content[: len(arrived)]
    assert [notice.path for notice in result.changed] == [b"big"]


def test_a_limit_on_a_big_file_is_named_and_nothing_of_it_stays(
    place: Path, in_child: Callable[[Callable[[], None]], None]
) -> None:
    (place / "source").mkdir()
    (place / "sandbox").mkdir()
    (place / "source/big").write_bytes(content_of(BIG))

    def copy() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (BIG // 2, resource.RLIM_INFINITY))
        root_fd = os.open(place / "sandbox", os.O_RDONLY)
        with pytest.raises(SpaceExhaustedError) as caught:
            copy_in(place / "source", root_fd, b"work")
        assert caught.value.path == b"work/big"

    in_child(copy)
    assert [path.name for path in (place / "sandbox").rglob("*")] == ["work"]


def test_a_cancel_in_the_middle_of_a_big_file_leaves_nothing_of_it(sandbox: Sandbox, place: Path) -> None:
    (place / "source").mkdir()
    (place / "source/big").write_bytes(content_of(4 * PIECE_BYTES))
    sizes: list[int] = []

    def cancelled() -> bool:
        sizes[:] = [path.stat().st_size for path in sandbox.path.rglob("big")]
        return bool(sizes and sizes[0])

    with pytest.raises(SyncCancelledError):
        copy_in(place / "source", sandbox.fd, b"work", cancelled=cancelled)
    assert 0 < sizes[0] < 4 * PIECE_BYTES
    assert [path.name for path in sandbox.path.rglob("*")] == ["work"]


def test_a_pair_is_for_two_processors_and_for_systems_that_are_known_to_copy(
    place: Path, in_child: Callable[[Callable[[], None]], None]
) -> None:
    (place / "file").touch()

    def suits(one: str | Path, size_bytes: int = BIG, *, processor_count: int | None = 2) -> bool:
        source_fd, target_fd = os.open(one, os.O_RDONLY), os.open(place / "file", os.O_RDONLY)
        try:
            return PairCopy(processor_count=processor_count).suits(source_fd, target_fd, size_bytes)
        finally:
            os.close(source_fd)
            os.close(target_fd)

    def on_one() -> None:
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
        assert not suits(place / "file", processor_count=None)

    assert not suits("/proc/self/status")
    assert not suits(place / "file", PAIR_FROM_BYTES - 1)
    assert not suits(place / "file", processor_count=1)
    in_child(on_one)


@pytest.mark.parametrize("free", [0, 1])
def test_without_a_free_descriptor_one_thread_copies_it_all(
    place: Path, in_child: Callable[[Callable[[], None]], None], free: int
) -> None:
    pair = Pair(place, content_of(BIG))

    def crowded() -> None:
        source_fd = os.open(pair.source, os.O_RDONLY)
        target_fd = os.open(pair.target, os.O_CREAT | os.O_RDWR, 0o600)
        taken = [os.dup(0)]
        resource.setrlimit(resource.RLIMIT_NOFILE, (taken[0] + 20,) * 2)
        while True:
            try:
                taken.append(os.dup(0))
            except OSError:
                break
        for _ in range(free):
            os.close(taken.pop())
        copying = PairCopy(processor_count=2)
        assert free or not copying.suits(source_fd, target_fd, BIG)
        assert copying.copy(source_fd, target_fd, 0, BIG, lambda size_bytes: None) == BIG

    in_child(crowded)
    assert pair.target.read_bytes() == pair.source.read_bytes()
