"""L3: processes that run on while calls come and go (group `process`)."""

from __future__ import annotations

import base64

from sandport_conformance.declaration import Needs, Uses, check
from sandport_conformance.lab import Lab
from sandport_conformance.outcomes import Failed, expect
from sandport_conformance.sandbox import Live, Sandbox, output_size
from sandport_conformance.schema import Json
from sandport_conformance.session import Id

from .claims import expect_no_effect

PROCESSES = Needs(groups=("process",))
TERMINALS = Needs(groups=("process",), capabilities={"pty": (True,)})
_LONG_S = 300
_LOOK_BYTES = 1 << 16


class Process:
    """A process of a check, with an id of its own."""

    def __init__(self, lab: Lab, sandbox: Sandbox, argv: list[str] | None = None, **members: object) -> None:
        self.sandbox, self.session = sandbox, sandbox.session
        self.id = f"kit-{self.session.next_id()}"
        params = sandbox.params(argv, processId=self.id, **members)
        self.session.call("startProcess", params, timeout_s=lab.times.call_s)

    def params(self, **members: object) -> Json:
        """Params that name it."""
        return {"sandboxId": self.sandbox.id, "processId": self.id, **members}

    def write(self, data: bytes, *, end: bool = False) -> int:
        """Give it input; how much it took."""
        text = base64.b64encode(data).decode()
        taken: int = self.session.call("writeProcess", self.params(data=text, end=end))["takenBytes"]
        return taken

    def wait(self, **members: object) -> Live:
        """Follow it to its end."""
        return self.sandbox.follow(self.begin_wait(**members))

    def begin_wait(self, **members: object) -> Id:
        """Begin to follow it."""
        return self.session.request("waitProcess", self.params(**members))

    def kill(self) -> Json:
        """Kill it and what it started."""
        return self.session.call("signalProcess", self.params(kill=True))


@check(
    "PRC-1",
    uses=Uses.SHARED,
    needs=PROCESSES,
    why="An id that means two processes means neither.",
    broken="starts a second process under an id that is known",
    fix="Refuse a known processId with InvalidParams.",
)
def a_known_process_id_is_refused(lab: Lab) -> None:
    """`startProcess` comes back while the process runs, and refuses its id a second time."""
    process = Process(lab, lab.sandbox, lab.command("sleep", seconds=_LONG_S))
    again = lab.sandbox.params(lab.command("exit", code=0), processId=process.id)
    process.session.refused("startProcess", again, "InvalidParams")
    process.kill()
    process.wait()


@check(
    "PRC-2",
    part="order",
    uses=Uses.SHARED,
    needs=PROCESSES,
    also=("PRC-3",),
    why="Input under back-pressure is the only way to give a process more than memory holds.",
    broken="answers a write before the process took the bytes, or in another order",
    fix="Answer when the pipe took them; write in the order of the requests.",
)
def writes_arrive_in_order(lab: Lab) -> None:
    """Four writes that are open at once, more than a pipe holds, arrive in order, and each says what was taken."""
    process = Process(lab, lab.sandbox, lab.command("copy"), stdin=True)
    pieces = [bytes([letter]) * 50_000 for letter in b"abcd"]
    session = process.session
    sent = [
        session.request("writeProcess", process.params(data=base64.b64encode(piece).decode(), end=piece is pieces[-1]))
        for piece in pieces
    ]
    live = process.wait()
    for request_id, piece in zip(sent, pieces, strict=True):
        taken = session.result_of(request_id).get("takenBytes")
        expect(taken == len(piece), f"{len(piece)} bytes were written, takenBytes is {taken!r}")
    expect(live.data() == b"".join(pieces), "the bytes came out in another order, or not all of them")


@check(
    "PRC-2",
    part="pressure",
    uses=Uses.SHARED,
    needs=PROCESSES,
    why="A write that is answered at once is no back-pressure: the worker's memory takes it.",
    broken="takes input into memory and answers",
    fix="Answer a write when the process's pipe took it.",
)
def a_write_waits_for_the_process(lab: Lab) -> None:
    """A write to a process that does not read is not answered; it is when the process ends, with what was taken."""
    process = Process(lab, lab.sandbox, lab.command("sleep", seconds=_LONG_S), stdin=True)
    session = process.session
    size = 4_000_000
    data = base64.b64encode(bytes(size)).decode()
    request_id = session.request("writeProcess", process.params(data=data))
    session.ping()
    session.pump(lambda: session.answers(request_id), session.times.moment_s)
    session.ping()
    expect(not session.answers(request_id), f"{size} bytes to a process that reads nothing were answered at once")
    process.kill()
    taken = session.result_of(request_id).get("takenBytes")
    expect(isinstance(taken, int) and taken < size, f"the process read nothing, and takenBytes is {taken!r}")
    process.wait()


@check(
    "PRC-3",
    uses=Uses.SHARED,
    needs=PROCESSES,
    why="A filter ends when its input does.",
    broken="keeps the input open after `end`",
    fix="Close the process's input.",
)
def the_end_of_input_reaches_the_process(lab: Lab) -> None:
    """A process that copies its input ends after `end`, and not before."""
    process = Process(lab, lab.sandbox, lab.command("copy"), stdin=True)
    waiting = process.begin_wait()
    process.write(b"x")
    process.session.wait(lambda m: output_size(m, waiting), "the copy", timeout_s=lab.times.call_s)
    expect(not process.session.answers(waiting), "the process ended before its input did")
    process.write(b"y", end=True)
    live = process.sandbox.follow(waiting)
    expect(live.result.get("exitCode") == 0, f"it should have exited with 0: {live.result!r:.200}")
    expect(live.data() == b"xy", f"it copied {live.data()!r:.100} of b'xy'")


@check(
    "PRC-4",
    uses=Uses.SHARED,
    needs=PROCESSES,
    why="Ctrl-C must reach the program and what it runs.",
    broken="answers delivered without signalling",
    fix="Signal the group that was made for the process; false once it has ended.",
)
def a_signal_reaches_the_process(lab: Lab) -> None:
    """A process ends by the signal that was sent; once it has ended, `delivered` is false."""
    process = Process(lab, lab.sandbox, lab.command("sleep", seconds=_LONG_S))
    result = process.session.call("signalProcess", process.params(signal=15))
    expect(result.get("delivered") is True, f"the process runs, and delivered is {result.get('delivered')!r}")
    ended = process.wait().result
    told = (ended.get("ended"), ended.get("signal"))
    expect(told == ("signalled", 15), f"a process that was sent SIGTERM ended {told}")
    result = process.session.call("signalProcess", process.params(signal=15))
    expect(result.get("delivered") is False, f"it has ended, and delivered is {result.get('delivered')!r}")


@check(
    "PRC-5",
    uses=Uses.SHARED,
    needs=PROCESSES,
    why="A kill that leaves children is not one.",
    broken="kills and does not say what that reached",
    fix="Kill as at a time-out, and say `tree` in the result.",
)
def a_kill_ends_the_process_and_says_what_it_reached(lab: Lab) -> None:
    """A process that ignores SIGTERM is ended by `kill`, and its result says `tree`."""
    process = Process(lab, lab.sandbox, lab.command("ignore_term", text="up", seconds=_LONG_S))
    waiting = process.begin_wait()
    process.session.wait(lambda m: output_size(m, waiting), "its output", timeout_s=lab.times.call_s)
    process.kill()
    result = process.sandbox.follow(waiting).result
    expect(result.get("ended") == "signalled", f"it should have been ended by a signal: {result!r:.200}")
    expect(result.get("tree") in ("gone", "signalled", "unreachable"), f"tree is {result.get('tree')!r} after a kill")


@check(
    "PRC-6",
    uses=Uses.SHARED,
    needs=PROCESSES,
    also=("OUT-6",),
    why="Who comes late must still learn how it ended.",
    broken="forgets a process when it has ended",
    fix="Keep the result, and as much output as was agreed.",
    source="e2b-dev/E2B#1074, E2B#1074",
)
def a_process_can_be_waited_for_after_its_end(lab: Lab) -> None:
    """Output and result come to a `waitProcess` that begins after the end, from the offset that it names."""
    process = Process(lab, lab.sandbox, lab.command("print", text="0123456789"))
    first = process.wait()
    expect(first.data() == b"0123456789", f"it printed b'0123456789', {first.data()!r:.100} came")
    later = process.begin_wait(fromOffset=[{"stream": "stdout", "offset": 4}])
    answer = process.session.answer(later)
    expect("result" in answer.body, f"a second wait is answered with {answer.body.get('error')!r:.200}")
    pieces = [m for m in process.session.notifications("output") if m.params.get("id") == later]
    data = b"".join(base64.b64decode(m.params.get("data", "")) for m in pieces if m.params["stream"] == "stdout")
    expect(data == b"456789", f"from offset 4, {data!r:.100} came instead of b'456789'")
    total = answer.body["result"].get("stdout", {}).get("totalBytes")
    expect(total == 10, f"of 10 bytes the last 6 were sent from offset 4 on, and totalBytes is {total!r}")
    code = answer.body["result"].get("exitCode")
    expect(code == first.result.get("exitCode") == 0, f"the second wait says exit code {code!r}")


@check(
    "PRC-7",
    uses=Uses.SHARED,
    needs=PROCESSES,
    why="Output that is gone must not look as if it had never been.",
    broken="begins at what it still has, without a word",
    fix="Send each byte from the offset on once, in order; answer OutputGap where the offset is no longer kept.",
)
def output_that_is_gone_is_a_gap(lab: Lab) -> None:
    """After a flood was taken, following it again from 0 brings all of it, or OutputGap; never a part."""
    size = 6_000_000
    process = Process(lab, lab.sandbox, lab.command("flood", bytes=size))
    live = process.wait()
    if len(live.data()) != size:
        raise Failed(_told_of(live.data(), size))
    again = process.sandbox.follow(process.begin_wait())
    if "error" in again.answer.body:
        process.session.error_of(again.request_id, "OutputGap")
    else:
        came = again.data()
        if came != live.data():
            raise Failed(f"followed again from 0, and no OutputGap: {_told_of(came, size)}")


def _told_of(came: bytes, size: int) -> str:
    """How much of a flood came; where it is not what it should be, from where on."""
    told = f"{len(came)} of {size} bytes came"
    if len(came) > size:
        told = f"{len(came) - size} bytes more than {size} came"
    line = came[: came.find(b"\n") + 1] or b"\n"
    wanted = line * (size // len(line) + 1)
    both = min(len(came), size)
    pieces = (slice(n, n + _LOOK_BYTES) for n in range(0, both, _LOOK_BYTES))
    wrong = next((piece.start for piece in pieces if came[piece] != wanted[piece]), both)
    wrong = next((n for n in range(wrong, both) if came[n] != wanted[n]), both)
    if wrong == both:
        return told
    odd = "is there twice" if len(came) > size else "is missing"
    return f"{told}; from offset {wrong} on they are out of step with what was printed: a piece {odd}"


@check(
    "PRC-7",
    part="beyond",
    uses=Uses.SHARED,
    needs=PROCESSES,
    why="A host that counts further than the program wrote has lost its place, and must learn it.",
    broken="takes an offset that was never written for the end of the stream",
    fix="Answer InvalidParams for an offset beyond what was written.",
)
def an_offset_that_was_never_written_is_refused(lab: Lab) -> None:
    """Following a process from beyond what it wrote is InvalidParams, and from its very end is not."""
    process = Process(lab, lab.sandbox, lab.command("print", text="0123456789"))
    process.wait()
    beyond = process.params(fromOffset=[{"stream": "stdout", "offset": 11}])
    error = process.session.refused("waitProcess", beyond, "InvalidParams")
    expect_no_effect(error, "an offset that was never written")
    process.session.result_of(process.begin_wait(fromOffset=[{"stream": "stdout", "offset": 10}]))


@check(
    "PRC-8",
    uses=Uses.SHARED,
    needs=PROCESSES,
    why="A wrong id must not look like a process that has ended.",
    broken="answers a result for a process that it never had",
    fix="Answer ProcessNotFound.",
)
def an_unknown_process_is_not_found(lab: Lab) -> None:
    """Every method that names a process answers ProcessNotFound for one that never was."""
    params = {"sandboxId": lab.sandbox.id, "processId": "never-was"}
    for method, members in (
        ("waitProcess", {}),
        ("writeProcess", {"data": "eA=="}),
        ("signalProcess", {"signal": 15}),
    ):
        lab.worker.refused(method, {**params, **members}, "ProcessNotFound")


@check(
    "PRC-9",
    uses=Uses.SHARED,
    needs=PROCESSES,
    why="Looking away must not end what one looks at.",
    broken="kills the process with the wait",
    fix="A cancelled `waitProcess` stops following.",
)
def cancelling_a_wait_leaves_the_process(lab: Lab) -> None:
    """After a cancelled `waitProcess` the process runs on, and can be followed again."""
    process = Process(lab, lab.sandbox, lab.command("copy"), stdin=True)
    session = process.session
    waiting = process.begin_wait()
    process.write(b"a")
    session.wait(lambda m: output_size(m, waiting), "the copy", timeout_s=lab.times.call_s)
    session.cancel(waiting)
    session.error_of(waiting, "Cancelled")
    process.write(b"b", end=True)
    later = process.begin_wait(fromOffset=[{"stream": "stdout", "offset": 1}])
    answer = session.answer(later)
    expect("result" in answer.body, f"after the cancel: {answer.body.get('error')!r:.200}")
    expect(answer.body["result"].get("exitCode") == 0, f"the process did not run on: {answer.body['result']!r:.200}")


@check(
    "PRC-10",
    uses=Uses.SHARED,
    needs=TERMINALS,
    why="A program that draws asks for the size once, at its start.",
    broken="sets the size after the start, or not at all",
    fix="Open the terminal with its size, then start.",
    source="docker/sbx-releases#63",
)
def a_terminal_has_its_size_from_the_start(lab: Lab) -> None:
    """The first thing that a program with a terminal sees is the size that was asked for; its stream is `pty`."""
    argv = ["sh", "-c", "stty size; test -t 0 && test -t 1 && test -t 2 && echo terminal"]
    process = Process(lab, lab.sandbox, argv, pty={"columns": 91, "rows": 37})
    live = process.wait()
    said = live.data("pty").replace(b"\r", b"")
    expect(said == b"37 91\nterminal\n", f"in a terminal of 91 by 37 it printed {said!r:.100}")
    total = live.result.get("stdout", {}).get("totalBytes")
    came = len(live.data("pty"))
    expect(total == came, f"{came} bytes of the terminal came, the result counts {total!r} in stdout")
