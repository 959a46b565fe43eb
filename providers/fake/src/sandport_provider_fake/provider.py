"""The methods of the protocol, in its order: a worker that talks to the fake vendor as others do to a cloud."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import time
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from sandport_sdk.config import decode
from sandport_sdk.v1 import Capabilities, Provider, errors, extension, types

from . import config as orders
from . import faults, wire
from .command import deadline_ms, text_of, words_of
from .config import FakeConfig
from .faults import FaultBook, Passage, object_of, skewed
from .sandbox import Sandbox, handle_of
from .vendor import Setup, Vendor
from .watch import Watch

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from sandport_sdk.v1 import Call, Session

    from .command import Command
    from .vendor import Record

FRAME_MARGIN_BYTES = 64 * 1024
"""What a frame holds beside the output."""
ENTRY_BYTES = 256
"""More than one sandbox takes on a page of `listLeases`."""
PAGE = 500
"""Leases in one answer of `listLeases`, where they fit in a frame."""
GONE_KEPT = 1024
"""Ids of ended sandboxes that are remembered, so that a late call is told that they are gone."""
_R = TypeVar("_R")
_S = TypeVar("_S", types.SyncInResult, types.SyncOutResult)


class FakeProvider(Provider):
    """Sandboxes of a vendor that is a folder, and that errs when it is told to."""

    name = "fake"
    version = "0.1.0"
    display_name = "Fake vendor"
    Config = FakeConfig
    capabilities = Capabilities(kill="group", expiry="vendor", attach="none", egress=("all", "none"))

    def __init__(self, session: Session) -> None:
        super().__init__(session)
        self._vendor = Vendor(session.state_dir, store_id=session.store_id)
        self._book = FaultBook(self._vendor)
        self._open: dict[str, Sandbox] = {}
        self._gone: dict[str, None] = {}
        self._watch = Watch(self._vendor, self._open, self._forget_ended)
        self._output_limit_bytes = max(0, session.limits.frame_bytes - FRAME_MARGIN_BYTES) * 3 // 8
        """Both streams of a result, in base64, must fit in one frame."""
        self._set_up()
        self._greet()

    def _set_up(self) -> None:
        path = self._vendor.folder / "vendor.json"
        setup = decode(Setup, path.read_bytes()) if path.exists() else Setup()
        declared = type(self).capabilities
        if setup.create_settle_ms != declared.create_settle_ms:
            # The hello takes what the class has; a process serves one vendor.
            type(self).capabilities = Capabilities(
                kill=declared.kill,
                expiry=declared.expiry,
                attach=declared.attach,
                egress=declared.egress,
                create_settle_ms=setup.create_settle_ms,
            )

    def _greet(self) -> None:
        """Pass the point `hello`; blocks the worker, as a provider does that is stuck there."""
        if not self._vendor.is_there:
            return
        self._vendor.note("hello", storeId=self.session.store_id, host=self.session.host.name)
        for fault in self._book.due_here("hello"):
            if isinstance(fault, orders.Late):
                time.sleep(fault.by_s)
            elif isinstance(fault, orders.Hang | orders.LoseAnswer):
                while True:
                    time.sleep(faults.LONG_S)
            elif isinstance(fault, orders.GarbageLine):
                wire.write_here(fault.text.encode())
            elif (error := faults.ordered_error(fault, dispatched="no")) is not None:
                raise error
            else:
                faults.at_once(fault)

    async def _pass(self, point: str) -> None:
        """Pass a point that belongs to no call."""
        for fault in await self._book.due(point, None, sandbox_id="", method=""):
            if isinstance(fault, orders.Late):
                await faults.late(fault, self._vendor)
            elif isinstance(fault, orders.Hang | orders.LoseAnswer):
                await faults.hang()
            elif isinstance(fault, orders.GarbageLine):
                await wire.write_line(fault.text.encode())
            elif (error := faults.ordered_error(fault, dispatched="no")) is not None:
                raise error
            else:
                faults.at_once(fault)

    async def prepare(self) -> None:
        """Pass the point `ready`."""
        await self._pass("ready")
        self._watch.begin()

    async def close(self) -> None:
        """Let go: what runs is lost, the sandboxes stay for the next worker."""
        await self._pass("close")
        if self._vendor.is_there:
            self._vendor.note("close")
        await self._watch.close()
        await asyncio.gather(*(sandbox.leave() for sandbox in self._open.values()))

    # ------------------------------------------------------------ config

    async def validate_config(self, params: types.ValidateConfigParams, call: Call) -> types.ValidateConfigResult:
        """Answer the config with its defaults filled in, or what is wrong with it. Repeat: the same."""
        passage = self._passage("validate", call)
        await passage.at("before")
        return await self._answer(passage, await super().validate_config(params, call))

    async def probe(self, params: types.ProbeParams, call: Call) -> types.ProbeResult:
        """Ask the vendor how it is. Repeat: asks again. Cancel: nothing."""
        passage = await self._enter("probe", call, self.config_of(params))
        folder = self._vendor.folder
        checks = (
            types.ProbeCheck(name="vendor", ok=os.access(folder, os.W_OK | os.X_OK), detail=str(folder)),
            types.ProbeCheck(name="clock", ok=True, detail="virtual" if self._vendor.clock.is_virtual else "real"),
        )
        return await self._answer(passage, types.ProbeResult(checks=checks))

    # ------------------------------------------------------------ leases

    async def acquire_lease(self, params: types.AcquireLeaseParams, call: Call) -> types.LeaseResult:
        """Make a sandbox.

        Repeat: refused, an id serves one create. Cancel: what was made is ended; only where the vendor's answer was
        lost on order, it stays.
        """
        call.dispatched = "no"
        config: FakeConfig = self.config_of(params)
        mode = "all" if params.egress is None else params.egress.mode
        if mode == "listed":
            why = "egress 'listed': this vendor knows all and nothing"
            raise errors.NotSupported(why, detail=errors.Detail(field="egress.mode"), dispatched="no")
        passage = await self._enter("acquire", call, config, params.sandbox_id)
        async with self._vendor.create_slot(config.max_in_flight_creates):
            record = await self._vendor.create(
                params.sandbox_id,
                config,
                ttl_ms=params.ttl_ms,
                keep=params.keep,
                egress=mode,
                workload=params.workload or "",
                deadline_ms=deadline_ms(call),
            )
            call.dispatched = "unknown"
            try:
                return await self._make(record, config, passage)
            except asyncio.CancelledError:
                await asyncio.shield(self._vendor.end(record, why="destroyed"))
                self._forget(record.sandbox_id)
                call.dispatched = "no"
                raise

    async def _make(self, record: Record, config: FakeConfig, passage: Passage) -> types.LeaseResult:
        """The steps of a create after its record; an order that fails one leaves behind what was made."""
        await self._hide(record, passage)
        await passage.at("after-record")
        await self._hide(record, passage)
        if passage.find(orders.HalfCreate) is not None:
            raise errors.Unavailable("the vendor broke off the create", dispatched="unknown")
        try:
            self._vendor.make_files(record)
        except errors.WireError:
            await self._vendor.end(record, why="destroyed")
            raise
        await passage.at("after-files")
        await self._hide(record, passage)
        ready = await self._vendor.change(record.sandbox_id, state="ready")
        if ready is None:
            raise errors.SandboxLost("the sandbox was ended while it was made", dispatched="yes")
        self._vendor.note("created", sandboxId=record.sandbox_id)
        sandbox = self._open[record.sandbox_id] = self._sandbox_of(ready, config)
        self._watch.look()
        await passage.at("before-answer")
        await self._hide(record, passage)
        return self._given(passage, skewed(sandbox.lease(), passage))

    async def _hide(self, record: Record, passage: Passage) -> None:
        if (hidden := passage.find(orders.Hide)) is not None:
            from_ms = self._vendor.clock.now_ms() + round(hidden.for_s * 1000)
            await self._vendor.change(record.sandbox_id, listed_from_ms=from_ms, hidden=hidden.scope)

    async def attach_lease(self, params: types.AttachLeaseParams, call: Call) -> types.AttachLeaseResult:
        """Open a sandbox of another worker, or of this one. Repeat: the same. Cancel: it stays as it was."""
        config: FakeConfig = self.config_of(params)
        passage = await self._enter("attach", call, config, params.sandbox_id)
        if params.handle != handle_of(params.sandbox_id):
            why = f"{params.handle!r} is no handle of {params.sandbox_id}"
            raise errors.InvalidParams(why, detail=errors.Detail(field="handle"), dispatched="no")
        record = await self._vendor.find(params.sandbox_id)
        if record is not None and params.keep is not None and record.state == "ready":
            record = await self._vendor.change(params.sandbox_id, keep=params.keep)
        if record is None or record.state == "ending":
            await self._forget_ended(params.sandbox_id)
            # One that ends is not gone before its end is done; a repeat of the destroy finishes it.
            state: Any = "gone" if record is None else "unreachable"
            return await self._answer(passage, types.AttachLeaseResult(state=state))
        if record.state == "creating":
            return await self._answer(passage, types.AttachLeaseResult(state="unreachable"))
        known = self._open.get(params.sandbox_id)
        if known is None:
            lost = await self._vendor.lost_processes(params.sandbox_id)
            known = self._sandbox_of(record, config, processes_lost=lost)
        known.config = config
        self._gone.pop(params.sandbox_id, None)
        self._open[params.sandbox_id] = known
        self._watch.look()
        self._vendor.note("attach", sandboxId=params.sandbox_id)
        await passage.at("before-answer")
        lease = skewed(known.lease(), passage)
        answer = types.AttachLeaseResult(state="attached", lease=lease, processes_lost=known.processes_lost)
        return self._given(passage, answer)

    async def list_leases(self, params: types.ListLeasesParams, call: Call) -> types.ListLeasesResult:
        """List what the vendor shows, a page at a time. Repeat: lists again. Cancel: nothing."""
        passage = await self._enter("list", call, self.config_of(params), params.sandbox_id or "")
        await self._vendor.end_expired()
        found = [
            record
            for record in self._vendor.listed()
            if params.sandbox_id in (None, record.sandbox_id) and record.sandbox_id > (params.cursor or "")
        ]
        page = max(1, min(PAGE, self.session.limits.frame_bytes // ENTRY_BYTES - 1))
        await passage.at("before-answer")
        skew = passage.find(orders.Skew)
        by_ms = round(skew.by_s * 1000) if skew is not None else 0
        answer = types.ListLeasesResult(
            leases=tuple(
                types.ListedLease(
                    sandbox_id=record.sandbox_id,
                    handle=handle_of(record.sandbox_id),
                    created_at_ms=record.created_at_ms + by_ms,
                    expires_at_ms=record.expires_at_ms + by_ms,
                )
                for record in found[:page]
            ),
            next_cursor=found[page - 1].sandbox_id if len(found) > page else None,
        )
        return self._given(passage, answer)

    async def destroy_lease(self, params: types.DestroyLeaseParams, call: Call) -> types.DestroyLeaseResult:
        """End a sandbox, attached or not. Repeat: `gone`. Cancel: a repeat finishes it."""
        sandbox_id = params.sandbox_id
        passage = await self._enter_by_id("destroy", call, sandbox_id)
        record = await self._vendor.find(sandbox_id)
        if record is None or await self._vendor.begin_end(sandbox_id, why="destroyed") is None:
            await self._forget_ended(sandbox_id)
            return await self._answer(passage, types.DestroyLeaseResult(state="gone"))
        call.dispatched = "yes"
        await passage.at("half")
        await self._forget_ended(sandbox_id)
        stale = passage.find(orders.StaleList)
        await self._vendor.finish_end(sandbox_id, stale_s=stale.for_s if stale is not None else 0.0)
        return await self._answer(passage, types.DestroyLeaseResult(state="destroyed"))

    # ------------------------------------------------------------ commands

    async def execute(self, params: types.ExecuteParams, call: Call) -> types.ExecuteResult:
        """Run a command to its end. Repeat: runs it again. Cancel: kills its group, then answers."""
        sandbox = self._attached(params.sandbox_id)
        passage = await self._enter_by_id("execute", call, params.sandbox_id, sandbox)
        await self._check_there(params.sandbox_id)
        call.dispatched = "no"
        sandbox.check(params)
        nonce = self._note_start("execute", params, call, timeout_ms=params.timeout_ms)
        keep_bytes = None if params.live else min(params.output_limit_bytes, self._output_limit_bytes)
        command = await sandbox.run(params, keep_bytes=keep_bytes, stdin=params.stdin, timeout_ms=params.timeout_ms)
        call.dispatched = "unknown"
        result: types.ExecuteResult | None = None
        try:
            await self._read_output(command, passage)
            await self._follow(command, call, live=params.live)
            call.dispatched = "yes"
            result = command.outcome(types.ExecuteResult, call if params.live else None)
        finally:
            ended = result.ended if result is not None else "interrupted"
            code = result.exit_code if result is not None else None
            self._vendor.note("executed", nonce=nonce, sandboxId=params.sandbox_id, ended=ended, exitCode=code)
            sandbox.release(command)
        return await self._answer(passage, result)

    def _note_start(
        self, what: str, params: types.CommandParams, call: Call, *, timeout_ms: int | None, **facts: object
    ) -> str:
        """Write to the journal what is about to be started; its nonce."""
        nonce = os.urandom(8).hex()
        self._vendor.note(
            what,
            nonce=nonce,
            sandboxId=params.sandbox_id,
            argv=words_of(params),
            timeoutMs=timeout_ms,
            deadlineMs=deadline_ms(call),
            **facts,
        )
        return nonce

    async def _read_output(self, command: Command, passage: Passage) -> None:
        """Pass the point between the start of a command and the first byte of its output."""
        try:
            await passage.at("started")
        except BaseException:  # a fault that was ordered, or a cancel: the command runs, and nobody reads it
            command.begin_reading()
            await command.stop("cancelled")
            await asyncio.shield(command.over)
            raise
        self._begin_reading(command, passage)

    def _begin_reading(self, command: Command, passage: Passage) -> None:
        if (cut := passage.find(orders.Truncate)) is not None:
            command.begin_reading(cut.keep_bytes, cut.tell)
        else:
            command.begin_reading()

    async def _follow(self, command: Command, call: Call, *, live: bool) -> None:
        """Wait for its end and send its output; after a cancel too, where it had ended by itself before."""
        ended: set[str] = set()
        try:
            if live:
                await command.deliver(call, {}, ended=ended)
            else:
                await asyncio.shield(command.over)
        except (asyncio.CancelledError, errors.Cancelled):
            await command.stop("cancelled")
            await asyncio.shield(command.exited)
            if not live:
                await asyncio.shield(command.over)
                return
            try:
                if command.was_killed:
                    raise errors.Cancelled("the command was cancelled", dispatched="unknown") from None
                sent = {stream.name: call.sent(stream.name) for stream in command.streams}
                await command.deliver(call, sent, ended=ended)
            except errors.Cancelled:
                command.give_up_output()
                await asyncio.shield(command.over)
                raise

    # ------------------------------------------------------------ processes

    async def start_process(self, params: types.StartProcessParams, call: Call) -> types.StartProcessResult:
        """Start a command and come back. Repeat: refused while the id is known. Cancel: ends it."""
        sandbox = self._attached(params.sandbox_id)
        passage = await self._enter_by_id("start", call, params.sandbox_id, sandbox)
        await self._check_there(params.sandbox_id)
        call.dispatched = "no"
        sandbox.check(params)
        if params.process_id in sandbox.processes:
            why = f"there is a process {params.process_id!r} already"
            raise errors.InvalidParams(why, detail=errors.Detail(field="processId"), dispatched="no")
        sandbox.processes[params.process_id] = None
        self._note_start("start", params, call, timeout_ms=params.timeout_ms, processId=params.process_id)
        try:
            stdin = None if params.stdin else b""
            command = await sandbox.run(params, keep_bytes=None, stdin=stdin, timeout_ms=params.timeout_ms)
        except BaseException:  # a cancel too: the id is free again where nothing runs under it
            sandbox.processes.pop(params.process_id, None)
            raise
        call.dispatched = "yes"
        self._begin_reading(command, passage)
        sandbox.add_process(params.process_id, command)
        return await self._answer(passage, types.StartProcessResult())

    async def write_process(self, params: types.WriteProcessParams, call: Call) -> types.WriteProcessResult:
        """Write to a process's input, answered once its pipe took it. Repeat: again. Cancel: may have written."""
        command, passage = await self._enter_process("write", call, params)
        if command.input is None:
            raise errors.InvalidParams("this process was started without an open input", dispatched="no")
        taken = await command.input.write(params.data, end=params.end)
        return await self._answer(passage, types.WriteProcessResult(taken_bytes=taken))

    async def signal_process(self, params: types.SignalProcessParams, call: Call) -> types.SignalProcessResult:
        """Signal a process's group, or kill it. Repeat: again. Cancel: may have signalled."""
        command, passage = await self._enter_process("signal", call, params)
        if params.resize is not None:
            why = "there are no terminals here"
            raise errors.NotSupported(why, detail=errors.Detail(field="resize"), dispatched="no")
        if params.signal is not None and not 0 < params.signal < signal.NSIG:
            why = f"{params.signal} is no signal's number"
            raise errors.InvalidParams(why, detail=errors.Detail(field="signal"), dispatched="no")
        delivered = not command.exited.done()
        if params.signal is not None:
            delivered = await command.signal(params.signal)
        else:
            await command.stop("killed")
            await asyncio.shield(command.exited)
        return await self._answer(passage, types.SignalProcessResult(delivered=delivered))

    async def wait_process(self, params: types.WaitProcessParams, call: Call) -> types.WaitProcessResult:
        """Follow a process to its end. Repeat: from the offset it names. Cancel: stops following; it runs on."""
        command, passage = await self._enter_process("wait", call, params)
        if command.followed:
            raise errors.Overloaded("this process is followed already; one call at a time can", dispatched="no")
        bases = {start.stream: start.offset for start in params.from_offset}
        for stream in command.streams:
            stream.check_offset(bases.get(stream.name, 0))
        command.followed = True
        try:
            await command.deliver(call, bases, ended=set())
        finally:
            command.followed = False
        return await self._answer(passage, command.outcome(types.WaitProcessResult, call, bases=bases))

    # ------------------------------------------------------------ files

    async def sync_in(self, params: types.SyncInParams, call: Call) -> types.SyncInResult:
        """Unpack an archive. Repeat: unpacks again. Cancel: the tar is killed; what was unpacked stays."""
        from . import bulk  # with the first archive: a worker's start is short

        return await self._move("sync-in", params, call, partial(bulk.unpack, params))

    async def sync_out(self, params: types.SyncOutParams, call: Call) -> types.SyncOutResult:
        """Send an archive. Repeat: sends again. Cancel: the tar is killed, the stream breaks off."""
        from . import bulk

        return await self._move("sync-out", params, call, partial(bulk.pack, params))

    async def _move(
        self, name: str, params: types.SyncParams, call: Call, move: Callable[[Sandbox, Passage], Awaitable[_S]]
    ) -> _S:
        sandbox = self._attached(params.sandbox_id)
        passage = await self._enter_by_id(name, call, params.sandbox_id, sandbox)
        await self._check_there(params.sandbox_id)
        if not sandbox.config.sync:
            raise errors.NotSupported("the config of this environment has no sync", dispatched="no")
        facts = {"nonce": os.urandom(8).hex(), "sandboxId": params.sandbox_id, "path": text_of(params.path)}
        self._vendor.note(name, **facts, deadlineMs=deadline_ms(call))
        call.dispatched = "unknown"
        result: _S | None = None
        ended = "interrupted"
        try:
            result = await move(sandbox, passage)
            ended = "whole"
        except errors.WireError as error:
            ended = error.condition
            raise
        finally:
            moved = None if result is None else result.bytes
            self._vendor.note(name.replace("sync", "synced"), **facts, ended=ended, bytes=moved)
        return await self._answer(passage, result)

    # ------------------------------------------------------------ orders

    @extension("x-fake/clock")
    async def move_clock(self, params: Any, call: Call) -> Any:
        """Read the vendor's clock; `{"advanceMs": 1000}` moves it, `{"virtual": true}` lets it stand still."""
        asked = object_of(params, "advanceMs", "virtual")
        async with self._vendor.lock.held():
            if asked.get("virtual"):
                self._vendor.clock.make_virtual()
            if by_ms := asked.get("advanceMs", 0):
                self._vendor.clock.advance(int(by_ms))
                self._vendor.note("clock", byMs=int(by_ms))
        self._watch.look()
        return {"nowMs": self._vendor.clock.now_ms(), "virtual": self._vendor.clock.is_virtual}

    @extension("x-fake/faults")
    async def order_faults(self, params: Any, call: Call) -> Any:
        """List the orders for all workers; `{"clear": true}` takes them away, `{"set": [...]}` adds some."""
        asked = object_of(params, "clear", "set")
        path = self._vendor.folder / "faults.json"
        async with self._vendor.lock.held():
            said: dict[str, Any] = json.loads(path.read_bytes()) if path.exists() else {}
            kept = [] if asked.get("clear") else said.get("faults", [])
            said["faults"] = [*kept, *asked.get("set", [])]
            decode(orders.Orders, json.dumps(said).encode())
            if said["faults"] != kept or asked.get("clear"):
                self._book.replace(said)
        return {"faults": said["faults"]}

    # ------------------------------------------------------------ passing through the vendor

    def _passage(self, name: str, call: Call, config: FakeConfig | None = None, sandbox_id: str = "") -> Passage:
        return Passage(self._vendor, self._book, call, name, sandbox_id=sandbox_id, config=config)

    async def _enter(self, name: str, call: Call, config: FakeConfig, sandbox_id: str = "") -> Passage:
        """Begin a call that brings its config."""
        if config.clock == "virtual" and not self._vendor.clock.is_virtual:
            async with self._vendor.lock.held():
                self._vendor.clock.make_virtual()
        passage = self._passage(name, call, config, sandbox_id)
        await passage.at("before")
        await self._vendor.admit(config.requests_per_s)
        return passage

    async def _enter_by_id(self, name: str, call: Call, sandbox_id: str, sandbox: Sandbox | None = None) -> Passage:
        """Begin a call that names a sandbox."""
        sandbox = sandbox or self._open.get(sandbox_id)
        call.dispatched = "no"
        passage = self._passage(name, call, sandbox.config if sandbox is not None else None, sandbox_id)
        await passage.at("before")
        if (record := self._vendor.read(sandbox_id)) is not None:
            await self._vendor.admit(record.requests_per_s)
        return passage

    async def _enter_process(
        self,
        name: str,
        call: Call,
        params: types.WriteProcessParams | types.SignalProcessParams | types.WaitProcessParams,
    ) -> tuple[Command, Passage]:
        """Begin a call about a process."""
        sandbox = self._attached(params.sandbox_id)
        passage = await self._enter_by_id(name, call, params.sandbox_id, sandbox)
        command = sandbox.processes.get(params.process_id)
        if command is None:
            raise errors.ProcessNotFound(f"no process {params.process_id!r} is known in the sandbox", dispatched="no")
        call.dispatched = "unknown"
        return command, passage

    async def _answer(self, passage: Passage, result: _R) -> _R:
        await passage.at("before-answer")
        return self._given(passage, result)

    def _given(self, passage: Passage, result: _R) -> _R:
        """The result, with what was ordered of the answer as it goes out."""
        if passage.find(orders.DuplicateAnswer) is not None:
            passage.answer_again(result)
        return result

    # ------------------------------------------------------------ what is attached

    def _sandbox_of(self, record: Record, config: FakeConfig, *, processes_lost: bool = False) -> Sandbox:
        window_bytes = self.session.limits.credit_bytes
        return Sandbox(self._vendor, record, config, window_bytes=window_bytes, processes_lost=processes_lost)

    def _attached(self, sandbox_id: str) -> Sandbox:
        sandbox = self._open.get(sandbox_id)
        if sandbox is None:
            if sandbox_id in self._gone:
                raise errors.LeaseNotFound("the sandbox has ended", dispatched="no")
            raise errors.NotAttached(f"this worker is not attached to {sandbox_id}", dispatched="no")
        return sandbox

    async def _check_there(self, sandbox_id: str) -> None:
        record = await self._vendor.find(sandbox_id)
        if record is None or record.state != "ready":
            await self._forget_ended(sandbox_id)
            raise errors.LeaseNotFound("the sandbox has ended", dispatched="no")

    def _forget(self, sandbox_id: str) -> Sandbox | None:
        self._gone[sandbox_id] = None
        if len(self._gone) > GONE_KEPT:
            del self._gone[next(iter(self._gone))]
        return self._open.pop(sandbox_id, None)

    async def _forget_ended(self, sandbox_id: str) -> None:
        if (sandbox := self._forget(sandbox_id)) is not None:
            await sandbox.end()
