"""The worker command, from how a person types it to how it is started in `/`."""

from __future__ import annotations

import shlex
import shutil
from collections.abc import Sequence
from pathlib import Path

from .outcomes import Misuse


def resolve(command: Sequence[str], *, whose: str = "worker") -> tuple[str, ...]:
    """The command with every file that it names made absolute: workers are started in `/`.

    `python worker.py` means the file in the current directory, also when the worker does not run there. Only arguments
    that are the path of something that exists here are touched.

    Args:
        command: As it was typed.
        whose: What it starts, for the message.

    Raises:
        Misuse: There is no command, or no such program.
    """
    if not command:
        raise Misuse(f"there is no {whose} command; it comes after `--`")
    program = shutil.which(command[0])
    if program is None:
        raise Misuse(_why_no_program(command[0]))
    return (str(Path(program).absolute()), *with_absolute_files(command[1:]))


def with_absolute_files(command: Sequence[str]) -> tuple[str, ...]:
    """The words, those that are the path of a file that exists here made absolute."""
    return tuple(map(_absolute, command))


def _why_no_program(name: str) -> str:
    path = Path(name)
    if path.is_dir():
        return f"{name!r} is a directory and no program"
    if path.is_file() and "/" in name:
        return f"{name!r} is not executable: run chmod +x {shlex.quote(name)}, or name its interpreter before it"
    if path.is_file():
        return f"there is no program {name!r} on PATH; for the file of that name in this directory write ./{name}"
    if "/" in name:
        return f"there is no program {name!r}: no such file"
    return f"there is no program {name!r} on PATH"


def _absolute(argument: str) -> str:
    path = Path(argument)
    if argument in ("", ".", "..") or argument.startswith("-") or path.is_absolute() or not path.is_file():
        return argument
    return str(path.absolute())
