"""E and O: commands in a local sandbox and their output, from the host."""

from __future__ import annotations

import contextlib
import itertools
import os
import statistics
import tempfile

from . import blocks
from .machine import cores
from .order import Do, subject
from .rounds import Goal, Row, Size, Values, median, rotated


class Commands:
    """`true` with captured output."""

    name = "commands"
    rows = (
        Row(
            id="E2",
            what="p50 of execute `true` in a local sandbox, from the host",
            unit="ms",
            ours="sandport commands",
            floor="floor commands",
            beside="asyncio create_subprocess_exec and communicate",
            goal=Goal("at most", 1.4),
        ),
    )

    def run(self, size: Size, turn: int) -> Values:
        """Blocks of each, in turns."""
        return _commands(("floor commands", "sandport commands"), size, turn)


class IsolatedCommands:
    """The same in a sandbox that bubblewrap shuts off."""

    name = "isolated commands"
    rows = (
        Row(
            id="E2i",
            what="p50 of execute `true` in an isolated local sandbox, from the host",
            unit="ms",
            ours="sandport commands, isolated",
            floor="floor commands",
            beside="asyncio create_subprocess_exec and communicate",
            goal=Goal("at most", 1.5),
        ),
    )

    def run(self, size: Size, turn: int) -> Values:
        """Blocks of each, in turns."""
        return _commands(("floor commands", "sandport commands, isolated"), size, turn)


def _commands(kinds: tuple[str, ...], size: Size, turn: int) -> Values:
    times: dict[str, list[float]] = {kind: [] for kind in kinds}
    with contextlib.ExitStack() as stack:
        subjects = {kind: stack.enter_context(subject(kind, cores=cores())) for kind in kinds}
        for block in range(size.blocks):
            for kind in rotated(kinds, turn + block):
                times[kind] += subjects[kind].measure("command", count=size.commands)
    return {kind: 1e3 * median(taken) for kind, taken in times.items()}


class FirstCommands:
    """From asking for a sandbox to its first answer, with a worker that runs already."""

    name = "first commands"
    rows = (
        Row(
            id="S4",
            what="p50 from acquire to the first command answered, not isolated",
            unit="ms",
            ours="plain p50",
            floor="true",
            beside="asyncio create_subprocess_exec and communicate",
        ),
        Row(id="S4p", what="p99 of it", unit="ms", ours="plain p99", floor="plain p50", beside="p50"),
        Row(
            id="S4i",
            what="p50 from acquire to the first command answered, isolated by bubblewrap",
            unit="ms",
            ours="isolated p50",
            floor="plain p50",
            beside="not isolated",
        ),
        Row(id="S4ip", what="p99 of it", unit="ms", ours="isolated p99", floor="isolated p50", beside="p50"),
    )

    def run(self, size: Size, turn: int) -> Values:
        """Blocks of each, in turns."""
        kinds = {"true": "floor commands", "plain": "sandport commands", "isolated": "sandport commands, isolated"}
        times: dict[str, list[float]] = {kind: [] for kind in kinds}
        with contextlib.ExitStack() as stack:
            subjects = {kind: stack.enter_context(subject(name, cores=cores())) for kind, name in kinds.items()}
            for block in range(size.blocks):
                for kind in rotated(tuple(kinds), turn + block):
                    do: Do = "command" if kind == "true" else "first command"
                    times[kind] += subjects[kind].measure(do, count=size.sandboxes)
        values = {"true": 1e3 * median(times["true"])}
        for kind in ("plain", "isolated"):
            values[f"{kind} p50"] = 1e3 * median(times[kind])
            values[f"{kind} p99"] = 1e3 * statistics.quantiles(times[kind], n=100, method="inclusive")[98]
        return values


class Streams:
    """The output of one command, as much as comes."""

    name = "streams"
    rows = (
        Row(
            id="O2",
            what="output of a command in a local sandbox into a sink of the host",
            unit="MB/s",
            ours="iterated",
            floor="text",
            beside="text relay",
            goal=Goal("at least", 0.6),
        ),
        Row(
            id="O2c",
            what="the same, head and tail kept by the host",
            unit="MB/s",
            ours="captured",
            floor="text",
            beside="text relay",
        ),
        Row(
            id="O2b",
            what="the same, into a sink",
            unit="MB/s",
            ours="iterated",
            floor="base64",
            beside="base64 relay",
        ),
    )

    def run(self, size: Size, turn: int) -> Values:
        """Each once or a few times, in turns; the source is a file in memory."""
        times: dict[str, list[float]] = {"text": [], "base64": [], "iterated": [], "captured": []}
        with contextlib.ExitStack() as stack:
            path = os.path.join(stack.enter_context(scratch()), "output")
            _fill(path, size.stream_bytes)
            floor = stack.enter_context(subject("floor commands", cores=cores()))
            ours = stack.enter_context(subject("sandport commands", cores=cores()))
            orders = {
                "text": lambda: floor.measure("stream", path=path, size_bytes=size.stream_bytes),
                "base64": lambda: floor.measure("stream base64", path=path, size_bytes=size.stream_bytes),
                "iterated": lambda: ours.measure("stream", path=path, size_bytes=size.stream_bytes),
                "captured": lambda: ours.measure("stream captured", path=path, size_bytes=size.stream_bytes),
            }
            for block in range(size.streams):
                for kind in rotated(tuple(orders), turn + block):
                    times[kind] += orders[kind]()
        return {kind: size.stream_bytes / 1e6 / median(taken) for kind, taken in times.items()}


def scratch() -> tempfile.TemporaryDirectory[str]:
    """A folder in memory, where the system has such a place."""
    return tempfile.TemporaryDirectory(prefix="sandport-bench-", dir=memory_folder())


def memory_folder() -> str | None:
    """Where files are in memory; None where the system has no such place."""
    shared = "/dev/shm"
    return shared if os.access(shared, os.W_OK) else None


def _fill(path: str, size_bytes: int) -> None:
    piece = blocks.text_of(1024 * 1024).encode()
    with open(path, "wb") as file:
        file.writelines(itertools.repeat(piece, size_bytes // len(piece)))
