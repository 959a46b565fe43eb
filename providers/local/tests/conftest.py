"""One provider with one sandbox for each test, and nothing left of either."""

import contextlib
import os
import signal
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from providers.local.tests.leases import Lease
from providers.local.tests.machine import PATIENCE_S, arguments_of, environment_of, pids, state_of
from sandport_provider_local.provider import LocalProvider
from sandport_sdk.testing import HostInMemory


def those_of(folder: Path) -> list[int]:
    """Processes that have to do with a folder."""
    mark = str(folder).encode()
    words = {pid: [*arguments_of(pid), *environment_of(pid)] for pid in pids() if state_of(pid) not in "ZX"}
    return [pid for pid, said in words.items() if any(mark in word for word in said)]


@pytest.fixture
def state_dir(tmp_path: Path) -> Iterator[Path]:
    """The provider's directory; whatever a test made there must be gone at its end, processes too."""
    folder = tmp_path / "state"
    folder.mkdir(0o700)
    yield folder
    left = [entry.name for entry in folder.iterdir()]
    # What removes a folder as its last act is seen for a moment after it.
    deadline = time.monotonic() + PATIENCE_S
    while (alive := those_of(folder)) and time.monotonic() < deadline:
        time.sleep(0.01)
    for pid in alive:  # Where a test fails, its sandboxes may be kept ones.
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    assert (left, alive) == ([], [])


@pytest.fixture
async def host(state_dir: Path) -> AsyncIterator[HostInMemory]:
    async with HostInMemory(LocalProvider, state_dir=state_dir) as host:
        yield host


@pytest.fixture
async def lease(host: HostInMemory, state_dir: Path) -> AsyncIterator[Lease]:
    lease = await Lease.acquire(host, state_dir)
    yield lease
    assert await lease.destroy() in {"destroyed", "gone"}


@pytest.fixture(autouse=True)
def orphans_are_reaped() -> Iterator[None]:
    """An init outlives its worker. Where the worker was a part of this process, nobody reaps it but we."""
    yield
    with contextlib.suppress(ChildProcessError):  # there is none
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
