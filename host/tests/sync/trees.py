"""Trees for the tests: how to describe one, make it, and look at one that was made.

What looks at a tree shares no code with what copies it: it recurses, holds every directory open, and reads files whole.
"""

from __future__ import annotations

import os
import socket
import stat
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple, TypeAlias

RESERVED = b".sandport-"


class File(NamedTuple):
    content: bytes = b""
    mode: int = 0o644
    mtime_ns: int = 1_600_000_000_123_456_789
    hole_before: int = 0


class Link(NamedTuple):
    target: bytes
    mtime_ns: int = 1_500_000_000_987_654_321


class Directory(NamedTuple):
    children: dict[bytes, Node]
    mode: int = 0o755
    mtime_ns: int = 1_400_000_000_111_222_333


Node: TypeAlias = "File | Link | Directory"
Seen: TypeAlias = dict[tuple[bytes, ...], tuple[object, ...]]


def make(path: Path | bytes, tree: Directory) -> None:
    """Make a directory that holds what is described."""
    where = os.fsencode(path)
    os.mkdir(where)
    fd = os.open(where, os.O_RDONLY | os.O_DIRECTORY)
    try:
        _fill(fd, tree)
    finally:
        os.close(fd)


def _fill(fd: int, tree: Directory) -> None:
    for name, node in tree.children.items():
        if isinstance(node, Link):
            os.symlink(node.target, name, dir_fd=fd)
            os.utime(name, ns=(0, node.mtime_ns), dir_fd=fd, follow_symlinks=False)
            continue
        if isinstance(node, Directory):
            os.mkdir(name, dir_fd=fd)
            child = os.open(name, os.O_RDONLY | os.O_DIRECTORY, dir_fd=fd)
            _fill(child, node)
        else:
            child = os.open(name, os.O_RDWR | os.O_CREAT | os.O_EXCL, dir_fd=fd)
            if node.hole_before:
                os.ftruncate(child, node.hole_before)
                os.lseek(child, 0, os.SEEK_END)
            os.write(child, node.content)
            os.fchmod(child, node.mode)
            os.utime(child, ns=(0, node.mtime_ns))
        os.close(child)
    os.fchmod(fd, tree.mode)
    os.utime(fd, ns=(0, tree.mtime_ns))


def look(path: Path | bytes) -> Seen:
    """Describe everything below a directory, and the directory itself under the empty path."""
    seen: Seen = {}
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        _look(fd, (), seen)
    finally:
        os.close(fd)
    return seen


def _look(fd: int, at: tuple[bytes, ...], seen: Seen) -> None:
    own = os.fstat(fd)
    seen[at] = ("directory", stat.S_IMODE(own.st_mode), own.st_mtime_ns)
    for text in os.listdir(fd):
        name = os.fsencode(text)
        status = os.stat(name, dir_fd=fd, follow_symlinks=False)
        if stat.S_ISDIR(status.st_mode):
            child = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=fd)
            _look(child, (*at, name), seen)
            os.close(child)
        elif stat.S_ISLNK(status.st_mode):
            seen[(*at, name)] = ("link", os.readlink(name, dir_fd=fd), status.st_mtime_ns)
        elif stat.S_ISREG(status.st_mode):
            child = os.open(name, os.O_RDONLY | os.O_NOFOLLOW, dir_fd=fd)
            with open(child, "rb") as file:
                content = file.read()
            seen[(*at, name)] = ("file", stat.S_IMODE(status.st_mode), status.st_mtime_ns, content)
        else:
            seen[(*at, name)] = ("special", stat.S_IFMT(status.st_mode))


def content_of(what: tuple[object, ...]) -> bytes:
    """The bytes of something that was seen; none if it is no file."""
    content = what[3] if what[0] == "file" else b""
    assert isinstance(content, bytes)
    return content


def leads_outside(seen: Seen, at: tuple[bytes, ...]) -> bool:
    """Follow a link through a tree that was seen, and tell whether it passes above the top.

    What is missing counts as a directory, because somebody may make it one day. A circle leads nowhere.
    """
    above = list(at[:-1])
    waiting = [at[-1]]
    for _ in range(10_000):
        if not waiting:
            return False
        part = waiting.pop()
        if part in (b"", b"."):
            continue
        if part == b"..":
            if not above:
                return True
            above.pop()
            continue
        what = seen.get((*above, part), ("missing",))
        if what[0] == "link":
            assert isinstance(what[1], bytes)
            if what[1].startswith(b"/"):
                return True
            waiting.extend(reversed(what[1].split(b"/")))
        else:
            above.append(part)
    return False


def names_below(path: Path) -> set[bytes]:
    """Every path below a directory, relative to it."""
    return {b"/".join(at) for at in look(path) if at}


def scratch_below(path: Path) -> set[bytes]:
    """Every path below a directory with a reserved name in it."""
    return {name for name in names_below(path) if any(part.startswith(RESERVED) for part in name.split(b"/"))}


def make_socket(path: Path) -> None:
    """Make a socket file; its name may be too long for a socket's address, its directory not."""
    with socket.socket(socket.AF_UNIX) as server:
        directory = os.open(path.parent, os.O_RDONLY)
        try:
            server.bind(f"/proc/self/fd/{directory}/{path.name}")
        finally:
            os.close(directory)


def once(act: Callable[[], None]) -> Callable[[], bool]:
    """A `cancelled` that never cancels, but does something the first time it is asked."""
    waiting = [act]

    def asked() -> bool:
        if waiting:
            waiting.pop()()
        return False

    return asked
