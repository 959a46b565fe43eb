"""What a victim does: a run of a host in steps, each of which can be cut at any of its points.

A job goes on where a worker died, as an embedder's program would: it finishes its step, proves that the host still
works, and leaves its blocks. Where the host died there is nothing to go on with.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

from sandport.errors import SandportError
from sandport.host import Host
from sandport.log import Log
from sandport.sandbox import Sandbox
from sandport.store.records import SandboxRow

from .place import Event, Place
from .seams import Seams
from .stock import descriptors, listed

SETTLED_WITHIN_S = 25.0
"""Less than an orphan grace: what takes longer was not cleaned up by the host."""
LONG = "300"
LEASES = 20
MIXED = ("local", "fake")


class Job:
    """One victim's run.

    Args:
        place: Where.
        provider: With whose sandboxes.
        number: Which victim it is, of those in this place.
        seams: Already installed.
        seed: Where it makes choices.
    """

    def __init__(self, place: Place, provider: str, number: int, seams: Seams, *, seed: int = 0) -> None:
        self.place = place
        self.provider = provider
        self.providers = MIXED if provider == "mixed" else (provider,)
        self.number = number
        self._draw = random.Random(seed)
        self.seams = seams
        self._commands = 0

    @contextlib.asynccontextmanager
    async def host(self) -> AsyncIterator[Host]:
        """The host, and the step `close` at its end."""

        def note(level: str, event: str, fields: dict[str, Any]) -> None:
            print(f"{time.time():.3f} {level}: {event} {fields}", flush=True)

        configuration, environ = self.place.configuration(*self.providers), self.place.environ()
        before = descriptors()
        async with Host.open(configuration, home=self.place.home, environ=environ, log=Log(note)) as host:
            try:
                yield host
            finally:
                self.step("close")
        left = list((Counter(descriptors()) - Counter(before)).elements())
        if left:
            self.fault(f"descriptors are left: {left}")

    def step(self, name: str) -> None:
        """The points from here on are of this step."""
        self.seams.gate.step = name

    @property
    def was_hit(self) -> bool:
        """Whether somebody died already."""
        return self.seams.gate.was_hit

    def fault(self, text: str) -> None:
        """Say that something went wrong that no kill excuses."""
        self.place.say(Event(what="fault", detail=text))

    # ------------------------------------------------------------ commands

    def _script(self, then: str) -> tuple[str, str, str]:
        """A command that counts itself outside, says so, and goes on; its nonce, and the file that lets it go on."""
        self._commands += 1
        nonce = f"n{self.number}-{self._commands}"
        go = self.place.out / f"go-{nonce}"
        wait = f"while [ ! -e {go} ]; do sleep 0.01; done"
        return f"echo {nonce} >>{self.place.out}/ran; echo begun; {then.replace('WAIT', wait)}", nonce, str(go)

    async def execute(self, box: Sandbox, then: str = "WAIT; echo over >&2", *, timeout_s: float | None = None) -> bool:
        """Run a command that writes twice, and goes on between the two when its first output has come here.

        Returns:
            Whether it ended as it should.
        """
        script, nonce, go = self._script(then)

        def on_output(stream: str, data: bytes) -> None:
            with open(go, "a"):
                return

        self.place.say(Event(what="asked", nonce=nonce, sandbox=box.id))
        try:
            outcome = await box.execute(["sh", "-c", script], on_output=on_output, timeout_s=timeout_s)
        except SandportError as error:
            how, dispatched = type(error).__name__, str(getattr(error, "dispatched", ""))
            self.place.say(Event(what="ran", nonce=nonce, how=how, dispatched=dispatched, detail=str(error)))
            return False
        self.place.say(Event(what="ran", nonce=nonce, how=outcome.ended, dispatched="yes"))
        if outcome.ended == "exited" and (outcome.exit_code, outcome.stdout.data, outcome.stderr.data) != (
            0,
            b"begun\n",
            b"over\n",
        ):
            self.fault(f"a command came back as {outcome}")
        return outcome.ended == ("exited" if timeout_s is None else "timedOut")

    async def cancel(self, box: Sandbox) -> None:
        """Run a command, and cancel it once it has written something."""
        script, nonce, _ = self._script(f"sleep {LONG}")
        begun = asyncio.Event()
        self.place.say(Event(what="asked", nonce=nonce, sandbox=box.id))
        running = asyncio.ensure_future(
            box.execute(["sh", "-c", script], on_output=lambda stream, data: begun.set(), timeout_s=float(LONG))
        )
        waiting = asyncio.ensure_future(begun.wait())
        await asyncio.wait((running, waiting), return_when=asyncio.FIRST_COMPLETED)
        waiting.cancel()
        running.cancel()
        await asyncio.wait((running,))
        if not running.cancelled() and not isinstance(running.exception(), SandportError):
            self.fault(f"a command that was cancelled came back: {running.exception() or running.result()}")

    # ------------------------------------------------------------ the steps

    async def try_to(self, work: Callable[[], Awaitable[Any]]) -> None:
        """A step that a worker's death may end, and nothing else."""
        try:
            await work()
        except SandportError as error:
            self.place.say(Event(what="error", how=type(error).__name__, detail=str(error)))
            if not self.was_hit:
                self.fault(f"without a cause: {error!r}")

    async def use(self, host: Host, box: Sandbox) -> None:
        """All that is done with one sandbox, until somebody dies."""
        self.step("execute")
        await self.execute(box, f"setsid -f sleep {LONG} >/dev/null 2>&1; WAIT; echo over >&2")
        if not self.was_hit:
            self.step("cancel")
            await self.cancel(box)
        if not self.was_hit:
            self.step("timeout")
            if not await self.execute(box, f"sleep {LONG}", timeout_s=0.2) and not self.was_hit:
                self.fault("a command over its time did not time out")
        if not self.was_hit:
            self.step("keep")
            await self.try_to(lambda: self.keep(host))
        if not self.was_hit:
            self.step("restart")
            ended = [process.exited for process in self.seams.workers()]
            self.seams.end_workers()
            await asyncio.wait(ended)
            if not await self.execute(box) and not self.was_hit:
                self.fault("after its worker's end the sandbox was not found again")
        if self.was_hit and not await self.execute(box):
            self.fault("the lease did not outlive its worker")

    async def keep(self, host: Host) -> None:
        """Lease a sandbox and keep it."""
        async with host.lease(self.provider, name=f"kept-{self.number}") as box:
            await box.keep()
            self.place.say(Event(what="kept", lease=box.lease_id, sandbox=box.id))

    async def life(self) -> None:
        """A run with everything in it, one thing after the other."""
        async with self.host() as host:
            self.step("acquire")
            await self.try_to(lambda: self.lease(host))
            if self.was_hit:
                self.step("afterwards")
                async with host.lease(self.provider) as box:
                    if not await self.execute(box):
                        self.fault("the host did not go on after its worker's end")

    async def lease(self, host: Host) -> None:
        """The lease of a life."""
        async with host.lease(self.provider, run="a run") as box:
            await self.use(host, box)
            self.step("release")

    async def busy(self) -> None:
        """A host with a lease in use and a kept one, which asks for a third: what a recovery finds."""
        async with self.host() as host, host.lease(self.provider) as box:
            await self.keep(host)
            running = asyncio.ensure_future(self.execute(box, f"sleep {LONG}"))
            self.step("acquire")
            async with host.lease(self.provider):
                await running

    async def leaving(self) -> None:
        """A host with one lease that ends: what a recovery finds of another one."""
        async with self.host() as host, host.lease(self.provider) as box:
            await self.execute(box)
            self.step("release")

    # ------------------------------------------------------------ a crowd

    async def crowd(self) -> None:
        """Twenty leases at a time, each somewhere else in its life, most of them twice."""
        async with self.host() as host, asyncio.TaskGroup() as tasks:
            for number in range(LEASES):
                tasks.create_task(self.member(host, number, random.Random(self._draw.random())))

    async def member(self, host: Host, number: int, draw: random.Random) -> None:
        """One of a crowd."""
        for turn in range(2):
            await asyncio.sleep(draw.uniform(0, 0.2))
            try:
                await self.member_lease(
                    host, f"kept-{number}-{turn}", self.providers[number % len(self.providers)], draw
                )
            except SandportError as error:
                # Faults are ordered, and workers die: what matters is what is left in the end.
                self.place.say(Event(what="error", how=type(error).__name__, detail=str(error)))

    async def member_lease(self, host: Host, name: str, provider: str, draw: random.Random) -> None:
        """One lease of one of a crowd."""
        async with host.lease(provider, name=name) as box:
            if draw.random() < 0.25:
                await box.keep()
                self.place.say(Event(what="kept", lease=box.lease_id, sandbox=box.id))
            await self.execute(
                box, draw.choice(("WAIT; echo over >&2", "setsid -f sleep 300 >/dev/null 2>&1; echo over >&2"))
            )
            await asyncio.sleep(draw.uniform(0, 0.4))
            if draw.random() < 0.3:
                await self.cancel(box)

    # ------------------------------------------------------------ the next start

    async def settle(self) -> None:
        """The next start on the same home: what is kept works, and is ended then; all else is gone by itself."""
        async with self.host() as host:
            self.step("recovery")
            await self.quiet(host)
            for lease in await host.store.leases():
                if lease.kept:
                    await self.try_to(lambda lease=lease: self.end_kept(host, lease.id))  # type: ignore[misc]
            self.step("recovery")
            await self.quiet(host)

    async def glance(self) -> None:
        """A next start that does nothing of its own: what is kept must outlive its workers from then on."""
        async with self.host() as host:
            await self.quiet(host)
            kept = [(row.provider, row.id) for row in await host.store.sandboxes()]
        for provider, sandbox in kept:
            if not self.place.vendor_keeps(provider, sandbox):
                self.fault(f"the journal keeps {sandbox}, and the provider does not know it")

    async def end_kept(self, host: Host, lease: str) -> None:
        """Use a kept lease, then end it."""
        async with host.attach(lease) as box:
            told = any(event.sandbox == box.id for event in self.place.said("kept"))
            if told and not self.place.vendor_keeps(box.provider, box.id):
                self.fault(f"{box.id} is kept, as its owner was told, and ends with its workers")
            if await self.execute(box) or (self.was_hit and await self.execute(box)):
                self.place.say(Event(what="kept works", lease=lease, sandbox=box.id))
        await host.end_lease(lease)

    async def quiet(self, host: Host) -> None:
        """Wait until nothing in the journal waits for anybody."""
        until = time.monotonic() + SETTLED_WITHIN_S
        while busy := [row for row in await host.store.sandboxes() if not _rests(row)]:
            if time.monotonic() > until:
                for row in busy:
                    self.fault(f"still {row.state} of {row.owner}: {row.id}, {row.last_error}")
                return
            await asyncio.sleep(0.01)

    def list_all(self) -> None:
        """Ask a fresh worker what it lists."""
        for provider in self.providers:
            for sandbox in listed(self.place, provider):
                self.fault(f"the provider {provider} still lists {sandbox}")


def _rests(row: SandboxRow) -> bool:
    return row.state == "leased" and row.owner is None


JOBS: dict[str, Callable[[Job], Awaitable[None]]] = {
    "life": Job.life,
    "busy": Job.busy,
    "leaving": Job.leaving,
    "crowd": Job.crowd,
    "glance": Job.glance,
    "settle": Job.settle,
}
