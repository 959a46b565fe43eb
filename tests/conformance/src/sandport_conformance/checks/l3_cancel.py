"""L3: what a cancel does, and what it must not do."""

from __future__ import annotations

import time

from sandport_conformance.declaration import Needs, check
from sandport_conformance.lab import Lab
from sandport_conformance.outcomes import expect
from sandport_conformance.sandbox import Sandbox, output_of
from sandport_conformance.session import Id

from .claims import dispatched
from .gates import held, need_room

_SECONDS = 300
KERNEL_S = 0.3
"""How long a process that was killed may still be seen."""


def _wait_output(lab: Lab, call: Id) -> None:
    """Wait until a live command has written something."""
    lab.worker.wait(
        lambda m: m.method == "output" and m.params.get("id") == call and m.params.get("data"),
        "output of a command",
        timeout_s=lab.times.call_s,
    )


@check(
    "CANCEL-1",
    why="Whoever gave up waiting counts on the work being given up too.",
    broken="marks the call as cancelled and lets its handler run to the end",
    fix="Interrupt the handler: kill the command, abort the request to the vendor; answer when it has ended.",
    source="modelcontextprotocol/python-sdk#2507, modelcontextprotocol/python-sdk#1458",
)
def a_cancel_interrupts(lab: Lab) -> None:
    """A command that would run for minutes is answered soon after its cancel, live or not."""
    worker, sandbox = lab.worker, lab.sandbox
    for live in (True, False):
        call = sandbox.start(lab.command("print_then_sleep", text="up", seconds=_SECONDS), live=live)
        if live:
            _wait_output(lab, call)
        worker.cancel(call)
        worker.answer(call, timeout_s=lab.times.answer_s)


@check(
    "CANCEL-2",
    why="What has happened has happened: told as cancelled, it is done again or its outcome is lost.",
    broken="answers Cancelled whenever a cancel came, also for work that was complete",
    fix="Look at what the handler came to, not at whether a cancel was there.",
    source="modelcontextprotocol/python-sdk#3188, modelcontextprotocol/python-sdk#1153",
)
def what_is_complete_is_answered(lab: Lab) -> None:
    """A cancel that comes when the command has ended, while its streams are read, does not cost its result."""
    worker, sandbox = lab.worker, lab.new_sandbox()
    need_room(sandbox, 2)
    refused = []
    for _ in range(6):
        call = sandbox.start(lab.command("leave_child", text="done", seconds=2), live=True)
        _wait_output(lab, call)
        # A command that comes and goes behind it: by then the first one's end has been seen.
        sandbox.execute(lab.command("print", text="behind"))
        was_open = call in worker.ping()
        worker.cancel(call)
        answer = worker.answer(call, timeout_s=lab.times.answer_s)
        if not was_open:
            continue
        if "result" in answer.body:
            worker.result_of(call)
            return
        refused.append(answer.line)
        # Once may be by chance: that the end of a program is seen late is nobody's fault.
        expect(len(refused) < 3, f"commands that had ended by themselves were answered {refused[-1][:200]!r}")


@check(
    "CANCEL-3",
    why="A host tells a cancel from a failure by this, and by `dispatched` whether there is something to clean up.",
    broken="answers Internal with the text of the interruption, or says that the effect is certain",
    fix="Turn the interruption into Cancelled, with `dispatched` `no` or `unknown`.",
)
def a_cancelled_call_says_so(lab: Lab) -> None:
    """A call that was interrupted is answered Cancelled, with `dispatched` `no` or `unknown`."""
    worker, sandbox = lab.worker, lab.sandbox
    for started in (False, True):
        call = sandbox.start(lab.command("print_then_sleep", text="up", seconds=_SECONDS), live=started)
        if started:
            _wait_output(lab, call)
        worker.cancel(call)
        claim = dispatched(worker.error_of(call, "Cancelled"))
        expect(claim in ("no", "unknown"), f"a cancelled call says dispatched {claim!r}; it may say 'no' or 'unknown'")


@check(
    "CANCEL-4",
    why="A cancel and an answer cross on the way: every host cancels calls that are over.",
    broken="answers such a cancel, logs a traceback or ends",
    fix="Look the id up among the open calls, and do nothing where it is not there.",
    source="microsoft/vs-streamjsonrpc#489, microsoft/vs-streamjsonrpc#492",
)
def a_cancel_too_late_is_ignored(lab: Lab) -> None:
    """Cancels for ids that were answered, or never used, change nothing."""
    # Made before the count begins, so that the answer to its acquire is not one of those that are counted.
    worker, sandbox = lab.worker, lab.sandbox
    answered = worker.request("validateConfig", lab.with_config())
    worker.result_of(answered)
    begin = len(worker.messages)
    with held(lab, sandbox) as call:
        for request_id in (answered, answered, worker.next_id() + 1_000_000, "no such call", str(call.id), -1):
            worker.cancel(request_id)
        opened = worker.ping()
        expect(call.id in opened, f"a cancel for another id ended call {call.id}; open are {opened}")
        pongs = [m.body.get("id") for m in worker.messages[begin:] if m.kind != "notification"]
        expect(len(pongs) == 1, f"cancels for calls that are not open were answered: {pongs}")
        call.let_go()
        expect("result" in worker.answer(call.id).body, "a call was cancelled that nobody had cancelled")


@check(
    "CANCEL-5",
    why="It is the busy worker that somebody wants to cancel something on.",
    broken="puts cancels into the queue of the calls, or waits for a stream before it looks at one",
    fix="Serve `cancel` in the reader itself; let nothing there wait for a call, a stream or a pipe.",
    source="modelcontextprotocol/python-sdk#188, ykuwai/ppt-mcp#198",
)
def a_cancel_overtakes_work(lab: Lab) -> None:
    """Cancels take effect while other calls run, a stream waits for credit and a command does not read its input."""
    worker, sandbox = lab.worker, lab.sandbox
    need_room(sandbox, 3)
    flood = lab.command("flood", bytes=lab.facts.limits["creditBytes"] * 2)
    with held(lab, sandbox) as other:
        stalled = sandbox.start(flood, live=True)
        _wait_output(lab, stalled)
        deaf = sandbox.start(
            lab.command("sleep", seconds=_SECONDS), stdin=bytes(min(4 << 20, lab.facts.limits["frameBytes"] // 2))
        )
        for call in (deaf, stalled):
            worker.cancel(call)
            worker.answer(call, timeout_s=lab.times.answer_s)
            opened = worker.ping()
            expect(other.id in opened, f"with the cancel of call {call} call {other.id} ended too")
        other.let_go()
        expect("result" in worker.answer(other.id).body, "a call was cancelled that nobody had cancelled")


@check(
    "CANCEL-6",
    why="A command that outlives its cancel works on in a sandbox that is thought to be idle.",
    broken="answers first and kills afterwards, or kills only the program and not what it started",
    fix="Kill the group, or the tree; wait for the end of it; then answer.",
    needs=Needs(capabilities={"kill": ("group", "tree")}),
)
def a_cancelled_command_is_dead(lab: Lab) -> None:
    """When the cancel of a command is answered, it and its child are dead."""
    worker, sandbox = lab.worker, lab.sandbox
    need_room(sandbox, 2)
    for live in (False, True):
        name = f"ids-{worker.next_id()}"
        call = sandbox.start(lab.command("note_ids", name=name, text="up", seconds=_SECONDS), live=live)
        sandbox.execute(lab.command("wait_for_file", name=name, text="it runs"))
        worker.cancel(call)
        worker.error_of(call, "Cancelled")
        _expect_none_alive(lab, sandbox, name)


def _count_alive(lab: Lab, sandbox: Sandbox, name: str) -> str:
    return output_of(sandbox.execute(lab.command("count_alive", name=name))).decode("utf-8", "replace")


def _expect_none_alive(lab: Lab, sandbox: Sandbox, name: str) -> None:
    # What was killed takes the kernel a moment to be gone on a busy machine; what was not killed stays.
    deadline = time.monotonic() + KERNEL_S
    while (alive := _count_alive(lab, sandbox, name)) != "0" and time.monotonic() < deadline:
        time.sleep(0.02)
    expect(alive == "0", f"of a command that was answered Cancelled, {alive} processes are alive")
