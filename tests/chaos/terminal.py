"""One of several processes on a store: it leases, keeps, uses and ends at random, and says what it holds.

What it says stands in `events.jsonl` before it does it. So whoever loses a lease can look whether somebody said that
they would end it; a loss that nobody announced is a fault.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import sys
from collections.abc import AsyncIterator
from pathlib import Path

from sandport.errors import InUse, LeaseLost, LeaseUnknown, SandportError, Stale
from sandport.host import Host
from sandport.log import Log
from sandport.sandbox import Sandbox

from .place import Event, Place
from .stock import living

PROVIDERS = ("local", "fake")
COMMAND = Path(sys.executable).with_name("sandport")
OPERATIONS = {
    "run": 4,
    "keep": 3,
    "use": 5,
    "end": 2,
    "end a held one": 2,
    "force": 1,
    "command run": 1,
    "command keep": 1,
    "command exec": 1,
    "command end": 1,
}
"""What it does, and how often compared with the others."""


class Terminal:
    """The program of one process."""

    def __init__(self, place: Place, number: int, seed: int) -> None:
        self.place = place
        self.number = number
        self._draw = random.Random(f"{seed} {number}")
        self._stop = place.root / "stop"
        self._count = 0

    async def main(self) -> None:
        """Open hosts and do things, until told to stop."""
        work = {
            "run": self.run,
            "keep": self.keep,
            "use": self.use,
            "end": self.end,
            "end a held one": self.end_held,
            "force": self.force,
            "command run": self.command_run,
            "command keep": self.command_keep,
            "command exec": self.command_exec,
            "command end": self.command_end,
        }
        names, weights = list(OPERATIONS), list(OPERATIONS.values())
        while not self._stop.exists():
            async with self.host() as host:
                for _ in range(self._draw.randint(2, 6)):
                    if self._stop.exists():
                        return
                    (name,) = self._draw.choices(names, weights)
                    await work[name](host)
                    self.say("did", how=name)

    @contextlib.asynccontextmanager
    async def host(self) -> AsyncIterator[Host]:
        log = Log(lambda level, event, fields: print(f"{level}: {event} {fields}", flush=True))
        configuration, environ = self.place.configuration(*PROVIDERS), self.place.environ()
        async with Host.open(configuration, home=self.place.home, environ=environ, log=log) as host:
            yield host

    # ------------------------------------------------------------ what is said

    def say(self, what: str, *, lease: str = "", how: str = "", detail: str = "") -> None:
        self.place.say(Event(what=what, lease=lease, nonce=str(os.getpid()), how=how, detail=detail))

    def fault(self, text: str) -> None:
        """Say that a lease was touched by the wrong one."""
        self.say("fault", detail=f"terminal {self.number} ({os.getpid()}): {text}")

    def announced(self, lease: str, *whats: str) -> bool:
        """Whether somebody said that they would end it, or was seen to have had it when they were killed."""
        return any(event.lease == lease for what in whats for event in self.place.said(what))

    def holders(self, lease: str) -> list[int]:
        """The living processes that hold a lease now, by their own word."""
        held: dict[int, int] = {}
        for event in self.place.said("holds"):
            if event.lease == lease:
                held[int(event.nonce)] = held.get(int(event.nonce), 0) + 1
        for event in self.place.said("lets go"):
            if event.lease == lease:
                held[int(event.nonce)] -= 1
        return [pid for pid, count in held.items() if count and pid != os.getpid() and living(pid)]

    def a_kept(self) -> str | None:
        """One of the leases that somebody kept, and nobody ended yet as far as is said."""
        over = {event.lease for event in self.place.said("ended")}
        kept = [event.lease for event in self.place.said("kept") if event.lease not in over]
        return self._draw.choice(kept) if kept else None

    def _name(self) -> str:
        self._count += 1
        return f"t{os.getpid()}-{self._count}"

    # ------------------------------------------------------------ through the library

    async def hold(self, box: Sandbox) -> None:
        """Use a sandbox for a while; whoever holds it must not lose it unless that was announced."""
        self.say("holds", lease=box.lease_id)
        try:
            for _ in range(self._draw.randint(1, 3)):
                word = str(self._draw.random())
                outcome = await box.execute(["sh", "-c", f"sleep {self._draw.uniform(0, 0.15):.3f}; echo {word}"])
                if outcome.exit_code != 0 or outcome.stdout.data.decode().strip() != word:
                    self._lost(box.lease_id, f"a command came back as {outcome}")
        except SandportError as error:
            self._lost(box.lease_id, repr(error))
        finally:
            self.say("lets go", lease=box.lease_id)

    def _lost(self, lease: str, how: str) -> None:
        if not self.announced(lease, "forcing"):
            self.fault(f"lost {lease} while it held it, and nobody forced it: {how}")

    async def run(self, host: Host) -> None:
        """A lease of its own, to the end."""
        async with host.lease(self._draw.choice(PROVIDERS)) as box:
            await self.hold(box)

    async def keep(self, host: Host) -> None:
        """A lease that is kept."""
        async with host.lease(self._draw.choice(PROVIDERS), keep=True, name=self._name()) as box:
            await self.hold(box)
            self.say("kept", lease=box.lease_id)

    async def use(self, host: Host) -> None:
        """Somebody's kept lease."""
        lease = self.a_kept()
        if lease is None:
            return
        try:
            async with host.attach(lease) as box:
                await self.hold(box)
        except (LeaseLost, LeaseUnknown, Stale) as error:
            if not self.announced(lease, "ending", "forcing"):
                self.fault(f"{lease} is not there any more, and nobody said that they would end it: {error!r}")
        except SandportError as error:
            self._lost(lease, repr(error))

    async def end(self, host: Host) -> None:
        """End a kept lease, unless somebody uses it."""
        lease = self.a_kept()
        if lease is not None:
            self.say("ending", lease=lease)
            await self._end(host, lease)

    async def end_held(self, host: Host) -> None:
        """Try to end what another process holds: it must be refused."""
        kept = {event.lease for event in self.place.said("kept")}
        held = [event.lease for event in self.place.said("holds") if event.lease not in kept]
        held = [lease for lease in held[-10:] if self.holders(lease)]
        if held:
            # Not announced: where this ends it, its holder finds out.
            await self._end(host, self._draw.choice(held))

    async def force(self, host: Host) -> None:
        """End a kept lease, whoever uses it."""
        lease = self.a_kept()
        if lease is not None:
            self.say("forcing", lease=lease)
            with contextlib.suppress(LeaseUnknown, Stale):
                await host.end_lease(lease, force=True)
                self.say("ended", lease=lease)

    async def _end(self, host: Host, lease: str) -> None:
        before = set(self.holders(lease))
        try:
            attempted = await host.end_lease(lease)
        except (InUse, LeaseUnknown, Stale):
            return
        self.say("ended", lease=lease)
        still = before & set(self.holders(lease))
        if attempted.end == "gone" and still and not self.announced(lease, "forcing"):
            self.fault(f"could end {lease} although {still} held it")

    # ------------------------------------------------------------ through the command

    async def _command(self, *arguments: str) -> tuple[int, str]:
        environ = self.place.environ() | {"SANDPORT_CONFIG": str(self.place.root / "sandport.toml")}
        process = await asyncio.create_subprocess_exec(
            COMMAND,
            *arguments,
            env=environ,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        said, _ = await process.communicate()
        assert process.returncode is not None
        return process.returncode, said.decode(errors="replace")

    async def command_run(self, host: Host) -> None:
        """`sandport run`."""
        code, said = await self._command("run", "-p", self._draw.choice(PROVIDERS), "--", "sh", "-c", "exit 7")
        if code != 7:
            self.fault(f"sandport run ended with {code}: {said}")

    async def command_keep(self, host: Host) -> None:
        """`sandport run --keep`."""
        name = self._name()
        # What others run in it later writes to files of this machine.
        open_to_all = ("-p", "local", "-c", "isolation=none")
        code, said = await self._command("run", *open_to_all, "--keep", "--name", name, "--", "true")
        if code:
            self.fault(f"sandport run --keep ended with {code}: {said}")
        else:
            self.say("kept", lease=(await host.store.lease(name)).id)

    async def command_exec(self, host: Host) -> None:
        """`sandport exec`."""
        lease = self.a_kept()
        if lease is not None:
            code, said = await self._command("exec", lease, "--", "sh", "-c", "exit 7")
            if code != 7 and not self.announced(lease, "ending", "forcing"):
                self.fault(f"sandport exec {lease} ended with {code}: {said}")

    async def command_end(self, host: Host) -> None:
        """`sandport leases end`."""
        lease = self.a_kept()
        if lease is not None:
            self.say("ending", lease=lease)
            before = set(self.holders(lease))
            code, said = await self._command("leases", "end", lease)
            if code == 0:
                self.say("ended", lease=lease)
                if (still := before & set(self.holders(lease))) and not self.announced(lease, "forcing"):
                    self.fault(f"sandport leases end could end {lease} although {still} held it: {said}")
