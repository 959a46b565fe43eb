"""The floor of streaming: a worker that reads a program's output and writes it as JSON lines, and who reads them.

Blocking reads and writes, 1 MiB pipes, no credit, no offsets, no second stream. As a program it is the worker:
`relay.py text|base64 FILE BYTES`.
"""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Literal

import msgspec

Form = Literal["text", "base64"]
CHUNK_BYTES = 64 * 1024
PIPE_BYTES = 1024 * 1024
_SET_PIPE_SIZE = getattr(fcntl, "F_SETPIPE_SZ", None)


class Text(msgspec.Struct):
    """A chunk as text: what a program prints, where it is known to be UTF-8."""

    params: str
    method: str = "output"


class Base64(msgspec.Struct):
    """A chunk as base64: any bytes."""

    params: bytes
    method: str = "output"


def widen(fd: int) -> None:
    """Ask for a pipe of 1 MiB, where a pipe's size can be set."""
    if _SET_PIPE_SIZE is not None:
        fcntl.fcntl(fd, _SET_PIPE_SIZE, PIPE_BYTES)


def head(path: str, size_bytes: int) -> list[str]:
    """The command whose output is streamed, the same in every variant."""
    return ["head", "-c", str(size_bytes), path]


def relay(form: Form, path: str, size_bytes: int) -> None:
    """The worker: a program's output to stdout."""
    encode = msgspec.json.Encoder().encode
    with subprocess.Popen(head(path, size_bytes), stdout=subprocess.PIPE, bufsize=0) as program:
        assert program.stdout is not None
        source = program.stdout.fileno()
        widen(source)
        widen(1)
        while data := os.read(source, CHUNK_BYTES):
            message = Text(data.decode("ascii")) if form == "text" else Base64(data)
            left = memoryview(encode(message) + b"\n")
            while left:
                left = left[os.write(1, left) :]


def stream(form: Form, path: str, size_bytes: int) -> float:
    """Seconds from the first to the last byte of a relayed output; the worker's start is not streaming."""
    decode: Callable[[bytes], Text | Base64]
    decode = msgspec.json.Decoder(Text).decode if form == "text" else msgspec.json.Decoder(Base64).decode
    command = [sys.executable, "-P", str(Path(__file__)), form, path, str(size_bytes)]
    pieces: list[bytes] = []
    received, begun = 0, 0.0
    with subprocess.Popen(command, stdout=subprocess.PIPE, bufsize=0) as worker:
        assert worker.stdout is not None
        fd = worker.stdout.fileno()
        while data := os.read(fd, PIPE_BYTES):
            begun = begun or time.perf_counter()
            pieces.append(data)
            if b"\n" not in data:
                continue
            *lines, rest = b"".join(pieces).split(b"\n")
            pieces = [rest] if rest else []
            for line in lines:
                received += len(decode(line).params)
        took = time.perf_counter() - begun
    if received != size_bytes:
        raise RuntimeError(f"the relay brought {received} of {size_bytes} bytes")
    return took


if __name__ == "__main__":
    relay("text" if sys.argv[1] == "text" else "base64", sys.argv[2], int(sys.argv[3]))
