"""`sandport reap`, and what other commands say of clean-up: what was left is seen, ended, counted, and never lost."""

import os
import select
import signal
from typing import Any

import pytest

from sandport_provider_fake.testing import Fake
from tests.integration.command import Command, Done, until
from tests.integration.stage import PATIENCE_S

FAILS = '[{{action = "error", point = "destroy.before", times = {times}}}]'


def killed(sandport: Command, *words: str) -> str:
    """The sandbox of a `run` that was killed while its command ran."""
    with sandport.start("run", "-q", *words, "--", "sh", "-c", "echo ready; exec sleep 600") as process:
        assert process.stdout.readline() == b"ready\n", process.stderr.read()
        (lease,) = [one for one in sandport.leases() if one["pending"] is None and not one["kept"]]
        process.kill()
        process.wait()
    sandbox: str = lease["sandbox"]
    return sandbox


def left(sandport: Command, times: int) -> Done:
    """A run whose sandbox its vendor refuses to destroy so many times; 0 for ever."""
    return sandport("run", "-p", "fake", "-c", f"faults={FAILS.format(times=times)}", "--", "sh", "-c", "exit 3")


def test_a_killed_run_is_seen_and_reaped(sandport: Command) -> None:
    """verifiers#2406, #1520, paperclip#13515: what a killed host left ran on, and nobody knew of it."""
    sandbox = killed(sandport)
    (lease,) = sandport.leases()
    assert (lease["sandbox"], lease["state"], lease["pending"]["why"]) == (sandbox, "active", "ownerDead")
    assert lease["owner"]["live"] is False
    listed = sandport("leases")
    assert "its process is dead; clean-up is due now" in listed.out.decode()
    assert listed.err == "sandport: 1 waits for clean-up; to have it done now: sandport reap\n"
    shown = sandport("leases", "show", sandbox).out.decode()
    assert "pending      its process is dead" in shown
    # Whoever looks changes nothing.
    assert sandport.leases() == [lease]
    done = sandport("reap")
    assert (done.code, done.err) == (0, "")
    assert done.out.decode() == f"1 of 1: {sandbox} at local (lease {lease['id']}): gone\n"
    sandport.nothing_is_left()
    whats = [receipt["what"] for receipt in sandport("leases", "show", sandbox, "--json").object["receipts"]]
    assert whats == ["requested", "creating", "created", "ending", "destroyed"]
    done = sandport("reap")
    assert (done.code, done.out, done.err) == (0, b"nothing to clean up\n", "")


def test_a_run_cleans_up_after_a_killed_one(sandport: Command) -> None:
    killed(sandport)
    assert sandport("run", "-q", "--", "true").code == 0
    sandport.nothing_is_left()


def test_progress_is_counted_and_named_and_kept_leases_stay(sandport: Command) -> None:
    """crabbox#1730: a clean-up of many gave no progress, and 0 although some had failed; younong/hermescopy#278."""
    assert sandport("run", "-q", "--keep", "--name", "box", "--", "true").code == 0
    names = ["one", "two", "three"]
    script = "echo ready; exec sleep 600"
    processes = [sandport.start("run", "-q", "--name", name, "--", "sh", "-c", script) for name in names]
    for process in processes:
        assert process.stdout.readline() == b"ready\n"
    for process in processes:
        process.kill()
    for process in processes:
        process.communicate()
    done = sandport("reap", "--json")
    assert done.code == 0
    assert [line.split(":")[1].strip() for line in done.lines] == ["1 of 3", "2 of 3", "3 of 3"]
    found = done.object
    assert found["confirmed"] is True
    assert {(one["name"], one["end"]) for one in found["sandboxes"]} == {(name, "gone") for name in names}
    assert [lease["name"] for lease in sandport.leases()] == ["box"]
    assert sandport("leases", "end", "box").code == 0
    sandport.nothing_is_left()
    assert list((sandport.home / "instances").iterdir()) == []


def test_each_end_is_told_when_it_is_done_and_not_when_all_are(sandport: Command) -> None:
    """133, crabbox#1730: a long clean-up showed nothing."""
    fake = Fake(sandport.home)
    fake.clock.stand_still()
    script = "echo ready; exec sleep 600"
    processes = [sandport.start("run", "-q", "-p", "fake", "--", "sh", "-c", script) for _ in range(2)]
    for process in processes:  # both are there before one is killed, which the other would clean up
        assert process.stdout.readline() == b"ready\n"
    for process in processes:
        process.kill()
    for process in processes:
        process.communicate()
    sandboxes = {record.sandbox_id for record in fake.sandboxes()}
    fake.order("destroy.before", "late", by_s=100.0, clock="vendor", after=1)
    with sandport.start("reap") as process:
        try:
            assert select.select([process.stdout], [], [], PATIENCE_S)[0], "nothing was said"
            first = process.stdout.readline().decode()
            assert first.startswith("1 of 2: ")
            assert len(fake.sandboxes()) == 1
            fake.clock.advance(100.0)
            second = process.stdout.readline().decode()
            assert second.startswith("2 of 2: ")
            assert process.wait(PATIENCE_S) == 0
        finally:
            process.kill()
    assert {line.split()[3] for line in (first, second) if line.endswith(": gone\n")} == sandboxes
    fake.assert_nothing_left()
    sandport.nothing_is_left()


def test_a_run_that_leaves_something_says_so_and_reap_ends_it(sandport: Command) -> None:
    """paperclip#8513: a destroy that failed was forgotten."""
    done = left(sandport, times=2)
    assert done.code == 3
    assert done.lines[-1] == "sandport: 1 sandbox is not confirmed gone; to go on with the clean-up: sandport reap"
    (lease,) = sandport.leases()
    assert (lease["state"], lease["pending"]["why"], lease["pending"]["attempts"]) == ("ending", "ending", 1)
    failed = sandport("reap")
    assert failed.code == 125
    assert f"1 of 1: {lease['sandbox']} at fake (lease {lease['id']}): NOT CONFIRMED: " in failed.out.decode()
    assert "sandport reap --wait" in failed.err
    assert "Traceback" not in failed.err
    done = sandport("reap")
    assert done.code == 0
    assert done.out.endswith(b": gone\n")
    sandport.nothing_is_left()


def test_reap_goes_on_for_as_long_as_it_is_told(sandport: Command) -> None:
    assert left(sandport, times=3).code == 3
    done = sandport("reap", "--wait", "50")
    assert done.code == 0
    results = [line.rpartition(": ")[2] for line in done.out.decode().splitlines()]
    assert results[-1] == "gone"
    assert len(results) > 1
    sandport.nothing_is_left()


def test_an_end_that_never_comes_can_be_forgotten_with_a_reason(sandport: Command) -> None:
    assert left(sandport, times=0).code == 3
    (lease,) = sandport.leases()
    assert sandport("reap", "--wait", "0.1").code == 125
    done = sandport("reap", "--forget", lease["id"], "--reason", "the account was closed", "--json")
    assert done.code == 0
    assert done.object["forgotten"]["sandbox"] == lease["sandbox"]
    assert "nothing was destroyed" in done.err
    assert sandport.leases() == []
    shown = sandport("leases", "show", lease["id"]).out.decode()
    assert "forgotten       the account was closed" in shown
    assert sandport("reap").out == b"nothing to clean up\n"
    again = sandport("reap", "--forget", lease["id"], "--reason", "twice")
    assert (again.code, "gone already" in again.err) == (2, True)


def test_what_a_live_process_uses_is_not_forgotten(sandport: Command) -> None:
    with sandport.start("run", "-q", "--name", "live", "--", "sh", "-c", "echo ready; exec sleep 600") as process:
        assert process.stdout.readline() == b"ready\n"
        done = sandport("reap", "--forget", "live", "--reason", "no idea")
        assert done.code == 2
        assert f"process {process.pid} (sandport) uses it" in done.err
        process.send_signal(signal.SIGINT)
        assert process.wait() == 130
    sandport.nothing_is_left()


# ------------------------------------------------------------------ without a row


def lost(sandport: Command) -> str:
    """A sandbox whose journal is lost."""
    assert sandport("run", "-q", "--keep", "--", "true").code == 0
    (lease,) = sandport.leases()
    for path in sandport.home.glob("journal.db*"):
        path.unlink()
    sandbox: str = lease["sandbox"]
    return sandbox


def test_what_no_row_knows_is_listed_and_ended_when_that_is_wanted(sandport: Command) -> None:
    """inspect_k8s cleanup: a listing showed, and ended, releases of anybody."""
    sandbox = lost(sandport)
    assert sandport("reap").out == b"nothing to clean up\n"
    done = sandport("reap", "--unknown")
    assert done.code == 0
    assert f"unknown: {sandbox} at local, created 20" in done.out.decode()
    assert "reap --unknown --yes" in done.err
    assert sandport.sandboxes() == [sandbox]
    done = sandport("reap", "--unknown", "--yes", "--json")
    assert done.code == 0
    assert [(one["sandbox"], one["end"]) for one in done.object["unknown"]] == [(sandbox, "gone")]
    sandport.nothing_is_left()
    assert b"no sandbox of this store is unknown" in sandport("reap", "--unknown").out


@pytest.mark.parametrize("answer", ["y", "n"])
def test_on_a_terminal_it_is_asked(sandport: Command, answer: str) -> None:
    sandbox = lost(sandport)
    master, slave = os.openpty()
    with sandport.start("reap", "--unknown", stdin=slave, stderr=slave, env={"TERM": "dumb"}) as process:
        os.close(slave)
        asked = b""
        while b"[y/N]" not in asked:
            asked += os.read(master, 1024)
        os.write(master, answer.encode() + b"\n")
        assert process.wait(timeout=60) == 0
    os.close(master)
    assert b"destroy 1 sandbox?" in asked
    assert sandport.sandboxes() == ([] if answer == "y" else [sandbox])
    assert sandport("reap", "--unknown", "--yes").code == 0
    sandport.nothing_is_left()


def test_a_provider_that_cannot_be_asked_is_named(sandport: Command) -> None:
    """What nobody could look at is not proven to be empty."""
    sandport.configure('[providers.mute]\ncommand = ["sh", "-c", "exit 3"]\n')
    done = sandport("reap", "--unknown", "--json")
    assert done.code == 125
    assert [one["provider"] for one in done.object["unasked"]] == ["mute"]
    assert "mute could not be asked for its list" in done.err


def test_the_question_can_be_interrupted(sandport: Command) -> None:
    sandbox = lost(sandport)
    master, slave = os.openpty()
    with sandport.start("reap", "--unknown", stdin=slave, stderr=slave, env={"TERM": "dumb"}) as process:
        os.close(slave)
        asked = b""
        while b"[y/N]" not in asked:
            asked += os.read(master, 1024)
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=60) == 130
    os.close(master)
    assert sandport.sandboxes() == [sandbox]
    assert sandport("reap", "--unknown", "--yes").code == 0
    sandport.nothing_is_left()


# ------------------------------------------------------------------ signals, doctor


def test_reap_can_be_interrupted(sandport: Command) -> None:
    assert left(sandport, times=0).code == 3
    with sandport.start("reap", "--wait", "600") as process:
        assert b"NOT CONFIRMED" in process.stdout.readline()
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=60) == 130
        assert b"interrupted; what is not confirmed gone" in process.stderr.read()
    (lease,) = sandport.leases()
    assert sandport("reap", "--forget", lease["id"], "--reason", "test").code == 0


def checks(done: Done) -> dict[str, dict[str, Any]]:
    return {check["name"]: check for check in done.object["checks"]}


def test_doctor_tells_what_is_in_the_journal_and_changes_nothing(sandport: Command) -> None:
    sandbox = killed(sandport)
    with sandport.start("run", "-q", "--", "sh", "-c", "echo ready; exec sleep 600") as process:
        assert process.stdout.readline() == b"ready\n"
        # The live one has cleaned up after the killed one.
        until(lambda: all(one["pending"] is None for one in sandport.leases()))
        live = sandport("doctor", "--json")
        process.kill()
    assert (checks(live)["clean-up"]["state"], live.object["journal"]["sandboxes"]["leased"]) == ("ok", 1)
    assert f"1 live: {process.pid} (sandport)" in checks(live)["processes"]["detail"]
    done = sandport("doctor", "--json")
    assert (done.code, done.object["ok"]) == (0, True)
    found = checks(done)
    assert found["journal"]["detail"].endswith("sandboxes: 1 leased, 1 gone")
    assert str(sandport.home / "journal.db") in found["journal"]["detail"]
    assert (found["processes"]["state"], found["clean-up"]["state"]) == ("warning", "warning")
    assert f"1 dead that left something: {process.pid} (sandport, dead)" in found["processes"]["detail"]
    assert found["clean-up"]["fix"].endswith("sandport reap")
    (pending,) = done.object["journal"]["pending"]
    assert pending["pending"]["why"] == "ownerDead"
    assert pending["sandbox"] != sandbox
    assert done.object["journal"]["sizeBytes"] > 0
    assert sandport("doctor").code == 0
    assert len(sandport.leases()) == 1
    assert sandport("reap").code == 0
    sandport.nothing_is_left()
