"""Where the output of one command goes: a capture for each stream, and the files that get every byte."""

from __future__ import annotations

import os
from contextlib import ExitStack
from typing import BinaryIO

from sandport_protocol.v1 import StreamName

from .capture import Capture
from .errors import UsageError

STREAMS: tuple[StreamName, ...] = ("stdout", "stderr")
"""Those of a command without a terminal."""


def captures_of(streams: tuple[StreamName, ...], limit_bytes: int) -> dict[StreamName, Capture]:
    """A capture for each stream.

    Raises:
        UsageError: The limit is below 0.
    """
    _check_limit(limit_bytes)
    return {name: Capture(limit_bytes) for name in streams}


def captures_with_files(
    files: ExitStack, limit_bytes: int, spill_to: str | os.PathLike[str] | None
) -> tuple[dict[StreamName, Capture], dict[StreamName, str]]:
    """A capture for each of `STREAMS`, and the paths of the files that take every byte.

    Args:
        files: Closes the files.
        limit_bytes: Kept of each stream in memory.
        spill_to: The folder of the files, made where it is missing; None for no files.

    Raises:
        UsageError: The limit is below 0, or the folder cannot be written.
    """
    spilled: dict[StreamName, str] = {}
    spills: dict[StreamName, BinaryIO] = {}
    _check_limit(limit_bytes)
    if spill_to is not None:
        try:
            os.makedirs(spill_to, exist_ok=True)
            for name in STREAMS:
                spilled[name] = os.path.join(spill_to, name)
                spills[name] = files.enter_context(open(spilled[name], "wb"))  # noqa: SIM115 - the stack closes it
        except OSError as error:
            raise UsageError(
                f"spill_to {error.filename}: {error.strerror}; name a folder that can be written"
            ) from error
    return {name: Capture(limit_bytes, spills.get(name)) for name in STREAMS}, spilled


def _check_limit(limit_bytes: int) -> None:
    if limit_bytes < 0:
        raise UsageError(f"output_limit_bytes is {limit_bytes}; give 0 to keep nothing and count all, or more")
