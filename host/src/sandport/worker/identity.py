"""Which process is meant, safe against a number that was given to a stranger; and signals that reach no other.

A number alone means nothing: it is reused. Boot, start time and token together name one process for ever, and a
descriptor of the process keeps what was looked at and what is signalled the same.
"""

from __future__ import annotations

import contextlib
import os
import signal
from pathlib import Path

from msgspec import Struct

from .environment import TOKEN

_MARK = f"{TOKEN}=".encode()
_ENVIRONMENT_BYTES = 4 * 1024 * 1024


class Identity(Struct, frozen=True):
    """Which process this is, safe against a reused pid."""

    pid: int
    started_ticks: int
    """Start time in clock ticks since boot, from /proc; 0 where there is no /proc."""
    boot_id: str
    token: str


class ProcessFacts(Struct, frozen=True):
    """What /proc says of a process that runs."""

    started_ticks: int
    group: int
    session: int


def facts_of(pid: int) -> ProcessFacts | None:
    """The facts of a process; None where it is gone, only waits to be reaped, or there is no /proc."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_bytes()
    except OSError:
        return None
    # The second field is the program's name in parentheses and may itself hold spaces and parentheses.
    fields = stat[stat.rindex(b")") + 2 :].split()
    if fields[0] in (b"Z", b"X"):
        return None
    return ProcessFacts(int(fields[19]), int(fields[2]), int(fields[3]))


def process_start_ticks(pid: int) -> int:
    """The start time of a process in clock ticks since boot; 0 where it is gone or there is no /proc."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_bytes()
    except OSError:
        return 0
    return int(stat[stat.rindex(b")") + 2 :].split()[19])


def boot_id() -> str:
    """This boot of the machine; empty where the system does not say."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


def token_of(pid: int) -> str:
    """The worker's token in a process's environment; empty where it has none, is gone, or is somebody else's."""
    try:
        descriptor = os.open(f"/proc/{pid}/environ", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return ""
    try:
        environment = b""
        # The kernel gives it by the page.
        while len(environment) < _ENVIRONMENT_BYTES and (piece := os.read(descriptor, 65536)):
            environment += piece
    except OSError:
        return ""  # it ended while it was looked at
    finally:
        os.close(descriptor)
    at = 0 if environment.startswith(_MARK) else environment.find(b"\0" + _MARK) + 1
    if not environment.startswith(_MARK, at):
        return ""
    end = environment.find(b"\0", at)
    return environment[at + len(_MARK) : end if end >= 0 else None].decode("utf-8", "replace")


def pidfd_of(pid: int) -> int | None:
    """A descriptor that means this process for ever and is readable when it has ended; None where there is none."""
    pidfd_open = getattr(os, "pidfd_open", None)
    if pidfd_open is None:
        return None
    try:
        return int(pidfd_open(pid))
    except OSError:
        return None  # an old or confined kernel, no descriptors left, or the process is gone


def is_running(identity: Identity) -> bool:
    """Whether exactly this process runs; False on any doubt."""
    facts = facts_of(identity.pid)
    return (
        facts is not None
        and facts.started_ticks == identity.started_ticks
        and identity.boot_id == boot_id()
        and bool(identity.token)
        and token_of(identity.pid) == identity.token
    )


def signal_exactly(identity: Identity, number: int, *, group: int | None = None) -> bool:
    """Signal exactly this process; False, and nothing was sent, on any doubt.

    The descriptor is opened first and the identity read again after it: what is signalled is what was looked at.

    Args:
        identity: Whom.
        number: The signal.
        group: Only while it is in this process group.
    """
    pidfd = pidfd_of(identity.pid)
    if pidfd is None:
        return False
    try:
        facts = facts_of(identity.pid)
        if not is_running(identity) or facts is None or (group is not None and facts.group != group):
            return False
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(pidfd, number)
        return True
    finally:
        os.close(pidfd)
