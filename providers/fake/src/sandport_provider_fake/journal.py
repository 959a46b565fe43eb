"""What is on the vendor's disk: small files that are whole at every moment, and a journal that only grows.

```text
STATE_DIR/
    vendor.lock         held for each change of what several workers share
    vendor.json         how the vendor is set up, written by a test: {"createSettleMs": 0}
    vendor.jsonl        the journal: everything that was done, each line before the effect
    clock.json          the vendor's time, where it is not the machine's
    faults.json         orders, written by a test or by `x-fake/faults`
    passed.json         how often each order's point was passed, and how often it happened
    outage.json         until when the vendor is down
    rate.json           requests in the present second
    creates/            one lock for each create that runs, where they are limited
    sandboxes/ID.json   the record of a sandbox
    files/ID/           its working directory
    guards/ID/          who runs commands in it, see `guard`
```
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import json
import os
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator, Mapping
    from pathlib import Path

_RETRY_S = 0.001


class Journal:
    """`vendor.jsonl`."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "vendor.jsonl"

    def write(self, what: str, at_ms: int, **facts: object) -> None:
        """Add one line; it is there whatever becomes of this process next."""
        line = json.dumps({"what": what, "atMs": at_ms, "pid": os.getpid(), **facts}).encode() + b"\n"
        fd = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        try:
            os.write(fd, line)
        finally:
            os.close(fd)

    def read(self) -> list[dict[str, Any]]:
        """Every line."""
        try:
            return [json.loads(line) for line in self.path.read_bytes().splitlines()]
        except FileNotFoundError:
            return []


class SharedFile:
    """A small JSON file, read again only when it was replaced."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._seen: tuple[int, int, int] | None = None
        self._content = b""

    def read(self) -> bytes:
        """Its content; empty where it is not there."""
        try:
            status = os.stat(self.path)
            seen = (status.st_ino, status.st_mtime_ns, status.st_size)
            if seen != self._seen:
                self._content = self.path.read_bytes()
                self._seen = seen
        except (FileNotFoundError, NotADirectoryError):
            self._seen, self._content = None, b""
        return self._content

    def read_object(self) -> dict[str, Any]:
        """Its content as an object; empty where it is not there."""
        content = self.read()
        found: dict[str, Any] = json.loads(content) if content else {}
        return found

    def write(self, value: Mapping[str, object]) -> None:
        """Replace it; a reader finds the old or the new."""
        replace(self.path, json.dumps(value).encode())


def replace(path: Path, content: bytes) -> None:
    """Write a file that is whole at every moment."""
    new = path.with_name(f".{path.name}.{os.getpid()}")
    fd = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    try:
        os.write(fd, content)
    finally:
        os.close(fd)
    os.replace(new, path)


class Lock:
    """`vendor.lock`: one process, and one task in it, at a time. The kernel gives it back when its holder dies."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "vendor.lock"

    def _open(self) -> int:
        return os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)

    @contextlib.asynccontextmanager
    async def held(self) -> AsyncIterator[None]:
        """Hold it; other calls and pings go on while it is waited for."""
        fd = self._open()
        try:
            while not try_lock(fd):  # noqa: ASYNC110 - the kernel wakes nobody who does not block
                await asyncio.sleep(_RETRY_S)
            yield
        finally:
            os.close(fd)

    @contextlib.contextmanager
    def held_here(self) -> Iterator[None]:
        """Hold it; blocks."""
        fd = self._open()
        try:
            fcntl.flock(fd, fcntl.LOCK_EX)
            yield
        finally:
            os.close(fd)


def try_lock(fd: int) -> bool:
    """Whether the lock on an open file could be had."""
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
