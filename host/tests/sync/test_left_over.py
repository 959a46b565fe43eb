"""What a killed copy staged goes with the next copy into the same directory; what a live one stages does not."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from host.tests.sync.conftest import Sandbox
from host.tests.sync.trees import Directory, File, make, scratch_below
from sandport.sync import copy_out

STAGER = """
import os, sys
from sandport.sync.entries import DirectoryEntry, FileEntry
from sandport.sync.target import TargetTree

fd = os.open(sys.argv[1], os.O_RDONLY)
with TargetTree(fd, label=b"t") as tree:
    if sys.argv[2] == "tree":
        tree.enter(DirectoryEntry(b"new", 0o755, 0))
        tree.put(FileEntry(b"f", 0o644, 1, 0), b"x")
        for depth in range(40):  # past what a descent keeps open
            tree.enter(DirectoryEntry(b"d", 0o755, 0))
    else:
        entry = FileEntry(b"new", int(sys.argv[2], 8), 1, 0)
        os.write(tree.stage(entry), b"x")
    print("staged", flush=True)
    sys.stdin.readline()
    if sys.argv[2] != "tree":
        tree.commit(entry)
print("done", flush=True)
sys.stdin.readline()
"""


@contextmanager
def staging(folder: Path, what: str) -> Iterator[subprocess.Popen[bytes]]:
    """A process in the middle of a copy into a folder; killed with the block."""
    argv = [sys.executable, "-c", STAGER, os.fspath(folder), what]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == b"staged\n"
            yield process
        finally:
            process.kill()


@pytest.mark.parametrize("delete", [False, True])
@pytest.mark.parametrize("what", ["tree", "644"])
def test_what_a_killed_copy_staged_goes_with_the_next_one(
    sandbox: Sandbox, tmp_path: Path, what: str, delete: bool
) -> None:
    """A kill in the midst of sync_out left 68 MiB in the user's folder, which nothing ever removed."""
    make(sandbox.path / "out", Directory({b"f": File(b"new"), b"sub": Directory({})}))
    make(tmp_path / "mine", Directory({b"sub": Directory({})}))
    for place in ("mine", "mine/sub"):
        with staging(tmp_path / place, what):
            pass
    assert len(scratch_below(tmp_path)) >= 2
    copy_out(sandbox.fd, b"out", tmp_path / "mine", delete=delete)
    assert not scratch_below(tmp_path)


@pytest.mark.parametrize("what", ["tree", "644"])
def test_what_a_live_copy_stages_stays_and_gets_its_name(sandbox: Sandbox, tmp_path: Path, what: str) -> None:
    make(sandbox.path / "out", Directory({b"f": File(b"new")}))
    (tmp_path / "mine").mkdir()
    with staging(tmp_path / "mine", what) as process:
        before = scratch_below(tmp_path)
        assert before
        copy_out(sandbox.fd, b"out", tmp_path / "mine", delete=True)
        assert scratch_below(tmp_path) == before
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(b"\n")
        process.stdin.flush()
        assert process.stdout.readline() == b"done\n"
    assert not scratch_below(tmp_path)
    assert (tmp_path / "mine/new").exists()


def test_only_what_has_the_form_of_left_over_scratch_goes(sandbox: Sandbox, tmp_path: Path) -> None:
    make(sandbox.path / "out", Directory({b"f": File(b"new")}))
    make(tmp_path / "elsewhere", Directory({b"kept": File(b"kept")}))
    mine = tmp_path / "mine"
    (mine / ".sandport-0123456789abcdef").mkdir(parents=True)
    (mine / ".sandport-0123456789abcdef" / "link").symlink_to(tmp_path / "elsewhere")
    (mine / ".sandport-fedcba9876543210").symlink_to(tmp_path / "elsewhere")
    stay = {".sandport-0123456789abcde", ".sandport-0123456789abcdeF", ".sandport-old-0123456789abcdef", ".sandport-"}
    for name in stay:
        (mine / name).mkdir()
    if os.geteuid() == 0:
        stay.add(".sandport-1111111111111111")
        (mine / ".sandport-1111111111111111").mkdir()
        os.chown(mine / ".sandport-1111111111111111", 65534, 65534)
    copy_out(sandbox.fd, b"out", mine)
    # A link of this minute may be about to get its name; nothing is ever followed.
    assert set(os.listdir(mine)) == {*stay, ".sandport-fedcba9876543210", "f"}
    assert (tmp_path / "elsewhere" / "kept").read_bytes() == b"kept"
