"""Whether the end that a worker reports may be believed, and what is told where it may not."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from sandport_protocol.errors import Kept, Partial
from sandport_protocol.v1 import CommandResult, StreamName, StreamResult

from .capture import Capture
from .errors import ProtocolViolation, SandportError
from .lane import OutputLane
from .outcome import Captured, Outcome

_STREAMS: tuple[StreamName, ...] = ("stdout", "stderr", "pty")


def outcome_of(
    result: CommandResult,
    lane: OutputLane,
    captures: Mapping[StreamName, Capture],
    spilled: Mapping[StreamName, str] | None = None,
    *,
    has_limit: bool,
) -> Outcome:
    """The outcome, if what the worker says agrees with what was asked and what was received.

    Args:
        result: What the worker says; its numbers are in their ranges, or it would not have been read.
        lane: What was received.
        captures: What was kept of it.
        spilled: The files that have all of it, for the outcome to name.
        has_limit: Whether the command was given a time-out.

    Raises:
        ProtocolViolation: It does not: a byte is missing, or the end of a stream, or nobody asked for a time-out.
    """
    contradiction = lane.contradiction(result)
    if result.ended == "timedOut" and not has_limit:
        contradiction = "it says timedOut, and the command was given no time-out"
    if contradiction is not None:
        error = ProtocolViolation(f"the result of the command cannot be trusted: {contradiction}", dispatched="yes")
        raise with_partial(error, captures)

    def captured(name: StreamName, told: StreamResult) -> Captured:
        if name not in captures:
            return Captured()
        kept = captures[name].captured(told.end, (spilled or {}).get(name))
        # What the worker read and could not send (a consumer that stalled beyond a time-out) is counted with the rest;
        # and of iterated output, which was handed on and not kept, the length is what is known.
        total = told.total_bytes + told.dropped_bytes
        return msgspec.structs.replace(
            kept,
            total_bytes=total,
            dropped_bytes=total - len(kept.data) - len(kept.tail),
            untaken_bytes=told.dropped_bytes + lane.waiting(name),
        )

    return Outcome(
        ended=result.ended,
        exit_code=result.exit_code,
        signal=result.signal,
        core_dumped=result.core_dumped,
        tree=result.tree,
        stdout=captured("pty" if "pty" in captures else "stdout", result.stdout),
        stderr=captured("stderr", result.stderr),
        duration_s=result.duration_ms / 1000,
        notes=result.notes,
    )


def with_partial(error: SandportError, captures: Mapping[StreamName, Capture]) -> SandportError:
    """The same error with what was received until then; a worker's own word only adds what did not come."""
    if error.partial is None and not any(capture.total_bytes for capture in captures.values()):
        return error
    told = error.partial or Partial()
    error.partial = Partial(
        **{
            name: _joined(captures[name].kept() if name in captures else Kept(), getattr(told, name))
            for name in _STREAMS
        }
    )
    return error


def _joined(received: Kept, told: Kept) -> Kept:
    """What is known of one stream: the bytes that are here, and a count of all that there were.

    A worker that sent its output live keeps only the count of it, and may know of bytes that it could not send.
    """
    is_more = len(told.data) + len(told.tail) > len(received.data) + len(received.tail)
    kept = told if is_more and told.data.startswith(received.data) else received
    total = max(received.total_bytes, told.total_bytes, len(kept.data) + len(kept.tail))
    return Kept(
        total_bytes=total, data=kept.data, tail=kept.tail, dropped_bytes=total - len(kept.data) - len(kept.tail)
    )
