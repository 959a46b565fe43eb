"""A copy of the state's folder names sandboxes whose processes belong to the original."""

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.command import Command


@pytest.fixture
def kept(sandport: Command) -> Iterator[int]:
    """A kept lease, and a process in its background; the home is copied, with its sockets."""
    script = "sleep 600 >/dev/null 2>&1 </dev/null & echo $!; echo orig >f"
    done = sandport("run", "-c", "isolation=none", "--keep", "--name", "one", "--", "sh", "-c", script)
    assert done.code == 0, done.err
    subprocess.run(["cp", "-a", sandport.home, sandport.folder / "copy"], check=True)
    yield int(done.out)
    assert sandport("leases", "end", "one").code == 0
    shutil.rmtree(sandport.folder / "copy")
    sandport.nothing_is_left()


def runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except FileNotFoundError:
        return False


@pytest.mark.slow
def test_an_end_in_a_copy_ends_nothing_of_the_original(sandport: Command, kept: int) -> None:
    copy = {"SANDPORT_HOME": os.fspath(sandport.folder / "copy")}
    # What runs is not the copy's to use either.
    assert sandport("exec", "one", "--", "true", env=copy).code == 125
    assert runs(kept)
    done = sandport("leases", "end", "one", env=copy)
    assert done.code == 0, done.err
    assert list((sandport.folder / "copy/workers/local").iterdir()) == []
    assert runs(kept)
    done = sandport("exec", "one", "--", "sh", "-c", f"kill -0 {kept} && cat f")
    assert (done.code, done.out, done.err) == (0, b"orig\n", "")


@pytest.mark.slow
def test_a_copy_whose_original_is_gone_is_a_sandbox_of_its_own(sandport: Command, kept: int) -> None:
    """Such as a home that was restored from a backup."""
    pid = kept
    assert sandport("leases", "end", "one").code == 0
    assert not runs(pid)
    copy = {"SANDPORT_HOME": os.fspath(sandport.folder / "copy")}
    done = sandport("exec", "one", "--", "cat", "f", env=copy)
    assert (done.code, done.out) == (0, b"orig\n"), done.err
    script = "sleep 600 >/dev/null 2>&1 </dev/null & echo $!"
    pid = int(sandport("exec", "one", "--", "sh", "-c", script, env=copy).out)
    assert runs(pid)
    assert sandport("leases", "end", "one", env=copy).code == 0
    assert not runs(pid)
