"""The log of one provider's workers as a file in the home, so that a failure can say where all of it is.

`HOME/logs/NAME.log` and one former file, `NAME.log.1`; each is bounded. Several hosts append to one file: a line is one
write, and who finds the file full turns it over under a lock that only one of them gets.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import re
import time
from pathlib import Path
from typing import Any, Final

from sandport.log import Log
from sandport.private import make_folder, open_private

from .stderr import Level

FOLDER = "logs"
FILE_BYTES: Final = 4 * 1024 * 1024
"""Of each of the two files; a day of a chatty vendor's client, and nothing that fills a disk."""
RETRY_S: Final = 5.0
"""After a failure nothing is tried for so long: a disk that was full is found to have room again, at no cost."""
_LOOKS = 16
"""So often, while a file fills, it is looked at: others append to it and turn it over too."""

_SAFE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


def file_name(provider: str, tenant: str | None = None) -> str:
    """The file's name; a tenant whose id is no file name is there by a digest of it."""
    if tenant is None:
        return f"{provider}.log"
    told = (
        tenant if _SAFE.fullmatch(tenant) else hashlib.sha256(tenant.encode("utf-8", "surrogatepass")).hexdigest()[:16]
    )
    return f"{provider}@{told}.log"


class LogFile:
    """One file; opened with the first record.

    Args:
        root: The home.
        provider: Whose workers write.
        tenant: Whose worker it is, where tenants do not share one.
        file_bytes: The bound of each of the two files.
        log: The host's, which is told once that a record is lost.
        retry_s: As `RETRY_S`.
    """

    def __init__(
        self,
        root: Path,
        provider: str,
        tenant: str | None = None,
        *,
        file_bytes: int = FILE_BYTES,
        log: Log | None = None,
        retry_s: float = RETRY_S,
    ) -> None:
        self.path = root / FOLDER / file_name(provider, tenant)
        self._file_bytes = file_bytes
        self._descriptor: int | None = None
        self._room = 0
        """Bytes until the file is looked at again."""
        self.failed: OSError | None = None
        """Why nothing is written now; a worker must not fail for want of a log. The next record tries again."""
        self._log = log
        self._retry_s = retry_s
        self._again_s = float("-inf")

    def place(self) -> str:
        """Where it is, for a message that is about to be written to it too; empty where it cannot be written."""
        if self._descriptor is None and not self._pausing():
            try:
                self._look_at_file(1)
                self.failed = None
            except OSError as error:
                self._fail(error)
        return str(self.path) if self.failed is None else ""

    def _pausing(self) -> bool:
        return self.failed is not None and time.monotonic() < self._again_s

    def _fail(self, error: OSError) -> None:
        self.failed = error
        self._again_s = time.monotonic() + self._retry_s
        self.close()
        if self._log is not None:
            log, self._log = self._log, None
            log("warning", f"{self.path} cannot be written, so records are missing there: {error.strerror or error}")

    def __call__(self, level: Level, event: str, fields: dict[str, Any]) -> None:
        """Append one record as one line. Of what is below `info` only what a worker wrote: all of its log is here."""
        if self._pausing() or (level == "debug" and fields.get("source") != "stderr"):
            return
        now = time.time()
        stamp = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(now))
        source = fields.get("source", "host")
        text = event.replace("\\", "\\\\").replace("\n", "\\n") if "\n" in event else event
        line = f"{stamp}.{int(now % 1 * 1000):03d}Z {level} pid={fields.get('pid', '?')} {source}: {text}\n"
        data = line.encode("utf-8", "backslashreplace")
        try:
            if self._room < len(data):
                self._look_at_file(len(data))
            assert self._descriptor is not None  # opened there
            os.write(self._descriptor, data)
        except OSError as error:
            self._fail(error)
            return
        self.failed = None
        self._room -= len(data)

    def _look_at_file(self, size: int) -> None:
        """Have a file open that is the current one and not full."""
        if self._descriptor is None or not self._is_current(self._descriptor):
            self.close()
            self._open()
        assert self._descriptor is not None  # opened above
        filled = os.fstat(self._descriptor).st_size
        if filled and filled + size > self._file_bytes:
            self._turn_over(self._descriptor)
            filled = os.fstat(self._descriptor).st_size
        self._room = max(size, min(self._file_bytes - filled, self._file_bytes // _LOOKS))

    def _open(self) -> None:
        make_folder(self.path.parent)
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW
        self._descriptor = open_private(self.path, flags)

    def _turn_over(self, descriptor: int) -> None:
        """Make the full file the former one, unless another host does or did."""
        with contextlib.suppress(BlockingIOError):  # another host is at it: this line still goes to the old file
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if self._is_current(descriptor):
                os.replace(self.path, self.path.with_name(self.path.name + ".1"))
            self.close()
            self._open()

    def _is_current(self, descriptor: int) -> bool:
        try:
            named = os.stat(self.path)
        except FileNotFoundError:
            return False
        held = os.fstat(descriptor)
        return (named.st_dev, named.st_ino) == (held.st_dev, held.st_ino)

    def close(self) -> None:
        """Let go of the file; the next record opens it again."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None
            self._room = 0
