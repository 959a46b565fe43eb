"""Whether the end that a worker reports may be believed, and what is told where it may not."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from sandport_protocol.errors import Partial
from sandport_protocol.v1 import CommandResult, StreamName, StreamResult

from .capture import Capture
from .errors import ProtocolViolation, SandportError
from .lane import OutputLane
from .outcome import Captured, Outcome


def outcome_of(
    result: CommandResult,
    lane: OutputLane,
    captures: Mapping[StreamName, Capture],
    spilled: Mapping[StreamName, str] | None = None,
) -> Outcome:
    """The outcome, if what the worker says agrees with what was received.

    Raises:
        ProtocolViolation: It does not: a byte is missing, or the end of a stream.
    """
    contradiction = lane.contradiction(result)
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
    """The same error with what was received until then, where it does not say so itself."""
    if error.partial is None and any(capture.total_bytes for capture in captures.values()):
        error.partial = Partial(**{name: capture.kept() for name, capture in captures.items()})
    return error
