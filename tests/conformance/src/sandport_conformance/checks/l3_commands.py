"""L3: what a command is given, and what is said about its end."""

from __future__ import annotations

import base64
import time

from sandport_conformance.declaration import Needs, Uses, check
from sandport_conformance.lab import Lab
from sandport_conformance.outcomes import Failed, NotApplicable, expect
from sandport_conformance.sandbox import output_of

_ODD = "a b\t\"c\" 'd' $HOME `e` *; # ünï\nlast"
"""What a shell would not leave alone."""
_NOT_TEXT = bytes(range(1, 256))
_REAL_TIME = (34, 35, 64)
"""The first real-time signal, one without a name, the last."""
_NO_SUCH_NAMES = 77
_LONG_S = 300
"""For a command that must not end by itself."""
_MANY_WRITES = 500
"""One every fiftieth of a second: for ten seconds something writes, and is never quiet."""


@check(
    "CMD-1",
    uses=Uses.SHARED,
    why="A word that passes through a shell is split, expanded or run; what an agent writes must not become code.",
    broken="joins the words with blanks and gives the line to a shell",
    fix="Pass the words to the system as a list; only `shell` goes through the lease's shell.",
)
def words_reach_the_program_as_they_are(lab: Lab) -> None:
    """Each word of argv reaches the program unchanged, whatever a shell would do to it."""
    said = output_of(lab.sandbox.execute(lab.command("print", text=_ODD)))
    expect(said == _ODD.encode(), f"the program was given {said!r:.200} for {_ODD!r}")


@check(
    "CMD-1",
    part="shell",
    uses=Uses.SHARED,
    why="A pipeline or a variable needs a shell, and a caller says so by name.",
    broken="passes the text of `shell` as the name of a program",
    fix="Run `shell` with the lease's shell and -c, without making it a login shell.",
)
def text_for_the_shell_is_run_by_a_shell(lab: Lab) -> None:
    """The text of `shell` is run by the lease's shell: it expands, pipes and runs in order."""
    result = lab.sandbox.execute(shell="x=1; y=$((x + 1)); printf '%s' \"$x$y\"; exit 5")
    expect(output_of(result) == b"12", f"the shell printed {output_of(result)!r:.100}, not b'12'")
    expect(result.get("exitCode") == 5, f"the shell ended with exit 5, the result says {result.get('exitCode')!r}")


@check(
    "CMD-2",
    uses=Uses.SHARED,
    why="A command that means nothing, or two things, must not run as something else.",
    broken="runs what it can make of the params",
    fix="Check the params before anything is started.",
    source="opencoredev/sandbox-sdk#9, opencoredev sandbox-sdk#9",
)
def senseless_commands_are_refused(lab: Lab) -> None:
    """Both or neither of argv and shell, no program, a name that is no variable's, a NUL: all are InvalidParams."""
    session, sandbox = lab.worker, lab.sandbox
    argv = lab.command("exit", code=0)
    nul = {"b64": base64.b64encode(b"a\0b").decode()}
    for params in (
        sandbox.params(argv, shell="exit 0"),
        sandbox.params(),
        sandbox.params([]),
        sandbox.params([""]),
        sandbox.params(argv, env={"A;touch x": "1"}),
        sandbox.params(argv, env={"1A": "1"}),
        sandbox.params(argv, env={"": "1"}),
        sandbox.params([*argv, "a\0b"]),
        sandbox.params(argv, env={"A": nul}),
        sandbox.params(argv, timeoutMs=0),
    ):
        error = session.refused("execute", params, "InvalidParams")
        dispatched = error.get("data", {}).get("dispatched")
        expect(dispatched == "no", f"nothing was run, but dispatched is {dispatched!r} for {params!r:.200}")


@check(
    "CMD-3",
    uses=Uses.SHARED,
    why="An evaluation lives on exit codes: 0 must mean that the program ended by itself with 0.",
    broken="answers 0 whatever the program ended with",
    fix="Pass on the status that the system gives for the program.",
    source="kata-containers/kata-containers#13640, kata-containers#13640",
)
def the_exit_code_is_the_programs_own(lab: Lab) -> None:
    """A program's exit codes, also the odd ones, come back as they are."""
    for code in (0, 1, 7, 124, 126, 127, 128, 137, 255):
        result = lab.sandbox.execute(lab.command("exit", code=code))
        told = (result.get("ended"), result.get("exitCode"), result.get("signal"))
        expect(told == ("exited", code, None), f"exit {code} is told as ended, exitCode, signal = {told}")


@check(
    "CMD-4",
    uses=Uses.SHARED,
    why="Killed is not failed: a program that exits with 137 and one that was killed need different answers.",
    broken="tells a death by signal as exit code 128 + n, or one by a real-time signal, which has no name, as 0",
    fix="Pass on the signal; `exitCode` belongs to programs that exited.",
    source="earendil-works/pi#8992",
)
def a_death_by_signal_is_told_as_one(lab: Lab) -> None:
    """A program that ends by a signal is `signalled` with its number, and has no exit code."""
    for number in (9, 15, 11, *_REAL_TIME):
        result = lab.sandbox.execute(lab.command("die", signal=number))
        told = (result.get("ended"), result.get("signal"), result.get("exitCode"))
        expect(told == ("signalled", number, None), f"signal {number} is told as ended, signal, exitCode = {told}")


@check(
    "CMD-30",
    uses=Uses.SHARED,
    why="Whatever the code goes on to keeps eight bits of it: 256, the wait status of a failure, becomes success.",
    broken="passes on a wait status, or whatever number its vendor has for the end",
    fix="Take code and signal out of the status (`os.waitstatus_to_exitcode`); where a number tells neither, answer an "
    "error with `partial`.",
)
def no_other_number_stands_for_an_exit_code_or_a_signal(lab: Lab) -> None:
    """However a program ends, its result has a code from 0 to 255 or a signal from 1 to 64, as the schema has it."""
    sandbox = lab.sandbox
    for argv in (*(lab.command("exit", code=code) for code in (0, 1, 255)), lab.command("die", signal=15)):
        body = sandbox.session.answer(sandbox.start(argv)).body
        result = body.get("result")
        if not isinstance(result, dict):
            raise Failed(f"a command that ends should have a result, and was answered {body!r:.200}")
        for member, least, most in (("exitCode", 0, 255), ("signal", 1, 64)):
            number = result.get(member)
            fits = number is None or (isinstance(number, int) and least <= number <= most)
            expect(fits, f"{member} is {number!r:.40}, not from {least} to {most}")


@check(
    "CMD-31",
    uses=Uses.SHARED,
    why="A host that was told so looks for a limit that there is not, and the true end is lost.",
    broken="calls every end by a signal a time-out",
    fix="Answer `timedOut` only where your own timer for `timeoutMs` has ended the command; else `signalled`.",
)
def without_a_limit_nothing_times_out(lab: Lab) -> None:
    """A command without `timeoutMs` that a signal ends is `signalled`, not `timedOut`."""
    for number in (9, 15):
        result = lab.sandbox.execute(lab.command("die", signal=number))
        expect(result.get("ended") != "timedOut", f"no limit was given, and it was told as {result!r:.200}")


@check(
    "CMD-5",
    uses=Uses.SHARED,
    why="A caller must be able to tell a wrong command from a program that failed.",
    broken="answers a made-up exit code for a program that is not there",
    fix="Answer CommandNotFound, CommandNotExecutable or PathNotFound, with dispatched no.",
    source="daytonaio/daytona#2283, daytona#2283",
)
def what_cannot_be_started_is_an_error_with_its_name(lab: Lab) -> None:
    """No such program, one that cannot be run, no such directory: three errors, and nothing was run."""
    session, sandbox = lab.worker, lab.sandbox
    directory = output_of(sandbox.execute(lab.command("directory"))).decode().strip()
    sandbox.execute(lab.command("write_file", name="no-shebang", text="printf ran >ran-by-a-shell"))
    sandbox.execute(lab.command("make_executable", name="no-shebang"))
    for condition, params in (
        ("CommandNotExecutable", sandbox.params([f"{directory}/no-shebang"])),
        ("CommandNotFound", sandbox.params(["sandport-no-such-program"])),
        ("CommandNotFound", sandbox.params(["/sandport/no/such/program"])),
        ("CommandNotExecutable", sandbox.params([directory])),
        ("PathNotFound", sandbox.params(lab.command("exit", code=0), cwd="sandport-no-such-directory")),
    ):
        error = session.refused("execute", params, condition)
        dispatched = error.get("data", {}).get("dispatched")
        expect(dispatched == "no", f"{condition}: nothing was run, but dispatched is {dispatched!r}")
    ran = sandbox.execute(lab.command("read_file", name="ran-by-a-shell"))
    expect(ran.get("exitCode") != 0, "a file that is no program was given to a shell")
    sandbox.execute(lab.command("remove_tree", path="no-shebang"))


@check(
    "CMD-29",
    uses=Uses.SHARED,
    why="Scripts write to /dev/stdout and /dev/stderr; a socket cannot be opened again by its name.",
    broken="gives a command a socket pair for its output, as some runtimes do by themselves",
    fix="Give pipes, as most languages do; in Node open a FIFO, unlink it, and pass its descriptors as `stdio`.",
)
def output_can_be_opened_again(lab: Lab) -> None:
    """A command that writes to /dev/stdout and /dev/stderr by their names reaches its own streams."""
    sandbox = lab.sandbox
    result = sandbox.execute(lab.command("reopen_output", text="out", other="err"))
    if result.get("exitCode") == _NO_SUCH_NAMES:
        raise NotApplicable("the sandbox has no /dev/stdout and /dev/stderr")
    told = (result.get("exitCode"), output_of(result), output_of(result, "stderr"))
    expect(told == (0, b"out", b"err"), f"writing to /dev/stdout and /dev/stderr gives exit, output = {told!r:.300}")


@check(
    "CMD-6",
    uses=Uses.SHARED,
    why="A program that reads its input must not wait for one that nobody gives.",
    broken="leaves a command's input open",
    fix="Give a command without `stdin` the null device.",
    source="langchain-ai/langsmith-sdk#3453, langsmith-sdk#3453, cloudflare#141, mastra#24336",
)
def a_command_without_input_reads_its_end(lab: Lab) -> None:
    """A program that reads its input to the end ends at once."""
    result = lab.sandbox.execute(lab.command("copy"))
    expect(result.get("exitCode") == 0, f"a copy of no input should exit with 0: {result!r:.200}")
    expect(output_of(result) == b"", f"a copy of no input printed {output_of(result)!r:.100}")


@check(
    "CMD-7",
    uses=Uses.SHARED,
    why="Input is data: a patch, an archive, a script.",
    broken="drops the last byte of the input",
    fix="Write all bytes, then close.",
)
def input_arrives_byte_for_byte(lab: Lab) -> None:
    """Every byte of `stdin` arrives, more than a pipe holds too, and then its end."""
    for data in (b"\n", _NOT_TEXT, _NOT_TEXT * 1000):
        result = lab.sandbox.execute(lab.command("copy"), stdin=data)
        copied = output_of(result)
        expect(copied == data, f"{len(data)} bytes of input came back as {len(copied)}: {copied[:60]!r}")


@check(
    "CMD-8",
    uses=Uses.SHARED,
    why="Passing one variable must not take PATH away, and a value may hold anything.",
    broken="replaces the sandbox's variables by those of the call",
    fix="Add to the sandbox's own variables, as bytes.",
)
def variables_are_added_byte_for_byte(lab: Lab) -> None:
    """A variable's value arrives unchanged, and PATH is still there."""
    sandbox = lab.sandbox
    plain = output_of(sandbox.execute(lab.command("variable", name="PATH")))
    expect(plain, "a command has no PATH at all")
    with_one = output_of(sandbox.execute(lab.command("variable", name="PATH"), env={"SANDPORT_ONE": "1"}))
    expect(with_one == plain, f"with another variable PATH is {with_one!r:.100}, without it {plain!r:.100}")
    for value in (_ODD, "", "=", " "):
        said = output_of(sandbox.execute(lab.command("variable", name="SANDPORT_ODD"), env={"SANDPORT_ODD": value}))
        expect(said == value.encode(), f"the value {value!r} arrives as {said!r:.200}")


@check(
    "CMD-9",
    uses=Uses.SHARED,
    why="Relative paths of two calls must mean the same place.",
    broken="starts commands in the worker's own directory",
    fix="Start in the working directory, or in `cwd` below it.",
)
def a_relative_directory_starts_from_the_working_directory(lab: Lab) -> None:
    """Without `cwd`, and with `.`, a command runs in the lease's working directory."""
    sandbox = lab.sandbox
    expected = sandbox.lease["workingDirectory"]
    for members in ({}, {"cwd": "."}, {"cwd": expected}):
        said = output_of(sandbox.execute(lab.command("directory"), **members)).decode().strip()
        if isinstance(expected, str):
            expect(said == expected.rstrip("/"), f"with {members or 'no cwd'} it runs in {said!r}, not in {expected!r}")


@check(
    "CMD-9",
    part="below",
    uses=Uses.SHARED,
    needs=Needs(commands=("make_directory", "remove_tree")),
    why="A build runs in a directory of its project: in another one it builds something else, or nothing.",
    broken="looks whether `cwd` is there, and runs in the working directory all the same",
    fix="Start in `cwd`, taken from the working directory where it is relative.",
)
def a_directory_below_is_where_a_command_runs(lab: Lab) -> None:
    """With a relative `cwd` that is there, and with the same one as an absolute path, a command runs in it."""
    sandbox, name = lab.sandbox, "kit-below"
    sandbox.execute(lab.command("make_directory", path=name))
    root = output_of(sandbox.execute(lab.command("directory"))).decode().strip()
    for cwd in (name, f"./{name}", f"{root}/{name}"):
        said = output_of(sandbox.execute(lab.command("directory"), cwd=cwd)).decode().strip()
        expect(said == f"{root}/{name}", f"with cwd {cwd!r} it runs in {said!r}")
    sandbox.execute(lab.command("remove_tree", path=name))


@check(
    "CMD-10",
    part="output",
    uses=Uses.SHARED,
    why="A time-out that does not kill, or that loses what was printed, costs a night and its evidence.",
    broken="lets a command run on after its time-out",
    fix="Keep the limit yourself; when it has passed, kill, read what was written and answer timedOut.",
    source="SWE-agent/SWE-ReX#29",
)
def a_time_out_ends_the_command_and_keeps_its_output(lab: Lab) -> None:
    """A command past its limit ends `timedOut`, with what it had written, long before it would have ended."""
    result = lab.sandbox.execute(lab.command("print_then_sleep", text="early", seconds=_LONG_S), timeoutMs=500)
    expect(result.get("ended") == "timedOut", f"it should have timed out: {result!r:.200}")
    expect(output_of(result) == b"early", f"what it had written is told as {output_of(result)!r:.100}")


@check(
    "CMD-10",
    part="term",
    uses=Uses.SHARED,
    why="A program may ignore SIGTERM; the limit holds all the same.",
    broken="only asks a command to end",
    fix="After SIGTERM comes SIGKILL, soon.",
    source="narailabs/doc-wiki#72",
)
def a_time_out_holds_for_who_ignores_sigterm(lab: Lab) -> None:
    """A command that ignores SIGTERM is ended by its limit too."""
    result = lab.sandbox.execute(lab.command("ignore_term", text="up", seconds=_LONG_S), timeoutMs=700)
    expect(result.get("ended") == "timedOut", f"it should have timed out: {result!r:.200}")


@check(
    "CMD-11",
    uses=Uses.SHARED,
    why="Whoever reuses a sandbox must know whether something of the last command still runs in it.",
    broken="kills and does not say what that reached",
    fix="Say `gone` only with a proof, else `signalled` or `unreachable`.",
)
def a_kill_says_what_it_reached(lab: Lab) -> None:
    """The result of a command that was killed names what the kill reached; `gone` is true."""
    sandbox = lab.new_sandbox()
    name = "sandport-ids"
    result = sandbox.execute(lab.command("note_ids", name=name, text="up", seconds=_LONG_S), timeoutMs=1_000)
    tree = result.get("tree")
    expect(tree in ("gone", "signalled", "unreachable"), f"tree is {tree!r} after a kill")
    if tree == "gone":
        alive = output_of(sandbox.execute(lab.command("count_alive", name=name)))
        expect(alive == b"0", f"the tree is told gone, and {alive!r} of its 2 processes live")


@check(
    "CMD-12",
    uses=Uses.SHARED,
    why="A daemon that a command leaves behind holds its output; waiting for it is waiting for ever.",
    broken="waits for the end of the streams instead of the end of the command",
    fix="Answer when the command's own process has ended and what was written is read.",
    source="earendil-works/pi#7636, bytedance/deer-flow#3864, prime#305, hermes-agent#11558, lxd#12229",
)
def a_command_that_leaves_something_running_is_answered(lab: Lab) -> None:
    """A command that ends and leaves a child with its streams is answered with its own code and output."""
    sandbox = lab.new_sandbox()
    result = sandbox.execute(lab.command("leave_child", text="done", seconds=_LONG_S))
    told = (result.get("ended"), result.get("exitCode"))
    expect(told == ("exited", 0), f"the command exited with 0, the result says {told}")
    expect(output_of(result) == b"done", f"it printed b'done', the result has {output_of(result)!r:.100}")


@check(
    "CMD-12",
    part="busy",
    uses=Uses.SHARED,
    needs=Needs(commands=("leave_writer",)),
    why="A server that a command leaves behind writes its log: who waits for a silence never answers.",
    broken="reads on, after the command's end, until what it left behind is quiet",
    fix="Count the last reading from the command's end, and answer when that is over, whoever still writes.",
)
def a_command_that_leaves_a_writer_is_answered(lab: Lab) -> None:
    """A command that ends and leaves a child that writes on is answered at once, with its own code and output first."""
    sandbox = lab.new_sandbox()
    began = time.monotonic()
    result = sandbox.execute(lab.command("leave_writer", text="done", count=_MANY_WRITES))
    took_s = time.monotonic() - began
    told = (result.get("ended"), result.get("exitCode"))
    expect(told == ("exited", 0), f"the command exited with 0, the result says {told}")
    expect(
        output_of(result).startswith(b"done"), f"it printed b'done' first, the result has {output_of(result)!r:.100}"
    )
    expect(took_s < _MANY_WRITES * 0.02, f"it was answered after {took_s:.1f} s, when what it had left was quiet")


@check(
    "CMD-13",
    uses=Uses.SHARED,
    why="Output that may go on elsewhere must not look complete.",
    broken="says that it saw the end of a stream that is still held open",
    fix="`seen` only where end of file was read.",
)
def a_stream_that_is_held_open_is_told_so(lab: Lab) -> None:
    """`heldOpen` where a child holds the stream, `seen` where nothing does."""
    sandbox = lab.new_sandbox()
    held = sandbox.execute(lab.command("leave_child", text="done", seconds=_LONG_S))
    ends = {name: held.get(name, {}).get("end", "seen") for name in ("stdout", "stderr")}
    expect(set(ends.values()) == {"heldOpen"}, f"a child holds both streams, the result says {ends}")
    plain = sandbox.execute(lab.command("print", text="x"))
    ends = {name: plain.get(name, {}).get("end", "seen") for name in ("stdout", "stderr")}
    expect(set(ends.values()) == {"seen"}, f"nothing holds the streams, the result says {ends}")


@check(
    "CMD-14",
    uses=Uses.SHARED,
    why="Output is bytes: a decoder in between loses what is no text, and merging loses who said it.",
    broken="decodes output as text and replaces what does not fit",
    fix="Pass bytes on; keep the two streams apart.",
    source="kubernetes-client/python#717, kubernetes-client/python#1471, mini-swe-agent#154",
)
def output_is_byte_for_byte_and_apart(lab: Lab) -> None:
    """Bytes that are no text come back as they are; stderr is not in stdout."""
    sandbox = lab.sandbox
    copied = output_of(sandbox.execute(lab.command("copy"), stdin=_NOT_TEXT))
    expect(copied == _NOT_TEXT, f"all bytes but NUL came back as {copied!r:.100}")
    result = sandbox.execute(lab.command("complain", text="to stderr"))
    told = (output_of(result), output_of(result, "stderr"))
    expect(told == (b"", b"to stderr"), f"what was written to stderr came as stdout, stderr = {told}")


@check(
    "CMD-15",
    uses=Uses.SHARED,
    also=("CMD-22",),
    why="A command may print without end; what is not kept must be counted, and the end is often what matters.",
    broken="keeps everything, whatever the limit",
    fix="Keep a head and a tail within the limit, count the rest.",
    source="CherryHQ/stella#1119, cube-harness#368, stella#1119, hermes-agent#22913",
)
def output_beyond_the_limit_is_counted(lab: Lab) -> None:
    """Of a flood, at most the limit is kept, head and tail, and the counts add up."""
    size, limit = 300_000, 10_000
    result = lab.sandbox.execute(lab.command("flood", bytes=size), outputLimitBytes=limit)
    stream = result.get("stdout", {})
    head, tail = (base64.b64decode(stream.get(member, "")) for member in ("data", "tail"))
    expect(stream.get("totalBytes") == size, f"{size} bytes were written, totalBytes is {stream.get('totalBytes')!r}")
    expect(len(head) + len(tail) <= limit, f"{len(head)} + {len(tail)} bytes are kept, the limit is {limit}")
    counted = len(head) + len(tail) + stream.get("droppedBytes", 0)
    expect(counted == size, f"data, tail and droppedBytes add up to {counted}, not {size}")
    whole = (b"0123456789\n" * (size // 11 + 1))[:size]
    expect(whole.startswith(head) and head, f"data is not the head of what was written: {head[:40]!r}")
    expect(whole.endswith(tail) and tail, f"tail is not the end of what was written: {tail[-40:]!r}")


@check(
    "CMD-17",
    uses=Uses.SHARED,
    why="An agent looks at a server's log while the server runs.",
    broken="runs one command after the other",
    fix="Start each command when its call comes.",
    source="cloudflare/sandbox-sdk#438",
)
def commands_run_at_the_same_time(lab: Lab) -> None:
    """A command that waits for another one's file ends, because the other one runs meanwhile."""
    sandbox, session = lab.sandbox, lab.worker
    name = f"sandport-turn-{session.next_id()}"
    waiting = sandbox.start(lab.command("wait_for_file", name=name, text="seen"))
    sandbox.execute(lab.command("write_file", name=name, text="x"))
    expect(output_of(session.result_of(waiting)) == b"seen", "the command that waited did not see the file")


@check(
    "CMD-19",
    uses=Uses.SHARED,
    needs=Needs(capabilities={"kill": ("tree",)}),
    why="A server that calls setsid is what a time-out must not leave behind.",
    broken="kills the process group only, and declares `kill: tree`",
    fix="Kill by container, namespace, cgroup or subreaper; or declare `kill: group`.",
    source="NVIDIA-NeMo/Gym#1572",
)
def a_time_out_ends_what_left_the_group(lab: Lab) -> None:
    """With `kill: tree`, a child in a session of its own does not survive the time-out."""
    sandbox = lab.new_sandbox()
    name = "sandport-left"
    script = f"setsid sh -c 'echo $$ >{name}; exec sleep {_LONG_S}' & while ! [ -s {name} ]; do sleep 0.05; done; wait"
    result = sandbox.execute(shell=script, timeoutMs=2_000)
    expect(result.get("ended") == "timedOut", f"it should have timed out: {result!r:.200}")
    alive = output_of(sandbox.execute(lab.command("count_alive", name=name)))
    expect(alive == b"0", "the child that called setsid still runs")


@check(
    "CMD-23",
    uses=Uses.SHARED,
    why="A time-out is an end like any other; as an error it would lose its output and look like a fault.",
    broken="answers a time-out with an error",
    fix="Answer a result with ended timedOut.",
    source="OpenHands/OpenHands#5927, OpenHands#5927, OpenHands#5601, OpenHands#13665",
)
def a_time_out_is_a_result(lab: Lab) -> None:
    """A command past its limit is answered with a result, soon after the limit."""
    began = time.monotonic()
    session = lab.worker
    answer = session.answer(lab.sandbox.start(lab.command("sleep", seconds=_LONG_S), timeoutMs=300))
    expect("result" in answer.body, f"a time-out is answered with an error: {answer.body.get('error')!r:.200}")
    expect(time.monotonic() - began < _LONG_S / 2, "the answer came when the command ended, not at its limit")
