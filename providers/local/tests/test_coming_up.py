"""A sandbox whose init was killed and which gets another one: nobody takes the new one for what the old one left."""

import json
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from providers.local.tests.machine import environment_of, state_of, until
from sandport_provider_local.launch import spawn_init
from sandport_provider_local.places import INIT_TOKEN, Place, Record
from sandport_provider_local.proc import boot_id, start_ticks
from sandport_provider_local.survivors import SANDBOX_ID, find, sweep
from sandport_provider_local.term import FIRST_S
from sandport_sdk.testing import new_id


@pytest.fixture
def place(state_dir: Path) -> Iterator[Place]:
    made = Place(state_dir, new_id())
    yield made
    if made.exists():
        made.remove()


@pytest.fixture
def record(place: Place) -> Record:
    """What is recorded of a sandbox whose init has come up and was killed."""
    record = place.create(store_id="s", ttl_ms=600_000)
    dead = subprocess.Popen(["true"])
    ticks = start_ticks()
    dead.wait()
    identity = {"pid": dead.pid, "startTicks": ticks, "bootId": boot_id()}
    (place.path / "init.json").write_text(json.dumps(identity))
    return record


class ComingUp:
    """A keeper that has not said yet who it is, and what it has started: two processes as a look finds them."""

    def __init__(self, sandbox_id: str, token: str) -> None:
        text = f"/usr/bin/env -i {SANDBOX_ID}={sandbox_id} sleep 600 & echo $!; wait"
        self.keeper = subprocess.Popen(
            ["/bin/sh", "-c", text], env={INIT_TOKEN: token, "PATH": "/usr/bin:/bin"}, stdout=subprocess.PIPE
        )
        assert self.keeper.stdout is not None
        self.started = int(self.keeper.stdout.readline())
        mark = f"{SANDBOX_ID}={sandbox_id}".encode()
        until(lambda: mark in environment_of(self.started), "it carries the mark")

    def lives(self) -> tuple[bool, bool]:
        return self.keeper.poll() is None, state_of(self.started) not in "ZX"

    def end(self) -> None:
        assert self.keeper.stdout is not None
        if state_of(self.started) not in "ZX":
            os.kill(self.started, signal.SIGKILL)
        self.keeper.kill()
        self.keeper.wait()
        self.keeper.stdout.close()


@pytest.fixture
def coming_up(place: Place, record: Record) -> Iterator[ComingUp]:
    made = ComingUp(place.sandbox_id, record.token)
    yield made
    made.end()


def test_a_look_for_survivors_spares_what_a_new_keeper_has_started(place: Place, coming_up: ComingUp) -> None:
    """Whoever saw the init die looks without the folder's lock, while another worker starts the next one."""
    assert sweep(place) == []
    assert coming_up.lives() == (True, True)
    coming_up.keeper.kill()
    coming_up.keeper.wait()
    assert sweep(place) == []
    assert coming_up.lives() == (False, False), "without its keeper it is one"


def test_who_holds_the_lock_ends_a_keeper_that_has_not_come_up_too(place: Place, coming_up: ComingUp) -> None:
    assert {found.pid for found in find(place, inits=True)} == {coming_up.keeper.pid, coming_up.started}
    assert sweep(place, inits=True) == []
    assert coming_up.lives() == (False, False)


def test_an_init_waits_for_its_first_worker_though_the_grace_is_short(place: Place) -> None:
    """A worker that has started one may not run again for a while: its hello comes when it does."""
    record = place.create(store_id="s", ttl_ms=600_000)
    listener = place.listen()
    begun = time.monotonic()
    with listener, place.connect():
        init = spawn_init(place, record, listener, grace_ms=1)
        assert os.waitstatus_to_exitcode(os.waitpid(init, 0)[1]) == 0
    assert time.monotonic() - begun >= FIRST_S
    assert not place.exists()
