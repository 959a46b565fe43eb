"""The file that holds an archive until it is believed."""

from __future__ import annotations

import os
import resource
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from host.tests.sync.conftest import Sandbox
from sandport.sync import SpaceExhaustedError, SyncError, TooLargeError
from sandport.sync.spool import Spool


@pytest.fixture(params=["without a name", "with a name that is removed"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    if request.param != "without a name":
        # As on a system, or a file system, that makes no files without one.
        monkeypatch.setattr("sandport.sync.spool._TEMPORARY", 0)
    return request.param  # type: ignore[no-any-return]


def test_a_spool_keeps_what_it_is_given_and_no_name(sandbox: Sandbox, way: str) -> None:
    with Spool.beside(sandbox.fd, max_bytes=None) as spool:
        assert os.listdir(sandbox.fd) == []
        status = os.fstat(spool.fd)
        assert (status.st_nlink, status.st_dev, status.st_mode & 0o777) == (0, os.fstat(sandbox.fd).st_dev, 0o600), way
        for piece in (b"abc", bytearray(b"def"), memoryview(b"ghi"), b""):
            spool.write(piece)
        assert (spool.size_bytes, os.pread(spool.fd, 20, 0)) == (9, b"abcdefghi")
    spool.close()
    assert spool.fd == -1


def test_a_spool_takes_so_much_and_no_more(sandbox: Sandbox) -> None:
    with Spool.beside(sandbox.fd, max_bytes=10) as spool:
        spool.write(b"x" * 10)
        with pytest.raises(TooLargeError, match="longer than 10 bytes"):
            spool.write(b"x")
        assert spool.size_bytes == 10
        assert os.fstat(spool.fd).st_size == 10


def test_a_full_disk_says_so(sandbox: Sandbox, in_child: Callable[[Callable[[], None]], None]) -> None:
    def fill() -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))
        with Spool.beside(sandbox.fd, max_bytes=None) as spool, pytest.raises(SpaceExhaustedError):
            spool.write(b"x" * 5000)

    in_child(fill)


def test_a_directory_that_is_gone_says_so(tmp_path: Path) -> None:
    (tmp_path / "gone").mkdir()
    fd = os.open(tmp_path / "gone", os.O_RDONLY)
    try:
        (tmp_path / "gone").rmdir()
        with pytest.raises(SyncError, match="cannot create"):
            Spool.beside(fd, max_bytes=None)
    finally:
        os.close(fd)
