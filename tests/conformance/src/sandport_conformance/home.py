"""A store of one story's own: a store id, a state directory, and the workers that serve it one after the other.

For checks about the whole life of sandboxes, which kill workers and look at what a later one finds. Its end destroys
whatever the story left, through a worker that lives, and fails where that cannot be done.
"""

from __future__ import annotations

import signal
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from .messages import Message
from .outcomes import Failed, NotStarted, TimedOut
from .sandbox import Sandbox
from .schema import Json
from .session import Id, Session

if TYPE_CHECKING:
    from .lab import Lab

LONG_GRACE_MS = 30_000
"""An orphan grace that no story outlasts, however slow the machine."""
SHORT_GRACE_MS = 400
"""One whose end is waited for."""
_LOOK_S = 0.02
_HEARTBEAT_S = 5.0
"""As the default `heartbeatMs`."""
_MOST_PAGES = 1_000
_TRIES = 3
"""So often a sandbox is ended: something else, as its expiry, may be ending it at the same time."""


class Home:
    """The store; a context manager.

    Args:
        lab: The check that tells the story.
        spawn: Starts a worker that was not greeted.
        grace_ms: The `orphanGraceMs` of its workers.

    Attributes:
        lab: As given.
        state_dir: The `stateDir` of its workers; removed after the check.
        store_id: The `storeId` of its workers.
    """

    def __init__(self, lab: Lab, spawn: Callable[[], Session], *, grace_ms: int = LONG_GRACE_MS) -> None:
        self.lab = lab
        self.state_dir = Path(tempfile.mkdtemp(prefix="sandport-conformance-"))
        self.store_id = f"{lab.store_id}-{self.state_dir.name[-8:]}"
        self.grace_ms = grace_ms
        self._spawn = spawn
        self._sessions: list[Session] = []
        self._used = False
        lab.remove_later(self.state_dir)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if not self._used or (self.lab.disposable and error is not None):
            return
        try:
            left = self.clear(patient=error is None)
        except (Failed, NotStarted) as failure:
            left = [str(failure)]
        if not left:
            return
        if error is None:
            raise Failed(f"what the check had made cannot be destroyed: {left[0]}")
        self.lab.note(f"left by a check that failed: {left[0]}")

    # -------------------------------------------------------------- workers

    def worker(self, **changes: Any) -> Session:
        """A worker of this store, greeted.

        Args:
            **changes: Members of the hello's params that differ.
        """
        session = self._spawn()
        session.offered = {
            **session.offered,
            "storeId": self.store_id,
            "stateDir": str(self.state_dir),
            "limits": {**session.offered["limits"], "orphanGraceMs": self.grace_ms},
            **changes,
        }
        session.greet()
        if session.offered["storeId"] == self.store_id:
            self._sessions.append(session)
        return session

    # -------------------------------------------------------------- sandboxes

    def acquire(self, session: Session, **members: Any) -> Sandbox:
        """A sandbox of this store; see `Lab.new_sandbox`."""
        self._used = True
        return self.lab.acquire(session, members)

    def begin_acquire(self, session: Session, **members: Any) -> tuple[str, Id]:
        """Ask for a sandbox and come back at once: its id, and the request's."""
        self._used = True
        sandbox_id = self.lab.new_sandbox_id()
        params = self.lab.with_config(sandboxId=sandbox_id, ttlMs=3_600_000, **members)
        return sandbox_id, session.request("acquireLease", params)

    def attach(self, session: Session, sandbox_id: str, handle: str, **members: Any) -> Json:
        """The result of an attach."""
        params = self.lab.with_config(sandboxId=sandbox_id, handle=handle, **members)
        return session.call("attachLease", params)

    def open(self, session: Session, sandbox: Sandbox, **members: Any) -> Sandbox:
        """A sandbox attached in another worker, which must find it.

        Raises:
            Failed: It does not.
        """
        result = self.attach(session, sandbox.id, sandbox.handle, **members)
        if result["state"] != "attached" or result.get("lease") is None:
            raise Failed(f"a worker that attaches the sandbox should find it, but says {result!r:.200}")
        return Sandbox(session, sandbox.id, result["lease"])

    def listed(self, session: Session, sandbox_id: str | None = None) -> dict[str, str]:
        """The handle of each sandbox on the list, by its id."""
        params = self.lab.with_config() if sandbox_id is None else self.lab.with_config(sandboxId=sandbox_id)
        found: dict[str, str] = {}
        cursor: str | None = None
        for _ in range(_MOST_PAGES):
            page = session.call("listLeases", params if cursor is None else {**params, "cursor": cursor})
            found |= {lease["sandboxId"]: lease["handle"] for lease in page.get("leases", [])}
            cursor = page.get("nextCursor")
            if cursor is None:
                return found
        raise Failed(f"a list does not end: after {_MOST_PAGES} pages nextCursor is {cursor!r:.100}")

    def end(self, session: Session, sandbox_id: str, *, patient: bool = True) -> str:
        """End a sandbox as a host's clean-up does: by the list, an attach where there is something, a destroy.

        Args:
            session: The worker that ends it.
            sandbox_id: Which.
            patient: Whether one that cannot be reached is tried again.

        Returns:
            What is wrong; empty once it is not listed any more.
        """
        deadline = time.monotonic() + session.times.call_s
        said, tries = "it is listed", 0
        while time.monotonic() < deadline and tries < _TRIES:
            handle = self.listed(session, sandbox_id).get(sandbox_id)
            if handle is None:
                return ""
            state = self.attach(session, sandbox_id, handle)["state"]
            ended = session.unthrottled(session.request("destroyLease", {"sandboxId": sandbox_id}))
            answer = session.answer(ended).body
            outcome = answer.get("result", answer.get("error"))
            said = f"{sandbox_id} attaches as {state!r}, destroyLease answers {outcome!r:.150}"
            tries += state != "unreachable" or not patient  # what cannot be reached now may be on its way to its end
            if tries < _TRIES:
                time.sleep(_LOOK_S)
        wait_until(lambda: sandbox_id not in self.listed(session, sandbox_id), self.lab.facts.settle_s)
        return f"{said}, and it is listed" if sandbox_id in self.listed(session, sandbox_id) else ""

    def clear(self, *, patient: bool) -> list[str]:
        """End everything of this store; what could not be, with the reason."""
        alive = [one for one in self._sessions if one.alive() and not one.process.out_ended]
        session = alive[-1] if alive else self.worker()
        time.sleep(self.lab.facts.settle_s)
        ended = [self.end(session, sandbox_id, patient=patient) for sandbox_id in self.listed(session)]
        return [wrong for wrong in ended if wrong]


def kill(*sessions: Session) -> None:
    """SIGKILL, and the end of each."""
    for session in sessions:
        session.process.signal(signal.SIGKILL)
    for session in sessions:
        session.exit()


def shut_down(session: Session) -> None:
    """Shutdown, end of input, and the end."""
    session.call("shutdown", {"drainMs": 1_000})
    session.process.close_input()
    session.exit()


def patient_answer(session: Session, request_id: Id, timeout_s: float) -> Message:
    """The answer to a request that may take longer than a worker waits for a silent host: it is pinged meanwhile.

    Raises:
        Failed: It did not come in time, or the worker does not answer its pings.
    """
    deadline = time.monotonic() + timeout_s
    while not session.answers(request_id) and (left_s := deadline - time.monotonic()) > 0:
        if not session.pump(partial(session.answers, request_id), min(left_s, _HEARTBEAT_S)):
            session.ping()
    if not session.answers(request_id):
        raise TimedOut(f"no answer to id {request_id!r:.60} within {timeout_s:.1f} s")
    return session.answers(request_id)[0]


def wait_until(holds: Callable[[], object], timeout_s: float) -> bool:
    """Wait until a condition on the machine holds; False where it does not in time."""
    deadline = time.monotonic() + timeout_s
    while not holds():
        if time.monotonic() > deadline:
            return False
        time.sleep(_LOOK_S)
    return True
