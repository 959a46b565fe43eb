from __future__ import annotations

import contextlib
import os
import pickle
import shutil
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple, NoReturn

import pytest

NOBODY = 65534

MEMORY = "/dev/shm" if os.access("/dev/shm", os.W_OK | os.X_OK) else None
"""For tests that make thousands of files: on a disk with a journal, others' flushes can hold up each of them."""


class Sandbox(NamedTuple):
    """A sandbox that is a directory on this machine."""

    path: Path
    fd: int


@pytest.fixture(autouse=True)
def no_descriptor_stays_open() -> Iterator[None]:
    before = _descriptors()
    yield
    # One that is gone was another test's, closed when it was collected.
    assert _descriptors().items() - before.items() == set()


def _descriptors() -> dict[str, str]:
    found = {}
    for name in os.listdir("/proc/self/fd"):
        # The listing's own descriptor is gone by now.
        with contextlib.suppress(FileNotFoundError):
            found[name] = os.readlink(f"/proc/self/fd/{name}")
    return found


@pytest.fixture
def sandbox(tmp_path: Path) -> Iterator[Sandbox]:
    path = tmp_path / "sandbox"
    path.mkdir()
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    yield Sandbox(path, fd)
    os.close(fd)


@pytest.fixture
def deep_place() -> Iterator[Path]:
    """A directory for trees so deep that what pytest tidies up with would give up on them."""
    place = Path(tempfile.mkdtemp(prefix="sync-", dir=MEMORY))
    yield place
    subprocess.run(["rm", "-rf", place], check=True)


@pytest.fixture
def in_child() -> Callable[[Callable[[], None]], None]:
    """Runs a function in a forked process, for what changes a whole process, and raises what it raised."""
    return _in_child


@pytest.fixture
def as_user() -> Iterator[Callable[[Callable[[Path], None]], None]]:
    """Runs a function as a user without privileges, in a directory of his."""
    place = Path(tempfile.mkdtemp(prefix="sync-"))

    def run(act: Callable[[Path], None]) -> None:
        def demoted() -> None:
            if os.geteuid() == 0:
                os.setgroups([])
                os.setgid(NOBODY)
                os.setuid(NOBODY)
            act(place)

        if os.geteuid() == 0:
            os.chown(place, NOBODY, NOBODY)
        _in_child(demoted)

    yield run
    subprocess.run(["chmod", "-R", "u+rwX", place], check=True)
    shutil.rmtree(place)


def _in_child(act: Callable[[], None]) -> None:
    reader, writer = os.pipe()
    sys.stdout.flush()
    sys.stderr.flush()
    child = os.fork()
    if child == 0:
        os.close(reader)
        _run_and_exit(act, writer)
    os.close(writer)
    with open(reader, "rb") as answers:
        answer = answers.read()
    _, status = os.waitpid(child, 0)
    assert answer, f"the child ended without an answer, with status {status}"
    failure = pickle.loads(answer)
    if failure is not None:
        raise AssertionError(f"in the child process:\n{failure}")


def _run_and_exit(act: Callable[[], None], writer: int) -> NoReturn:
    failure = None
    try:
        act()
    except BaseException:  # noqa: BLE001 - whatever it is, the parent must see it and this process must end
        failure = traceback.format_exc()
    with open(writer, "wb") as answers:
        answers.write(pickle.dumps(failure))
    os._exit(0)
