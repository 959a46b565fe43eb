"""What the harness asks a measuring process to do, one JSON line each, and what that answers."""

from __future__ import annotations

import contextlib
import os
import select
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Literal

import msgspec
from msgspec import Struct

ROOT = Path(__file__).resolve().parents[2]

Do = Literal[
    "calls",
    "typed calls",
    "in flight",
    "large",
    "start",
    "heavy start",
    "command",
    "stream",
    "stream base64",
    "stream captured",
    "first command",
    "sync in",
    "memory",
    "acquires",
    "acquires, three transactions",
    "requests",
]


class Order(Struct, frozen=True, kw_only=True):
    """One thing to measure."""

    do: Do
    count: int = 1
    size_bytes: int = 0
    path: str = ""
    callers: int = 1


class Answer(Struct, frozen=True, kw_only=True):
    """The numbers, in the units that the order's method says, or why there are none."""

    values: tuple[float, ...] = ()
    error: str = ""


class CannotMeasure(Exception):
    """A measuring process failed; the message is its own."""


_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(Answer).decode


class Subject:
    """The harness's end of a measuring process."""

    def __init__(self, process: subprocess.Popen[bytes], kind: str, patience_s: float | None) -> None:
        self._process = process
        self._kind = kind
        self._patience_s = patience_s

    def measure(
        self, do: Do, *, count: int = 1, size_bytes: int = 0, path: str = "", callers: int = 1
    ) -> tuple[float, ...]:
        """Have one thing measured, and wait for it.

        Raises:
            CannotMeasure: It failed, the process ended, or it took more than the patience there is.
        """
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        order = Order(do=do, count=count, size_bytes=size_bytes, path=path, callers=callers)
        with contextlib.suppress(BrokenPipeError):  # it ended: there is no answer, which is told below
            self._process.stdin.write(_encode(order) + b"\n")
        if not select.select([self._process.stdout], [], [], self._patience_s)[0]:
            self._process.kill()
            raise CannotMeasure(f"the measuring process {self._kind} was not done after {self._patience_s:g} s")
        line = self._process.stdout.readline()
        if not line:
            raise CannotMeasure(f"the measuring process {self._kind} ended with {self._process.wait()}, see above")
        answer = _decode(line)
        if answer.error:
            raise CannotMeasure(answer.error)
        return answer.values


@contextlib.contextmanager
def subject(
    kind: str,
    *,
    cores: tuple[int, ...],
    python: str = sys.executable,
    environ: Mapping[str, str] | None = None,
    patience_s: float | None = None,
) -> Iterator[Subject]:
    """A measuring process of one kind (see `measuring`), kept on some cores; it is gone after the block.

    Args:
        kind: What it measures.
        cores: Where it and what it starts may run.
        python: The interpreter, and with it the environment.
        environ: Variables beside those of this process.
        patience_s: How long one order may take; None for as long as it needs.
    """
    command = [python, "-m", "tests.bench.measuring", kind, ",".join(map(str, cores))]
    env = {**os.environ, **(environ or {})}
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0, cwd=ROOT, env=env
    ) as process:
        try:
            yield Subject(process, kind, patience_s)
        finally:
            assert process.stdin is not None
            process.stdin.close()
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                process.kill()
