"""L3: what is said of commands whose end nobody saw: their sandbox is gone, or whoever reported on them."""

from __future__ import annotations

import base64

from sandport_conformance.declaration import Needs, Uses, check
from sandport_conformance.lab import Lab
from sandport_conformance.outcomes import Failed, WorkerGone, expect
from sandport_conformance.schema import Json, condition_of

from .claims import dispatched
from .gates import need_room

_OWN_CODE = 7
"""With which a command ends whose parent it could not, or need not, kill: a zero would look like what is made up."""
_SECONDS = 300
LOST = ("SandboxLost", "LeaseNotFound", "Cancelled")
"""What may be said of a command whose sandbox ended before it did."""


def expect_ran(error: Json, what: str) -> None:
    """Hold the error of a command that is known to have run to not deny it: a host would run it again."""
    expect(dispatched(error) != "no", f"{what} had run, and the error says that nothing was dispatched")


def expect_partial(error: Json, written: bytes, what: str) -> None:
    """Hold a SandboxLost to have in `partial` what a command had written, as far as that was received."""
    if condition_of(error["code"]) != "SandboxLost":
        return
    partial = (error.get("data") or {}).get("partial")
    if partial is None:
        raise Failed(f"{what} is answered SandboxLost, and without `partial`")
    data = base64.b64decode((partial.get("stdout") or {}).get("data", ""))
    expect(written.startswith(data), f"{what} had written {written!r}, and `partial` has {data!r:.60}")


@check(
    "CMD-16",
    uses=Uses.OWN,
    needs=Needs(commands=("kill_parent",)),
    why="A status that nobody saw is not a success: a run that was cut is taken for one that passed.",
    broken="answers exit code 0, or another that no program had, where what supervised the command is gone",
    fix="Let the supervisor's end without a word be an error, SandboxLost or Unavailable; only a code that was told is "
    "one.",
)
def a_status_that_was_lost_is_not_made_up(lab: Lab) -> None:
    """A command that kills its parent process is answered with its own exit code, a signal, or an error: no other."""
    with lab.home() as home:
        session = home.worker()
        sandbox = home.acquire(session)
        try:
            body = session.answer(sandbox.start(lab.command("kill_parent", code=_OWN_CODE))).body
        except WorkerGone:
            return  # It was the command's parent itself: the host tells its caller of a crash.
        if "error" in body:
            return
        told = (body["result"].get("ended"), body["result"].get("exitCode"))
        expect(
            told in (("exited", _OWN_CODE), ("signalled", None)),
            f"a command killed its parent process and would have exited with {_OWN_CODE}, and the result says {told}",
        )


@check(
    "CMD-24",
    uses=Uses.OWN,
    needs=Needs(commands=("note_ids", "wait_for_file")),
    why="A command that was cut off with its sandbox must not look like one that ended; nor like one that never ran.",
    broken="answers with exit code 0, with the signal of its own kill, or with an error that says `dispatched` `no`",
    fix="Answer what runs when its sandbox ends SandboxLost, `dispatched` `yes` or `unknown`, with `partial`.",
)
def a_command_whose_sandbox_ends_is_lost(lab: Lab) -> None:
    """A command that runs while its sandbox is destroyed is an error that says so, with what it had written."""
    session = lab.spawn()
    for live in (False, True):
        sandbox = lab.new_sandbox(session)
        need_room(sandbox, 2)
        call = sandbox.start(lab.command("note_ids", name="ids", text="up", seconds=_SECONDS), live=live)
        sandbox.execute(lab.command("wait_for_file", name="ids", text="it runs"))
        sandbox.destroy()
        what = "a live command whose sandbox was destroyed" if live else "a command whose sandbox was destroyed"
        body = session.answer(call).body
        if "result" in body:
            raise Failed(f"{what} is answered with a result: {body['result']!r:.200}")
        error = session.error_of(call, *LOST)
        expect_ran(error, what)
        if not live:
            expect_partial(error, b"up", what)
