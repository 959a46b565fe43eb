"""What a sandbox lists costs what its names cost, and no more, whatever its programs write."""

from __future__ import annotations

import asyncio
import inspect
import subprocess
import tracemalloc
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandport.outcome import Outcome
from sandport.sync.errors import SyncError, TooLargeError
from sandport.transfer.deletion import Listing, list_far
from sandport.transfer.name_lists import MOST_NAMES, NameLists
from sandport.transfer.shell import Shell

names = st.binary(min_size=1, max_size=6).map(lambda name: name.replace(b"\0", b"/")).filter(lambda name: name != b".")


class ThisMachine(Shell):
    """The shell of a folder of this machine, with programs that it brings itself."""

    def __init__(self, folder: Path, programs: Path) -> None:
        self._folder = folder
        self._programs = programs

    def _begun(self, text: str) -> subprocess.Popen[bytes]:
        path = f"{self._programs}:/usr/bin:/bin"
        return subprocess.Popen(
            ["sh", "-c", text], cwd=self._folder, env={"PATH": path}, stdout=subprocess.PIPE, bufsize=0
        )

    async def run(self, text: str, *, stdin: bytes = b"", on_output: Any = None, limit_bytes: int = 0) -> Outcome:
        with self._begun(text) as process:
            assert process.stdout is not None
            try:
                while data := await asyncio.to_thread(process.stdout.read, 1 << 20):
                    waiting = on_output("stdout", data)
                    if inspect.isawaitable(waiting):
                        await waiting
            finally:
                process.stdout.close()
            code = process.wait()
        return Outcome(ended="exited", exit_code=code)


@given(lists=st.lists(st.lists(names), min_size=3, max_size=3), size=st.integers(1, 9))
def test_lists_are_what_was_written_however_they_are_cut(lists: list[list[bytes]], size: int) -> None:
    said = b"".join(b"".join(b"./%b\0" % name for name in one) + b"\0" for one in lists)
    taken = NameLists(3, b"x")
    for start in range(0, len(said), size):
        taken.feed(said[start : start + size])
    assert taken.whole() == lists


@given(lists=st.lists(st.lists(names), min_size=3, max_size=3), data=st.data())
def test_a_listing_that_ends_early_is_no_listing(lists: list[list[bytes]], data: st.DataObject) -> None:
    said = b"".join(b"".join(b"./%b\0" % name for name in one) + b"\0" for one in lists)
    taken = NameLists(3, b"x")
    taken.feed(said[: data.draw(st.integers(0, len(said) - 1))])
    with pytest.raises(SyncError, match="cut"):
        taken.whole()


@pytest.mark.parametrize("after", [b"\0", b"x", b"x\0"])
def test_nothing_comes_after_the_last_list(after: bytes) -> None:
    taken = NameLists(3, b"x")
    with pytest.raises(SyncError, match="cut"):
        taken.feed(b"a\0\0\0\0" + after)


@pytest.mark.parametrize(
    ("piece", "pieces"),
    [
        pytest.param(b"a\0" * 32768, MOST_NAMES // 32768 + 1, id="names"),
        pytest.param(b".\0" * 32768, MOST_NAMES // 32768 + 1, id="names that say nothing"),
        pytest.param(b"x" * 32768, 3, id="one long name"),
        pytest.param((b"a/" * 16000 + b"\0") * 2, 700, id="deep names"),
    ],
)
def test_there_is_an_end_to_what_is_held(piece: bytes, pieces: int) -> None:
    taken = NameLists(3, b"x")
    with pytest.raises(TooLargeError, match="1,000,000"):
        _feed(taken, piece, pieces)


def _feed(taken: NameLists, piece: bytes, pieces: int) -> None:
    for _ in range(pieces):
        taken.feed(piece)


def test_what_was_written_may_be_as_much_as_is_promised() -> None:
    taken = NameLists(1, b"x")
    for _ in range(MOST_NAMES // 10_000):
        taken.feed(b"./a/b\0" * 10_000)
    taken.feed(b"\0")
    assert len(taken.whole()[0]) == MOST_NAMES


@pytest.mark.anyio
async def test_a_lying_program_of_the_sandbox_ends_its_listing_and_takes_no_memory(tmp_path: Path) -> None:
    """Its `find` is the sandbox's own: it wrote nothing but ends of lists, each of which took 80 bytes here."""
    programs, folder = tmp_path / "programs", tmp_path / "folder"
    for made in (programs, folder):
        made.mkdir()
    find = programs / "find"
    find.write_text("#!/bin/sh\nexec head -c 67108864 /dev/zero\n")
    find.chmod(0o755)
    tracemalloc.start()
    try:
        with pytest.raises(SyncError, match="cut"):
            await list_far(ThisMachine(folder, programs), [], delete=True)
        assert tracemalloc.get_traced_memory()[1] < 16 << 20
    finally:
        tracemalloc.stop()


@pytest.mark.anyio
async def test_a_listing_lets_others_have_their_turn(tmp_path: Path) -> None:
    programs, folder = tmp_path / "programs", tmp_path / "folder"
    for made in (programs, folder):
        made.mkdir()
    find = programs / "find"
    # The third of its calls has the rest: the first two find nothing.
    find.write_text("#!/bin/sh\n[ \"$7\" = d ] || exit 0\nyes ./abcdefg | head -n 200000 | tr '\\n' '\\0'\n")
    find.chmod(0o755)
    turns = 0

    async def count() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    counting = asyncio.ensure_future(count())
    try:
        listing = await list_far(ThisMachine(folder, programs), [], delete=False)
    finally:
        counting.cancel()
    # One piece of the pipe is at most a MiB; 64 KiB of it are cut at once.
    assert len(listing.directories) == 200_000
    assert turns >= 200_000 * 10 // (64 << 10)


@pytest.mark.anyio
async def test_a_listing_is_of_what_is_there(tmp_path: Path) -> None:
    (tmp_path / "folder" / "sub").mkdir(parents=True)
    (tmp_path / "folder" / "sub" / "file").touch()
    (tmp_path / "folder" / "link").symlink_to("sub")
    (tmp_path / "programs").mkdir()
    listing = await list_far(ThisMachine(tmp_path / "folder", tmp_path / "programs"), [], delete=True)
    assert listing == Listing([b"sub"], [b"link"], [b"sub/file"])
