"""Takes away from a target what its source has not: after the copy, under descriptors, never through a link.

What a copy sees of its source goes into `KnownPaths`, what it could not read included. A `Mirror` then walks the
target and removes what is not known there; so what vanished from the source unseen, because somebody empties it at
this moment, is only removed if the copy never met it. What the selection leaves out stays, and so does every
directory that holds such a thing, and whatever has a reserved name.
"""

from __future__ import annotations

import bisect
import contextlib
import errno
import hashlib
import os
import stat
from array import array
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Final

from sandport.sync.descent import OPEN_DIRECTORY, Descent
from sandport.sync.entries import RESERVED_PREFIX
from sandport.sync.errors import TargetBusyError, TreeMovedError, failure, printable
from sandport.sync.protection import Protection
from sandport.sync.rights import OWNER_RIGHTS, may_change_mode, open_for_filling

if TYPE_CHECKING:
    from sandport.sync.selection import Cursor, Selection

__all__ = ["KnownPaths", "Mirror"]

_IGNORE_FILE: Final = b".gitignore"
_DIGEST_BYTES: Final = 8
_PARTS: Final = 256
"""Of a set of digests; each is put in order by itself, so that what that takes for a moment stays small."""


class KnownPaths:
    """The paths that a source holds, relative to the copied tree.

    Of each there is only a digest of eight bytes, under a key that nobody else knows, so that no two can be made to
    look the same.
    """

    def __init__(self) -> None:
        self._key = os.urandom(16)
        self._directories = _Digests()
        self._others = _Digests()

    def add_directory(self, path: bytes) -> None:
        """Note a directory whose contents are all noted too."""
        self._directories.add(self._digest(path))

    def add(self, path: bytes) -> None:
        """Note anything else; if a directory has this path in the target, all that it holds stays."""
        self._others.add(self._digest(path))

    def lists(self, path: bytes) -> bool:
        """Whether it is a directory whose contents are all noted."""
        digest = self._digest(path)
        return digest in self._directories and digest not in self._others

    def holds(self, path: bytes) -> bool:
        """Whether there is anything of that path."""
        digest = self._digest(path)
        return digest in self._others or digest in self._directories

    def _digest(self, path: bytes) -> int:
        return int.from_bytes(hashlib.blake2b(path, digest_size=_DIGEST_BYTES, key=self._key).digest(), "little")


class _Digests:
    """A set of numbers that takes eight bytes for each: first it grows, then it is asked."""

    def __init__(self) -> None:
        self._parts = tuple(array("Q") for _ in range(_PARTS))
        self._sorted = bytearray(b"\1" * _PARTS)

    def add(self, digest: int) -> None:
        self._parts[digest % _PARTS].append(digest)
        self._sorted[digest % _PARTS] = False

    def __contains__(self, digest: int) -> bool:
        number = digest % _PARTS
        part = self._parts[number]
        if not self._sorted[number]:
            part[:] = array("Q", sorted(part))
            self._sorted[number] = True
        at = bisect.bisect_left(part, digest)
        return at < len(part) and part[at] == digest


class Mirror:
    """Removes from a target what is in the way of its source, or not in it.

    Args:
        removed: Told of each path that was removed, relative to the copied tree.
        poll: Called between entries; may raise to stop.
        selection: What it leaves out is not removed.
        source_fd: The source's top, opened for reading, whose ignore files then count too; None for a selection that
            was told of them.
        protection: Asked about each directory before anything in it is removed because of where it stands.
        rehearsal: Whether to tell only what would be removed.
    """

    def __init__(
        self,
        *,
        removed: Callable[[bytes], None],
        poll: Callable[[], None],
        selection: Selection | None = None,
        source_fd: int | None = None,
        protection: Protection | None = None,
        rehearsal: bool = False,
    ) -> None:
        self._removed = removed
        self._poll = poll
        self._selection = selection
        self._source_fd = source_fd
        self._protection = protection
        self._rehearsal = rehearsal

    def check(self, fd: int, label: bytes) -> None:
        """Refuse a target that is protected, before anything is written.

        Raises:
            UnsafeTargetError: It is.
        """
        if self._protection is not None:
            self._protection.check(fd, label)

    def prune(self, top_fd: int, known: KnownPaths, *, label: bytes) -> None:
        """Remove what is not known from a whole tree.

        Args:
            top_fd: The target, opened for reading; stays the caller's to close.
            known: What the source holds.
            label: How messages call the target.

        Raises:
            UnsafeTargetError: The target is protected. Nothing was removed.
            SyncError: Something could not be removed.
        """
        self.check(top_fd, label)
        _Pass(self, Descent(top_fd), known, b"", label).run()

    def clear(self, parent_fd: int, name: bytes, *, below_top: bytes, shown: bytes) -> None:
        """Remove what stands where something of another kind should go, a whole directory included.

        Args:
            parent_fd: The directory it stands in, opened for reading.
            name: Its name there.
            below_top: Its path relative to the copied tree.
            shown: How messages call it.

        Raises:
            UnsafeTargetError: It is a protected directory. Nothing was removed.
            TargetBusyError: It is a directory that holds what the selection leaves out, or that somebody fills.
            SyncError: It could not be removed.
        """
        try:
            status = os.stat(name, dir_fd=parent_fd, follow_symlinks=False)
            if not stat.S_ISDIR(status.st_mode):
                self.unlink(parent_fd, name, below_top)
                return
        except FileNotFoundError:
            return
        except OSError as error:
            raise failure(error, shown, "replace") from error
        descent = Descent(parent_fd)
        sweep = _Pass(self, descent, None, os.path.dirname(below_top), os.path.dirname(shown))
        if not sweep.run_from(name, self._protection):
            raise TargetBusyError(
                f"{printable(shown)} cannot be replaced: it is a directory that holds what must stay; "
                "move that away, or choose another target",
                path=shown,
            )

    # What a pass over a tree asks and does

    def start(self, prefix: bytes) -> Cursor | None:
        """Where the selection is in a directory of the source, if there is one and its files count."""
        if self._selection is None or self._source_fd is None:
            return None
        cursor = self._selection.start(self._source_fd, lambda _path, _reason: None)
        with contextlib.ExitStack() as stack:
            fd: int | None = self._source_fd
            for name in prefix.split(b"/") if prefix else ():
                if fd is not None:
                    try:
                        fd = os.open(name, OPEN_DIRECTORY, dir_fd=fd)
                        stack.callback(os.close, fd)
                    except OSError:
                        # Gone from the source, or a link that is followed: it has no patterns to add.
                        fd = None
                cursor.enter(name, fd)
        return cursor

    def stays(self, path: bytes, name: bytes, cursor: Cursor | None, *, is_directory: bool) -> bool:
        """Whether something is not to be touched, known or not."""
        self._poll()
        if name.startswith(RESERVED_PREFIX):
            return True
        if cursor is not None:
            return cursor.excludes(name, is_directory=is_directory)
        return self._selection is not None and self._selection.matches(path, is_directory)

    def unlink(self, parent_fd: int, name: bytes, path: bytes) -> None:
        """Remove anything but a directory."""
        if not self._rehearsal:
            try:
                os.unlink(name, dir_fd=parent_fd)
            except FileNotFoundError:
                return
        self._removed(path)

    def remove_directory(self, parent_fd: int, name: bytes, path: bytes) -> bool:
        """Remove a directory if it is empty, and tell whether it is gone."""
        if not self._rehearsal:
            try:
                os.rmdir(name, dir_fd=parent_fd)
            except FileNotFoundError:
                return True
            except OSError as error:
                if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                    raise
                return False
        self._removed(path)
        return True

    @property
    def rehearsal(self) -> bool:
        """Whether nothing is really removed."""
        return self._rehearsal


class _Frame:
    """One directory on the way, and what is to be done to it at the end."""

    __slots__ = ("goes", "mode", "mtime_ns", "opened_up", "stayed", "touched", "waiting")

    def __init__(self, status: os.stat_result, *, goes: bool) -> None:
        self.goes = goes
        self.mode = stat.S_IMODE(status.st_mode)
        self.mtime_ns = status.st_mtime_ns
        self.opened_up = False
        self.touched = False
        self.stayed = False
        self.waiting: list[tuple[bytes, bool]] = []


class _Pass:
    """One walk over a target."""

    def __init__(self, mirror: Mirror, descent: Descent, known: KnownPaths | None, prefix: bytes, label: bytes) -> None:
        self._mirror = mirror
        self._descent = descent
        self._known = KnownPaths() if known is None else known
        self._prefix = prefix
        self._label = label
        self._cursor = mirror.start(prefix)

    def run(self) -> None:
        """Walk everything below the descent's root, which itself stays."""
        frames = [_Frame(os.fstat(self._descent.fd), goes=False)]
        with self._putting_away(frames):
            self._list(frames[0])
            self._walk(frames)
            self._settle(self._descent.fd, frames[0], keep_time=False)

    def run_from(self, name: bytes, protection: Protection | None) -> bool:
        """Remove one directory with all that may go, and tell whether it is gone."""
        outer = _Frame(os.fstat(self._descent.fd), goes=False)
        outer.touched = True  # the copy that fills it has seen to its mode, and will to its time
        outer.waiting.append((name, True))
        frames = [outer]
        with self._putting_away(frames):
            self._walk(frames, protection)
        return not outer.stayed

    @contextlib.contextmanager
    def _putting_away(self, frames: list[_Frame]) -> Iterator[None]:
        """Give back their modes to the directories that a failed pass is still in, and say what failed."""
        try:
            yield
        except BaseException as error:
            shown = self._shown(b"")
            with contextlib.suppress(OSError, TreeMovedError):  # the first error says more
                while self._descent.depth:
                    level = self._descent.pop()
                    try:
                        self._settle(level.fd, frames.pop(), keep_time=True)
                    finally:
                        os.close(level.fd)
                self._settle(self._descent.fd, frames[0], keep_time=False)
            if isinstance(error, OSError):
                raise failure(error, shown, "delete from") from error
            raise
        finally:
            self._descent.close()

    def _walk(self, frames: list[_Frame], protection: Protection | None = None) -> None:
        while True:
            frame = frames[-1]
            if frame.waiting:
                name, goes = frame.waiting.pop()
                entered = self._enter(name, goes=goes)
                if entered is None:
                    continue
                frames.append(entered)
                if protection is not None and len(frames) == 2:
                    protection.check(self._descent.fd, self._shown(b""))
                if self._cursor is not None:
                    # Its patterns are the source's; what only the target has of them goes with the rest.
                    known = self._known.holds(self._path(_IGNORE_FILE))
                    self._cursor.enter(name, self._descent.fd if known else None)
                self._list(entered)
                continue
            if len(frames) == 1:
                return
            frames.pop()
            self._leave(frame, frames[-1])

    def _enter(self, name: bytes, *, goes: bool) -> _Frame | None:
        try:
            if self._mirror.rehearsal:
                fd = os.open(name, OPEN_DIRECTORY, dir_fd=self._descent.fd)
                status = os.fstat(fd)
            else:
                fd, status = open_for_filling(name, self._descent.fd)
        except FileNotFoundError:
            return None
        except PermissionError:
            if not self._mirror.rehearsal:
                raise
            # Shut for its owner, who would be given the right to it: what it holds cannot be told before.
            if goes:
                self._mirror.remove_directory(self._descent.fd, name, self._path(name))
            return None
        self._descent.push(name, fd, (status.st_dev, status.st_ino))
        frame = _Frame(status, goes=goes)
        frame.opened_up = stat.S_IMODE(os.fstat(fd).st_mode) != frame.mode
        return frame

    def _list(self, frame: _Frame) -> None:
        """Remove what can go at once, and note the directories."""
        mirror, fd = self._mirror, self._descent.fd
        with os.scandir(fd) as listing:
            for item in listing:
                name = os.fsencode(item.name)
                path = self._path(name)
                is_directory = item.is_dir(follow_symlinks=False)
                if mirror.stays(path, name, self._cursor, is_directory=is_directory):
                    frame.stayed = True
                elif frame.goes:
                    # Nothing below is known where the directory itself is not.
                    self._remove(frame, name, path, is_directory=is_directory)
                elif is_directory and self._known.lists(path):
                    frame.stayed = True
                    frame.waiting.append((name, False))
                elif self._known.holds(path):
                    frame.stayed = True
                else:
                    self._remove(frame, name, path, is_directory=is_directory)

    def _remove(self, frame: _Frame, name: bytes, path: bytes, *, is_directory: bool) -> None:
        if is_directory:
            frame.waiting.append((name, True))
            return
        self._prepare(self._descent.fd, frame)
        self._mirror.unlink(self._descent.fd, name, path)

    def _leave(self, frame: _Frame, above: _Frame) -> None:
        level = self._descent.pop()
        if self._cursor is not None:
            self._cursor.leave()
        try:
            gone = False
            if frame.goes and not frame.stayed:
                self._prepare(self._descent.fd, above)
                gone = self._mirror.remove_directory(self._descent.fd, level.name, self._path(level.name))
            if not gone:
                above.stayed = True
                self._settle(level.fd, frame, keep_time=True)
        finally:
            os.close(level.fd)

    def _prepare(self, fd: int, frame: _Frame) -> None:
        """Before the first removal from a directory: its owner gets the right to."""
        if frame.touched or self._mirror.rehearsal:
            return
        frame.touched = True
        if frame.mode & OWNER_RIGHTS != OWNER_RIGHTS and os.geteuid() != 0 and may_change_mode(os.fstat(fd)):
            os.fchmod(fd, frame.mode | OWNER_RIGHTS)
            frame.opened_up = True

    def _settle(self, fd: int, frame: _Frame, *, keep_time: bool) -> None:
        if frame.opened_up:
            os.fchmod(fd, frame.mode)
        if frame.touched and keep_time:
            # Somebody else's directory keeps the system's time: it is not ours to set.
            with contextlib.suppress(PermissionError):
                os.utime(fd, ns=(os.fstat(fd).st_atime_ns, frame.mtime_ns))

    def _path(self, name: bytes) -> bytes:
        below = self._descent.path_of(name)
        return os.path.join(self._prefix, below) if self._prefix else below

    def _shown(self, name: bytes) -> bytes:
        below = self._descent.path_of(name)
        return os.path.join(self._label, below) if below else self._label
