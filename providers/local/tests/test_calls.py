"""System calls that an isolated sandbox does not get, by the kernel's own answers, in every ABI that it takes here."""

import base64
import errno
import os
import platform
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from providers.local.tests.inside import Inside
from providers.local.tests.worker import Worker

ROOT = os.geteuid() == 0
X86 = platform.machine() == "x86_64"
SOURCES = Path(__file__).parents[1] / "src"

NATIVE = """
import ctypes, errno, os, socket, threading
libc = ctypes.CDLL(None, use_errno=True)
machine = os.uname().machine
keys = (248, 249, 250) if machine == "x86_64" else (217, 218, 219)
def call(number, *arguments):
    answer = libc.syscall(ctypes.c_long(number), *arguments)
    return errno.errorcode[ctypes.get_errno()] if answer < 0 else "done"
def make(family):
    try:
        socket.socket(family, socket.SOCK_STREAM).close()
    except OSError as error:
        return errno.errorcode[error.errno]
    return "made"
ring = ctypes.c_long(-3)
print(call(keys[0], b"user", b"name", b"text", ctypes.c_long(4), ring))
print(call(keys[1], b"user", b"name", None, ring))
print(call(keys[2], ctypes.c_long(0), ring, ctypes.c_long(0)))
print(make(socket.AF_UNIX), make(socket.AF_INET))
print(make(socket.AF_VSOCK))
print(call(425, ctypes.c_long(1), None))
threads = [threading.Thread(target=os.getpid) for _ in range(4)]
for thread in threads: thread.start()
for thread in threads: thread.join()
child = os.fork()
if child == 0:
    libc.ptrace(0, 0, None, None)
    os.kill(os.getpid(), 19)
    os._exit(7)
print(os.WIFSTOPPED(os.waitpid(child, 0)[1]), libc.ptrace(7, child, None, None))
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""
OLD = """
import ctypes, errno, mmap, os
page = mmap.mmap(-1, 4096, prot=7)
page.write(bytes.fromhex("53 89f8 89f3 89d1 cd80 5b c3"))  # NUMBER, FIRST, SECOND; int 0x80
enter = ctypes.CFUNCTYPE(ctypes.c_int, *[ctypes.c_int] * 3)(ctypes.addressof(ctypes.c_char.from_buffer(page)))
assert enter(20, 0, 0) == os.getpid()
for number, first in ((286, 0), (287, 0), (288, 0), (359, 40), (102, 1), (425, 1)):
    print(errno.errorcode.get(-enter(number, first, 0)))
fd = enter(359, 1, 1)
print(fd > 0)
"""
"""The same as a 32-bit program calls it."""


@pytest.fixture(scope="module", params=["own", "ordinary"])
def worker(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Worker]:
    """A worker of whoever runs the tests, and one of an ordinary user."""
    state = tmp_path_factory.mktemp("state")
    state.chmod(0o700)
    worker = Worker(state, user=54321 if ROOT and request.param == "ordinary" else None)
    yield worker
    assert list(state.iterdir()) == []
    worker.close()


@pytest.mark.parametrize("network", [False, True])
def test_keyrings_and_the_hypervisors_sockets_are_shut_and_all_else_works(worker: Worker, network: bool) -> None:
    """moby/moby#10939, opencontainers/runc#453: keys are in no namespace, and a container could clear the host's."""
    box = Inside(worker, config={"network": network})
    said = box.python(NATIVE).splitlines()
    assert said[:4] == ["EPERM", "EPERM", "EPERM", "made made"]
    assert said[4:6] == ["EAFNOSUPPORT", "EPERM"] or network
    assert said[6:] == ["True 0", "7"]
    status = dict(line.split(":\t") for line in box.says("cat /proc/self/status").splitlines() if ":\t" in line)
    assert status["Seccomp"] == "2"
    assert box.says("cat /proc/keys /proc/key-users | wc -c").splitlines()[-1] == "0"
    if X86:
        outside = subprocess.run([sys.executable, "-c", OLD], capture_output=True, text=True, check=False)
        inside = box.worker.call("execute", sandboxId=box.id, argv=["/usr/bin/env", "python3", "-c", OLD])
        assert (inside.get("exitCode") == 0) is (outside.returncode == 0), "a kernel takes these calls or does not"
        if outside.returncode == 0:
            old = base64.b64decode(inside["stdout"].get("data", "")).decode().split()
            assert old[:3] == ["EPERM"] * 3
            assert old[3:6] == ["EAFNOSUPPORT", "EAFNOSUPPORT", "EPERM"] or network
            assert old[6] == "True"
    assert box.destroy() == "destroyed"


LEAVE = """
import ctypes, sys
sys.path.append(sys.argv[1])
from sandport_provider_local import namespaces
libc = ctypes.CDLL(None, use_errno=True)
add, _, keyctl = (248, 249, 250) if sys.argv[2] == "x86_64" else (217, 218, 219)
libc.syscall(keyctl, 1, None)
key = libc.syscall(add, b"user", b"sandport-test", b"secret", 6, -3)
def find(): return libc.syscall(keyctl, 10, -3, b"user", b"sandport-test", 0)
print(key > 0, find() > 0)
namespaces.leave_keyring()
print(find() < 0, ctypes.get_errno())
"""


def test_a_keyring_is_left_behind_with_what_is_in_it() -> None:
    """A second way, which holds where there is no filter: the session's keyring is not inherited."""
    said = subprocess.run(
        [sys.executable, "-c", LEAVE, os.fspath(SOURCES), platform.machine()],
        capture_output=True,
        text=True,
        check=True,
    ).stdout.split()
    # Where the machine itself refuses keys, as containers do, there is nothing to leave and nothing fails.
    assert said in (
        ["True", "True", "True", str(errno.ENOKEY)],
        *(["False", "False", "True", str(number)] for number in (errno.ENOSYS, errno.EPERM)),
    )
