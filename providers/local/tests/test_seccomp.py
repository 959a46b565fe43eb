"""The filter as a program: what it answers is found by running it as the kernel does, for every ABI that there is."""

import errno
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandport_provider_local.seccomp import MACHINES, X32_BIT, program

ALLOW = 0x7FFF0000
ABIS = {
    # From the kernel's own tables: audit name, add_key, request_key, keyctl, socket.
    ("x86_64", "x86_64"): (0xC000003E, 248, 249, 250, 41),
    ("x86_64", "i386"): (0x40000003, 286, 287, 288, 359),
    ("aarch64", "aarch64"): (0xC00000B7, 217, 218, 219, 198),
    ("aarch64", "arm"): (0x40000028, 309, 310, 311, 281),
    ("riscv64", "riscv64"): (0xC00000F3, 217, 218, 219, 198),
    ("riscv64", "riscv32"): (0x400000F3, 217, 218, 219, 198),
}
VSOCK, UNIX, INET = 40, 1, 2
IO_URING_SETUP, SOCKETCALL = 425, 102
WORD = st.integers(0, 2**32 - 1)


def answer(code: bytes, audit: int, number: int, first: int = 0) -> int:
    """What the kernel makes of a call: the error's number, or 0 where it is let through."""
    data = struct.pack("<IIQ6Q", number, audit, 0, first, *[0] * 5)
    rows = list(struct.iter_unpack("<HBBI", code))
    at, accumulator = 0, 0
    while True:
        operation, if_so, if_not, constant = rows[at]  # Past the end is an IndexError; the kernel would not take it.
        at += 1
        if operation == 0x20:  # LD W ABS
            assert constant % 4 == 0
            (accumulator,) = struct.unpack_from("<I", data, constant)
        elif operation == 0x54:  # ALU AND K
            accumulator &= constant
        elif operation == 0x15:  # JMP JEQ K, forwards only
            at += if_so if accumulator == constant else if_not
        elif operation == 0x06:  # RET K
            if constant == ALLOW:
                return 0
            assert constant & 0xFFFF0000 == 0x50000
            return int(constant & 0xFFFF)
        else:
            pytest.fail(f"the kernel has no operation {operation:#x}")


@pytest.mark.parametrize("network", [False, True])
@pytest.mark.parametrize("abi", ABIS)
def test_keys_are_refused_in_every_abi_and_the_hypervisors_sockets_where_there_is_no_network(
    abi: tuple[str, str], network: bool
) -> None:
    audit, *keys, socket = ABIS[abi]
    code = program(abi[0], network=network)
    assert [answer(code, audit, number) for number in keys] == [errno.EPERM] * 3
    assert [answer(code, audit, socket, family) for family in (UNIX, INET, 10, 16)] == [0] * 4
    refused = 0 if network else errno.EAFNOSUPPORT
    # The upper half of a register is not the kernel's to look at, nor ours.
    assert [answer(code, audit, socket, family) for family in (VSOCK, VSOCK | 1 << 32)] == [refused] * 2
    assert answer(code, audit, IO_URING_SETUP) == (0 if network else errno.EPERM)
    if abi == ("x86_64", "i386"):
        assert (answer(code, audit, SOCKETCALL, 1), answer(code, audit, SOCKETCALL, 3)) == (refused, 0)
    if abi == ("x86_64", "x86_64"):
        assert [answer(code, audit, number | X32_BIT) for number in keys] == [errno.EPERM] * 3
        assert answer(code, audit, socket | X32_BIT, VSOCK) == refused


@pytest.mark.parametrize("abi", ABIS)
@given(number=WORD, first=WORD, network=st.booleans())
def test_nothing_else_is_refused(abi: tuple[str, str], number: int, first: int, network: bool) -> None:
    audit, *named = ABIS[abi]
    plain = number & ~X32_BIT if abi[1] == "x86_64" else number
    if plain not in (*named, IO_URING_SETUP, SOCKETCALL):
        assert answer(program(abi[0], network=network), audit, number, first) == 0


@given(audit=WORD.filter(lambda audit: audit not in {row[0] for row in ABIS.values()}), number=WORD)
def test_calls_of_an_abi_that_is_none_are_let_through(audit: int, number: int) -> None:
    for machine in MACHINES:
        assert answer(program(machine, network=False), audit, number) == 0


def test_an_unknown_machine_has_no_filter() -> None:
    assert program("s390x", network=False) == b""
    assert {abi[0] for abi in ABIS} == set(MACHINES)
