"""The kernel's files of cgroups: read, written, and looked for, below any directory that stands for them.

Of the standard library only what starts fast, as in every module that `init` and `keeper` import.
"""

from __future__ import annotations

import errno
import os

TYPE_CHECKING = False  # That of `typing` costs more to import than all the rest.
if TYPE_CHECKING:
    from collections.abc import Iterator


def read_text(path: str) -> str:
    """The whole of a file; raises OSError where it cannot be read."""
    with open(path, encoding="utf-8", errors="surrogateescape", newline="") as file:
        return file.read()


def read_text_or_none(path: str) -> str | None:
    """The whole of a file; None where there is none to be read."""
    try:
        return read_text(path)
    except OSError as error:
        # The cgroup was removed, has no such file, or is of a kind whose processes cannot be listed.
        if error.errno in (errno.ENOENT, errno.ENOTDIR, errno.ENODEV, errno.EACCES, errno.EOPNOTSUPP):
            return None
        raise


def read_words(path: str) -> list[str]:
    """What a file lists; nothing where there is no such file."""
    return (read_text_or_none(path) or "").split()


def read_number(directory: str, file: str) -> int | None:
    """The number in a file; None where it has none, as in `max`."""
    word = (read_text_or_none(os.path.join(directory, file)) or "").strip()
    return int(word) if is_number(word.removeprefix("-")) else None


def is_number(word: str) -> bool:
    """Whether this is a plain number of the kernel's, without a sign."""
    return word.isascii() and word.isdigit() and len(word) <= 20


def parse_count(text: str, key: str) -> int:
    """The number behind a key in one of the kernel's lists; 0 where it has no such line (an old kernel's)."""
    for line in text.split("\n"):
        words = line.split()
        if len(words) == 2 and words[0] == key and is_number(words[1]):
            return int(words[1])
    return 0


def write_text(path: str, text: str) -> None:
    """Write to a file of the kernel's, in one piece and without making one."""
    fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(fd, text.encode())
    finally:
        os.close(fd)


def write_if_there(path: str, text: str) -> bool:
    """Write to a file of the kernel's; False where it is gone, or was never there."""
    try:
        write_text(path, text)
    except OSError as error:
        if error.errno not in (errno.ENOENT, errno.ENODEV):
            raise
        return False
    return True


def walk(top: str, *, stop_at: str | None = None) -> Iterator[str]:
    """A directory and all below it, each before what is in it."""
    waiting = [top]
    while waiting:
        directory = waiting.pop()
        yield directory
        if stop_at is None or os.path.basename(directory) != stop_at:
            waiting += directories_in(directory)


def directories_in(directory: str) -> list[str]:
    """The cgroups right below one, by path; none where it is gone or not ours to list."""
    try:
        with os.scandir(directory) as entries:
            return [entry.path for entry in entries if entry.is_dir(follow_symlinks=False)]
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.ENOTDIR, errno.ENODEV, errno.EACCES):  # Removed meanwhile, or not ours.
            return []
        raise


def members_of(directory: str) -> list[int]:
    """The processes in a cgroup itself; 0 for one that is not in our PID namespace."""
    text = read_text_or_none(os.path.join(directory, "cgroup.procs")) or ""
    return [int(word) for word in text.split() if is_number(word)]


def is_v2(directory: str) -> bool:
    """Whether a cgroup is one of version 2."""
    return os.path.exists(os.path.join(directory, "cgroup.controllers"))
