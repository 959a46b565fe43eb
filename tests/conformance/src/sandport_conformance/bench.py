"""The workers of a run: starts them, keeps the shared one, and settles what they leave."""

from __future__ import annotations

import contextlib
import secrets
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar, cast

from . import __version__, folders, schema
from .cutting_short import destroy_all, leave_all
from .facts import Facts
from .interruption import deaf, held_back
from .masking import Masker
from .outcomes import Failed, NoAnswer, NoLease, NoSandbox, NotStarted, TimedOut, Untestable
from .patience import Patience
from .processes import TOKEN_VARIABLE
from .sandbox import Sandbox
from .schema import Json
from .session import PROTOCOL_VERSION, Session, show_error
from .settings import Settings
from .start_advice import told
from .times import Times
from .worker import WorkerProcess

if TYPE_CHECKING:
    from .lab import Lab

_T = TypeVar("_T")
_BASE32 = "abcdefghijklmnopqrstuvwxyz234567"
_ID_CHARACTERS = 26
_ORPHAN_GRACE_MS = 2_000
_MOST_PAGES = 1_000
_BEAT_S = 0.1
"""Between two looks at which workers have heard nothing for a heartbeat."""
_LEASE_TRIES = 2
_FIXTURE_CONDITIONS = ("ConfigInvalid", "AuthenticationFailed")


@dataclass(frozen=True, slots=True)
class _Told:
    by: str
    found: object
    failure: Failed | Untestable | None
    sessions: tuple[Session, ...]


class Bench:
    """Everything that a run has started and must end.

    Args:
        command: The worker command.
        settings: What the author's file says.
        times: The limits in force.
        seed: Decides every choice of the run but the ids, which must never repeat.
        together: Whether stories are told together, which is worth it where most of the checks that read them run.
        disposable: Whether what workers leave may be killed and removed instead of being destroyed through another
            worker; nothing is said about it then.

    Attributes:
        facts: What the first hello declared; filled by `start`.
    """

    def __init__(
        self,
        command: Sequence[str],
        *,
        settings: Settings,
        times: Times,
        seed: int,
        together: bool = False,
        disposable: bool = False,
    ) -> None:
        self.command = tuple(command)
        self.disposable = disposable
        self.together = together
        self.settings = settings
        self.times = times
        self.seed = seed
        self.masker = Masker(settings.secrets.values())
        self.facts = Facts()
        self.store_id = f"conformance-{secrets.token_hex(8)}"
        self.notes: list[str] = []
        """What happened beside the checks, for the report."""
        self.check_id = ""
        """The check that is judged: what is made now is made for it."""
        self.record_sessions: list[Session] = []
        """Every session of the run, those that ended included."""
        self._state_dir = Path(tempfile.mkdtemp(prefix="sandport-conformance-"))
        self._prefix = settings.name_prefix + _letters(10)
        self._patience = Patience(times)
        self._made_for: dict[str | Session, str] = {}
        """For which check each sandbox id was minted, and each worker started."""
        self._lease_failures = 0
        """How often in a row an ordinary acquire failed while none had succeeded."""
        self._without_lease = ""
        """The check that found so."""
        self._had_lease = False
        self._shared: Session | None = None
        self._shared_sandbox: Sandbox | None = None
        self._told: dict[object, _Told] = {}
        self._ended_at: dict[Session, float] = {}
        self._released: list[Session] = []
        self._left: list[str] = []
        self._toured: set[bool] = set()
        self._cut = False
        self._over = threading.Event()
        self._pulse = threading.Thread(target=self._beat, name="heartbeats", daemon=True)

    # -------------------------------------------------------------- workers

    def start(self) -> None:
        """Start the first worker and read what it declares.

        Raises:
            NotStarted: There is nothing to judge: it cannot be run, ended, or did not answer its hello.
        """
        self._pulse.start()
        session = self.spawn()
        try:
            request_id = session.request("initialize", session.offered)
            answer = session.answer(request_id, timeout_s=self.times.start_s)
        except Failed as failure:
            reason = told(session, failure)
            self.close(session)
            raise NotStarted(reason) from failure
        if "result" not in answer.body:
            self.close(session)
            raise NotStarted(f"the worker refuses the hello: {show_error(answer.body['error'])}")
        self.facts = Facts.of(answer.body["result"], session.offered["limits"])
        session.hello = answer.body["result"] if isinstance(answer.body["result"], dict) else {}
        try:
            session.initialized()
        except Failed:
            self.close(session)
        else:
            self._shared = session

    def _beat(self) -> None:
        """Be a host that is never silent for long, whatever its checks wait for."""
        while not self._over.wait(_BEAT_S):
            for session in tuple(self.record_sessions):
                session.beat()

    def spawn(
        self,
        *,
        environ: Mapping[str, str] | None = None,
        wrapper: tuple[str, ...] = (),
        full_stderr: bool = False,
    ) -> Session:
        """A worker that was started, and said nothing to.

        Raises:
            NotStarted: The program could not be run.
        """
        if self._cut:
            raise NotStarted("the run was cut short")
        token = secrets.token_hex(16)
        with held_back():
            process = WorkerProcess(
                (*wrapper, *self.command),
                environ={**self.settings.environ, **(environ or {}), TOKEN_VARIABLE: token},
                token=token,
                masker=self.masker,
                full_stderr=full_stderr,
            )
            session = Session(process, times=self.times, hello_params=self.hello_params(), patience=self._patience)
            self._made_for[session] = self.check_id
            self.record_sessions.append(session)
        return session

    def hello_params(self) -> Json:
        """The params of `initialize`, as of a host with default limits and a short orphan grace."""
        return {
            "protocolVersions": [PROTOCOL_VERSION],
            "host": {"name": "sandport-conformance", "version": __version__},
            "storeId": self.store_id,
            "stateDir": str(self._state_dir),
            "limits": {**schema.default_limits(), "orphanGraceMs": _ORPHAN_GRACE_MS},
            "features": [],
        }

    def shared(self) -> Session:
        """The worker that serves many checks; a new one where the last has ended."""
        if self._shared is not None and (not self._shared.alive() or self._shared.process.out_ended):
            self.drop_shared()
        if self._shared is None:
            session = self.spawn()
            try:
                session.greet()
            except Failed:
                self.close(session)
                raise
            self._shared = session
        return self._shared

    def drop_shared(self) -> None:
        """End the shared worker; the next check that wants one gets a new one.

        Its sandbox may live on for the orphan grace, and is wanted again: what is left is looked at after the run.
        """
        if self._shared is not None:
            self._end(self._shared)
            self._shared = None

    def close(self, *sessions: Session) -> None:
        """End workers and everything that they started, by force in the end; they have their graces together."""
        for session in sessions:
            self._end(session)
        for session in sessions:
            self._release(session)

    def _release(self, session: Session) -> None:
        if session in self._released:
            return
        grace_s = _ORPHAN_GRACE_MS / 1000 + self.times.moment_s * 5 - (time.monotonic() - self._ended_at[session])
        survivors = session.process.release(grace_s=0.0 if self.disposable else max(0.0, grace_s))
        self._released.append(session)
        for survivor in () if self.disposable else survivors:
            self._left.append(
                f"process {survivor.pid} outlived its worker{self._made(session)}: {survivor.command}; fix: let "
                "everything that a worker starts end with it, or within orphanGraceMs"
            )

    def _end(self, session: Session) -> None:
        if session not in self._ended_at:
            session.process.end(eof_s=self.times.moment_s * 10, term_s=self.times.moment_s * 10)
            self._ended_at[session] = time.monotonic()
            session.pump(lambda: True, 0)

    # -------------------------------------------------------------- sandboxes

    def new_sandbox_id(self) -> str:
        """An id of this run."""
        minted = "sp" + (self._prefix + _letters(_ID_CHARACTERS))[:_ID_CHARACTERS]
        self._made_for[minted] = self.check_id
        return minted

    def acquire(self, session: Session, members: Mapping[str, object]) -> Sandbox:
        """A new sandbox; see `Lab.new_sandbox`.

        Where no ordinary acquire has ever succeeded, the first failure is that of the check that meets it; after the
        second one nothing is tried any more.
        """
        if self._lease_failures >= _LEASE_TRIES:
            raise NoSandbox(f"no sandbox can be had: see {self._without_lease}")
        try:
            sandbox = self._acquire(session, members)
        except (Failed, Untestable) as failure:
            if members or self._had_lease or self.disposable:
                raise
            self._lease_failures += _LEASE_TRIES if isinstance(failure, TimedOut) else 1
            if self._without_lease:
                raise NoSandbox(f"no sandbox can be had: see {self._without_lease}") from failure
            self._without_lease = self.check_id
            if isinstance(failure, Untestable):
                raise
            raise NoLease(f"no sandbox can be had: {failure}") from failure
        self._had_lease, self._lease_failures = True, 0
        return sandbox

    def _acquire(self, session: Session, members: Mapping[str, object]) -> Sandbox:
        params: Json = {
            "sandboxId": self.new_sandbox_id(),
            "ttlMs": 3_600_000,
            **self.settings.with_config,
            **members,
        }
        request_id = session.unthrottled(session.request("acquireLease", params))
        answer = session.answer(request_id)
        if "error" in answer.body:
            error = answer.body["error"]
            code = error.get("code") if isinstance(error, dict) else None
            if code in [schema.error_code(condition) for condition in _FIXTURE_CONDITIONS]:
                raise Untestable(f"{self.settings.no_config_works}: {show_error(error)}")
            raise Failed(f"acquireLease was refused: {show_error(error)}")
        return Sandbox(session, str(params["sandboxId"]), session.result_of(request_id))

    def shared_sandbox(self, session: Session) -> Sandbox:
        """The sandbox that serves many checks, in this session."""
        known = self._shared_sandbox
        if known is not None and known.session is not session:
            attached = self.attach(session, known)
            known = self._shared_sandbox = attached
        if known is None:
            known = self._shared_sandbox = self.acquire(session, {})
        return known

    def attach(self, session: Session, sandbox: Sandbox) -> Sandbox | None:
        """A sandbox opened in another worker; None where it is no longer there."""
        params = {"sandboxId": sandbox.id, "handle": sandbox.handle, **self.settings.with_config}
        answer = session.call("attachLease", params)
        if answer.get("state") != "attached":
            return None
        return Sandbox(session, sandbox.id, answer.get("lease") or sandbox.lease)

    def give_back(self, sandbox: Sandbox) -> None:
        """Destroy a sandbox, in another worker where its own has ended or does not serve any more."""
        if sandbox.session.alive() and not sandbox.session.process.out_ended:
            try:
                sandbox.destroy()
            except Failed:
                pass  # it may be ending; another one decides
            else:
                return
        if self.disposable:
            return
        attached = self.attach(self.shared(), sandbox)
        if attached is not None:
            attached.destroy()

    # -------------------------------------------------------------- evidence

    def once(self, lab: Lab, scenario: Callable[[Lab], _T]) -> _T:
        """What a scenario found; see `Lab.once`."""
        if scenario not in self._told:
            used, lab.used = lab.used, []
            found, failure = None, None
            try:
                found = scenario(lab)
            except (Failed, Untestable) as caught:
                failure = caught
            self._told[scenario] = _Told(lab.check_id, found, failure, tuple(lab.used))
            lab.used = used
        told = self._told[scenario]
        lab.used.extend(session for session in told.sessions if session not in lab.used)
        if isinstance(told.failure, NoAnswer) and told.by != lab.check_id:
            raise told.failure.told_again(told.by)
        if told.failure is not None:
            raise told.failure
        return cast(_T, told.found)  # the scenario is the key, so it is what this scenario returned

    def record(self, lab: Lab, *, sandbox: bool) -> tuple[Session, ...]:
        """Every session so far, once a standard tour is among them."""
        if sandbox not in self._toured:
            from .tour import tour

            self.drop_shared()
            self._toured |= {sandbox, False}
            what = "an ordinary session (hello, calls, shutdown, end), for the checks that read the record"
            failure = self.note_failure(what, lambda: tour(lab, sandbox=sandbox))
            if isinstance(failure, NoAnswer):
                self._toured |= {True, False}  # a second one would wait for the same again
        return self.record_of()

    def record_of(self) -> tuple[Session, ...]:
        """Every session so far of which everything is known that was said."""
        return tuple(session for session in self.record_sessions if session.whole)

    def note_failure(self, what: str, action: Callable[[], object]) -> Exception | None:
        """Do something beside the checks; what the worker fails at is only written down, and answered."""
        try:
            action()
        except (Failed, Untestable, NotStarted) as failure:
            self.note(f"{what}: {failure}")
            return failure
        return None

    def note(self, text: str) -> None:
        """Write down what happened beside the checks."""
        self.notes.append(self.masker.text(text))

    # -------------------------------------------------------------- the end

    def finish(self) -> list[str]:
        """End every worker and destroy every sandbox of the run.

        Returns:
            What should not have been there any more: sandboxes that the provider still listed, and processes.
        """
        left: list[str] = []
        try:
            if not self.disposable:
                self.note_failure("the shared sandbox", self._give_back_shared)
            if self._minted and not self.disposable and any(map(_may_have_acquired, self.record_sessions)):
                try:
                    left += self._sandboxes_left()
                except (Failed, NotStarted) as failure:
                    left.append(f"what is left could not be listed: {failure}")
        finally:
            if not isinstance(sys.exception(), KeyboardInterrupt):  # that is in a hurry: see `cut_short`
                self._shared = None
                self._over.set()
                self.close(*self.record_sessions)
                folders.remove(self._state_dir)
        return [self.masker.text(text) for text in left + self._left]

    def cut_short(self, interrupt: KeyboardInterrupt) -> None:
        """End everything within a few seconds, by force what does not go; what may be left is noted on the interrupt.

        No worker can be started any more. Nothing happens the second time.
        """
        if self._cut:
            return
        with deaf():
            self._cut = True
            self._over.set()
            open_now = [session for session in self.record_sessions if session not in self._released]
            left = [] if self.disposable else destroy_all(self.record_sessions, self.settings.with_config)
            leave_all(open_now)
            for session in open_now:
                self._released.append(session)
                session.process.end(eof_s=0.0, term_s=0.0)
                session.process.release(grace_s=0.0)
            folders.remove(self._state_dir)
        for text in left:
            interrupt.add_note(self.masker.text(f"not known to be gone: {text}"))

    def _give_back_shared(self) -> None:
        sandbox, self._shared_sandbox = self._shared_sandbox, None
        if sandbox is not None:
            self.give_back(sandbox)

    @property
    def _minted(self) -> set[str]:
        return {made for made in self._made_for if isinstance(made, str)}

    def _made(self, what: str | Session) -> str:
        """Which check something was made for, in words."""
        check_id = self._made_for.get(what, "")
        return f", made in {check_id}" if check_id else ""

    def shared_after_all(self) -> Session:
        """The shared worker, when the shared sandbox was destroyed too."""
        self._give_back_shared()
        return self.shared()

    def listed(self, session: Session) -> list[str]:
        """The ids on the list of the run's store."""
        found: list[str] = []
        cursor: str | None = None
        for _ in range(_MOST_PAGES):
            page = session.call("listLeases", {**self.settings.with_config, **({"cursor": cursor} if cursor else {})})
            found += [lease["sandboxId"] for lease in page.get("leases", [])]
            cursor = page.get("nextCursor")
            if cursor is None:
                break
        return found

    def _sandboxes_left(self) -> list[str]:
        session = self.shared()
        time.sleep(self.facts.settle_s)  # lists may be so far behind
        found: list[str] = []
        cursor: str | None = None
        seen: set[str] = set()
        while True:
            page = session.call("listLeases", {**self.settings.with_config, **({"cursor": cursor} if cursor else {})})
            for lease in page.get("leases", []):
                if lease["sandboxId"] in self._minted:
                    found.append(
                        f"sandbox {lease['sandboxId']} ({lease['handle']}){self._made(lease['sandboxId'])}, was still "
                        "listed after the run; fix: let a destroy end the sandbox and take it off the list before it "
                        "is answered (LEASE-9, LEASE-30)"
                    )
                    known = Sandbox(session, lease["sandboxId"], {"handle": lease["handle"]})
                    with contextlib.suppress(Failed):  # it is reported either way
                        attached = self.attach(session, known)
                        if attached is not None:
                            attached.destroy()
            cursor = page.get("nextCursor")
            if not cursor:
                return found
            if cursor in seen or len(seen) >= _MOST_PAGES:
                return [*found, f"what is left could not be listed: the list goes on and on, at {cursor!r:.100}"]
            seen.add(cursor)


def _may_have_acquired(session: Session) -> bool:
    """Whether a sandbox may be there because of a session: its acquire was not refused."""
    acquires = [request_id for request_id, method, _ in session.requests if method == "acquireLease"]
    return any(not any("error" in answer.body for answer in session.answers(one)) for one in acquires)


def _letters(count: int) -> str:
    """Random characters of a sandbox id."""
    return "".join(secrets.choice(_BASE32) for _ in range(count))
