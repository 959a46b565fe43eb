"""The writing side: a tree that grows under an open directory, which may belong to an enemy too.

Nothing appears half-made. A file that goes into an existing directory is staged beside its place and renamed. A
directory that did not exist is staged as a whole, closed to everybody else, filled, and renamed once: below it,
files can be made under their final names at a fraction of the cost. If the copy breaks off, the unfinished file
is removed and what is complete takes its place.

Where this process is root and the target somebody else's, what is made is his before it has its name: files and
links at once, staged directories once they are complete, so that until then nobody but root can look into them.

No name is ever followed: directories are opened one level at a time without links, files are created exclusively,
and whatever stands at a file's final name is replaced by the rename, never written through. Data are not forced
to the disk: after a power failure the last files of a copy may be those from before it, or empty.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import time
from typing import Final, Self

from sandport.sync.descent import Descent, Identity
from sandport.sync.entries import DirectoryEntry, FileEntry, LinkEntry
from sandport.sync.errors import (
    SyncError,
    TargetBusyError,
    TreeMovedError,
    failure,
    printable,
)
from sandport.sync.mirror import Mirror
from sandport.sync.paths import not_entered
from sandport.sync.removal import remove_name, remove_tree
from sandport.sync.rights import OWNER_RIGHTS, give_owner_rights, may_change_mode, open_for_filling
from sandport.sync.scratch import clear, hold, scratch_name
from sandport.sync.small_files import CREATE, Making, make_file, write_all
from sandport.sync.special import refuse_special
from sandport.sync.swap import put_in_place

__all__ = ["TargetTree", "in_the_way"]

_FILLING: Final = os.R_OK | os.W_OK | os.X_OK
_NAME_ATTEMPTS: Final = 64
"""How many fresh scratch names to try; a name of 64 random bits is taken only if somebody takes them all."""

_CLOSED: Final = -1

_OTHER_KIND: Final = frozenset({errno.EISDIR, errno.ENOTDIR, errno.ENOTEMPTY, errno.EEXIST})

_OPEN_LINK: Final = getattr(os, "O_PATH", os.O_RDONLY) | os.O_NOFOLLOW | os.O_CLOEXEC


class _Frame:
    """What is still to be done to an open directory when it is complete."""

    __slots__ = ("discarded", "fresh", "held", "making", "mode", "mtime_ns", "owner", "replaces", "staged")

    def __init__(
        self,
        *,
        staged: bool,
        fresh: bool,
        mode: int | None,
        mtime_ns: int | None,
        owner: tuple[int, int] | None,
        replaces: bool = False,
    ) -> None:
        self.staged = staged
        self.fresh = fresh
        self.mode = mode
        self.mtime_ns = mtime_ns
        self.owner = owner
        """Who gets what is made in it, and the directory itself if it is fresh."""
        self.replaces = replaces
        self.discarded = False
        self.held = _CLOSED
        """What keeps others from taking it for left over, while it is staged."""
        self.making: Making | None = None
        """For files that are made in it at once, if it is fresh."""


class TargetTree:
    """Takes entries and bytes, and makes a tree of them.

    Use it as a context manager: leaving it completes what is open, or, when an exception passes, puts away what is
    unfinished and adds to the exception a note of what could not be put away.

    Args:
        root_fd: The directory to write into, opened for reading; stays the caller's to close.
        label: How messages call that directory.
        owner: User and group that everything made here will belong to; None for those of this process. Directories
            that are there keep their own.
        mirror: Removes what is of another kind than what should take its place; None if that stays and the copy fails.
        replaces: Whether a file in `root_fd`, or the tree that is entered without being adopted, takes the place of
            whatever has its name: it is staged whole, the two change places, and the old one is removed. A copy that
            fails before leaves the old one as it was.
        clears: Whether to remove what killed copies staged in the directories that this one writes into.
        spares: Whether a file or link takes no name that a device, a FIFO, a socket or a link to one has.
    """

    def __init__(
        self,
        root_fd: int,
        *,
        label: bytes,
        owner: tuple[int, int] | None = None,
        mirror: Mirror | None = None,
        replaces: bool = False,
        clears: bool = True,
        spares: bool = False,
    ) -> None:
        self._spares = spares
        self._clears = clears
        self._descent = Descent(root_fd)
        self._label = label
        self._owner = owner
        self._mirror = mirror
        self._replaces = replaces
        self._top_depth = 0
        self._scratch = scratch_name()
        self._now_ns = time.time_ns()
        self._frames = [_Frame(staged=False, fresh=False, mode=None, mtime_ns=None, owner=owner)]
        self._open_fd = _CLOSED
        self._held = _CLOSED
        """As in a frame, for the file that was begun."""
        self._unfinished: bytes | None = None
        self._renames = False

    def __enter__(self) -> Self:
        frame = self._frames[0]
        status = os.fstat(self._descent.fd)
        frame.owner = _owner_in(self._owner, status)
        frame.mode = self._make_writable(self._descent.fd, status, narrow_to=None)
        self._clear_left_over()
        return self

    def _clear_left_over(self) -> None:
        if self._clears:
            clear(self._descent.fd, {os.geteuid()} if self._owner is None else {os.geteuid(), self._owner[0]})

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        if error is None:
            try:
                while self._descent.depth:
                    self.leave()
                self._settle(self._descent.fd, self._frames[0])
            except BaseException as broken:
                self._abandon(broken)
                raise
        else:
            self._abandon(error)

    @property
    def fd(self) -> int:
        """The current directory."""
        return self._descent.fd

    @property
    def fresh(self) -> bool:
        """Whether the current directory was made by this copy."""
        return self._frames[-1].fresh

    @property
    def making(self) -> Making | None:
        """How files of the current directory are made at once under their names; None if others may have them."""
        return self._frames[-1].making

    @property
    def identity(self) -> Identity:
        """Device and inode of the current directory."""
        return self._descent.identity

    def path_of(self, name: bytes = b"") -> bytes:
        """Spell the place of a name for a message."""
        below = self._descent.path_of(name)
        return os.path.join(self._label, below) if below else self._label

    # Directories

    def enter(self, entry: DirectoryEntry, *, adopt: bool = True) -> None:
        """Go into a directory, which is made if it does not exist.

        Args:
            entry: Its name, and the mode and time it is to have when it is complete.
            adopt: Whether a directory that exists already takes the entry's mode and time. The top of a copied tree
                is entered without.

        Raises:
            PathOutsideRootError: A symbolic link has that name.
            TargetBusyError: Something else has that name.
            SyncError: The system refuses.
        """
        name = entry.name
        try:
            if self._frames[-1].fresh:
                try:
                    self._make(entry, name, staged=False)
                    return
                except FileExistsError:
                    # Somebody else writes into the staged directory; what stands there is met like any other.
                    pass
            try:
                if self._replaces and not adopt:
                    self._make_staged(entry, replaces=True)
                else:
                    self._enter_existing(entry, adopt=adopt)
            except FileNotFoundError:
                self._make_staged(entry)
        except OSError as error:
            raise failure(error, self.path_of(name), "write into") from error
        finally:
            if not adopt:
                self._top_depth = self._descent.depth

    def leave(self) -> None:
        """Complete the current directory: give it its mode and time, and its name if it was staged."""
        level = self._descent.pop()
        frame = self._frames.pop()
        try:
            if frame.discarded:
                remove_tree(self._descent.fd, level.name)
                return
            self._settle(level.fd, frame)
            if frame.replaces:
                self._swap(level.name, level.shown)
            elif frame.staged:
                self._rename(level.name, level.shown)
        except BaseException as error:
            # Nobody comes by here again, so a tree that did not get its name goes now, whatever the reason.
            if frame.staged:
                self._remove_staged(level.name, error)
            if isinstance(error, OSError):
                raise failure(error, self.path_of(level.shown), "complete") from error
            raise
        finally:
            os.close(level.fd)
            if frame.held != _CLOSED:
                os.close(frame.held)

    def _make_staged(self, entry: DirectoryEntry, *, replaces: bool = False) -> None:
        for _ in range(_NAME_ATTEMPTS):
            try:
                self._make(entry, self._scratch, staged=True)
            except FileExistsError:
                self._scratch = scratch_name()
            else:
                self._frames[-1].replaces = replaces
                return
        raise self._names_taken(entry.name)

    def _make(self, entry: DirectoryEntry, name: bytes, *, staged: bool) -> None:
        os.mkdir(name, OWNER_RIGHTS, dir_fd=self._descent.fd)
        held, fd = _CLOSED, _CLOSED
        try:
            fd, _ = open_for_filling(name, self._descent.fd)
            give_owner_rights(fd)
            if staged:
                held = hold(fd, name, self._descent.fd)
        except OSError as error:
            if fd != _CLOSED:
                os.close(fd)
            with contextlib.suppress(OSError):  # the first error says more
                os.rmdir(name, dir_fd=self._descent.fd)
            if staged and isinstance(error, FileNotFoundError):
                raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST)) from error  # taken for left over
            raise
        status = os.fstat(fd)
        self._descent.push(name, fd, (status.st_dev, status.st_ino), shown=entry.name)
        # A directory takes over setgid from one that is shared by a group; that is the target's way, kept.
        mode = entry.mode | (status.st_mode & stat.S_ISGID)
        owner = _owner_in(self._owner, status)
        frame = _Frame(staged=staged, fresh=True, mode=mode, mtime_ns=entry.mtime_ns, owner=owner)
        frame.making = Making(self._now_ns, owner)
        frame.held = held
        self._frames.append(frame)

    def _enter_existing(self, entry: DirectoryEntry, *, adopt: bool) -> None:
        name = entry.name
        try:
            fd, status = open_for_filling(name, self._descent.fd)
        except FileNotFoundError:
            raise
        except OSError as error:
            if adopt and self._mirror is not None and error.errno in (errno.ENOTDIR, errno.ELOOP):
                self._clear(name)
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT)) from error
            raise not_entered(error, self._descent.fd, name, self.path_of(name)) from error
        self._descent.push(name, fd, (status.st_dev, status.st_ino))
        owner = _owner_in(self._owner, status)
        frame = _Frame(staged=False, fresh=False, mode=None, mtime_ns=None, owner=owner)
        self._frames.append(frame)
        frame.mode = self._make_writable(fd, status, narrow_to=entry.mode if adopt else None)
        self._clear_left_over()
        if adopt:
            frame.mode = entry.mode | (status.st_mode & stat.S_ISGID)
            frame.mtime_ns = entry.mtime_ns

    def _make_writable(self, fd: int, status: os.stat_result, *, narrow_to: int | None) -> int | None:
        """Prepare a directory that exists for being filled.

        Others lose at once what they will lose in the end. The owner gets what filling takes, if he cannot do without.

        Returns:
            The mode it had, if that is not the mode it has now.
        """
        had = meanwhile = stat.S_IMODE(status.st_mode)
        if narrow_to is not None:
            meanwhile &= narrow_to | OWNER_RIGHTS | ~0o777
        if had & OWNER_RIGHTS != OWNER_RIGHTS and not os.access(b".", _FILLING, dir_fd=fd, effective_ids=True):
            meanwhile |= OWNER_RIGHTS
        if meanwhile == had or not may_change_mode(status):
            return None
        os.fchmod(fd, meanwhile)
        return had

    def _settle(self, fd: int, frame: _Frame) -> None:
        if frame.fresh and frame.owner is not None:
            os.fchown(fd, *frame.owner)
        if frame.mode is not None and stat.S_IMODE(os.fstat(fd).st_mode) != frame.mode:
            os.fchmod(fd, frame.mode)
        if frame.mtime_ns is not None:
            # A directory of somebody else's that this user may write into keeps its time: it is not ours to set.
            with contextlib.suppress(PermissionError):
                os.utime(fd, ns=(self._now_ns, frame.mtime_ns))

    # Files and links

    def stage(self, entry: FileEntry) -> int:
        """Begin a file.

        Returns:
            A descriptor to write its bytes to, empty; `commit` or the end of the tree closes it.

        Raises:
            SyncError: The system refuses.
        """
        try:
            if self._frames[-1].fresh:
                name = entry.name
                try:
                    # Not even its owner gets more than the entry allows; the descriptor can be written to anyway.
                    self._open_fd = fd = os.open(name, CREATE, entry.mode & 0o600, dir_fd=self._descent.fd)
                    self._unfinished = name
                    self._renames = False
                    return fd
                except FileExistsError:
                    # As in `enter`: somebody else was here, so the name is taken over by a rename.
                    pass
            for _ in range(_NAME_ATTEMPTS):
                try:
                    return self._create(entry, self._scratch)
                except FileExistsError:
                    self._scratch = scratch_name()
        except OSError as error:
            raise failure(error, self.path_of(entry.name), "create") from error
        raise self._names_taken(entry.name)

    def _create(self, entry: FileEntry, name: bytes) -> int:
        fd = os.open(name, CREATE, entry.mode & 0o600, dir_fd=self._descent.fd)
        try:
            self._held = hold(fd, name, self._descent.fd)
        except BaseException:  # Ctrl-C too: a file that nobody holds would pass for a finished one
            os.close(fd)
            with contextlib.suppress(FileNotFoundError):
                os.unlink(name, dir_fd=self._descent.fd)
            raise
        self._open_fd = fd
        self._unfinished = name
        self._renames = True
        return fd

    def put(self, entry: FileEntry, data: bytes) -> None:
        """Make a file of bytes that are at hand: what `stage` and `commit` do around writing them.

        Raises:
            TargetBusyError: A directory has that name, or what is spared.
            SyncError: The system refuses.
        """
        making = self._frames[-1].making
        if making is None:
            self._put_slowly(entry, data)
            return
        try:
            make_file(entry.name, data, entry.mode, entry.mtime_ns, self._descent.fd, making)
        except FileExistsError:
            # As in `enter`: somebody else was here.
            self._put_slowly(entry, data)
        except OSError as error:
            raise failure(error, self.path_of(entry.name), "copy into") from error

    def _put_slowly(self, entry: FileEntry, data: bytes) -> None:
        fd = self.stage(entry)
        try:
            if data:
                write_all(fd, data)
        except OSError as error:
            raise failure(error, self.path_of(entry.name), "copy into") from error
        self.commit(entry)

    def commit(self, entry: FileEntry) -> None:
        """Complete the file that was begun: its mode, its time, and last its name.

        Raises:
            TargetBusyError: A directory has that name, or what is spared.
            SyncError: The system refuses.
        """
        fd = self._open_fd
        owner = self._frames[-1].owner
        try:
            if owner is not None:
                os.fchown(fd, *owner)
            os.fchmod(fd, entry.mode)
            os.utime(fd, ns=(self._now_ns, entry.mtime_ns))
            self._open_fd = _CLOSED
            os.close(fd)
            if self._renames:
                self._take_name(self._scratch, entry.name)
            self._unfinished = None
            self._let_go()
        except OSError as error:
            raise failure(error, self.path_of(entry.name), "complete") from error

    def _let_go(self) -> None:
        if self._held != _CLOSED:
            held, self._held = self._held, _CLOSED
            os.close(held)

    def link(self, entry: LinkEntry) -> None:
        """Make a symbolic link, replacing what has its name.

        Raises:
            TargetBusyError: A directory has that name, or what is spared.
            SyncError: The system refuses.
        """
        try:
            if self._frames[-1].fresh:
                try:
                    self._make_link(entry, entry.name)
                    return
                except FileExistsError:
                    # As in `enter`: somebody else was here, so the name is taken over by a rename.
                    pass
            for _ in range(_NAME_ATTEMPTS):
                try:
                    self._make_link(entry, self._scratch)
                except FileExistsError:
                    self._scratch = scratch_name()
                    continue
                self._unfinished = self._scratch
                self._take_name(self._scratch, entry.name)
                self._unfinished = None
                return
        except OSError as error:
            raise failure(error, self.path_of(entry.name), "link") from error
        raise self._names_taken(entry.name)

    def _make_link(self, entry: LinkEntry, name: bytes) -> None:
        os.symlink(entry.target, name, dir_fd=self._descent.fd)
        self._unfinished = name
        frame = self._frames[-1]
        if frame.owner is not None:
            _give_link(name, self._descent.fd, frame.owner)
        os.utime(name, ns=(self._now_ns, entry.mtime_ns), dir_fd=self._descent.fd, follow_symlinks=False)
        self._unfinished = None

    def _take_name(self, scratch: bytes, name: bytes) -> None:
        """Give a staged file or link its name, whatever may have it."""
        fd = self._descent.fd
        if self._spares:
            refuse_special(name, dir_fd=fd, shown=self.path_of(name))
        try:
            os.rename(scratch, name, src_dir_fd=fd, dst_dir_fd=fd)
        except OSError as error:
            if error.errno not in _OTHER_KIND:
                raise
            if self._replaces and not self._descent.depth:
                self._swap(scratch, name)
            elif self._mirror is not None:
                self._clear(name)
                self._rename(scratch, name)
            else:
                raise in_the_way(self.path_of(name)) from error

    def _rename(self, scratch: bytes, name: bytes) -> None:
        fd = self._descent.fd
        try:
            os.rename(scratch, name, src_dir_fd=fd, dst_dir_fd=fd)
        except OSError as error:
            if error.errno in _OTHER_KIND:
                raise in_the_way(self.path_of(name)) from error
            raise

    def _swap(self, scratch: bytes, name: bytes) -> None:
        fd = self._descent.fd
        old = put_in_place(fd, scratch, name)
        if old is None:
            return
        path = self.path_of(name)
        try:
            remove_name(fd, old)
        except OSError as error:
            # Its place is taken already, so what could not be removed has nothing left but the scratch's name.
            self._unfinished = None
            raise failure(error, path, "remove all of the replaced") from error

    def _clear(self, name: bytes) -> None:
        assert self._mirror is not None
        below_top = self._descent.path_of(name, below=self._top_depth)
        self._mirror.clear(self._descent.fd, name, below_top=below_top, shown=self.path_of(name))

    # Ends

    def _abandon(self, error: BaseException) -> None:
        """Put away what is unfinished, so that a failed copy leaves whole files under final names and no scratch.

        What fails here must not hide why the copy failed, so it becomes a note on that error.
        """
        for frame in self._frames:
            # A tree that is not complete replaces nothing.
            frame.discarded = frame.replaces
        try:
            self._discard()
        except OSError as problem:
            error.add_note(f"could not remove what was unfinished in {printable(self.path_of())}: {problem}")
        try:
            while self._descent.depth:
                try:
                    self.leave()
                except TreeMovedError as problem:
                    error.add_note(f"while putting away: {problem}")
                    return
                except SyncError as problem:
                    error.add_note(f"while putting away: {problem}")
            self._settle(self._descent.fd, self._frames[0])
        except OSError as problem:
            error.add_note(f"could not restore the mode of {printable(self._label)}: {problem}")
        finally:
            self._descent.close()
            for frame in self._frames:
                if frame.held != _CLOSED:
                    os.close(frame.held)
                    frame.held = _CLOSED

    def _discard(self) -> None:
        if self._open_fd != _CLOSED:
            fd, self._open_fd = self._open_fd, _CLOSED
            os.close(fd)
        try:
            if self._unfinished is not None:
                name, self._unfinished = self._unfinished, None
                os.unlink(name, dir_fd=self._descent.fd)
        finally:
            self._let_go()

    def _remove_staged(self, name: bytes, error: BaseException) -> None:
        try:
            remove_tree(self._descent.fd, name)
        except (OSError, TreeMovedError) as problem:
            error.add_note(f"could not remove {printable(self.path_of(name))}: {problem}")

    def _names_taken(self, name: bytes) -> SyncError:
        path = self.path_of(name)
        return TargetBusyError(
            f"cannot stage {printable(path)}: every scratch name beside it is taken at once; "
            "stop the program that takes them",
            path=path,
        )


def in_the_way(path: bytes) -> TargetBusyError:
    """The error for a name that something of another kind has."""
    return TargetBusyError(
        f"{printable(path)} cannot be replaced: a directory stands where a file should go, or the other "
        "way round; remove it or choose another target",
        path=path,
    )


def _owner_in(owner: tuple[int, int] | None, directory: os.stat_result) -> tuple[int, int] | None:
    """Who gets what is made in a directory: where a group shares it, that group keeps it."""
    if owner is not None and directory.st_mode & stat.S_ISGID:
        return owner[0], -1
    return owner


def _give_link(name: bytes, dir_fd: int, owner: tuple[int, int]) -> None:
    """Give a link that was just made to somebody; not what he may have put in its place meanwhile."""
    handle = os.open(name, _OPEN_LINK, dir_fd=dir_fd)
    try:
        status = os.fstat(handle)
        if stat.S_ISLNK(status.st_mode) and status.st_uid == os.geteuid():
            os.chown(f"/proc/self/fd/{handle}", *owner)
    finally:
        os.close(handle)
