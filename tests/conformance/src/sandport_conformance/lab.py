"""What a check works with: a worker that is ready, workers of its own, sandboxes, and the record of the run."""

from __future__ import annotations

import random
import secrets
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from . import folders
from .declaration import Check, Uses
from .facts import Facts
from .home import LONG_GRACE_MS, Home
from .outcomes import Failed
from .sandbox import Sandbox
from .schema import Json
from .session import Session
from .settings import Settings
from .times import Times

if TYPE_CHECKING:
    from .bench import Bench

_Evidence = TypeVar("_Evidence")


class Lab:
    """One check's view of the run; the check gets nothing else.

    Attributes:
        times: How long a worker may take.
        settings: What the author's file says.
        facts: What the worker's first hello declared.
        random: A source whose numbers depend on the run's seed and the check alone.
        together: Whether stories are told together; see `stories`.
        disposable: Whether what workers leave is simply removed; see `Bench`.
    """

    def __init__(self, bench: Bench, check: Check) -> None:
        self._bench = bench
        self._check = check
        self.times: Times = bench.times
        self.settings: Settings = bench.settings
        self.facts: Facts = bench.facts
        self.random = random.Random(f"{bench.seed} {check.id}")
        self.together: bool = bench.together
        self.disposable: bool = bench.disposable
        self.used: list[Session] = []
        """Sessions whose transcripts a failure of this check shows."""
        self._shared: Session | None = None
        self._own: list[Session] = []
        self._sandboxes: list[Sandbox] = []
        self._folders: list[Path] = []

    @property
    def check_id(self) -> str:
        """The id of the check."""
        return self._check.id

    # -------------------------------------------------------------- workers

    @property
    def worker(self) -> Session:
        """The shared worker: greeted, serving, and expected to serve on after the check; one and the same in it."""
        if self._check.uses is not Uses.SHARED:
            raise TypeError(f"{self._check.id} is declared to use {self._check.uses.value} processes; use lab.spawn()")
        if self._shared is None:
            self._shared = self._use(self._bench.shared())
        return self._shared

    def spawn(
        self,
        *,
        greet: bool = True,
        environ: Mapping[str, str] | None = None,
        wrapper: tuple[str, ...] = (),
        full_stderr: bool = False,
    ) -> Session:
        """A worker of this check's own; whatever becomes of it, it is gone after the check.

        Args:
            greet: Whether the hello is said; else the check says it with `session.greet`.
            environ: Further variables of its environment.
            wrapper: A program that gets the worker's command as its last arguments and runs it.
            full_stderr: Give it a stderr without room, which nobody reads before `session.process.drain_stderr()`.
        """
        session = self._use(self._bench.spawn(environ=environ or {}, wrapper=wrapper, full_stderr=full_stderr))
        self._own.append(session)
        if greet:
            session.greet()
        return session

    @property
    def store_id(self) -> str:
        """The store id of every hello of this run."""
        return self._bench.store_id

    # -------------------------------------------------------------- sandboxes

    def new_sandbox_id(self) -> str:
        """A sandbox id of this run, never used before; what is still listed under it after the run fails the run."""
        return self._bench.new_sandbox_id()

    @property
    def sandbox(self) -> Sandbox:
        """A sandbox in the shared worker that serves many checks: leave its files and processes as they were."""
        sandbox = self._bench.shared_sandbox(self.worker)
        self.facts.require(self._check.needs, tuple(sandbox.lease.get("without", ())))
        return sandbox

    def new_sandbox(self, session: Session | None = None, **members: object) -> Sandbox:
        """A sandbox of this check's own, destroyed after it.

        Args:
            session: The worker that acquires it; the shared one where None.
            **members: Further members of the params of `acquireLease`.

        Raises:
            Untestable: The worker needs a config or credentials that the author's file does not give.
            Failed: It was refused for another reason.
        """
        sandbox = self._bench.acquire(session or self.worker, members)
        self._sandboxes.append(sandbox)
        self.facts.require(self._check.needs, tuple(sandbox.lease.get("without", ())))
        return sandbox

    def acquire(self, session: Session, members: Mapping[str, object]) -> Sandbox:
        """As `new_sandbox`, but whoever asks destroys it."""
        return self._bench.acquire(session, members)

    def home(self, *, grace_ms: int = LONG_GRACE_MS) -> Home:
        """A store of this check's own, with workers of its own; see `Home`."""
        return Home(self, lambda: self.spawn(greet=False), grace_ms=grace_ms)

    def remove_later(self, folder: Path) -> None:
        """Remove a folder after the check, when its workers have ended."""
        self._folders.append(folder)

    def note(self, text: str) -> None:
        """Write something beside the results into the report."""
        self._bench.note(text)

    def listed_after_all(self) -> list[str]:
        """What the provider lists of the run's own store once the shared sandbox was destroyed too."""
        session = self._bench.shared_after_all()
        if session not in self.used:
            self.used = [session]  # what it lists is the evidence
            session.process.transcript.note(f"{self._check.id} begins")
        return self._bench.listed(session)

    def command(self, name: str, /, **blanks: object) -> list[str]:
        """A command for a sandbox, from the snippets of the author's file."""
        return self.settings.commands.argv(name, **blanks)

    def with_config(self, **members: object) -> Json:
        """Params with the author's `config` and `secrets`."""
        return {**self.settings.with_config, **members}

    def canary(self) -> str:
        """A secret that nobody else has, to plant somewhere; it is masked in the report wherever it turns up.

        `masking.leaked_form` finds it again.
        """
        minted = f"canary-{secrets.token_urlsafe(24)}"
        self._bench.masker.add(minted)
        return minted

    # -------------------------------------------------------------- evidence

    def once(self, scenario: Callable[[Lab], _Evidence]) -> _Evidence:
        """What a scenario found, run only for the first check that asks: several checks may read one costly story.

        A failure inside the scenario is every asking check's failure.
        """
        return self._bench.once(self, scenario)

    def sessions(self, *, sandbox: bool = False) -> Iterator[Session]:
        """Every session of the run, a standard tour among them.

        The session that was yielded last is the one whose transcript a failure shows.

        Args:
            sandbox: Whether the tour must have acquired a sandbox and run commands in it.
        """
        if self._check.uses is not Uses.RECORD:
            raise TypeError(f"{self._check.id} does not say that it reads the record")
        for session in self._bench.record(self, sandbox=sandbox):
            self.used = [session]
            yield session
        self.used = []

    # -------------------------------------------------------------- the end

    def release(self) -> None:
        """Give back what the check took; never judges: what stays behind fails the run in the end."""
        for sandbox in self._sandboxes:
            try:
                self._bench.give_back(sandbox)
            except Failed as failure:
                self._bench.note(f"{self._check.id} left sandbox {sandbox.id}: {failure}")
        for session in self._own:
            session.process.close_input()  # all of them at once, so that their ends overlap
        self._bench.close(*self._own)
        self.remove_folders()

    def remove_folders(self) -> None:
        """Remove what `remove_later` was told."""
        for folder in self._folders:
            folders.remove(folder)

    def cut_short(self, interrupt: KeyboardInterrupt) -> None:
        """End every worker of the run now; what may still be there is noted on the interrupt."""
        self._bench.cut_short(interrupt)

    def peak_memory_bytes(self) -> int:
        """The most memory that a worker of this check had."""
        return max((session.process.peak_memory_bytes() for session in self.used), default=0)

    def _use(self, session: Session) -> Session:
        if session not in self.used:
            self.used.append(session)
            session.process.transcript.note(f"{self._check.id} begins")
        return session
