"""`sandport leases --watch`: the list again and again, until Ctrl-C."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import time
from collections.abc import Iterator, Sequence

import msgspec

from sandport.errors import UsageError
from sandport.lease.info import LeaseInfo

from .application import Settings
from .descriptors import write_all
from .failures import OutputFailed
from .interrupts import Interrupts
from .lease_facts import facts_of
from .lease_list import HEAD, Choice, pending_in, row, waiting
from .listing import put, table_lines
from .moments import iso, now_ms
from .plan import seconds

_USUAL_SIZE = (80, 24)
_ENTER, _LEAVE = b"\x1b[?1049h\x1b[?25l", b"\x1b[?25h\x1b[?1049l"
"""To a screen of its own without a cursor, and back to what was there before."""


def watch(settings: Settings, every: str, choice: Choice, *, as_json: bool) -> int:
    """Show the list every so many seconds: over itself on a terminal, or as one JSON document a line.

    Returns:
        0 after Ctrl-C, which is how it is meant to end; 143 and 129 after SIGTERM and SIGHUP.

    Raises:
        UsageError: It is neither on a terminal nor JSON; the seconds are none; the journal cannot be read.
        OutputFailed: Nobody reads it any more.
    """
    every_s = seconds("--watch", every)
    if not as_json and (not os.isatty(1) or os.environ.get("TERM", "dumb") == "dumb"):
        raise UsageError("--watch: stdout is no terminal that can be drawn on; add --json for a document a line")
    try:
        _show(settings.interrupts, every_s, choice, as_json=as_json)
    except OutputFailed:
        if settings.interrupts.received is None:
            raise
        # It was to end anyway; whether somebody still reads is then no matter.
    received = settings.interrupts.received
    return 0 if received in {None, signal.SIGINT} else 128 + received


def _show(interrupts: Interrupts, every_s: float, choice: Choice, *, as_json: bool) -> None:
    with _stop(interrupts) as stop:
        if as_json:
            while True:
                now = now_ms()
                put(_document(choice.look(now), now))
                if stop.came_within(every_s):
                    break
        else:
            with _screen(interrupts):
                while True:
                    now = now_ms()
                    put(_drawing(choice.look(now), now, every_s))
                    if stop.came_within(every_s):
                        break


class _Stop:
    """A signal, as something to wait for: a lock could be held by the very code that its handler interrupts."""

    def __init__(self, descriptor: int) -> None:
        self._poll = select.poll()
        self._poll.register(descriptor, select.POLLIN)

    def came_within(self, limit_s: float) -> bool:
        return bool(self._poll.poll(limit_s * 1000))


@contextlib.contextmanager
def _stop(interrupts: Interrupts) -> Iterator[_Stop]:
    ours, theirs = os.pipe()
    try:
        interrupts.guard(lambda: os.write(theirs, b"."))
        if interrupts.received is not None:  # just before
            os.write(theirs, b".")
        yield _Stop(ours)
    finally:
        interrupts.relax()
        os.close(ours)
        os.close(theirs)


@contextlib.contextmanager
def _screen(interrupts: Interrupts) -> Iterator[None]:
    """A screen of our own; whatever was on the terminal is there again afterwards."""

    def leave() -> None:
        with contextlib.suppress(OSError):  # it went away, and its screens with it
            write_all(1, _LEAVE)

    interrupts.on_leaving(leave)
    put(_ENTER)
    try:
        yield
    finally:
        leave()


def _document(found: Sequence[LeaseInfo], now: int) -> bytes:
    document = {
        "at": iso(now),
        "leases": [facts_of(one) for one in found],
        "pending": pending_in(found),
    }
    return msgspec.json.encode(document) + b"\n"


def _drawing(found: Sequence[LeaseInfo], now: int, every_s: float) -> bytes:
    """One picture, as large as the terminal: drawn over the last one without wiping that first, so nothing flickers."""
    try:
        columns, rows = os.get_terminal_size(1)
    except OSError:
        # It went away; the write that follows says so.
        columns, rows = _USUAL_SIZE
    columns, rows = (columns, rows) if columns > 0 and rows > 0 else _USUAL_SIZE
    moment = time.strftime("%H:%M:%S", time.localtime(now / 1000))
    many = f"{len(found)} {'lease' if len(found) == 1 else 'leases'}"
    lines = [f"{moment}  {many}, looked at every {every_s:g} s; Ctrl-C ends"[:columns], ""]
    if found:
        lines += table_lines(HEAD, [row(one, now) for one in found], columns)
    if (text := waiting(found)) is not None:
        lines += ["", text[:columns]]
    if len(lines) > rows:
        hidden = len(lines) - rows + 1
        lines = [*lines[: rows - 1], f"... and {hidden} more {'line' if hidden == 1 else 'lines'}"[:columns]]
    # The last line without a new one behind it, which would move everything up.
    return b"\x1b[H" + "\x1b[K\n".join(lines).encode("utf-8", "backslashreplace") + b"\x1b[K\x1b[J"
