"""Two names that change places in one step, where the kernel and the file system can."""

from __future__ import annotations

import errno
import os
from typing import Final

from sandport.sync.entries import RESERVED_PREFIX
from sandport.sync.scratch import scratch_name

__all__ = ["exchange", "put_in_place"]

_RENAME_EXCHANGE: Final = 2

_CANNOT: Final = frozenset({errno.ENOSYS, errno.EINVAL, errno.EOPNOTSUPP, errno.EPERM})
"""What the system says where it knows no exchange, or where something between keeps programs from asking for it."""


def exchange(dir_fd: int, one: bytes, other: bytes) -> None:
    """Give each of two names in a directory what the other has, in one step.

    Raises:
        OSError: As the system said; ENOSYS where there is no such call.
    """
    # Imported for the few copies that need it.
    import ctypes

    renameat2 = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    if renameat2 is None:
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))
    renameat2.argtypes = (ctypes.c_int, ctypes.c_char_p, ctypes.c_int, ctypes.c_char_p, ctypes.c_uint)
    if renameat2(dir_fd, one, dir_fd, other, _RENAME_EXCHANGE):
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))


def put_in_place(dir_fd: int, staged: bytes, name: bytes) -> bytes | None:
    """Give something staged a name that may be taken, whatever has it.

    Args:
        dir_fd: The directory that both are in.
        staged: The name it has now.
        name: The name it is to have.

    Returns:
        Under which name the old one is now, or None if there was none.

    Raises:
        OSError: Nothing has changed.
    """
    try:
        try:
            exchange(dir_fd, staged, name)
        except FileNotFoundError:
            raise
        except OSError as error:
            if error.errno not in _CANNOT:
                raise
            return _by_two_renames(dir_fd, staged, name)
    except FileNotFoundError:
        os.rename(staged, name, src_dir_fd=dir_fd, dst_dir_fd=dir_fd)
        return None
    return staged


def _by_two_renames(dir_fd: int, staged: bytes, name: bytes) -> bytes:
    # Until the new one is there the old one has a name that nobody takes for left over.
    aside = RESERVED_PREFIX + b"old-" + os.urandom(8).hex().encode("ascii")
    os.rename(name, aside, src_dir_fd=dir_fd, dst_dir_fd=dir_fd)
    try:
        os.rename(staged, name, src_dir_fd=dir_fd, dst_dir_fd=dir_fd)
    except BaseException:  # Ctrl-C too: the old one must not stay without its name
        os.rename(aside, name, src_dir_fd=dir_fd, dst_dir_fd=dir_fd)
        raise
    over = scratch_name()
    os.rename(aside, over, src_dir_fd=dir_fd, dst_dir_fd=dir_fd)
    return over
