"""Copies between this machine and a sandbox that is a directory on it.

Both calls block and belong in a worker thread. They overlay: what the target holds beside the copied names stays,
and nothing is ever removed but a file or link that a copied one replaces.
"""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Callable
from typing import Final, NamedTuple, TypeAlias

from sandport.sync.copy import Bounds, LinkRule, copy_file, copy_tree, count_tree, too_large
from sandport.sync.descent import Identity
from sandport.sync.entries import FILE_MODE_BITS, RESERVED_PREFIX
from sandport.sync.errors import SourceMissingError, SyncError, TargetBusyError, failure, printable
from sandport.sync.meter import Meter
from sandport.sync.paths import find_source, open_parents, split_destination
from sandport.sync.result import SyncProgress, SyncResult
from sandport.sync.scan import OPEN_FILE
from sandport.sync.target import TargetTree
from sandport.sync.walk import kind_of

__all__ = ["DEFAULT_MAX_BYTES", "DEFAULT_MAX_ENTRIES", "HostPath", "copy_in", "copy_out"]

DEFAULT_MAX_BYTES: Final = 8 << 30
"""How many bytes come out of a sandbox at most, unless the caller says otherwise."""

DEFAULT_MAX_ENTRIES: Final = 1_000_000
"""How many names of any kind come out of a sandbox at most, unless the caller says otherwise."""

_OPEN_TREE: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC

HostPath: TypeAlias = str | bytes | os.PathLike[str] | os.PathLike[bytes]
"""A path on this machine, in any of the forms that the standard library takes."""


def copy_in(
    source: HostPath,
    root_fd: int,
    destination: bytes,
    *,
    mode: int | None = None,
    cancelled: Callable[[], bool] | None = None,
    progress: Callable[[SyncProgress], None] | None = None,
) -> SyncResult:
    """Copy a file or a tree from this machine into a sandbox's directory.

    The contents of a directory become contents of `destination`, which is made with its parents if it is missing,
    and keeps its own mode if it is not. A file becomes the file `destination`; if that is a directory or ends in
    `/`, the file goes inside under its own name. Links in the tree stay links, whatever they lead to; only
    `source` itself is followed.

    Args:
        source: A file or directory on this machine.
        root_fd: The sandbox's working directory, opened for reading. It stays the caller's to close.
        destination: Where to, relative to `root_fd`; `b"."` is the working directory itself.
        mode: Permission bits for a single file in place of its own, such as 0o600.
        cancelled: Asked between files and between pieces of big ones; True stops the copy.
        progress: Told how far the copy is, at most ten times a second. Having it costs one count of the tree.

    Raises:
        SourceMissingError: There is nothing at `source`.
        PathOutsideRootError: `destination` leads out, or a directory that is to be written into is a link.
        TargetBusyError: A directory stands where a file should go, or the other way round.
        SpaceExhaustedError: The target is full.
        SyncCancelledError: `cancelled` said so.
        SyncError: Anything else; the message says what to do.
        ValueError: `mode` is no set of permission bits, or `source` is a directory.
    """
    _check_mode(mode)
    path = os.fsencode(source)
    names = split_destination(destination)
    meter = Meter(cancelled, progress)
    with contextlib.ExitStack() as stack:
        source_fd, is_tree = _open_host_source(path)
        stack.callback(os.close, source_fd)
        if is_tree:
            _refuse_mode(mode, path)
        else:
            if not names or destination.endswith(b"/") or _is_directory(root_fd, names):
                names.append(os.path.basename(path))
            _refuse_reserved(names[-1])
        parent_fd = open_parents(root_fd, names[:-1])
        stack.callback(os.close, parent_fd)
        tree = TargetTree(parent_fd, label=b"/".join(names[:-1]))
        if is_tree:
            return copy_tree(source_fd, tree, names[-1] if names else None, meter=meter, bounds=Bounds())
        return copy_file(source_fd, tree, names[-1], path=path, mode=mode, meter=meter)


def copy_out(
    root_fd: int,
    source: bytes,
    target: HostPath,
    *,
    mode: int | None = None,
    max_bytes: int = DEFAULT_MAX_BYTES,
    max_entries: int = DEFAULT_MAX_ENTRIES,
    cancelled: Callable[[], bool] | None = None,
    progress: Callable[[SyncProgress], None] | None = None,
) -> SyncResult:
    """Copy a file or a tree from a sandbox's directory to this machine, whatever the sandbox does meanwhile.

    The rules are those of `copy_in`, with this machine protected: the source is counted before the first byte is
    written, nothing outside `root_fd` is ever read, and links that could lead out of the copied tree are left out
    and listed in `refused`. Links in `source` itself are resolved as long as they stay below `root_fd`. `target`
    may be a link to a directory; below it no link is followed, and a link in a file's place is replaced.

    Args:
        root_fd: The sandbox's working directory, opened for reading. It stays the caller's to close.
        source: What to copy, relative to `root_fd`; `b"."` is the working directory itself.
        target: Where to on this machine.
        mode: Permission bits for a single file in place of its own, such as 0o600.
        max_bytes: How many bytes to take at most, by the files' sizes, holes included.
        max_entries: How many names of any kind the source may hold.
        cancelled: Asked between files and between pieces of big ones; True stops the copy.
        progress: Told how far the copy is, at most ten times a second.

    Raises:
        SourceMissingError: There is nothing at `source`.
        PathOutsideRootError: `source` leads out of `root_fd`, or a directory that is to be written into is a link.
        TooLargeError: The source is past a ceiling. Nothing was written, unless it grew past it during the copy;
            then what was already copied stays, and what is over was not written.
        TreeMovedError: The sandbox moved a directory away while the copy was inside.
        TargetBusyError: A directory stands where a file should go, or the other way round.
        SpaceExhaustedError: The target is full.
        SyncCancelledError: `cancelled` said so.
        SyncError: Anything else; the message says what to do.
        ValueError: `mode` is no set of permission bits, or `source` is a directory.
    """
    _check_mode(mode)
    path = os.fsencode(target)
    meter = Meter(cancelled, progress)
    with contextlib.ExitStack() as stack:
        found = find_source(root_fd, source, poll=meter.poll)
        stack.callback(os.close, found.parent_fd)
        is_tree = stat.S_ISDIR(found.status.st_mode)
        if not is_tree:
            _require_regular(found.status, source)
        try:
            flags = _OPEN_TREE | os.O_NOFOLLOW if is_tree else OPEN_FILE
            source_fd = os.open(found.name, flags, dir_fd=found.parent_fd)
        except OSError as error:
            raise failure(error, source, "open") from error
        stack.callback(os.close, source_fd)
        if is_tree:
            _refuse_mode(mode, source)
            bounds = Bounds(LinkRule.INSIDE, max_bytes, max_entries)
            totals = count_tree(source_fd, meter, bounds, avoid=_identity_of(path))
            place = _open_host_target(path, None)
            stack.callback(os.close, place.fd)
            tree = TargetTree(place.fd, label=place.label)
            return copy_tree(source_fd, tree, place.name, meter=meter, bounds=bounds, totals=totals)
        if found.status.st_size > max_bytes:
            raise too_large(max_bytes, source)
        _refuse_reserved(found.name)
        place = _open_host_target(path, found.name)
        stack.callback(os.close, place.fd)
        tree = TargetTree(place.fd, label=place.label)
        name = place.name or found.name
        return copy_file(source_fd, tree, name, path=source, mode=mode, meter=meter, max_bytes=max_bytes)


class _Place(NamedTuple):
    """Where a copy on this machine starts: a directory, its name for messages, and the name to write in it."""

    fd: int
    label: bytes
    name: bytes | None


def _open_host_source(path: bytes) -> tuple[int, bool]:
    """Open what the user named, through links, and tell whether it is a directory."""
    try:
        status = os.stat(path)
        is_tree = stat.S_ISDIR(status.st_mode)
        if not is_tree:
            _require_regular(status, path)
        return os.open(path, _OPEN_TREE if is_tree else OPEN_FILE & ~os.O_NOFOLLOW), is_tree
    except (FileNotFoundError, NotADirectoryError) as error:
        what = "is a link to something that does not exist" if os.path.islink(path) else "does not exist"
        raise SourceMissingError(f"{printable(path)} {what}; check the path", path=path) from error
    except OSError as error:
        raise failure(error, path, "open") from error


def _open_host_target(path: bytes, file_name: bytes | None) -> _Place:
    """Open the directory on this machine that a copy starts from, and make what is missing above it.

    Args:
        path: What the user named.
        file_name: The source's name if it is a single file.

    Returns:
        The directory, whose descriptor is the caller's to close. It holds no name if the copied tree goes into this
        directory itself.
    """
    parent, last = os.path.split(path.rstrip(b"/") or path)
    inside = os.path.isdir(path) or last in (b"", b".", b"..") or (file_name is not None and path.endswith(b"/"))
    opened = path if inside else parent or b"."
    try:
        os.makedirs(opened, exist_ok=True)
        fd = os.open(opened, _OPEN_TREE)
    except (FileExistsError, NotADirectoryError) as error:
        raise TargetBusyError(
            f"{printable(opened)} is not a directory, but a directory should be there; choose another target",
            path=opened,
        ) from error
    except OSError as error:
        raise failure(error, opened, "write into") from error
    return _Place(fd, path, file_name) if inside else _Place(fd, parent, last)


def _identity_of(path: bytes) -> Identity | None:
    try:
        status = os.stat(path)
    except OSError:
        # It does not exist yet, so the source cannot hold it; another fault shows when it is opened.
        return None
    return status.st_dev, status.st_ino


def _is_directory(root_fd: int, names: list[bytes]) -> bool:
    """Tell whether a destination is a real directory below the root already."""
    fd = os.dup(root_fd)
    for name in names:
        above = fd
        try:
            fd = os.open(name, _OPEN_TREE | os.O_NOFOLLOW, dir_fd=above)
        except OSError:
            # Missing, a file, a link or forbidden: no directory to go into, and writing there says what is wrong.
            return False
        finally:
            os.close(above)
    os.close(fd)
    return True


def _require_regular(status: os.stat_result, path: bytes) -> None:
    if not stat.S_ISREG(status.st_mode):
        raise SyncError(
            f"{printable(path)} is a {kind_of(status.st_mode)}, which has no bytes to copy; name a file or a directory",
            path=path,
        )


def _refuse_reserved(name: bytes) -> None:
    if name.startswith(RESERVED_PREFIX):
        raise SyncError(
            f"{printable(name)} is refused: names that begin with .sandport- are reserved; choose another name",
            path=name,
        )


def _check_mode(mode: int | None) -> None:
    if mode is not None and not 0 <= mode <= FILE_MODE_BITS:
        raise ValueError(f"mode {mode} is not a set of permission bits; write it in octal, such as 0o600 or 0o755")


def _refuse_mode(mode: int | None, path: bytes) -> None:
    if mode is not None:
        raise ValueError(f"mode is for a single file, but {printable(path)} is a directory; its files keep their own")
