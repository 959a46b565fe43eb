"""Impostors whose output and results do not agree."""

from __future__ import annotations

import base64

from sandport_conformance.mutants.healthy import Call, Json

from .impostor import Impostor

FLOOD_BYTES = 128 << 20


class Liar(Impostor):
    """Sends three bytes of output; what follows is up to the class."""

    result: Json = {"ended": "exited", "exitCode": 0, "stdout": {"totalBytes": 3}, "stderr": {"totalBytes": 0}}  # noqa: RUF012 - read only
    ends: tuple[str, ...] = ("stdout", "stderr")
    more: tuple[tuple[str, int, bytes], ...] = ()

    def accident(self, call: Call) -> Json:
        if not call.params.get("live"):
            return {**self.result, "stdout": {"totalBytes": 2, "data": "YWJj", "tail": "", "droppedBytes": 0}}
        self.piece(call, "stdout", 0, b"abc")
        for name in self.ends:
            self.leases.send_end(call, name, 3 if name == "stdout" else 0, "seen")
        for name, offset, data in self.more:
            self.piece(call, name, offset, data)
        return self.result

    def piece(self, call: Call, stream: str, offset: int, data: bytes) -> None:
        """One piece of output."""
        text = base64.b64encode(data).decode()
        self.notify("output", {"id": call.id, "stream": stream, "offset": offset, "data": text})


class CountsTooLow(Liar):
    """Counts less than it sent."""

    result = {**Liar.result, "stdout": {"totalBytes": 2}}  # noqa: RUF012 - read only


class CountsTooHigh(Liar):
    """Counts more than it sent."""

    result = {**Liar.result, "stdout": {"totalBytes": 4}}  # noqa: RUF012 - read only


class NoEndMark(Liar):
    """Ends no stream."""

    ends = ()


class OneEndMark(Liar):
    """Ends one stream of two."""

    ends = ("stdout",)


class AGap(Liar):
    """Leaves out two bytes."""

    ends = ()
    more = (("stdout", 5, b"f"),)


class AfterTheEnd(Liar):
    """Sends output after its end mark."""

    more = (("stdout", 3, b"def"),)


class NoExitCode(Liar):
    """Says that a command exited, and not how."""

    result = {name: value for name, value in Liar.result.items() if name != "exitCode"}  # noqa: RUF012 - read only


class CodeAndSignal(Liar):
    """Says that a command was ended by a signal, with exit code 0."""

    result = {**Liar.result, "ended": "signalled", "signal": 9}  # noqa: RUF012 - read only


class AWaitStatus(Liar):
    """Says 256, the wait status of a program that exited with 1."""

    result = {**Liar.result, "exitCode": 256}  # noqa: RUF012 - read only


class ANegativeCode(Liar):
    """Says -256, of which eight bits are 0 too."""

    result = {**Liar.result, "exitCode": -256}  # noqa: RUF012 - read only


class NoSuchSignal(Liar):
    """Says signal 128, to which a shell adds 128."""

    result = {**NoExitCode.result, "ended": "signalled", "signal": 128}  # noqa: RUF012 - read only


class EndsBeforeItBegan(Liar):
    """Says that a command took less than no time."""

    result = {**Liar.result, "durationMs": -5_000}  # noqa: RUF012 - read only


class KeepsNoCredit(Liar):
    """Sends 128 MiB without looking at its credit."""

    def accident(self, call: Call) -> Json:
        size = self.limits["chunkBytes"]
        piece = base64.b64encode(b"x" * size).decode()
        for offset in range(0, FLOOD_BYTES, size):
            self.notify("output", {"id": call.id, "stream": "stdout", "offset": offset, "data": piece})
            if call.cancelled.is_set():
                break
        call.cancelled.wait(10)
        return self.result
