"""A small file is read at once, and one that is not what it was is told."""

import os
from pathlib import Path

import pytest

from sandport.sync import copy_in


def copied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, grows: bytes) -> tuple[bytes, list[str]]:
    """Copy a tree of one file that changes between the look at its size and the first read."""
    source = tmp_path / "source"
    target = tmp_path / "target"
    source.mkdir()
    target.mkdir()
    (source / "file").write_bytes(b"0123456789")
    read = os.read

    def changed_first(fd: int, size_bytes: int) -> bytes:
        if os.readlink(f"/proc/self/fd/{fd}").endswith("source/file"):
            (source / "file").write_bytes(grows)
        return read(fd, size_bytes)

    monkeypatch.setattr(os, "read", changed_first)
    root_fd = os.open(target, os.O_RDONLY | os.O_DIRECTORY)
    try:
        result = copy_in(source, root_fd, b".")
    finally:
        os.close(root_fd)
    assert result.total_bytes == (target / "file").stat().st_size
    return (target / "file").read_bytes(), [notice.reason for notice in result.changed]


def test_a_file_that_grew_is_told_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """harbor tar helper (88): a file that was appended to failed the pack; here its copy is of one size, and told."""
    content, reasons = copied(tmp_path, monkeypatch, b"0123456789 and more")
    assert content == b"0123456789"
    assert len(reasons) == 1


def test_a_file_that_shrank_is_told_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    content, reasons = copied(tmp_path, monkeypatch, b"012")
    assert content == b"012"
    assert len(reasons) == 1


def test_a_file_whose_content_is_another_of_the_same_size_is_of_one_moment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    content, reasons = copied(tmp_path, monkeypatch, b"abcdefghij")
    assert (content, reasons) == (b"abcdefghij", [])
