"""What a host makes of output and results that do not agree, and of output that it did not ask for."""

from __future__ import annotations

from collections.abc import Callable

from .declaration import host_check
from .stage import Stage

_FLOOD_BYTES = 64 << 20
_STALL_BYTES = 4 << 20
_KEPT_BYTES = 1 << 20

_LIARS = {
    "low": ("CountsTooLow", "A result that counts less than was sent is an error."),
    "high": ("CountsTooHigh", "A result that counts more than was sent is an error."),
    "unended": ("NoEndMark", "A result before any end mark is an error."),
    "half-ended": ("OneEndMark", "A result before one of two end marks is an error."),
    "gap": ("AGap", "Output that leaves bytes out is an error."),
    "after": ("AfterTheEnd", "Output after an end mark is an error."),
    "codeless": ("NoExitCode", "A result that says exited and no code is an error."),
    "two-ends": ("CodeAndSignal", "A result with a signal and an exit code is an error."),
}


def _declare(part: str, impostor: str, title: str) -> Callable[[Stage], None]:
    def run(stage: Stage) -> None:
        played = stage.play(f"commands:{impostor}", "--again")
        played.failed("ProtocolViolation", dispatched=("unknown", "yes"))
        played.succeeded("next")
        played.one_worker()

    run.__doc__ = title
    return host_check(
        "CMD-20",
        part=part,
        why="An exit code 0 that is not true makes a failed test pass; so a result must be proved.",
        broken="believes any result",
    )(run)


for _part, (_impostor, _title) in _LIARS.items():
    _declare(_part, _impostor, _title)


_NO_END = {
    "code": ("AWaitStatus", "256", "A result with exit code 256, a wait status, is an error that says so."),
    "negative": ("ANegativeCode", "-256", "A result with exit code -256 is an error that says so."),
    "signal": ("NoSuchSignal", "128", "A result with signal 128 is an error that says so."),
    "duration": ("EndsBeforeItBegan", "-5000", "A result with a duration below 0 is an error that says so."),
}


def _declare_range(part: str, impostor: str, number: str, title: str) -> None:
    def run(stage: Stage) -> None:
        played = stage.play(f"commands:{impostor}", "--again")
        played.failed("ProtocolViolation", dispatched=("unknown", "yes"), says=(number,))
        played.succeeded("next")
        played.one_worker()

    run.__doc__ = title
    host_check(
        "MSG-24",
        part=part,
        why="A system keeps eight bits of an exit code: 256 that is passed on makes a failed test pass.",
        broken="believes any number",
    )(run)


for _part, (_impostor, _number, _title) in _NO_END.items():
    _declare_range(_part, _impostor, _number, _title)


@host_check(
    "CRED-6",
    why="The ceiling holds the host's memory only if it is kept against those who break it.",
    broken="keeps what comes beyond the credit, or ends the worker for it",
)
def no_credit_kept(stage: Stage) -> None:
    """A command that goes beyond its credit fails, and what runs beside it does not."""
    played = stage.play(
        "commands:KeepsNoCredit", "--stall", "--again", timeout_s=60.0, bound_s=120.0, memory="no credit kept"
    )
    played.failed("ProtocolViolation")
    played.succeeded("beside")
    played.succeeded("next")
    played.one_worker()


@host_check(
    "CRED-7",
    why="A slow terminal must not hold up the tests that run beside it.",
    broken="stops reading because one consumer is slow",
    source="nushell/nushell#6934, nushell/nushell#11911",
)
def stalled(stage: Stage) -> None:
    """A consumer that takes nothing holds up its own command only, and gets every byte later."""
    command = ("/bin/sh", "-c", f"yes 0123456789 | head -c {_STALL_BYTES}")
    played = stage.play("impostor:Impostor", "--stall", argv=command, timeout_s=90.0, bound_s=120.0)
    played.succeeded("beside", stdout_bytes=_STALL_BYTES)
    played.succeeded(stdout_bytes=_STALL_BYTES)


@host_check(
    "CRED-6",
    part="flood",
    why="A build that prints gigabytes must not take the host's memory.",
    broken="keeps all of a command's output in memory",
)
def flood(stage: Stage) -> None:
    """A command that writes 64 MiB, of which the caller keeps one, is counted to the last byte in bounded memory."""
    command = ("/bin/sh", "-c", f"yes 0123456789 | head -c {_FLOOD_BYTES}")
    played = stage.play(
        "impostor:Impostor",
        "--keep",
        str(_KEPT_BYTES),
        argv=command,
        timeout_s=100.0,
        bound_s=120.0,
        memory="output flood",
    )
    played.succeeded(stdout_bytes=_FLOOD_BYTES)
