"""A store of one story's own: its workers, what becomes of what it leaves, and who is told."""

import os
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from sandport_conformance import home as home_module
from sandport_conformance.bench import Bench
from sandport_conformance.declaration import Uses
from sandport_conformance.home import SHORT_GRACE_MS, kill, patient_answer, wait_until
from sandport_conformance.lab import Lab
from sandport_conformance.outcomes import Failed, TimedOut
from sandport_conformance.processes import running
from tests.conformance.tests import specimens
from tests.conformance.tests.conftest import HEALTHY_COMMAND, TIMES, a_check, settings


@contextmanager
def a_lab(command: tuple[str, ...] = HEALTHY_COMMAND) -> Iterator[tuple[Bench, Lab]]:
    bench = Bench(command, settings=settings(), times=TIMES, seed=1)
    bench.start()
    lab = Lab(bench, a_check(lambda lab: None, uses=Uses.OWN))
    try:
        yield bench, lab
    finally:
        lab.release()
        assert bench.finish() == []


def test_a_home_has_a_store_and_a_directory_of_its_own_which_are_gone_after_the_check() -> None:
    with a_lab() as (_, lab), lab.home() as one, lab.home() as other:
        assert len({one.store_id, other.store_id, lab.store_id}) == 3
        session = one.worker()
        assert session.offered["stateDir"] == str(one.state_dir) != str(other.state_dir)
        assert session.offered["limits"]["orphanGraceMs"] == one.grace_ms
        sandbox = one.acquire(session)
        assert list(one.listed(session)) == [sandbox.id]
        assert other.listed(other.worker()) == {}
    assert not one.state_dir.exists()
    assert not other.state_dir.exists()


def test_what_a_story_left_is_destroyed_by_a_worker_that_lives_or_a_new_one() -> None:
    with a_lab() as (bench, lab):
        with lab.home() as home:
            first, second = home.worker(), home.worker()
            sandbox = home.acquire(first)
            kill(first)
        assert home.listed(second) == {}
        with lab.home() as home:
            sandbox = home.acquire(home.worker())
            kill(bench.record_sessions[-1])
        assert home.listed(home.worker(), sandbox.id) == {}


@pytest.mark.slow
def test_what_cannot_be_destroyed_fails_a_story_that_was_well_and_is_noted_beside_one_that_was_not() -> None:
    bench = Bench(specimens.command(specimens.KeepsSandboxes), settings=settings(), times=TIMES, seed=1)
    bench.start()
    lab = Lab(bench, a_check(lambda lab: None, uses=Uses.OWN))

    def leave(failure: Failed | None = None) -> None:
        with lab.home() as home:
            home.acquire(home.worker())
            if failure is not None:
                raise failure

    with pytest.raises(Failed, match=r"cannot be destroyed: sp.* and it is listed"):
        leave()
    assert bench.notes == []
    with pytest.raises(Failed, match="the story"):
        leave(Failed("the story"))
    lab.release()
    assert any("left by a check that failed" in note for note in bench.notes)
    bench.finish()


def test_a_sandbox_of_the_sound_worker_outlives_it_by_the_grace_and_a_kept_one_for_good() -> None:
    with a_lab() as (_, lab), lab.home(grace_ms=SHORT_GRACE_MS) as home:
        session, watcher = home.worker(), home.worker()
        plain, kept = home.acquire(session), home.acquire(session, keep=True)
        kill(session)
        assert wait_until(lambda: plain.id not in home.listed(watcher), lab.times.exit_s)
        assert list(home.listed(watcher)) == [kept.id]
        assert home.attach(watcher, plain.id, plain.handle)["state"] == "gone"
        assert home.open(watcher, kept).lease["handle"] == kept.handle


def test_a_process_is_found_by_a_text_of_its_command_line_and_not_when_it_has_ended() -> None:
    mark = f"sandport-{os.getpid()}-{os.urandom(8).hex()}"
    assert running(mark) == []
    with a_lab() as (_, lab), lab.home() as home:
        sandbox = home.acquire(home.worker())
        call = sandbox.start(["sh", "-c", "sleep 300; :", mark], live=True)
        assert wait_until(lambda: running(mark), lab.times.call_s)
        sandbox.destroy()
        assert running(mark) == []
        sandbox.session.answer(call)


def test_a_worker_that_is_waited_for_hears_pings_and_does_not_take_its_host_for_dead(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(home_module, "_HEARTBEAT_S", 0.05)
    with a_lab() as (_, lab), lab.home() as home:
        limits = {**home.worker().offered["limits"], "hostSilenceMs": 800}
        session = home.worker(limits=limits)
        sandbox = home.acquire(session)
        answer = patient_answer(session, sandbox.start(["sleep", "2"]), lab.times.call_s)
        assert answer.body["result"]["exitCode"] == 0
        with pytest.raises(TimedOut, match=r"within 0\.1 s"):
            patient_answer(session, sandbox.start(["sleep", "300"]), 0.1)
