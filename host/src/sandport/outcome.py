"""How a command ended, and what it said.

An `Outcome` exists only where the end is proven: the process's own status, each stream's end, every byte received or
counted. Anything less is an exception with `partial`.
"""

from __future__ import annotations

from msgspec import Struct

from sandport_protocol.v1 import Ended, StreamEnd, Tree

TIMED_OUT_CODE = 124
"""What timeout(1) answers; also `sandport run`."""
_MOST_CODE = 255


class Captured(Struct, frozen=True, kw_only=True):
    """One stream of a command: all of it, or its head and tail with a count of what is between."""

    data: bytes = b""
    """All bytes, or the first ones where `dropped_bytes` is above 0."""
    tail: bytes = b""
    """The last bytes, where something was dropped."""
    total_bytes: int = 0
    """Everything that the command wrote, kept or not."""
    dropped_bytes: int = 0
    """Of them, what is kept in neither `data` nor `tail`."""
    untaken_bytes: int = 0
    """Of the dropped ones: never handed on, because the consumer stalled beyond the command's time-out."""
    end: StreamEnd = "seen"
    """`heldOpen`: its end was not seen: something that the command left behind still holds the stream, or whoever takes
    the output was too slow for the time-out, and the rest was dropped (`untaken_bytes`)."""
    spilled_to: str | None = None
    """The file that has every byte, where one was asked for."""

    def __bytes__(self) -> bytes:
        return self.data + self.tail

    def decode(self, encoding: str = "utf-8", errors: str = "replace") -> str:
        """The text; where bytes were dropped, a line in the middle says how many."""
        if not self.dropped_bytes:
            return self.data.decode(encoding, errors)
        gap = f"\n[... {self.dropped_bytes} bytes dropped ...]\n"
        return self.data.decode(encoding, errors) + gap + self.tail.decode(encoding, errors)


class Outcome(Struct, frozen=True, kw_only=True):
    """The end of a command."""

    ended: Ended
    """`exited`, `signalled`, `timedOut` or `outOfMemory`."""
    exit_code: int | None
    """The program's own code; None unless it exited by itself."""
    signal: int | None = None
    """The signal that ended it; None unless one did."""
    core_dumped: bool = False
    """It left a core dump, where the provider can tell."""
    tree: Tree | None = None
    """What a kill reached: `gone` is proven, `signalled` and `unreachable` are not; None where nothing was killed."""
    stdout: Captured = Captured()
    """What it wrote there; with a terminal, everything."""
    stderr: Captured = Captured()
    """What it wrote there; nothing with a terminal."""
    duration_s: float = 0.0
    """Measured where the command ran, from its start to its end."""
    notes: tuple[str, ...] = ()
    """For a person: what the provider or the host remarked, as a time-out that was not kept."""

    @property
    def ok(self) -> bool:
        """It ended by itself with 0."""
        return self.ended == "exited" and self.exit_code == 0

    @property
    def shell_code(self) -> int:
        """One number as a shell would say it: the code, 128 + the signal, 124 for timed out, 137 out of memory.

        Always from 0 to 255, and 0 only where `ok`: what is passed to `sys.exit` is cut to eight bits by the system.
        """
        if self.exit_code is not None:
            code = self.exit_code
        elif self.ended == "timedOut":
            code = TIMED_OUT_CODE
        else:
            code = 128 + (self.signal if self.signal is not None else 9)
        is_code = self.ok if code == 0 else 0 < code <= _MOST_CODE
        return code if is_code else _MOST_CODE
