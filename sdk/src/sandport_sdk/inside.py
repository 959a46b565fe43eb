"""Whether a program and a directory of a sandbox are there, seen from outside of its walls.

What puts a command behind walls (`nsenter`, `bwrap`, `docker exec`) is itself what the kernel starts: a program that is
not in the sandbox then looks like one that ran and exited with some code of the wrapper's. So it is looked for before.

A name is followed part by part below the root's descriptor, as a process of the sandbox would follow it: an absolute
link begins again at the root, `..` ends there, and no link that somebody puts in place meanwhile leads out.
"""

from __future__ import annotations

import errno
import os
import stat
import struct
from contextlib import ExitStack

from .machine_process import not_started

LINKS = 40
"""As many as the kernel follows."""
SCRIPTS = 5
"""Interpreters that are scripts themselves, as many as the kernel takes."""
_HEAD_BYTES = 4096
_PT_INTERP = 3


class Root:
    """A directory as the root of all names; for one thread, and closed by its owner.

    Args:
        path: Where the sandbox's root is for this process, such as `/proc/PID/root`.

    Raises:
        OSError: It is not there.
    """

    def __init__(self, path: str | bytes | os.PathLike[str]) -> None:
        self._fd = os.open(path, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)

    def close(self) -> None:
        """Let go of it."""
        os.close(self._fd)

    def open(self, path: bytes) -> int:
        """A descriptor (`O_PATH`) of what an absolute path of the sandbox leads to; it is the caller's.

        Raises:
            OSError: What the kernel would say to a process in the sandbox.
        """
        rest = path.split(b"/")[::-1]
        links = 0
        with ExitStack() as opened:
            above = [self._fd]
            while rest:
                part = rest.pop()
                if part in (b"", b"."):
                    continue
                if part == b"..":
                    above = above[: max(1, len(above) - 1)]
                    continue
                fd = os.open(part, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=above[-1])
                opened.callback(os.close, fd)
                mode = os.fstat(fd).st_mode
                if stat.S_ISLNK(mode):
                    links += 1
                    if links > LINKS:
                        raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))
                    target = os.readlink(b"", dir_fd=fd)
                    if target.startswith(b"/"):
                        above = above[:1]
                    rest += target.split(b"/")[::-1]
                elif rest and not stat.S_ISDIR(mode):
                    raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR))
                else:
                    above.append(fd)
            return os.dup(above[-1])

    def enter_error(self, path: bytes) -> int:
        """The errno of a `chdir`; 0 where there is none."""
        try:
            fd = self.open(path)
        except OSError as error:
            return error.errno or errno.EIO
        try:
            return 0 if stat.S_ISDIR(os.fstat(fd).st_mode) else errno.ENOTDIR
        finally:
            os.close(fd)

    def run_error(self, path: bytes, cwd: bytes, *, depth: int = 0) -> int:
        """The errno of an `execve`; 0 where there is none, as far as that can be seen."""
        try:
            fd = self.open(os.path.join(cwd, path))
        except OSError as error:
            return error.errno or errno.EIO
        try:
            mode = os.fstat(fd).st_mode
            if not (stat.S_ISREG(mode) and mode & 0o111):
                return errno.EACCES
            try:
                readable = os.open(f"/proc/self/fd/{fd}", os.O_RDONLY | os.O_CLOEXEC)
            except PermissionError:
                return 0  # it may be run without being read
        finally:
            os.close(fd)
        with open(readable, "rb") as file:
            head = file.read(_HEAD_BYTES)
        if head.startswith(b"\x7fELF"):
            loader = _loader(head)
            return self.run_error(loader, b"/", depth=depth) if loader else 0
        if not head.startswith(b"#!"):
            return errno.ENOEXEC
        words = head[2:].split(b"\n", 1)[0].split()
        if not words:
            return errno.ENOEXEC
        return errno.ELOOP if depth == SCRIPTS else self.run_error(words[0], cwd, depth=depth + 1)


def look_inside(root: str | bytes | os.PathLike[str], program: bytes, *, cwd: bytes, path: bytes) -> None:
    """Come back where a command could be started in a sandbox; else raise what its caller is to be told (CMD-5).

    Some system calls for each directory of `path`: it may be called in the loop. What changes between this and the
    start, formats that only this machine's kernel knows (`binfmt_misc`) and rights of single users are not seen.

    Args:
        root: The sandbox's root, seen from here: `/proc/PID/root` of a process in it, or a container's directory.
        program: The first word of the command.
        cwd: The working directory, an absolute path of the sandbox.
        path: The command's PATH.

    Raises:
        errors.PathNotFound: The working directory is not there.
        errors.CommandNotFound: The program is not, or what would run it; all of these with `dispatched` `no`.
        errors.CommandNotExecutable: It is there and cannot be run.
        OSError: There is no such root: the sandbox has ended.
    """
    seen = Root(root)
    try:
        stage, number = _look(seen, program, cwd, path)
    finally:
        seen.close()
    if number:
        raise not_started(stage, number, os.fsdecode(program), os.fsdecode(cwd))


def _look(root: Root, program: bytes, cwd: bytes, path: bytes) -> tuple[str, int]:
    if number := root.enter_error(cwd):
        return "cwd", number
    if b"/" in program or not program:
        return "program", root.run_error(program, cwd) if program else errno.ENOENT
    worst = errno.ENOENT
    for place in path.split(b":"):
        number = root.run_error(os.path.join(place, program), cwd)
        if not number:
            return "program", 0
        if number not in (errno.ENOENT, errno.ENOTDIR):
            worst = number
    return "program", worst


def _loader(head: bytes) -> bytes:
    """The program that the kernel starts for an ELF file, where it names one."""
    wide, order = head[4:5] == b"\x02", "<" if head[5:6] == b"\x01" else ">"
    try:
        if wide:
            (offset,) = struct.unpack_from(order + "Q", head, 32)
            size, count = struct.unpack_from(order + "HH", head, 54)
        else:
            (offset,) = struct.unpack_from(order + "I", head, 28)
            size, count = struct.unpack_from(order + "HH", head, 42)
        for number in range(count):
            at = offset + number * size
            if struct.unpack_from(order + "I", head, at) == (_PT_INTERP,):
                place = (
                    struct.unpack_from(order + "Q", head, at + 8)
                    if wide
                    else struct.unpack_from(order + "I", head, at + 4)
                )
                return head[place[0] :].split(b"\0", 1)[0]
    except struct.error:
        return b""  # further on in the file than was read, or cut: only the kernel can tell
    return b""
