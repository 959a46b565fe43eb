"""Which processes have a store open: each holds a lock on a file of its own, and the kernel lets go of it for the dead.

```text
HOME/instances/in…       locked by its process for as long as that lives; JSON that says which one it is
```

Who gets the lock of somebody's file knows that the process is dead: without a clock, a pid or a guess.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import sys
import time
import weakref
from collections.abc import Collection, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Final, Self

from .private import make_folder, open_private

INSTANCE_ID = re.compile(r"in[a-z2-7]{26}")
"""`in` and 26 base32 characters."""

_LETTERS = "abcdefghijklmnopqrstuvwxyz234567"
_PENDING = ".new-"
_PENDING_S = 3600.0
"""A file that never got its name is somebody's who died in between, after so long at the latest."""


class Instance:
    """This process, as far as one store is concerned.

    Attributes:
        id: `in` and 26 base32 characters; rows name their owner so.
        path: The locked file.
    """

    def __init__(self, instance: str, path: Path, descriptor: int) -> None:
        self.id = instance
        self.path = path
        self._descriptor = descriptor
        self._pid = os.getpid()
        _OPEN.add(self)

    @classmethod
    def begin(cls, root: Path) -> Self:
        """Make and lock the file of a new instance; the caller must `close` it.

        The file gets its name only after it is locked: nobody ever sees one of a live process unlocked.

        Args:
            root: The folder of Sandport's state; `instances` is made in it.

        Raises:
            OSError: The file system refuses.
        """
        folder = root / "instances"
        make_folder(folder)
        instance = "in" + "".join(_LETTERS[byte & 31] for byte in os.urandom(26))
        pending, path = folder / f"{_PENDING}{instance}", folder / instance
        descriptor = open_private(pending, os.O_RDWR | os.O_CREAT | os.O_EXCL)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.write(descriptor, json.dumps(_this_process()).encode() + b"\n")
            os.rename(pending, path)
        except BaseException:  # Ctrl-C too: what nobody holds would be taken for a dead process
            with suppress(FileNotFoundError):
                pending.unlink()
            os.close(descriptor)
            raise
        return cls(instance, path, descriptor)

    def close(self) -> None:
        """The process does not have the store open any more: the file goes, then the lock.

        Repeat: does nothing. In a forked child: does nothing either.
        """
        if self._descriptor < 0 or os.getpid() != self._pid:
            return
        with suppress(FileNotFoundError):
            self.path.unlink()
        self._drop()

    def _drop(self) -> None:
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)
        _OPEN.discard(self)


_OPEN: Final[weakref.WeakSet[Instance]] = weakref.WeakSet()
"""Those of this process: what is told of a fork cannot be untold, so it is told once, of all of them."""


def _close_in_child() -> None:
    # A lock of this kind belongs to the open file, which a forked child shares: there it must be closed, or the child
    # would keep its dead parent alive. (What is executed closes it by itself.)
    for instance in tuple(_OPEN):
        instance._drop()


os.register_at_fork(after_in_child=_close_in_child)


def is_live(root: Path, instance: str) -> bool:
    """Whether the process of an instance still has its store open.

    Asking takes a shared lock for a moment, which neither a live instance nor another one who asks can notice.

    Args:
        root: The folder of Sandport's state.
        instance: An id; anything that is none is dead.

    Raises:
        OSError: The file is there and cannot be asked, so that nothing is known.
    """
    if not INSTANCE_ID.fullmatch(instance):
        return False
    return _is_locked(root / "instances" / instance)


def dead(root: Path, instances: Iterable[str]) -> frozenset[str]:
    """Those of them whose process is dead, or has closed its store.

    Raises:
        OSError: See `is_live`.
    """
    return frozenset(instance for instance in instances if not is_live(root, instance))


def clear_dead(root: Path, named: Collection[str]) -> list[str]:
    """Remove the files of dead instances that no row names any more.

    Args:
        root: The folder of Sandport's state.
        named: Instances that rows still name (`Store.owners`): their files stay, for whoever wants to know who it was.

    Returns:
        The ids whose files were removed.
    """
    removed = []
    folder = root / "instances"
    with suppress(FileNotFoundError):
        for entry in sorted(os.scandir(folder), key=lambda entry: entry.name):
            path = Path(entry.path)
            if entry.name.startswith(_PENDING):
                with suppress(FileNotFoundError):
                    if time.time() - entry.stat().st_mtime > _PENDING_S and not _is_locked(path):
                        path.unlink()
            elif INSTANCE_ID.fullmatch(entry.name) and entry.name not in named and not _is_locked(path):
                path.unlink(missing_ok=True)
                removed.append(entry.name)
    return removed


def _is_locked(path: Path) -> bool:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False


def _this_process() -> dict[str, object]:
    """Who it is, for people and for `doctor`; nothing is decided by it."""
    start_ticks, boot_id = 0, ""
    with suppress(OSError, ValueError, IndexError):
        start_ticks = int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19])
    with suppress(OSError):
        boot_id = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return {
        "pid": os.getpid(),
        "startTicks": start_ticks,
        "bootId": boot_id,
        "argv0": sys.argv[0] if sys.argv else "",
        "sinceMs": time.time_ns() // 1_000_000,
    }
