"""Copies between this machine and a sandbox that is a directory on it.

Both calls block and belong in a worker thread. They overlay: what the target holds beside the copied names stays,
and nothing is removed but a file or link that a copied one replaces, unless the caller asks for more.
"""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple, TypeAlias

from sandport.sync.copy import Account, Bounds, LinkRule, copy_file, copy_tree, count_tree, too_large
from sandport.sync.descent import OPEN_DIRECTORY, Identity
from sandport.sync.entries import FILE_MODE_BITS, RESERVED_PREFIX
from sandport.sync.errors import SourceMissingError, SyncError, TargetBusyError, failure, printable
from sandport.sync.interrupt import HeldInterrupt
from sandport.sync.meter import Meter
from sandport.sync.mirror import KnownPaths, Mirror
from sandport.sync.paths import find_parents, find_source, open_parents, split_destination
from sandport.sync.protection import Protection
from sandport.sync.rehearsal import RehearsalTree
from sandport.sync.result import SyncProgress, SyncResult
from sandport.sync.selection import Selection
from sandport.sync.small_files import OPEN_FILE
from sandport.sync.special import kind_of, refuse_special
from sandport.sync.target import TargetTree

__all__ = [
    "DEFAULT_MAX_BYTES",
    "DEFAULT_MAX_ENTRIES",
    "HostPath",
    "HostTarget",
    "copy_in",
    "copy_out",
    "open_host_source",
    "open_host_target",
]

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
    selection: Selection | None = None,
    follow_symlinks: bool = False,
    replace: bool = False,
    delete: bool = False,
    dry_run: bool = False,
    cancelled: Callable[[], bool] | None = None,
    progress: Callable[[SyncProgress], None] | None = None,
) -> SyncResult:
    """Copy a file or a tree from this machine into a sandbox's directory.

    The contents of a directory become contents of `destination`, which is made with its parents if it is missing,
    and keeps its own mode if it is not. A file becomes the file `destination`; if that is a directory or ends in
    `/`, the file goes inside under its own name. Links in the tree stay links, whatever they lead to; only
    `source` itself is followed. Where this process is root and the sandbox's directory another user's, what is made
    there belongs to him.

    Args:
        source: A file or directory on this machine.
        root_fd: The sandbox's working directory, opened for reading. It stays the caller's to close.
        destination: Where to, relative to `root_fd`; `b"."` is the working directory itself.
        mode: Permission bits for a single file in place of its own, such as 0o600.
        selection: What of a tree is left out.
        follow_symlinks: Copy what links in the tree lead to in their place.
        replace: Whatever has the name of the copied file or tree goes, whole: the new one is staged beside it, and
            they change places in one step where the system can. The working directory itself is only emptied of what
            is not in the tree.
        delete: Once all is copied, remove from `destination` what is not in the tree, but nothing that `selection`
            leaves out; what is of another kind there than in the tree is replaced.
        dry_run: Write nothing, and tell what would have been done.
        cancelled: Asked between files and between pieces of big ones; True stops the copy.
        progress: Told how far the copy is, at most ten times a second. Having it costs one count of the tree.

    Raises:
        SourceMissingError: There is nothing at `source`.
        PathOutsideRootError: `destination` leads out, or a directory that is to be written into is a link.
        TargetBusyError: A directory stands where a file should go, or the other way round.
        SpaceExhaustedError: The target is full.
        UnsafeTargetError: `replace` or `delete` would remove the source.
        SyncCancelledError: `cancelled` said so.
        SyncError: Anything else; the message says what to do.
        ValueError: `mode` is no set of permission bits, or `source` is a directory; or both `replace` and `delete`.
    """
    _check_mode(mode)
    if replace and delete:
        raise ValueError("replace removes all that delete would; ask for one of them")
    path = os.fsencode(source)
    names = split_destination(destination)
    with HeldInterrupt(cancelled) as interrupt, contextlib.ExitStack() as stack:
        meter = Meter(interrupt.cancelled, progress)
        source_fd, is_tree = open_host_source(path)
        stack.callback(os.close, source_fd)
        if is_tree:
            _refuse_mode(mode, path)
        else:
            if not names or destination.endswith(b"/") or _is_directory(root_fd, names):
                names.append(os.path.basename(path))
            _refuse_reserved(names[-1])
        owner = _other_owner(root_fd)
        parents = names[:-1]
        parent_fd = find_parents(root_fd, parents) if dry_run else open_parents(root_fd, parents, owner=owner)
        if parent_fd is not None:
            stack.callback(os.close, parent_fd)
        empties = replace and is_tree and not names
        account = Account(KnownPaths() if delete or empties else None)
        mirror = None
        if delete or replace:
            protection = Protection(sources=[path])
            if replace and names and parent_fd is not None:
                _check_replaced(protection, parent_fd, names[-1], b"/".join(names))
            mirror = Mirror(
                removed=account.delete if delete else _not_told,
                poll=meter.poll,
                selection=selection if delete else None,
                source_fd=source_fd if is_tree else None,
                protection=protection,
                rehearsal=dry_run,
            )
        tree = _target(parent_fd, b"/".join(parents), owner, mirror, replaces=replace, dry_run=dry_run)
        if not is_tree:
            return copy_file(source_fd, tree, names[-1], path=path, mode=mode, meter=meter, account=account)
        return copy_tree(
            source_fd,
            tree,
            names[-1] if names else None,
            meter=meter,
            bounds=Bounds(),
            account=account,
            mirror=mirror if delete or empties else None,
            selection=selection,
            follow_symlinks=follow_symlinks,
        )


def copy_out(
    root_fd: int,
    source: bytes,
    target: HostPath,
    *,
    mode: int | None = None,
    selection: Selection | None = None,
    delete: bool = False,
    protect: Sequence[HostPath] = (),
    state: HostPath | None = None,
    dry_run: bool = False,
    max_bytes: int = DEFAULT_MAX_BYTES,
    max_entries: int = DEFAULT_MAX_ENTRIES,
    cancelled: Callable[[], bool] | None = None,
    progress: Callable[[SyncProgress], None] | None = None,
) -> SyncResult:
    """Copy a file or a tree from a sandbox's directory to this machine, whatever the sandbox does meanwhile.

    The rules are those of `copy_in`, with this machine protected: the source is counted before the first byte is
    written, nothing outside `root_fd` is ever read, and links that could lead out of the copied tree are left out
    and listed in `refused`. Links in `source` itself are resolved as long as they stay below `root_fd`. `target`
    may be a link to a directory; below it no link is followed, and a link in a file's place is replaced. A device, a
    FIFO or a socket in a file's place is not, nor a link to one; only in a tree that `delete` mirrors it is.

    Args:
        root_fd: The sandbox's working directory, opened for reading. It stays the caller's to close.
        source: What to copy, relative to `root_fd`; `b"."` is the working directory itself.
        target: Where to on this machine.
        mode: Permission bits for a single file in place of its own, such as 0o600.
        selection: What of a tree is left out.
        delete: Once all is copied, remove from `target` what is not in the tree, but nothing that `selection` leaves
            out; what is of another kind there than in the tree is replaced. Not for `/`, the home directory, the
            current directory, the running Python, `state`, one of `protect`, and what lies above any of them, nor for
            the root of a git work tree.
        protect: Files and directories that `delete` must spare, with all directories above them.
        state: Where the host keeps its state; likewise.
        dry_run: Write nothing, and tell what would have been done.
        max_bytes: How many bytes to take at most, by the files' sizes, holes included.
        max_entries: How many names of any kind the source may hold.
        cancelled: Asked between files and between pieces of big ones; True stops the copy.
        progress: Told how far the copy is, at most ten times a second.

    Raises:
        SourceMissingError: There is nothing at `source`.
        PathOutsideRootError: `source` leads out of `root_fd`, or a directory that is to be written into is a link.
        TooLargeError: The source is past a ceiling. Nothing was written, unless it grew past it during the copy;
            then what was already copied stays, and what is over was not written.
        UnsafeTargetError: `delete` would empty a directory that is never emptied.
        TreeMovedError: The sandbox moved a directory away while the copy was inside.
        TargetBusyError: A directory stands where a file should go, or the other way round; or what is neither.
        SpaceExhaustedError: The target is full.
        SyncCancelledError: `cancelled` said so.
        SyncError: Anything else; the message says what to do.
        ValueError: `mode` is no set of permission bits, or `source` is a directory.
    """
    _check_mode(mode)
    path = os.fsencode(target)
    with HeldInterrupt(cancelled) as interrupt, contextlib.ExitStack() as stack:
        meter = Meter(interrupt.cancelled, progress)
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
        account = Account(KnownPaths() if delete else None)
        mirror = None
        if delete:
            mirror = Mirror(
                removed=account.delete,
                poll=meter.poll,
                selection=selection,
                source_fd=source_fd if is_tree else None,
                protection=Protection(
                    sources=list(map(os.fsencode, protect)),
                    source_fds=[root_fd],
                    state=None if state is None else os.fsencode(state),
                    this_machine=True,
                ),
                rehearsal=dry_run,
            )
        bounds = Bounds(LinkRule.INSIDE, max_bytes, max_entries)
        totals = None
        if is_tree:
            _refuse_mode(mode, source)
            totals = count_tree(source_fd, meter, bounds, avoid=_identity_of(path), selection=selection)
        elif found.status.st_size > max_bytes:
            raise too_large(max_bytes, source)
        else:
            _refuse_reserved(found.name)
        place = open_host_target(path, None if is_tree else found.name, make=not dry_run)
        if place.fd is not None:
            stack.callback(os.close, place.fd)
        spares = mirror is None or not is_tree
        tree = _target(place.fd, place.label, None, mirror, replaces=False, spares=spares, dry_run=dry_run)
        if not is_tree:
            name = place.name or found.name
            return copy_file(
                source_fd, tree, name, path=source, mode=mode, meter=meter, account=account, max_bytes=max_bytes
            )
        return copy_tree(
            source_fd,
            tree,
            place.name,
            meter=meter,
            bounds=bounds,
            account=account,
            mirror=mirror,
            selection=selection,
            totals=totals,
        )


def _target(
    fd: int | None,
    label: bytes,
    owner: tuple[int, int] | None,
    mirror: Mirror | None,
    *,
    replaces: bool,
    spares: bool = False,
    dry_run: bool,
) -> TargetTree | RehearsalTree:
    if dry_run or fd is None:
        return RehearsalTree(fd, label=label, mirror=mirror, replaces=replaces, spares=spares)
    return TargetTree(fd, label=label, owner=owner, mirror=mirror, replaces=replaces, spares=spares)


def _other_owner(root_fd: int) -> tuple[int, int] | None:
    """Who is to own what is made in a sandbox, if that is not who makes it and this process may give it away."""
    status = os.fstat(root_fd)
    return (status.st_uid, status.st_gid) if os.geteuid() == 0 and status.st_uid else None


def _check_replaced(protection: Protection, parent_fd: int, name: bytes, shown: bytes) -> None:
    """Refuse to replace a directory that holds the source."""
    try:
        fd = os.open(name, OPEN_DIRECTORY, dir_fd=parent_fd)
    except OSError:
        # Missing or no directory, so it holds nothing; or shut, and then the source would not have been found there.
        return
    try:
        protection.check(fd, shown)
    finally:
        os.close(fd)


def _not_told(_path: bytes) -> None:
    """What a replaced tree held is no news."""


class HostTarget(NamedTuple):
    """Where a copy on this machine starts: a directory, its name for messages, and the name to write in it.

    `fd` is None for a directory that does not exist and was not to be made.
    """

    fd: int | None
    label: bytes
    name: bytes | None


def open_host_source(path: bytes) -> tuple[int, bool]:
    """Open what the user named, through links, and tell whether it is a directory.

    Raises:
        SourceMissingError: There is nothing.
        SyncError: It is neither file nor directory, or the system refuses.
    """
    try:
        status = os.stat(path)
        is_tree = stat.S_ISDIR(status.st_mode)
        if not is_tree:
            _require_regular(status, path)
        return os.open(path, _OPEN_TREE if is_tree else OPEN_FILE & ~os.O_NOFOLLOW), is_tree
    except (FileNotFoundError, NotADirectoryError) as error:
        what = "is a link to something that does not exist" if os.path.islink(path) else "does not exist"
        raise SourceMissingError(f"{printable(path)} {what}; check the path", path=path, dispatched="no") from error
    except OSError as error:
        raise failure(error, path, "open") from error


def open_host_target(path: bytes, file_name: bytes | None, *, make: bool = True) -> HostTarget:
    """Open the directory on this machine that a copy starts from, and make what is missing above it.

    Args:
        path: What the user named.
        file_name: The source's name if it is a single file.
        make: Whether to make what is missing.

    Returns:
        The directory, whose descriptor is the caller's to close. It holds no name if the copied tree goes into this
        directory itself.

    Raises:
        TargetBusyError: A device, a FIFO, a socket or a link to one has that name, or something that is no directory
            is on the way.
        SyncError: The system refuses.
    """
    refuse_special(path, shown=path)
    parent, last = os.path.split(path.rstrip(b"/") or path)
    inside = os.path.isdir(path) or last in (b"", b".", b"..") or (file_name is not None and path.endswith(b"/"))
    opened = path if inside else parent or b"."
    fd: int | None = None
    try:
        if make:
            os.makedirs(opened, exist_ok=True)
        with contextlib.nullcontext() if make else contextlib.suppress(FileNotFoundError):
            fd = os.open(opened, _OPEN_TREE)
    except (FileExistsError, NotADirectoryError) as error:
        raise TargetBusyError(
            f"{printable(opened)} is not a directory, but a directory should be there; choose another target",
            path=opened,
        ) from error
    except OSError as error:
        raise failure(error, opened, "write into") from error
    return HostTarget(fd, path, file_name) if inside else HostTarget(fd, parent, last)


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
