"""The filter of system calls that isolated sandboxes run under: a small program for the kernel, made from a table.

It shuts what no namespace does. Keyrings are the user's and the session's, whatever is around a process, so they would
be the machine's. And sockets of the AF_VSOCK family lead to the hypervisor, past a network namespace. Everything else
is let through: it is no list of what is harmless.
"""

from __future__ import annotations

import errno
import struct
from typing import NamedTuple

AF_VSOCK = 40
X32_BIT = 0x40000000
_SYS_SOCKET = 1
"""The number that `socketcall` has for `socket`."""
_IO_URING_SETUP = 425
"""The same on every architecture."""

_LOAD, _AND, _EQUAL, _RETURN = 0x20, 0x54, 0x15, 0x06
_NUMBER, _ARCHITECTURE, _FIRST_ARGUMENT = 0, 4, 16
"""Where `struct seccomp_data` has them; of an argument the low half, on a little-endian machine."""
_ALLOW, _ERRNO = 0x7FFF0000, 0x00050000


class Calls(NamedTuple):
    """The numbers of calls in one ABI."""

    audit: int
    """What the kernel names the ABI in a filter: AUDIT_ARCH_*."""
    keys: tuple[int, int, int]
    """add_key, request_key, keyctl."""
    socket: int
    socketcall: int | None = None
    mask: int | None = None
    """Bits of a number that count, where not all of them do."""


_X86_64 = Calls(0xC000003E, (248, 249, 250), 41, mask=0xFFFFFFFF ^ X32_BIT)
_I386 = Calls(0x40000003, (286, 287, 288), 359, socketcall=102)
_AARCH64 = Calls(0xC00000B7, (217, 218, 219), 198)
_ARM = Calls(0x40000028, (309, 310, 311), 281)
_RISCV64 = Calls(0xC00000F3, (217, 218, 219), 198)
_RISCV32 = Calls(0x400000F3, (217, 218, 219), 198)
MACHINES: dict[str, tuple[Calls, ...]] = {
    "x86_64": (_X86_64, _I386),
    "aarch64": (_AARCH64, _ARM),
    "riscv64": (_RISCV64, _RISCV32),
}
"""The ABIs that a kernel of a machine (`uname -m`) takes calls in."""


def program(machine: str, *, network: bool) -> bytes:
    """The filter, as `bwrap --seccomp` reads it: an array of `struct sock_filter`; empty for an unknown machine.

    Args:
        machine: What `uname -m` says.
        network: Whether the sandbox has the machine's network. Where it has not, sockets of AF_VSOCK are refused, and
            so is what would make them past this filter: io_uring, and `socketcall`, whose arguments it cannot see.
    """
    rows: list[tuple[int, int, int, int]] = []
    for calls in MACHINES.get(machine, ()):
        body = _body(calls, network=network)
        rows += [(_LOAD, 0, 0, _ARCHITECTURE), (_EQUAL, 0, len(body), calls.audit), *body]
    if not rows:
        return b""
    rows.append((_RETURN, 0, 0, _ALLOW))
    return b"".join(struct.pack("=HBBI", *row) for row in rows)


def _body(calls: Calls, *, network: bool) -> list[tuple[int, int, int, int]]:
    """What is done with a call of one ABI; it always returns."""
    rows = [(_LOAD, 0, 0, _NUMBER)]
    if calls.mask is not None:
        rows.append((_AND, 0, 0, calls.mask))
    for number in calls.keys:
        rows += _refused(number, errno.EPERM)
    if not network:
        rows += _refused(_IO_URING_SETUP, errno.EPERM)
        rows += _refused(calls.socket, errno.EAFNOSUPPORT, first=AF_VSOCK)
        if calls.socketcall is not None:
            rows += _refused(calls.socketcall, errno.EAFNOSUPPORT, first=_SYS_SOCKET)
    return [*rows, (_RETURN, 0, 0, _ALLOW)]


def _refused(number: int, error: int, *, first: int | None = None) -> list[tuple[int, int, int, int]]:
    """Answer a call with an error; only with this first argument, where one is given."""
    answer = (_RETURN, 0, 0, _ERRNO | error)
    if first is None:
        return [(_EQUAL, 0, 1, number), answer]
    # Of the first argument the kernel takes 32 bits, as the filter does. Any other one is let through.
    asked = [(_LOAD, 0, 0, _FIRST_ARGUMENT), (_EQUAL, 0, 1, first), answer, (_RETURN, 0, 0, _ALLOW)]
    return [(_EQUAL, 0, len(asked), number), *asked]
