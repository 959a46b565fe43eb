"""What is known of one call between its sending and its outcome."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from typing import Any, Protocol

from msgspec import Raw, Struct

from sandport_protocol.v1 import OutputParams, ProgressParams


class OutputSink(Protocol):
    """Where the live output of one call goes; called from the reader, so it must be quick and never wait."""

    def feed(self, piece: OutputParams) -> str | None:
        """Take a piece; answer the rule that it breaks, if it breaks one."""


class OpenCall(Struct):
    """One call that was sent."""

    # Known to the garbage collector: a failed call is in a cycle, over its future's traceback to its caller's frame.

    id: int
    method: str
    params: Any
    future: asyncio.Future[Raw]
    sink: OutputSink | None = None
    on_progress: Callable[[ProgressParams], None] | None = None
    due: float = math.inf
    """The loop's time of its deadline; infinite where it has none, or has been cancelled."""
    timer: asyncio.TimerHandle | None = None
    """After a cancel: the end of the grace, then of the patience with a worker that does not answer it."""
    slotted: bool = False
    """It holds one of the slots in flight, until the worker has answered."""
