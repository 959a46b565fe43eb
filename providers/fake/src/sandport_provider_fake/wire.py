"""A way to the wire beside the SDK's, for the two faults that no honest worker can commit through it.

Descriptor 1 is the wire when the process starts; a copy of it is kept before the SDK takes it away. What is written
here goes out between two frames of the SDK's, unless the host has left its pipe full: then it may split one.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import fcntl
import json
import os
from typing import cast

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

_LOWEST = 100
"""Far from the descriptors of everything else."""
_RETRY_S = 0.001
_kept: list[int] = []


def keep() -> None:
    """Keep a copy of descriptor 1; children do not inherit it. Nothing happens where it is closed."""
    try:
        _kept.append(fcntl.fcntl(1, fcntl.F_DUPFD_CLOEXEC, _LOWEST))
    except OSError:
        return  # the SDK says what is wrong with it


async def write_line(line: bytes) -> bool:
    """Write a line to the host as it is; False where there is no wire, as with a host in memory."""
    if not _kept:
        return False
    left = line + b"\n"
    while left:
        try:
            left = left[os.write(_kept[0], left) :]
        except BlockingIOError:
            await asyncio.sleep(_RETRY_S)
    return True


def write_here(line: bytes) -> None:
    """As `write_line`, for code that cannot wait; what the pipe does not take is left out."""
    if _kept:
        with contextlib.suppress(BlockingIOError):
            os.write(_kept[0], line + b"\n")


def as_json(value: object) -> Any:
    """A result as plain values for `json`: members by their names on the wire, bytes in base64."""
    names: tuple[str, ...] | None = getattr(value, "__struct_fields__", None)
    if names is not None:
        encoded: tuple[str, ...] = getattr(value, "__struct_encode_fields__", names)
        return {wire: as_json(getattr(value, name)) for name, wire in zip(names, encoded, strict=True)}
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, tuple | list):
        return [as_json(each) for each in value]
    if isinstance(value, dict):
        members: Mapping[str, object] = value
        return {name: as_json(each) for name, each in members.items()}
    if value is None or isinstance(value, str | int | float):
        return value
    return json.loads(memoryview(cast("bytes", value)).tobytes())  # JSON that was never decoded
