"""The descriptors of a worker: the wire is moved out of the way before any of an author's code runs.

Afterwards descriptor 0 is the null device and descriptor 1 is stderr, for handlers, for whatever they import and for
every child they start: a stray `print` lands in the log, a child that reads its input finds the end of it, and nothing
but the serve loop can reach the wire.
"""

from __future__ import annotations

import fcntl
import os
import stat
import sys
from contextlib import suppress
from typing import NamedTuple, TextIO

_ADVICE = "a worker is started by a host, which speaks with it through two pipes"
_LOWEST = 3
"""Descriptors below this one belong to whatever runs in the worker."""
PIPE_BYTES = 1024 * 1024
"""Wanted size of the wire's pipes: fewer, larger reads and writes."""


class StdioUnusable(Exception):
    """There is no wire on stdin and stdout; the message says what to do."""


class WireDescriptors(NamedTuple):
    """The descriptors that lead to the host; not inherited by any child."""

    read: int
    write: int


def take_wire() -> WireDescriptors:
    """Move the wire away from descriptors 0 and 1, once, before anything else.

    Raises:
        StdioUnusable: There is no wire on them. Descriptors 0 to 2 are open nevertheless.
    """
    read, write = _duplicate(0), _duplicate(1)
    null = os.open(os.devnull, os.O_RDWR)
    # A closed descriptor is the lowest free one, so `null` itself may be 0, 1 or 2 here.
    _put(null, 0)
    if not _is_open(2) or null == 2:
        _put(null, 2)
    _put(2, 1)
    if null >= _LOWEST:
        os.close(null)
    _renew_streams()
    wire = _checked(read, write)
    os.register_at_fork(after_in_child=lambda: _give_up(wire))
    for descriptor in wire:
        _enlarge(descriptor)
    return wire


def _checked(read: int | None, write: int | None) -> WireDescriptors:
    for name, descriptor in (("stdin", read), ("stdout", write)):
        if descriptor is None:
            raise StdioUnusable(f"{name} is closed; {_ADVICE}")
        mode = os.fstat(descriptor).st_mode
        if not (stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode) or os.isatty(descriptor)):
            raise StdioUnusable(f"{name} is no pipe; {_ADVICE}")
    assert read is not None
    assert write is not None
    if not os.isatty(read) and os.path.sameopenfile(read, write):
        raise StdioUnusable(f"stdin and stdout are one socket, not two pipes; {_ADVICE}")
    return WireDescriptors(read, write)


def _duplicate(descriptor: int) -> int | None:
    try:
        return fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, _LOWEST)
    except OSError:
        return None  # closed


def _is_open(descriptor: int) -> bool:
    try:
        os.fstat(descriptor)
    except OSError:
        return False
    return True


def _put(source: int, target: int) -> None:
    if source != target:
        os.dup2(source, target)
    else:
        os.set_inheritable(target, True)


def _renew_streams() -> None:
    """Python's own streams, for the descriptors as they are now: a line printed is a line logged, at once."""
    if sys.stdin is None:
        sys.stdin = os.fdopen(0, encoding="utf-8", closefd=False)
    if sys.stderr is None:
        sys.stderr = _text_output(2)
    if sys.stdout is None:
        sys.stdout = _text_output(1)
    elif (reconfigure := getattr(sys.stdout, "reconfigure", None)) is not None:
        reconfigure(line_buffering=True)


def _text_output(descriptor: int) -> TextIO:
    return os.fdopen(descriptor, "w", 1, encoding="utf-8", errors="backslashreplace", closefd=False)


def _give_up(wire: WireDescriptors) -> None:
    """In a forked child, such as a worker of a process pool: the wire is its parent's."""
    null = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
    for descriptor in wire:
        os.dup2(null, descriptor, inheritable=False)
    os.close(null)


def _enlarge(descriptor: int) -> None:
    wanted = getattr(fcntl, "F_SETPIPE_SZ", None)
    if wanted is None:
        return
    with suppress(OSError):  # no pipe, or the user's share of pipe memory is used up: slower, not wrong
        fcntl.fcntl(descriptor, wanted, PIPE_BYTES)
