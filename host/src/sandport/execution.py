"""One command from its start to its end: sent in one `execute`, or as a process that is fed its input.

`commands` says when a command has its turn; here is what is done with it then.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

import anyio.lowlevel
import msgspec
from msgspec import Raw

from sandport_protocol import codec
from sandport_protocol.methods import METHODS
from sandport_protocol.v1 import ExecuteParams, ExecuteResult, StreamName

from .capture import Capture
from .closing import finished
from .command import CommandLine
from .errors import LeaseLost, LeaseNotFound, NotAttached, ProcessNotFound, ProtocolViolation, SandportError
from .lane import OutputLane
from .lease.attachment import Attachment
from .numbers import Timing
from .outcome import Outcome
from .process import Process
from .spill import STREAMS
from .verdict import outcome_of, with_partial

OnOutput = Callable[[StreamName, bytes], Awaitable[None] | None]
"""Given each piece of output, with the stream that it is from; awaited where it returns an awaitable."""
_LATE_S = 1.0
"""A command that ended by itself so long after its time-out was not held to it."""


async def executed(
    attachment: Attachment,
    params: ExecuteParams,
    line: CommandLine,
    captures: dict[StreamName, Capture],
    spilled: dict[StreamName, str],
    on_output: OnOutput | None,
    *,
    timing: Timing,
) -> Outcome:
    """The outcome of one `execute`.

    Args:
        attachment: The sandbox; attached again, and asked a second time, where nothing ran.
        params: What is sent.
        line: The same, as the caller said it.
        captures: Take the output.
        spilled: The files that have all of it, for the outcome to name.
        on_output: Given each piece too.
        timing: The host's own limits.

    Raises:
        SandportError: How it ended cannot be told; `partial` has what was received.

    Cancel: kills the command and what it started.
    """
    deadline_s = None if line.timeout_ms is None else line.timeout_ms / 1000 + timing.command_margin_s

    def keep(stream: StreamName, data: bytes) -> None:
        captures[stream].take(data)

    await anyio.lowlevel.checkpoint_if_cancelled()
    for attempt in (1, 2):
        client = (await attachment.worker()).client
        lane = OutputLane(STREAMS, client.connection.limits.credit_bytes, None if on_output else keep)
        call = await client.begin(METHODS["execute"], params, deadline_s=deadline_s, sink=lane)
        lane.bind(partial(client.give_credit, call))
        call.future.add_done_callback(lane.close)
        try:
            if on_output is None:
                raw = await call.future
            else:
                raw = await _pumped(call.future, lane, captures, on_output, patience_s=timing.close_grace_s)
        except BaseException as error:
            if not call.future.done() or call.future.cancelled():
                # Cancelled, or the consumer of the output failed: the command must not run on.
                await finished(client.settle(call))
                raise
            if error is not call.future.exception():
                raise
            if isinstance(error, NotAttached) and error.dispatched == "no" and attempt == 1:
                # Nothing ran: the one error after which an execute is sent again.
                attachment.detach()
                continue
            lane.divert(keep)
            if isinstance(error, LeaseNotFound):
                attachment.lose("its sandbox is gone")
                words = f"the lease on {attachment.id} was lost: {error}; take a new lease"
                lost = LeaseLost(words, dispatched=error.dispatched)
                lost.partial = error.partial
                raise with_partial(lost, captures) from None
            if isinstance(error, SandportError):
                raise with_partial(error, captures) from None
            raise
        try:
            result = client.result_of(call, raw, ExecuteResult)
            outcome = outcome_of(result, lane, captures, spilled, has_limit=line.timeout_ms is not None)
        except ProtocolViolation as error:
            lane.divert(keep)  # what a consumer that stalled did not take came all the same
            raise with_partial(error, captures) from None
        return held_to(outcome, line)
    raise AssertionError("unreachable: the second attempt returns or raises")


async def fed(
    process: Process,
    stdin: bytes,
    captures: dict[StreamName, Capture],
    spilled: dict[StreamName, str],
    on_output: OnOutput | None,
) -> Outcome:
    """The outcome of a process that gets all of its input through its pipe; `captures` are its own.

    Raises:
        SandportError: How it ended cannot be told, or it could not be fed and did not end by itself.
    """
    failure: SandportError | None = None

    async def feed() -> None:
        nonlocal failure
        try:
            await process.stdin.write(stdin)
            await process.stdin.close()
        except ProcessNotFound:
            pass  # it ended before it read everything: its own business, its status says how
        except SandportError as error:
            failure = error
            await process.kill()  # it waits for input that does not come any more

    feeding = asyncio.ensure_future(feed())
    try:
        if on_output is not None:
            async for stream, data in process.output():
                await _hand_on(on_output, captures, stream, data)
        outcome = await process.wait(spilled=spilled)
    finally:
        feeding.cancel()
        await asyncio.wait((feeding,))
        if not feeding.cancelled():
            feeding.exception()  # seen: `failure` has it, or the process's own end tells it
    if failure is not None and outcome.ended != "exited":
        raise with_partial(failure, captures)
    return outcome


def held_to(outcome: Outcome, line: CommandLine) -> Outcome:
    """The outcome, with a note where the provider let the command run on past its time-out."""
    if line.timeout_ms is None or outcome.ended == "timedOut":
        return outcome
    if outcome.duration_s <= line.timeout_ms / 1000 + _LATE_S:
        return outcome
    limit_s = line.timeout_ms / 1000
    note = f"it ran for {outcome.duration_s:.1f} s: the provider does not keep the time-out of {limit_s:g} s"
    return msgspec.structs.replace(outcome, notes=(*outcome.notes, note))


async def _hand_on(on_output: OnOutput, captures: dict[StreamName, Capture], stream: StreamName, data: bytes) -> None:
    captures[stream].take(data)
    waiting = on_output(stream, data)
    if inspect.isawaitable(waiting):
        await waiting


def _timed_out(raw: Raw) -> bool:
    """Whether a result says so; one that cannot be read is judged where it is read for good."""
    try:
        return codec.read_as(ExecuteResult, raw).ended == "timedOut"
    except ValueError:
        return False


async def _pumped(
    future: asyncio.Future[Any],
    lane: OutputLane,
    captures: dict[StreamName, Capture],
    on_output: OnOutput,
    *,
    patience_s: float,
) -> Any:
    """The result of a call whose output goes to a consumer; both are done when this returns.

    A consumer that stalls is waited for as long as the command itself is; one that stalls beyond a time-out only for
    `patience_s`: what it did not take is counted as dropped.
    """

    async def pump() -> None:
        while (piece := await lane.next_piece()) is not None:
            await _hand_on(on_output, captures, *piece)
            lane.taken(piece[0], len(piece[1]))

    pumping = asyncio.ensure_future(pump())
    try:
        await asyncio.wait((future, pumping), return_when=asyncio.FIRST_COMPLETED)
        if pumping.done() and pumping.exception() is not None:
            pumping.result()
        raw = await future
        await asyncio.wait((pumping,), timeout=patience_s if _timed_out(raw) else None)
        if pumping.done():
            pumping.result()
    finally:
        pumping.cancel()
        await asyncio.gather(pumping, return_exceptions=True)
    return raw
