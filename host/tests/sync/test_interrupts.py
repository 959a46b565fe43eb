"""Ctrl-C at every line of a copy in the main thread: it ends with KeyboardInterrupt, and leaves nothing.

Python raises it between any two instructions, so also after a descriptor was opened and before anybody has its number
(python/cpython#74174: no order of `try` and `with` keeps it out).
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, NamedTuple

import pytest

import sandport.sync
from host.tests.sync.conftest import MEMORY, Sandbox
from host.tests.sync.test_second_process import flat
from host.tests.sync.trees import Directory, File, Link, make, scratch_below
from sandport.sync import SyncResult, copy_in, copy_out
from sandport.sync import local as entrance
from sandport.sync.interrupt import HeldInterrupt

PACKAGE = os.path.dirname(sandport.sync.__file__) + os.sep

TREE = Directory(
    {b"file": File(b"x" * 100), b"link": Link(b"file"), b"below": Directory({b"deep": Directory({b"f": File(b"y")})})}
)


class Moment(NamedTuple):
    """A place in the code, at which a copy is for the first time: a line, or with an offset an instruction of it."""

    code: CodeType
    line: int
    offset: int | None


class Tracer:
    """Notes at which moments a copy is for the first time, and sends the signal at one of them.

    Args:
        wanted: Which files of the package are looked at.
        by_instruction: Whether every instruction is a moment, and not every line.
        strike: When to send the signal.
    """

    def __init__(
        self, wanted: Callable[[str], bool], *, by_instruction: bool = False, strike: Moment | None = None
    ) -> None:
        self.moments: dict[Moment, None] = {}
        self._wanted = wanted
        self._by_instruction = by_instruction
        self._strike = strike

    @contextlib.contextmanager
    def at_work(self) -> Iterator[None]:
        before = sys.gettrace()
        sys._getframe().f_trace_opcodes = (
            self._by_instruction
        )  # 3.12 asks before the first call whether anybody wants them
        sys.settrace(self._enter)
        try:
            yield
        finally:
            sys.settrace(before)

    def _enter(self, frame: FrameType, _event: str, _argument: object) -> Any:
        if not self._wanted(frame.f_code.co_filename):
            return None
        frame.f_trace_opcodes = self._by_instruction
        return self._step

    def _step(self, frame: FrameType, event: str, _argument: object) -> Any:
        if event == ("opcode" if self._by_instruction else "line"):
            offset = frame.f_lasti if self._by_instruction else None
            moment = Moment(frame.f_code, frame.f_lineno, offset)
            if moment not in self.moments:
                self.moments[moment] = None
                if moment == self._strike:
                    signal.raise_signal(signal.SIGINT)
        return self._step


class Stage:
    """Makes each copy anew, in folders of its own, and looks at what it leaves."""

    def __init__(self, folder: Path, copy: Callable[[Path, int], SyncResult], *, there: bool) -> None:
        self._folder = folder
        self._copy = copy
        self._there = there
        self._count = 0

    def run(self, tracer: Tracer) -> bool:
        """Whether the copy was interrupted."""
        self._count += 1
        path = self._folder / str(self._count)
        path.mkdir()
        if self._there:
            make(path / "work", Directory({b"file": File(b"old"), b"more": File(b"old")}))
        descriptors, threads = set(os.listdir("/proc/self/fd")), threading.active_count()
        others = children()
        root_fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
        interrupted = False
        try:
            with tracer.at_work():
                self._copy(path, root_fd)
        except KeyboardInterrupt:
            interrupted = True
        finally:
            os.close(root_fd)
        assert set(os.listdir("/proc/self/fd")) == descriptors
        assert threading.active_count() == threads
        assert scratch_below(path) == set()
        assert children() - others == set()
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
        return interrupted


def children() -> set[str]:
    """What this thread has started and not taken the end of, other tests' included."""
    return set(Path(f"/proc/self/task/{threading.get_native_id()}/children").read_text().split())


def struck_everywhere(stage: Stage, wanted: Callable[[str], bool], *, by_instruction: bool = False) -> int:
    """Interrupt a copy at each of its moments in turn; how many those were."""
    assert not stage.run(Tracer(wanted, by_instruction=by_instruction))
    # Again: 3.13 traces the instructions of a function from its second call on.
    known = Tracer(wanted, by_instruction=by_instruction)
    assert not stage.run(known)
    for moment in known.moments:
        tracer = Tracer(wanted, by_instruction=by_instruction, strike=moment)
        # Not each copy is at each moment: a second process may be faster, or slower.
        assert stage.run(tracer) == (moment in tracer.moments), moment
    return len(known.moments)


def in_package(path: str) -> bool:
    return path.startswith(PACKAGE)


@pytest.fixture
def folder() -> Iterator[Path]:
    """In memory: a disk's journal could hold up each of a thousand copies."""
    with tempfile.TemporaryDirectory(prefix="sync-", dir=MEMORY) as name:
        yield Path(name)


@pytest.fixture
def source(folder: Path) -> Path:
    make(folder / "source", TREE)
    return folder / "source"


@pytest.fixture
def place(folder: Path) -> Path:
    (folder / "place").mkdir()
    return folder / "place"


@pytest.mark.parametrize(
    ("options", "there"),
    [({}, False), ({"delete": True}, True), ({"replace": True}, True)],
    ids=["new", "deletes", "replaces"],
)
def test_an_interrupt_at_any_line_leaves_nothing(
    source: Path, place: Path, options: dict[str, Any], *, there: bool
) -> None:
    stage = Stage(place, lambda _path, root_fd: copy_in(source, root_fd, b"work", **options), there=there)
    assert struck_everywhere(stage, in_package) > 100


def test_an_interrupt_at_any_line_of_a_copy_out_leaves_nothing(source: Path, place: Path) -> None:
    def copy(path: Path, root_fd: int) -> SyncResult:
        return copy_out(root_fd, b"work", path / "out", delete=True)

    assert struck_everywhere(Stage(place, copy, there=True), in_package) > 100


def test_an_interrupt_at_any_instruction_of_the_entrance_leaves_nothing(source: Path, place: Path) -> None:
    stage = Stage(place, lambda _path, root_fd: copy_in(source / "file", root_fd, b"new/file"), there=False)
    assert struck_everywhere(stage, lambda path: path == entrance.__file__, by_instruction=True) > 100


def test_an_interrupt_at_any_line_about_a_second_process_leaves_none(folder: Path, place: Path) -> None:
    make(folder / "many", flat(600))
    files = {PACKAGE + name for name in ("fast_lane.py", "second_process.py")}
    stage = Stage(place, lambda _path, root_fd: copy_in(folder / "many", root_fd, b"work"), there=False)
    assert struck_everywhere(stage, files.__contains__) > 20


def interrupted_twice(heard: list[str]) -> None:
    with HeldInterrupt(None):
        signal.raise_signal(signal.SIGINT)
        heard.append("held")
        signal.raise_signal(signal.SIGINT)
        heard.append("held too")


def test_a_second_interrupt_is_not_held() -> None:
    heard: list[str] = []
    with pytest.raises(KeyboardInterrupt):
        interrupted_twice(heard)
    assert heard == ["held"]


def handlers_during(source: Path, sandbox: Sandbox) -> set[object]:
    """Who has the signal while a copy is at work."""
    found: set[object] = set()

    def look() -> bool:
        found.add(signal.getsignal(signal.SIGINT))
        return False

    copy_in(source, sandbox.fd, b"work", cancelled=look)
    return found


def test_a_handler_of_the_callers_own_is_left_to_him(sandbox: Sandbox, source: Path) -> None:
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        assert handlers_during(source, sandbox) == {signal.SIG_IGN}
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)


def test_a_copy_in_another_thread_has_no_part_in_it(sandbox: Sandbox, source: Path) -> None:
    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(handlers_during, source, sandbox).result() == {signal.default_int_handler}
