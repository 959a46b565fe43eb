"""The two sides of `stage` under everything that must hold, after each step and at the end."""

from __future__ import annotations

import asyncio

from msgspec import Raw

from sandport.errors import CallCancelled, DeadlineExceeded, SandportError, WorkerCrashed
from sandport_protocol.errors import Cancelled as CancelledByWorker
from sandport_protocol.errors import Internal, ProtocolViolation, TooLarge, Unavailable, WireError
from sandport_protocol.v1 import StreamName
from sandport_sdk.dispatch import CLOSE_S, FINISH_S

from .handlers import STREAMS, Handler, Order, content, number_in
from .stage import DRAIN_S, GRACE_S, HEARTBEAT_S, SLACK_S, STALL_S, WEDGE_S, Caller, Stage


def owner_of(timer: asyncio.TimerHandle) -> object:
    """Whose method it calls; None for what is no method."""
    return getattr(timer._callback, "__self__", None)  # type: ignore[attr-defined, unused-ignore]


class ClientPair(Stage):
    """Both sides, from the hello to the end."""

    # -------------------------------------------------------------- what always holds

    def check(self) -> None:
        """Nobody waits too long, nobody got what is not theirs, nothing was counted wrongly."""
        now = self.loop.time()
        assert self.loop.faults == [], self.loop.faults
        for caller in self.callers:
            if caller.task.done() and caller.outcome is None:
                caller.outcome = self._outcome(caller)
            elif not caller.task.done():
                self._still_in_time(caller, now)
            self._took_what_was_sent(caller)
        self._check_slots()
        self._check_timers()
        if self.loop.is_idle:
            self._check_entries()
            self._check_worker_entries()
        self._check_wedges(now)
        if self.dispatcher.ended.done() and not self.gone:
            assert self.monitor.unanswered == [], "CALL-1: what was taken is answered before the worker ends"
        elif self.must_end_by is not None and not self.gone:
            assert now <= self.must_end_by, "the worker does not end"
        if not self.closed:
            assert self.late == self.late_expected, "an answer that came late is told to who settles it, and only once"

    def _outcome(self, caller: Caller) -> str:
        """The one outcome, held against what was done to the call."""
        handler = self.desk.handlers[caller.number]
        now = self.loop.time()
        if caller.task.cancelled():
            assert caller.cancelled_at is not None, "cancelled by nobody"
            return "cancelled"
        error = caller.task.exception()
        if isinstance(error, SandportError) and error.dispatched == "no":
            assert handler.call is None or caller.method == "probe", "what may have happened is called not dispatched"
        match error:
            case None:
                assert handler.ended == "returned", "a result of a handler that has not returned"
                assert number_in(caller.task.result()) == caller.number, "somebody else's result"
                self._got_everything(caller, handler)
                return "result"
            case DeadlineExceeded():
                assert caller.deadline_s is not None
                assert now >= caller.begun_at + caller.deadline_s - SLACK_S, "a deadline that is not over"
                return "deadline"
            case WorkerCrashed():
                assert self.gone or self.closed or self._drains or self._asked_to_end(), "crashed by nobody"
                if self.request_of(caller) is not None:
                    assert error.dispatched == "unknown", "it was sent"
                    assert error.report is self.report, "one end, one report"
                return "crashed"
            case CallCancelled():
                raise AssertionError("cancelled by nobody")
            case WireError() | SandportError():
                self._is_known(error, caller, handler)
                return "error"
        raise AssertionError(f"no outcome: {error!r}") from error

    def _asked_to_end(self) -> bool:
        return any(seen.method == "shutdown" for seen in self.monitor.requests.values())

    def _is_known(self, error: SandportError, caller: Caller, handler: Handler) -> None:
        """An error has a reason."""
        match error:
            case TooLarge():
                known = error.dispatched == "no"
            case ProtocolViolation():
                known = self._lost_lines or caller.overdrawn
            case CancelledByWorker():
                known = self._drains and (handler.cancels > 0 or handler.call is None)
            case Unavailable():
                known = handler.ended == "Unavailable" or (self._drains and error.dispatched == "no")
            case Internal():
                known = handler.ended in ("ValueError", "SystemExit", "returned") or self._failed
            case _:
                known = False
        assert known, f"an error that nothing explains: {error!r} of {caller.method}, whose handler {handler.ended!r}"

    def _still_in_time(self, caller: Caller, now: float) -> None:
        sent = self.request_of(caller)
        if caller.deadline_s is not None:
            if sent is not None:
                end = sent.sent_at + caller.deadline_s + GRACE_S
            elif self.to_worker.ended:  # maybe it waited for a slot first, and then nobody read it
                end = caller.begun_at + 2 * caller.deadline_s + GRACE_S
            else:
                end = caller.begun_at + caller.deadline_s
            assert now <= end + SLACK_S, "a call that is over its deadline and its grace"
        if caller.cancelled_at is not None:
            assert now <= caller.cancelled_at + GRACE_S + SLACK_S, "a call that was cancelled and does not end"

    def _took_what_was_sent(self, caller: Caller) -> None:
        if caller.overdrawn:
            return
        for stream, data in caller.taken.items():
            assert data == content(caller.number, stream, 0, len(data)), "output that is not this call's"

    def _got_everything(self, caller: Caller, handler: Handler) -> None:
        if caller.lane is None or handler.call is None or caller.overdrawn:
            return
        for stream in STREAMS:
            got = len(caller.taken[stream]) + caller.lane.waiting(stream)
            assert got == handler.call.sent(stream), "a result without all of its output"

    def _check_slots(self) -> None:
        client = self.client
        assert client._slots.used <= client._slots.limit or self.closed
        if not self.loop.is_idle:
            return
        waiters = sum(not waiter.done() for waiter in client._slots._waiters)
        if self.closed:
            assert waiters == 0, "somebody waits in line though everything is over"
            return
        if not self.to_worker.ended:  # what goes into it then is seen by nobody
            waiting = {caller.number for caller in self.callers if not caller.task.done()}
            assert waiters == len(waiting - self.monitor.numbers), "somebody was not sent, and does not wait in line"
        open_calls = [*client._calls.values(), *client._told.values()]
        assert client._slots.used == sum(call.slotted for call in open_calls), "a slot that nobody holds"
        assert client.connection.open_requests >= len(open_calls)
        assert client._slots._full == self._writers[0].paused, "the pipe has room, or has none, and nobody knows"
        may_go = not client._slots._full and client._slots.used < client._slots.limit
        assert not (waiters and may_go), "a call waits though there is a slot, and room in the pipe"
        self._check_writers()

    def _check_timers(self) -> None:
        """A timer of the client's is that of an open call, or the one of all deadlines."""
        client = self.client
        mine = [timer for timer in self.loop.timers if owner_of(timer) in (client, client._deadlines)]
        if self.closed:
            assert mine == [], "a timer is left after the end"
            return
        open_calls = [*client._calls.values(), *client._told.values()]
        of_calls = [call.timer for call in open_calls if call.timer is not None]
        left = [timer for timer in mine if owner_of(timer) is client and all(timer is not one for one in of_calls)]
        assert left == [], "a timer of a call that has ended, or a second one"
        assert len(mine) - len(of_calls) <= 1, "two timers for all deadlines"

    def _check_entries(self) -> None:
        """What the host has noted of a call is of use to somebody, and what it learned was told."""
        client = self.client
        for number in self.created:
            caller = self.callers[number - 1]
            told = caller.outcome == "result" or isinstance(caller.settled, Raw)
            assert told, "a sandbox was created, and nobody was told"
        if self.closed:
            return
        for call in client._calls.values():
            cancelled = client.connection.state_of(call.id) != "open"
            assert cancelled or not call.future.done(), "nobody waits for a call that was not cancelled"
        if self._all_is_read and client.connection.phase == "serving":
            answered = {number for number, seen in self.monitor.requests.items() if seen.answered and seen.number}
            assert answered.isdisjoint(client._calls), "a call is open whose answer was lost, and nobody looks for it"
            assert answered.isdisjoint(client._told), "a call is open that was told, answered and lost"

    @property
    def _all_is_read(self) -> bool:
        """What either side has written was read by the other."""
        if self.gone or self.frozen_at is not None or self._unread or self.to_worker.ended:
            return False
        return not self.to_host and not self.to_worker

    def _check_worker_entries(self) -> None:
        """A worker's tables agree, and nothing of an answered call is left."""
        if self.gone:
            return
        calls = self.dispatcher._calls
        others = [number for number in self.dispatcher._connection.open_ids if number not in calls._open]
        assert calls._open.keys() <= {*self.dispatcher._connection.open_ids}, "a call is open that was answered"
        assert all(self.monitor.requests[int(number)].method == "shutdown" for number in others), "an id that is left"
        assert calls._open or calls.idle.is_set(), "nothing is open, and the end waits for it"
        for handler in self.desk.handlers.values():
            if handler.call is not None and handler.call._answered:
                assert all(pump.done() for pump in handler.pumps.values()), "output waits for a call that was answered"

    def _check_writers(self) -> None:
        if self.gone or self.dispatcher.ended.done():
            return
        for handler in self.desk.handlers.values():
            call, stream = handler.call, handler.writes
            if stream is None or handler.cancels or call is None or call._answered:
                continue
            assert call.credit_left(stream) == 0, "output waits though there is room for it"
            self._check_credit(self.callers[handler.number - 1], call.sent(stream), stream)

    def _check_credit(self, caller: Caller, sent: int, stream: StreamName) -> None:
        """A stream that waits for credit has output on the way, or not taken, or nobody waits for it any more."""
        on_the_way = len(self.to_host) + len(self.to_worker)
        if on_the_way or self._lost_lines or self._unread or self.to_worker.ended or caller.overdrawn:
            return
        if caller.cancelled_at is None and not caller.task.done() and not self._writers[1].paused:
            assert len(caller.taken[stream]) < sent, "everything was taken, and no credit came for it"

    def _check_wedges(self, now: float) -> None:
        told = self.client._told
        self._told_at = {number: self._told_at.get(number, now) for number in told}
        if self.gone or self.closed:
            return
        for number, since in self._told_at.items():
            assert now <= since + WEDGE_S + SLACK_S, f"{told[number].method} never ended, and nobody was told"
        if self.frozen_at is not None and self._beating is not None:
            limit_s = HEARTBEAT_S + WEDGE_S + STALL_S + HEARTBEAT_S
            assert now <= self.frozen_at + limit_s + SLACK_S, "a worker that is stuck and was not condemned"
        for seen in self.monitor.requests.values():
            if seen.cancel_delivered and not seen.answered and seen.number:
                handler = self.desk.handlers[seen.number]
                if not self.loop.is_idle:
                    continue
                assert handler.cancels or not handler.runs, "CANCEL-1: a cancel that interrupted nothing"

    # -------------------------------------------------------------- the end

    def finish(self) -> None:
        """Everybody gets an outcome, and nothing is left on either side."""
        self._flows = True
        self._settle()
        if self.frozen_at is not None or self.must_end_by is not None or len(self.callers) % 3 == 2:
            self._wait_it_out()
        else:
            self._end_in_order()
        for caller in self.callers:
            if caller.consumer is not None and caller.lane is not None:
                for _ in range(len(caller.lane._pieces) + 1):
                    caller.permits.release()
        if self._beating is not None:
            self._beating.cancel()
        self.loop.settle()
        self.check()
        left = [task for task in asyncio.all_tasks(self.loop) if not task.done()]
        assert left == [], f"tasks are left: {left}"
        assert all(caller.outcome is not None for caller in self.callers)
        client = self.client
        assert (client._calls, client._told, client.connection.open_requests) == ({}, {}, 0)
        assert client._hello.done()
        assert client.ready.done()
        assert self.loop.faults == [], self.loop.faults

    def _end_in_order(self) -> None:
        """Handlers end, the worker is asked to end, its input ends, it ends: what was taken has been answered."""
        self.get_ready(works=True)
        for _ in range(len(self.callers) + 2):
            for handler in self.desk.handlers.values():
                if handler.runs and not self.gone:
                    self._in_loop(handler.tell, Order("return"), side="worker")
            self._settle()
            self._release_consumers()
        self.check()
        self._use_again()
        self.shut_down()
        self._settle()
        unread = self._unread or self.to_worker.ended
        self.end_input()
        self._unread = unread
        self.wait(round((FINISH_S + 2 * DRAIN_S + CLOSE_S) * 1000) + 1)
        if not self.gone:
            assert self.dispatcher.ended.done(), "the worker does not end"
            assert self.dispatcher._connection.open_ids == ()
            assert len(self.dispatcher._calls) == 0
            if not self.closed:
                self.wait(round((GRACE_S + WEDGE_S) * 1000))
                self._nothing_is_open()
        self.reap()

    def _use_again(self) -> None:
        """When everything has ended, as many calls as ever are served at once, and then those behind them."""
        if not self.serves:
            return
        self.to_host.write(b"\n", {})  # whatever half a line there is, ends here
        self._settle()
        slots, before = self.monitor.in_flight, len(self.callers)
        for _ in range(slots + 2):
            self.call("probe", "obey", deadline_ms=0, by_hand=False)
        self._settle()
        handlers = [self.desk.handlers[caller.number] for caller in self.callers[before:]]
        assert [handler.runs for handler in handlers] == [True] * slots + [False] * 2, "less, or more, than was agreed"
        self.check()
        for handler in handlers:
            self._in_loop(handler.tell, Order("return"), side="worker")
        self._settle()
        self.check()
        assert [caller.outcome for caller in self.callers[before:]] == ["result"] * (slots + 2)

    def _nothing_is_open(self) -> None:
        """What was lost on its way is no longer waited for either, once a ping has looked for it."""
        self._settle()
        if not self._lost_lines and not self._unread:
            assert self.client._slots.used == 0, "slots are held by calls that were answered"

    def _release_consumers(self) -> None:
        for caller in self.callers:
            if caller.consumer is not None and not caller.consumer.done():
                caller.permits.release()
        self.loop.settle()

    def _wait_it_out(self) -> None:
        """Nobody does anything: deadlines pass, and a worker that ends nothing is condemned."""
        longest = max((caller.deadline_s or 0.0 for caller in self.callers), default=0.0)
        self.wait(round((2 * longest + GRACE_S) * 1000) + 1)
        self.check()
        self.wait(round((2 * HEARTBEAT_S + WEDGE_S + STALL_S) * 1000) + 1)
        self.check()
        self.crash(keep=10**6)
        self.reap()

    def close(self) -> None:
        """Let go of the loop, whatever is left in it."""
        for _ in range(3):
            for handler in self.desk.handlers.values():
                handler.process_is_gone = True
            for task in asyncio.all_tasks(self.loop):
                task.cancel()
            self.loop.advance(60.0)
        self.loop.close()
        self._log.setLevel(self._log_level)
