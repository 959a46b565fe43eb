"""The init by itself, spoken to over its socket as a worker does, and as nobody should."""

import contextlib
import itertools
import os
import signal
import socket
import sys
import time
from array import array
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from providers.local.tests.leases import unique_sleep
from providers.local.tests.machine import (
    PATIENCE_S,
    children_of,
    descriptors_of,
    running,
    start_ticks,
    started,
    state_of,
    until,
    wait_for_end,
)
from sandport_provider_local.init import LISTENER_FD, MESSAGE_BYTES
from sandport_provider_local.launch import spawn_init
from sandport_provider_local.link import REQUEST_BYTES
from sandport_provider_local.places import INIT_TOKEN, Place, Record
from sandport_sdk.testing import new_id


class Peer:
    """One end of the init's socket, with no code of the provider around it."""

    def __init__(self, place: Place) -> None:
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        folder = os.open(place.path, os.O_PATH)
        self.socket.connect(f"/proc/self/fd/{folder}/socket")
        os.close(folder)
        self.socket.settimeout(PATIENCE_S)

    def say(self, *fields: bytes | str | int, fds: tuple[int, ...] = ()) -> None:
        words = [field if isinstance(field, bytes) else str(field).encode() for field in fields]
        self.say_raw(b"\0".join(words), fds=fds)

    def say_raw(self, message: bytes, *, fds: tuple[int, ...] = ()) -> None:
        control = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array("i", fds))] if fds else []
        self.socket.sendmsg([message], control)

    def hear(self) -> list[bytes]:
        """The next message; empty at the end of the connection."""
        message = self.socket.recv(65536)
        return message.split(b"\0") if message else []

    def is_dropped(self) -> bool:
        try:
            return self.hear() == []
        except ConnectionResetError:
            return True


class Running:
    """An init, with its place and record."""

    def __init__(self, place: Place, record: Record, pid: int) -> None:
        self.place = place
        self.record = record
        self.pid = pid
        self.peers: list[Peer] = []

    def peer(self) -> Peer:
        peer = Peer(self.place)
        self.peers.append(peer)
        return peer

    def worker(self, *, grace_ms: int = 60_000) -> Peer:
        """A connection that has said hello."""
        peer = self.peer()
        peer.say("hello", self.record.token, grace_ms)
        assert peer.hear()[0] == b"ready"
        return peer


@pytest.fixture
def init(state_dir: Path) -> Iterator[Running]:
    place = Place(state_dir, new_id())
    record = place.create(store_id="s", ttl_ms=600_000)
    listener = place.listen()
    pid = spawn_init(place, record, listener, grace_ms=60_000)
    listener.close()
    yield from served(Running(place, record, pid))


def served(up: Running) -> Iterator[Running]:
    """It is there for a test, and then it ends in order."""
    pid = up.pid
    up.worker()
    yield up
    for peer in up.peers:
        peer.socket.close()
    if state_of(pid) not in "ZX":
        os.kill(pid, signal.SIGTERM)
    assert os.waitpid(pid, 0) == (pid, 0)


PATIENT = """
import sys
from sandport_provider_local import init

init.TERM_GRACE_S = 1e6
sys.exit(init.main(sys.argv[1:]))
"""
"""An init whose grace nobody lives to see the end of."""


@pytest.fixture
def patient(state_dir: Path) -> Iterator[Running]:
    place = Place(state_dir, new_id())
    record = place.create(store_id="s", ttl_ms=600_000)
    with place.listen() as listener:
        pid = os.posix_spawn(
            sys.executable,
            [sys.executable, "-c", PATIENT, str(place.path), str(record.expires_at_ms), "60000", "0"],
            {INIT_TOKEN: record.token},
            file_actions=[(os.POSIX_SPAWN_DUP2, listener.fileno(), LISTENER_FD)],
            setsid=True,
        )
    yield from served(Running(place, record, pid))


def start(peer: Peer, seq: int, *argv: bytes, cwd: bytes = b"/") -> int:
    """Start a command whose output is thrown away; its pid."""
    null = os.open(os.devnull, os.O_RDWR)
    mark = b"SANDPORT_PROCESS=%d" % seq
    peer.say("start", seq, mark, "null", cwd, len(argv), *argv, b"PATH=/usr/bin:/bin", mark, fds=(null, null))
    os.close(null)
    verb, number, *rest = peer.hear()
    assert (verb, number) == (b"started", b"%d" % seq)
    return int(rest[0])


def test_it_says_which_process_it_is(init: Running) -> None:
    peer = init.peer()
    peer.say("hello", init.record.token, 1000)
    assert peer.hear() == [b"ready", b"%d" % init.pid, b"%d" % start_ticks(init.pid), b"0"]
    identity = init.place.read_identity()
    assert identity is not None
    assert (identity.pid, identity.is_alive(init.record.token)) == (init.pid, True)
    assert not identity.is_alive("another-token")


@pytest.mark.parametrize(
    "message",
    [
        b"\xff" * 100,
        b"{}",
        b"hello",
        b"hello\0wrong-token\0001000",
        b"start\0001\0m\0null\0/\0001\0true",
        b"end",
        b"x" * (MESSAGE_BYTES + 1),
    ],
    ids=["bytes", "json", "short", "token", "start", "end", "long"],
)
def test_who_does_not_say_hello_is_dropped_and_nobody_else(init: Running, message: bytes) -> None:
    worker, stranger = init.worker(), init.peer()
    stranger.say_raw(message)
    assert stranger.is_dropped()
    start(worker, 1, b"true")
    assert worker.hear() == [b"exit", b"1", b"0", b"0"]


@pytest.mark.parametrize(
    "message",
    [
        b"what\0is\0this",
        b"start\0001",
        b"start\0001\0m\0null\0/\000x\0true",
        b"start\0001\0m\0null\0/\0002\0true",
        b"start\0001\0m\0null\0/\0001\0true",
        b"start\0001\0m\0null\0/\0001\0true\0no-variable",
        b"kill\0001",
        b"signal\0001\0x\0001",
        b"memfd",
        b"",
    ],
)
def test_a_worker_that_speaks_nonsense_is_dropped_and_nobody_else(init: Running, message: bytes) -> None:
    worker, broken = init.worker(), init.worker()
    pid = start(broken, 7, b"sleep", b"600")
    broken.say_raw(message)
    assert broken.is_dropped()
    wait_for_end(pid)
    start(worker, 1, b"true")
    assert worker.hear() == [b"exit", b"1", b"0", b"0"]


VERBS = st.sampled_from([b"start", b"kill", b"signal", b"memfd", b"hello", b"started", b""])
FIELDS = st.lists(st.one_of(st.binary(max_size=8), st.integers(-(2**70), 2**70).map(lambda n: b"%d" % n)), max_size=9)


def test_no_message_of_a_worker_ends_the_init(init: Running) -> None:
    @given(verb=VERBS, fields=FIELDS, descriptors=st.integers(0, 6))
    def send(verb: bytes, fields: list[bytes], descriptors: int) -> None:
        null = os.open(os.devnull, os.O_RDWR)
        broken = init.worker()
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            broken.say(verb, *fields, fds=(null,) * descriptors)
            broken.say("what")
        os.close(null)
        while not broken.is_dropped():
            pass
        init.peers.remove(broken)
        broken.socket.close()

    send()
    worker = init.worker()
    start(worker, 1, b"true")
    assert worker.hear() == [b"exit", b"1", b"0", b"0"]
    assert len(descriptors_of(init.pid)) < 16, "none of theirs was kept"


def test_a_carrier_of_a_message_must_be_a_file_of_a_bounded_size(init: Running) -> None:
    for make in (_pipe, _too_large):
        worker = init.worker()
        fd = make()
        worker.say("memfd", fds=(fd,))
        os.close(fd)
        assert worker.is_dropped()


def test_many_strangers_do_not_keep_a_worker_out(init: Running) -> None:
    for _ in range(40):
        init.peer()
    worker = init.worker()
    start(worker, 1, b"true")
    assert worker.hear()[0] == b"exit"


def test_descriptors_of_refused_messages_are_closed(init: Running) -> None:
    read, write = os.pipe()
    stranger = init.peer()
    stranger.say("nonsense", fds=(write, write))
    os.close(write)
    assert stranger.is_dropped()
    assert os.read(read, 1) == b""
    os.close(read)


def test_a_worker_that_does_not_read_is_dropped_before_its_answers_fill_the_memory(init: Running) -> None:
    worker, deaf = init.worker(), init.worker()
    deaf.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1)
    with pytest.raises((BrokenPipeError, ConnectionResetError)):
        say_for_ever(deaf)
    start(worker, 1, b"true")
    assert worker.hear()[0] == b"exit"


@pytest.mark.parametrize(("script", "status"), [("exit 3", 3 << 8), ("kill -9 $$", 9), ("exit 137", 137 << 8)])
def test_a_status_is_the_kernels_own(init: Running, script: str, status: int) -> None:
    worker = init.worker()
    start(worker, 1, b"sh", b"-c", script.encode())
    assert worker.hear() == [b"exit", b"1", b"%d" % status, b"0"]


def test_it_stands_in_its_own_folder_whatever_a_command_asks_for(init: Running) -> None:
    worker = init.worker()
    start(worker, 1, b"true", cwd=b"/usr")
    assert worker.hear()[0] == b"exit"
    assert os.readlink(f"/proc/{init.pid}/cwd") == os.fspath(init.place.path)


def test_orphans_come_to_it_and_are_reaped(init: Running) -> None:
    word = unique_sleep()
    worker = init.worker()
    start(worker, 1, b"setsid", b"-f", b"sleep", word.encode())
    assert worker.hear()[0] == b"exit"
    until(lambda: children_of(init.pid) == running(word) != [], "the orphan has come")
    (orphan,) = running(word)
    os.kill(orphan, signal.SIGKILL)
    until(lambda: children_of(init.pid) == [], "it is reaped")


def test_two_kills_of_one_command_are_both_answered(init: Running) -> None:
    word = unique_sleep()
    worker = init.worker()
    pid = start(worker, 1, b"sh", b"-c", f'trap "" TERM; sleep {word} & wait'.encode())
    started(word)  # The signal is ignored from now on.
    worker.say("kill", 1, "SANDPORT_PROCESS=1", "soon")
    worker.say("kill", 1, "SANDPORT_PROCESS=1", "now")
    assert sorted(worker.hear() for _ in range(3)) == [
        [b"exit", b"1", b"9", b"1"],
        [b"killed", b"1", b"gone"],
        [b"killed", b"1", b"gone"],
    ]
    wait_for_end(pid)


def test_a_gentle_kill_waits_for_the_end_of_the_command_and_not_for_its_grace(patient: Running) -> None:
    word = unique_sleep()
    worker = patient.worker()
    start(worker, 1, b"sh", b"-c", f"sh -c \"trap '' TERM; exec sleep {word}\" & wait".encode())
    (stays,) = started(word)
    worker.say("kill", 1, "SANDPORT_PROCESS=1", "soon")
    assert worker.hear() == [b"exit", b"1", b"%d" % signal.SIGTERM, b"1"]
    assert worker.hear() == [b"killed", b"1", b"gone"]
    wait_for_end(stays)


def test_a_gentle_kill_is_no_hurry_until_another_one_is(patient: Running) -> None:
    """A cancel does not wait for the grace of a time-out that came before it."""
    word = unique_sleep()
    worker = patient.worker()
    start(worker, 1, b"sh", b"-c", f'trap "" TERM; sleep {word} & wait'.encode())
    started(word)
    worker.say("kill", 1, "SANDPORT_PROCESS=1", "soon")
    other = start(worker, 2, b"true")
    assert worker.hear() == [b"exit", b"2", b"0", b"0"]
    assert len(running(word)) == 1
    wait_for_end(other)
    worker.say("kill", 1, "SANDPORT_PROCESS=1", "now")
    heard = [worker.hear() for _ in range(3)]
    assert heard.count([b"killed", b"1", b"gone"]) == 2
    assert running(word) == []


def test_a_gentle_kill_of_what_has_ended_does_nothing(init: Running) -> None:
    word = unique_sleep()
    worker = init.worker()
    start(worker, 1, b"sh", b"-c", f"sleep {word} & exit 0".encode())
    assert worker.hear()[0] == b"exit"
    worker.say("kill", 1, "SANDPORT_PROCESS=1", "soon")
    assert worker.hear() == [b"killed", b"1", b"ended"]
    assert len(started(word)) == 1


def test_the_end_is_announced_before_anything_is_killed(init: Running) -> None:
    worker, other = init.worker(), init.worker()
    pid = start(worker, 1, b"sleep", b"600")
    other.say("end")
    assert (worker.hear(), other.hear()) == ([b"ending", b"destroyed"], [b"ending", b"destroyed"])
    assert worker.hear() == other.hear() == []
    wait_for_end(init.pid)
    assert (state_of(pid), init.place.exists()) == ("X", False)


def test_it_removes_its_own_folder_and_no_other_that_took_its_name(init: Running, state_dir: Path) -> None:
    moved = state_dir / "moved"
    init.place.path.rename(moved)
    init.place.path.mkdir()
    os.kill(init.pid, signal.SIGTERM)
    wait_for_end(init.pid)
    assert (moved.exists(), init.place.exists()) == (False, True)
    init.place.path.rmdir()


def test_an_init_that_is_idle_does_not_wake(init: Running) -> None:
    init.worker()
    before = _switches(init.pid)
    time.sleep(0.3)  # that nothing happens is what is tested: there is no event to wait for
    assert _switches(init.pid) - before <= 1


def say_for_ever(peer: Peer) -> None:
    for number in itertools.count():
        peer.say("signal", 99, 10, number)


def _switches(pid: int) -> int:
    """How often it went to sleep, once more each time that it woke; not how often others were let first."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("voluntary_ctxt_switches"))


def _pipe() -> int:
    read, write = os.pipe()
    os.close(write)
    return read


def _too_large() -> int:
    fd = os.memfd_create("too-large")
    os.truncate(fd, REQUEST_BYTES + 1)
    return fd
