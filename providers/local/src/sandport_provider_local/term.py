"""How long a sandbox lives, and its folder: expiry and grace, the record's `keep`, who its init is, and the removal.

For the one process that owns the folder, which stands in it: the init, or the keeper of one that is isolated.
"""

from __future__ import annotations

import ctypes
import errno
import os
import time

from sandport_provider_local.link import log
from sandport_provider_local.proc import boot_id, boot_time, start_ticks
from sandport_provider_local.removal import remove_tree

TYPE_CHECKING = False  # That of `typing` costs more to import than all the rest.
if TYPE_CHECKING:
    from collections.abc import Callable

RECORD = "record.json"
"""Written by the worker before the init is started; the init's end begins with removing it. While the init runs, only
the init writes it: several workers may want that at once."""
IDENTITY = "init.json"
"""Which process the init is; removed last, so that whoever waits for its end can find it until then."""
FIRST_S = 0.5
"""What the first worker gets at least, from when it can come: it waits in the queue already, and is let in at once."""
LOOK_S = 1.0
"""A kept sandbox looks no more often than that whether its folder is still there."""

_TFD_TIMER_ABSTIME = 1
_FAR_S = 2**40
"""Some thirty thousand years: later than that no timer of the kernel goes."""


class Term:
    """The end of a sandbox: by its expiry, after one grace without a worker, or by a signal.

    Attributes:
        ending: Why it ends; empty while it does not.
        fd: Readable at the expiry; then `on_readable`.
    """

    unsent = False

    def __init__(self, expires_ms: int, grace_ms: int, *, kept: bool) -> None:
        self.ending = ""
        self.kept = kept
        self.grace_s = grace_ms / 1000
        """What the last worker to go has left; before any came, what the one that started this process has."""
        self.alone_since: float | None = boot_time()
        self._expiry = WallTimer(expires_ms)
        self.fd = self._expiry.fd
        self._home = os.open(".", os.O_RDONLY | os.O_DIRECTORY)
        self._parent = os.open("..", os.O_RDONLY | os.O_DIRECTORY)

    def on_readable(self) -> None:
        """End where it is time; the clock may have been set back since the timer said so."""
        if self._expiry.is_over():
            self.ending = self.ending or "expired"

    def due(self) -> float | None:
        """When `on_time` has something to do, by `boot_time`."""
        return None if self.alone_since is None else self.alone_since + self._patience_s()

    def on_time(self, now: float) -> None:
        """Do what is due."""
        if self.alone_since is None or self.ending or now < self.alone_since + self._patience_s():
            return
        if self.kept and is_recorded():
            self.alone_since = now
        else:
            self.ending = "orphaned"

    def _patience_s(self) -> float:
        """How long it is alone before it ends or, where it is kept, looks whether anybody could still find it."""
        return max(self.grace_s, LOOK_S) if self.kept else self.grace_s

    def attended(self) -> None:
        """A worker is there."""
        self.alone_since = None

    def left(self, grace_s: float) -> None:
        """The last worker has gone."""
        self.alone_since = boot_time()
        self.grace_s = grace_s

    def stop(self) -> None:
        """A signal asks for the end."""
        self.ending = self.ending or ("stopped" if self.kept else "terminated")

    def end(self) -> None:
        """A worker asks for the end."""
        self.ending = "destroyed"

    def keep(self, kept: bool, answer: Callable[[int], None]) -> None:  # noqa: FBT001
        """Outlive the workers from now on, or no longer; the answer is the number of the error that left it as is."""
        try:
            record_keep(kept)
        except OSError as error:
            log(f"{RECORD}: {error}")
            answer(error.errno or errno.EIO)
            return
        self.kept = kept
        answer(0)

    def begin_end(self) -> None:
        """Let nobody come any more: whoever finds nobody listening and a record may take it for one to revive."""
        for name in (RECORD, "socket") if self.ending != "stopped" else ():
            try:
                os.unlink(name)
            except OSError as error:  # A command took it away or put something else there: the removal deals with it.
                log(f"{name}: {error}")

    def remove(self) -> None:
        """Remove the folder, unless it is kept and was only stopped.

        Raises:
            OSError: Something in it cannot be removed.
        """
        if self.ending == "stopped":
            return
        try:
            name = os.path.basename(os.getcwd())
            named = os.stat(name, dir_fd=self._parent, follow_symlinks=False)
        except FileNotFoundError:
            return
        if os.path.samestat(os.fstat(self._home), named):
            remove_tree(self._parent, name, last=IDENTITY)


class WallTimer:
    """An instant of the wall clock, as a descriptor that is readable from then on.

    The kernel keeps it through a suspended machine, and moves it when the clock is set: forward ends it earlier,
    backward later. What a host was told is an instant of that clock, and the host compares it with that clock too.
    """

    def __init__(self, at_ms: int) -> None:
        self._at_ms = at_ms
        self._libc = ctypes.CDLL(None, use_errno=True)
        self.fd: int = self._libc.timerfd_create(time.CLOCK_REALTIME, os.O_CLOEXEC | os.O_NONBLOCK)
        self._arm()

    def is_over(self) -> bool:
        """Whether it has come; where the clock was set back just now, it is waited for anew."""
        if time.time_ns() // 1_000_000 >= self._at_ms:
            return True
        self._arm()
        return False

    def _arm(self) -> None:
        at_s, left_ms = divmod(min(max(1, self._at_ms), _FAR_S * 1000), 1000)
        once = (ctypes.c_long * 4)(0, 0, at_s, left_ms * 1_000_000)
        if self.fd < 0 or self._libc.timerfd_settime(self.fd, _TFD_TIMER_ABSTIME, once, None) != 0:
            number = ctypes.get_errno()
            raise OSError(number, f"no timer: {os.strerror(number)}")


def write_identity(*, inside: tuple[int, int] | None = None) -> None:
    """Say in our folder who we are, and which process PID 1 inside is (number, start); whole or not at all."""
    more = f', "insidePid": {inside[0]}, "insideStartTicks": {inside[1]}' if inside is not None else ""
    own = f'"pid": {os.getpid()}, "startTicks": {start_ticks()}, "bootId": "{boot_id()}"'
    write_whole(IDENTITY, f"{{{own}{more}}}\n")


def record_keep(kept: bool) -> None:  # noqa: FBT001
    """Say in the record that the sandbox outlives its workers, or not; whole or not at all.

    Raises:
        OSError: The record cannot be read or written.
    """
    import json  # Its import is a good part of our start, and few sandboxes are kept.

    with open(RECORD, opener=lambda path, flags: os.open(path, flags | os.O_NOFOLLOW)) as file:
        try:
            record = json.load(file)
        except ValueError as error:
            raise OSError(errno.EIO, f"it is broken: {error}") from None
    if record.get("keep", False) != kept:
        write_whole(RECORD, json.dumps(record | {"keep": kept}))


def is_recorded() -> bool:
    """Whether a worker could still find us: not where somebody has removed the folder by hand."""
    try:
        os.lstat(RECORD)
    except FileNotFoundError:
        return False
    except OSError:  # A command may have closed the folder to its owner; it is there.
        return True
    return True


def write_whole(path: str, text: str) -> None:
    """Put a file of ours in place, readable by us alone, whole or not at all.

    Raises:
        OSError: It cannot be written.
    """
    new = path + ".new"
    with open(new, "w", opener=lambda path, flags: os.open(path, flags | os.O_NOFOLLOW, 0o600)) as file:
        file.write(text)
    os.replace(new, path)
