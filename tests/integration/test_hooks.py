"""What plugins are told, asked and given by a host at work."""

import asyncio
import contextlib
import os
import re
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from sandport import blocking
from sandport.clock import Clock, VirtualClock
from sandport.configuration import Configuration, EnvironmentSettings, HostSettings
from sandport.errors import (
    CommandNotFound,
    Internal,
    LeaseLost,
    LeaseUnknown,
    NotAuthorised,
    UsageError,
    WorkerCrashed,
)
from sandport.hooks import (
    Action,
    CommandEndedEvent,
    CommandStartedEvent,
    LeaseEndedEvent,
    LeaseLostEvent,
    LeaseStartedEvent,
    hookimpl,
)
from sandport.host import Host
from sandport_protocol.limits import Limits
from tests.integration.stage import QUICK, ROOT, Records, configuration, eventually, worker
from tests.integration.test_lease_faults import refuse
from tests.integration.vendor import EAGER, Vendor, leased_before_a_cancel, states, victim

pytestmark = pytest.mark.anyio

WORD = "battery-staple"
SAYS_WORD = "printf %s-%s battery staple; exit 3"
Event = LeaseStartedEvent | LeaseEndedEvent | LeaseLostEvent | CommandStartedEvent | CommandEndedEvent


class Witness:
    """Keeps every event."""

    def __init__(self) -> None:
        self.events: list[Event] = []

    @hookimpl
    def sandport_lease_started(self, event: LeaseStartedEvent) -> None:
        self.events.append(event)

    @hookimpl
    def sandport_lease_ended(self, event: LeaseEndedEvent) -> None:
        self.events.append(event)

    @hookimpl
    def sandport_lease_lost(self, event: LeaseLostEvent) -> None:
        self.events.append(event)

    @hookimpl
    def sandport_command_started(self, event: CommandStartedEvent) -> None:
        self.events.append(event)

    @hookimpl
    def sandport_command_ended(self, event: CommandEndedEvent) -> None:
        self.events.append(event)

    def leases(self) -> list[str]:
        """What became of leases, in words."""
        words = {LeaseStartedEvent: "started", LeaseEndedEvent: "ended", LeaseLostEvent: "lost"}
        told = []
        for event in self.events:
            if isinstance(event, LeaseEndedEvent):
                told.append(f"ended: {event.reason}" + ("" if event.confirmed else ", not confirmed"))
            elif isinstance(event, LeaseStartedEvent | LeaseLostEvent):
                told.append(words[type(event)])
        return told

    def ends(self) -> list[CommandEndedEvent]:
        """The ends of commands."""
        return [event for event in self.events if isinstance(event, CommandEndedEvent)]


class Refuses:
    """Refuses what it is told to."""

    def __init__(self, *verbs: str) -> None:
        self.verbs = verbs
        self.asked: list[Action] = []

    @hookimpl
    async def sandport_authorise(self, action: Action) -> str | None:
        self.asked.append(action)
        return "not you" if action.verb in self.verbs else None


@contextlib.asynccontextmanager
async def hosting(
    vendor: Vendor, *plugins: object, clock: Clock | None = None, cleans_up: bool = True, limits: Limits | None = None
) -> AsyncIterator[Host]:
    """A host of the vendor's home with these plugins."""
    settings = Configuration(
        host=HostSettings(timing=QUICK, clean_up=EAGER),
        environments={"env": EnvironmentSettings(provider="fake")},
    )
    async with Host.open(
        settings,
        home=vendor.fake.home,
        log=vendor.records.log,
        clock=clock,
        cleans_up=cleans_up,
        plugins=plugins,
    ) as host:
        yield host


# ------------------------------------------------------------------ commands


async def test_a_lease_and_its_commands_are_told_in_order_without_their_output(vendor: Vendor) -> None:
    seen = Witness()
    async with (
        hosting(vendor, seen) as host,
        host.lease("env", run="r", name="n", principal="ada", work_item="w") as sandbox,
    ):
        said = await sandbox.execute(["sh", "-c", SAYS_WORD], timeout_s=60)
        assert (said.stdout.data, said.exit_code) == (WORD.encode(), 3)
        assert (await sandbox.execute(shell="kill -9 $$", user=None)).signal == 9
        with pytest.raises(CommandNotFound):
            await sandbox.execute(["there-is-no-such-command", b"\xff"])
        with pytest.raises(UsageError):
            await sandbox.execute([])
        async with sandbox.start(["cat"], stdin=True) as process:
            await process.stdin.write(b"0123456789")
            await process.stdin.close()
            await process.wait()
            await eventually(lambda: len(seen.ends()) == 4)  # when it ended, and not with its block
        await sandbox.write_bytes("file", b"x" * 3)
        lease_id, sandbox_id = sandbox.lease_id, sandbox.id
    started, *commands, ended = seen.events
    assert isinstance(started, LeaseStartedEvent)
    assert isinstance(ended, LeaseEndedEvent)
    assert started.lease == ended.lease
    ids = started.lease
    assert (ids.lease_id, ids.sandbox_id, ids.provider, ids.environment) == (lease_id, sandbox_id, "fake", "env")
    assert (ids.run, ids.name, ids.principal, ids.work_item, ids.tenant) == ("r", "n", "ada", "w", None)
    assert (ended.reason, ended.confirmed) == ("its block is over", True)
    begins, ends = commands[::2], seen.ends()
    assert commands[1::2] == ends
    assert [event.command_id for event in begins if isinstance(event, CommandStartedEvent)] == [
        event.command_id for event in ends
    ]
    assert len({event.command_id for event in ends}) == 4
    first, killed, missing, piped = ends
    assert first.argv == ("sh", "-c", SAYS_WORD)
    assert (first.ended, first.exit_code, first.stdout_bytes, first.error) == ("exited", 3, len(WORD), None)
    assert WORD not in repr(seen.events)
    assert first.duration_s is not None
    assert (killed.argv, killed.shell, killed.ended, killed.signal) == (None, "kill -9 $$", "signalled", 9)
    assert missing.argv == ("there-is-no-such-command", b"\xff")
    assert (missing.ended, missing.error, missing.dispatched) == (None, "CommandNotFound", "no")
    assert (piped.argv, piped.exit_code, piped.stdout_bytes) == (("cat",), 0, 10)


async def test_what_was_cancelled_and_what_a_crash_cut_has_an_end_too(vendor: Vendor) -> None:
    seen = Witness()
    async with hosting(vendor, seen) as host, host.lease("env") as sandbox:
        running = asyncio.ensure_future(sandbox.execute(["sleep", "600"]))
        await eventually(lambda: any(isinstance(event, CommandStartedEvent) for event in seen.events))
        running.cancel()
        await asyncio.wait((running,))
        async with sandbox.start(["sleep", "600"]):
            pass  # nobody waits for it
        vendor.fake.order("execute.before-answer", "crash")
        with pytest.raises(WorkerCrashed):
            await sandbox.execute(["true"])
    cancelled, left, crashed = seen.ends()
    assert (left.ended, left.error) == ("signalled", None)
    assert (cancelled.ended, cancelled.error, cancelled.dispatched) == (None, "CancelledError", None)
    assert (crashed.ended, crashed.error, crashed.dispatched) == (None, "WorkerCrashed", "unknown")


# ------------------------------------------------------------------ ends


async def test_each_way_to_end_a_lease_is_told_once(vendor: Vendor) -> None:
    seen = Witness()
    async with hosting(vendor, seen) as host:
        async with host.lease("env"):
            pass
        async with host.lease("env") as sandbox:
            assert await sandbox.destroy()
        async with host.lease("env") as sandbox:
            await host.end_lease(sandbox.lease_id, reason="enough")
            with pytest.raises(LeaseLost):
                await sandbox.execute(["true"])
        with pytest.raises(ValueError, match="its own"):
            async with host.lease("env"):
                raise ValueError("its own")
        async with host.lease("env", keep=True, name="kept"):
            pass
        async with host.attach("kept"):
            pass
        await host.end_lease("kept")
    assert [told for told in seen.leases() if told != "lost"] == [
        *("started", "ended: its block is over"),
        *("started", "ended: ended by its holder"),
        *("started", "ended: enough"),
        *("started", "ended: its block is over"),
        *("started", "ended: ended by request"),
    ]
    vendor.fake.assert_nothing_left()


async def test_an_end_that_another_process_made_is_told_as_lost_and_ended(vendor: Vendor) -> None:
    holder, other = Witness(), Witness()
    clock = VirtualClock()
    async with hosting(vendor, holder, clock=clock) as first, hosting(vendor, other) as second:
        lost: list[str] = []
        async with first.lease("env", on_lost=lost.append) as sandbox:
            await second.end_lease(sandbox.lease_id, force=True, reason="mine now")

            def told() -> bool:
                clock.advance(1)
                return bool(lost)

            await eventually(told)
    assert holder.leases() == ["started", "lost", "ended: another process ended it"]
    assert other.leases() == ["ended: mine now"]
    assert len(lost) == 1


async def test_a_sandbox_that_its_vendor_ended_is_told_as_lost_and_ended(vendor: Vendor) -> None:
    seen = Witness()
    lost: list[str] = []
    async with hosting(vendor, seen) as host, host.lease("env", keep=True, name="k"):
        pass
    async with hosting(vendor, seen) as host, host.attach("k", on_lost=lost.append) as sandbox:
        vendor.fake.clock.advance(7200)
        for _ in range(2):
            with pytest.raises(LeaseLost):
                await sandbox.execute(["true"])
        await sandbox.destroy()
    assert seen.leases() == ["started", "lost", "ended: ended by its holder"]
    assert len(lost) == 1
    (command,) = seen.ends()
    assert (command.ended, command.error) == (None, "LeaseLost")


async def test_an_end_that_the_journal_could_not_take_is_told_once(
    vendor: Vendor, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = Witness()
    async with hosting(vendor, seen) as host:
        refuse(monkeypatch, host, "ending", times=1)
        async with host.lease("env"):
            pass
        assert seen.leases() == ["started", "ended: its block is over"]
        await host.clean_up()
        assert await states(host) == {"gone": 1}
    assert seen.leases() == ["started", "ended: its block is over"]


async def test_what_an_operator_forgets_is_told_and_is_not_confirmed(vendor: Vendor) -> None:
    async with hosting(vendor) as host, host.lease("env", keep=True, name="k") as sandbox:
        pass
    seen = Witness()
    async with hosting(vendor, seen) as host:
        await host.forget(sandbox.id, reason="the account was closed")
    assert seen.leases() == ["ended: forgotten, not confirmed"]
    (record,) = vendor.fake.sandboxes()
    refuses = Refuses("end unknown")
    async with hosting(vendor, refuses) as host:
        (unknown,) = (await host.find_unknown()).unknown
        with pytest.raises(NotAuthorised):
            await host.end_unknown(unknown)
        assert vendor.fake.sandboxes() == [record]
        refuses.verbs = ()
        assert (await host.end_unknown(unknown)).end == "gone"
    assert {(action.provider, action.sandbox_id) for action in refuses.asked} == {("fake", sandbox.id)}


async def test_an_end_that_is_not_confirmed_is_told_when_it_is(vendor: Vendor) -> None:
    seen = Witness()
    async with hosting(vendor, seen) as host:
        async with host.lease("env"):
            vendor.fake.order("destroy.before", "error", condition="Unavailable", dispatched="no", times=3)
        await eventually(lambda: len(seen.leases()) == 3)
        assert await states(host) == {"gone": 1}
    assert seen.leases() == ["started", "ended: its block is over, not confirmed", "ended: its block is over"]


async def test_what_a_dead_host_held_is_told_by_the_one_that_ends_it(vendor: Vendor) -> None:
    body = """
async with host.lease("fake", principal="ada") as sandbox:
    print(sandbox.lease_id, flush=True)
    await asyncio.sleep(600)
"""
    dying = await asyncio.create_subprocess_exec(*victim(vendor.fake.home, body), stdout=subprocess.PIPE)
    try:
        assert dying.stdout is not None
        lease_id = (await dying.stdout.readline()).decode().strip()
    finally:
        dying.kill()
        await dying.wait()
    seen = Witness()
    async with hosting(vendor, seen) as host:
        await eventually(lambda: bool(seen.events))
        assert await states(host) == {"gone": 1}
    (event,) = seen.events
    assert isinstance(event, LeaseEndedEvent)
    assert (event.lease.lease_id, event.lease.principal, event.reason) == (lease_id, "ada", "its owner died")


async def test_a_cancel_of_an_acquire_at_any_turn_leaves_as_many_ends_as_starts(vendor: Vendor) -> None:
    seen = Witness()
    leased = False
    async with hosting(vendor, seen) as host:
        await host.describe("fake")
        turns = 0
        while not leased:
            leased = await leased_before_a_cancel(host, turns)
            turns += 1 + turns // 4
        assert set(await states(host)) <= {"gone"}
    starts = [event.lease.lease_id for event in seen.events if isinstance(event, LeaseStartedEvent)]
    ends = [event.lease.lease_id for event in seen.events if isinstance(event, LeaseEndedEvent)]
    assert starts
    assert sorted(starts) == sorted(ends)
    assert len(set(ends)) == len(ends)


async def test_a_create_that_came_to_no_lease_is_told_as_none(vendor: Vendor) -> None:
    vendor.fake.order("acquire.before-answer", "error", condition="Internal", dispatched="unknown")
    seen = Witness()
    async with hosting(vendor, seen) as host:
        with pytest.raises(Internal):
            async with host.lease("env"):
                pytest.fail("there is a lease")
        assert await states(host) == {"gone": 1}
    assert seen.events == []


async def test_the_end_of_a_host_waits_until_async_hooks_have_been_told(vendor: Vendor) -> None:
    told: list[str] = []

    class Slow:
        @hookimpl
        async def sandport_lease_ended(self, event: LeaseEndedEvent) -> None:
            await asyncio.sleep(0.5)
            told.append(event.reason)

    async with hosting(vendor, Slow()) as host, host.lease("env"):
        pass
    assert told == ["its block is over"]


class Broken:
    """Fails wherever it can."""

    @hookimpl
    def sandport_lease_started(self) -> None:
        raise asyncio.CancelledError

    @hookimpl
    async def sandport_lease_ended(self) -> None:
        raise ValueError("broken")

    @hookimpl
    def sandport_command_started(self) -> None:
        raise ValueError("broken")

    @hookimpl
    async def sandport_command_ended(self) -> None:
        raise asyncio.CancelledError


async def test_broken_plugins_hurt_no_run(vendor: Vendor) -> None:
    seen = Witness()
    async with hosting(vendor, Broken(), seen) as host:
        for _ in range(2):
            async with host.lease("env") as sandbox:
                assert (await sandbox.execute(["echo", "hello"])).stdout.data == b"hello\n"
        vendor.fake.assert_nothing_left()
    assert seen.leases() == ["started", "ended: its block is over"] * 2
    faults = [text for text in vendor.records.texts("error") if "plugin Broken" in text]
    assert sorted(re.findall(r"sandport_\w+", " ".join(faults))) == [
        "sandport_command_ended",
        "sandport_command_started",
        "sandport_lease_ended",
        "sandport_lease_started",
    ]


# ------------------------------------------------------------------ the authoriser


async def test_what_is_refused_leaves_no_trace(vendor: Vendor) -> None:
    asked = Refuses("lease")
    async with hosting(vendor, asked, cleans_up=False) as host:
        with pytest.raises(NotAuthorised, match="lease env: Refuses refuses: not you"):
            async with host.lease("env", run="r", keep=True, config={"region": "x"}, ttl_s=90):
                pytest.fail("it was refused")
        assert await states(host) == {}
        assert host._supervisors == {}
    assert vendor.fake.journal() == []
    (action,) = asked.asked
    assert (action.verb, action.provider, action.environment, action.run) == ("lease", "fake", "env", "r")
    assert (action.lease_id, action.config, action.keep, action.ttl_s) == (None, {"region": "x"}, True, 90)


async def test_an_attach_an_end_and_a_forgetting_are_asked_with_the_lease_that_is_meant(vendor: Vendor) -> None:
    async with hosting(vendor) as host, host.lease("env", keep=True, name="k", tenant="t") as sandbox:
        lease_id, sandbox_id = sandbox.lease_id, sandbox.id
    refuses, seen = Refuses("attach", "end", "forget"), Witness()
    async with hosting(vendor, refuses, seen) as host:
        before = await host.store.receipts(sandbox_id)
        with pytest.raises(NotAuthorised):
            async with host.attach("k"):
                pytest.fail("it was refused")
        with pytest.raises(NotAuthorised):
            await host.end_lease(lease_id[:8], reason="why", force=True)
        with pytest.raises(NotAuthorised):
            await host.forget(sandbox_id, reason="why")
        with pytest.raises(LeaseUnknown):
            await host.end_lease("no-such-lease")
        assert await host.store.receipts(sandbox_id) == before
        assert await host.store.uses(lease_id) == []
        assert {(a.lease_id, a.sandbox_id, a.name, a.tenant) for a in refuses.asked} == {
            (lease_id, sandbox_id, "k", "t")
        }
        assert [(a.verb, a.reason, a.force) for a in refuses.asked] == [
            ("attach", None, False),
            ("end", "why", True),
            ("forget", "why", False),
        ]
        refuses.verbs = ()
        async with host.attach("k") as again:
            assert (await again.execute(["true"])).ok
        assert (await host.end_lease("k")).end == "gone"
    assert seen.leases() == ["ended: ended by request"]


async def test_a_keeping_that_is_refused_leaves_the_lease_to_its_block(vendor: Vendor) -> None:
    refuses, seen = Refuses("keep"), Witness()
    async with hosting(vendor, refuses, seen) as host:
        async with host.lease("env", run="r", principal="ada") as sandbox:
            before = await host.store.receipts(sandbox.id)
            with pytest.raises(NotAuthorised, match=f"keep {sandbox.lease_id}: Refuses refuses: not you"):
                await sandbox.keep("mine")
            assert not sandbox.kept
            assert await host.store.receipts(sandbox.id) == before
        vendor.fake.assert_nothing_left()
        refuses.verbs = ()
        async with host.lease("env", name="n") as sandbox:
            await sandbox.keep()
        async with host.attach("n") as again:
            refuses.verbs = ("keep",)
            with pytest.raises(NotAuthorised):
                await again.keep("another")
            refuses.verbs = ()
            await again.keep("another")
        assert (await host.end_lease("another")).end == "gone"
    asked = [(action.name, action.principal, action.keep) for action in refuses.asked if action.verb == "keep"]
    assert asked == [("mine", "ada", True), ("n", None, True), ("another", None, True), ("another", None, True)]
    assert seen.leases() == ["started", "ended: its block is over", "started", "ended: ended by request"]


# ------------------------------------------------------------------ redaction


async def test_what_a_worker_writes_is_redacted_in_the_log_the_files_and_the_errors(
    records: Records, tmp_path: Path
) -> None:
    class Lines:
        @hookimpl
        def sandport_redact(self, text: str) -> str:
            return re.sub(r"line \d+", "[a line]", text)

    settings = configuration({"scripted": worker("noisy")})
    home = tmp_path / "home"
    async with Host.open(settings, home=home, log=records.log, plugins=[Lines()]) as host:
        with pytest.raises(WorkerCrashed) as crash:
            async with host.lease("scripted") as sandbox:
                await sandbox.execute(["many lines and the end"])
    assert records.texts().count("[a line]") == 5000
    assert crash.value.report is not None
    assert crash.value.report.log_tail[-1] == "[a line]"
    written = (home / "logs" / "scripted.log").read_text()
    assert written.count(" stderr: [a line]\n") == 5000
    said = [written, str(crash.value), repr(crash.value.report), *map(repr, records.lines)]
    said += [path.read_bytes().decode(errors="replace") for path in home.rglob("*") if path.is_file()]
    assert not [text for text in said if re.search(r"line \d", text)]


async def test_a_redactor_that_fails_lets_no_line_through(records: Records, tmp_path: Path) -> None:
    class Fails:
        @hookimpl
        def sandport_redact(self, text: str) -> str:
            raise ValueError(text)

    settings = configuration({"scripted": worker("noisy")})
    async with Host.open(settings, home=tmp_path / "home", log=records.log, plugins=[Fails()]) as host:
        async with host.lease("scripted") as sandbox:
            assert (await sandbox.execute(["every form"])).ok
        await eventually(lambda: sum(fields.get("pid", 0) > 0 for _, _, fields in records.lines) >= 6)
    withheld = "[withheld: sandport_redact of the plugin Fails failed with ValueError]"
    assert set(records.texts()) == {withheld}
    log = (tmp_path / "home" / "logs" / "scripted.log").read_text()
    assert "plain words" not in log
    assert withheld in log


# ------------------------------------------------------------------ the rest


def test_a_host_without_async_takes_the_same_plugins(tmp_path: Path) -> None:
    seen, refuses = Witness(), Refuses("attach")
    with (
        blocking.Host.open(home=tmp_path / "home", plugins=[seen, refuses]) as host,
        host.lease("local") as sandbox,
    ):
        assert sandbox.execute(["true"]).ok
        with pytest.raises(NotAuthorised), host.attach(sandbox.lease_id):
            pytest.fail("it was refused")
    kinds = [LeaseStartedEvent, CommandStartedEvent, CommandEndedEvent, LeaseEndedEvent]
    assert [type(event) for event in seen.events] == kinds


async def test_a_plugin_that_cannot_be_used_keeps_the_host_from_opening(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="implements no hook"):
        async with Host.open(home=tmp_path / "home", plugins=[object()]):
            pytest.fail("it is open")


def test_the_example_of_the_readme_runs(tmp_path: Path) -> None:
    section = (ROOT / "host" / "README.md").read_text(encoding="utf-8").split("\n## Hooks\n")[1].split("\n## ")[0]
    (program,) = re.findall(r"```python\n(.*?)```", section, re.DOTALL)
    environ = {**os.environ, "SANDPORT_HOME": str(tmp_path / "home")}
    done = subprocess.run(
        [sys.executable, "-c", program],
        check=False,
        capture_output=True,
        text=True,
        timeout=120,
        cwd=tmp_path,
        env=environ,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        "sh -c echo hello; exit 3 -> 3",
        "lease local: House refuses: eve may not",
        "its block is over True",
    ]
