"""Workers whose standard streams are not kept apart, or not to the end."""

from __future__ import annotations

import array
import fcntl
import json
import os
import select
import sys
import termios
from typing import Any

from . import mutant
from .healthy import Call, Healthy, Json
from .leases import Leases
from .programs import Program
from .refusals import Refusal

_PIPE_BYTES = 1 << 16


@mutant("PROC-1/record")
class PrintsInItsHandlers(Healthy):
    """Leaves the wire on descriptor 1, and has a handler that prints."""

    def take_descriptors(self) -> None:
        super().take_descriptors()
        os.dup2(self.wire_out, 1)

    def handle(self, call: Call) -> Json:
        if call.method == "probe":
            os.write(1, b"probing\n")
        return super().handle(call)


class ProgramWithDescriptors(Program):
    """Inherits what its worker has open."""

    close_fds = False


class LeasesWithDescriptors(Leases):
    """Runs programs that inherit descriptors."""

    program_class = ProgramWithDescriptors


@mutant("PROC-1/children")
class LeavesTheWireToCommands(Healthy):
    """Starts commands that inherit the way to the host."""

    leases_class = LeasesWithDescriptors

    def take_descriptors(self) -> None:
        super().take_descriptors()
        os.set_inheritable(self.wire_out, True)


class ProgramWithInput(Program):
    """Reads what its worker reads."""

    no_input = None


class LeasesWithInput(Leases):
    """Runs programs that inherit standard input."""

    program_class = ProgramWithInput


@mutant("PROC-2")
class LeavesItsInputToCommands(Healthy):
    """Starts commands that read from the wire."""

    leases_class = LeasesWithInput

    def take_descriptors(self) -> None:
        super().take_descriptors()
        os.dup2(self.wire_in, 0)


@mutant("PROC-14")
class DropsWhatFindsNoRoom(Healthy):
    """Loses a frame where the pipe is full."""

    def write(self, line: bytes) -> None:
        unread = array.array("i", [0])
        fcntl.ioctl(self.wire_out, termios.FIONREAD, unread)
        if unread[0] + len(line) <= _PIPE_BYTES:
            super().write(line)


@mutant("PROC-14")
class OvertakesWhatFindsNoRoom(Healthy):
    """Keeps large frames for later where the pipe is full, and lets small ones pass."""

    later: list[bytes] = []  # noqa: RUF012 - one worker a process

    def write(self, line: bytes) -> None:
        if b'"issues"' in line and len(self.later) < 10:
            self.later.append(line)
            return
        super().write(line)
        while self.later and select.select([], [self.wire_out], [], 0)[1]:
            super().write(self.later.pop())


@mutant("PROC-15/provoked")
class DiesOfAFullLog(Healthy):
    """Fails where its log has no room."""

    def refuse(self, request_id: Any, refusal: Refusal) -> None:
        os.set_blocking(2, False)
        os.write(2, refusal.message.encode()[:200] + b"\n")
        super().refuse(request_id, refusal)


@mutant("PROC-15/ordinary")
class LogsEachMessage(Healthy):
    """Writes down every request, however little there is to say of it."""

    def take_request(self, message: Json) -> None:
        os.write(2, b"a request: %s\n" % message["method"].encode())
        super().take_request(message)


@mutant("PROC-16")
class ServesNobody(Healthy):
    """Does not see that its stdout was closed."""

    def wait_input(self) -> set[int]:
        return set(select.select([self.wire_in, self.waker], [], [], 0.5)[0])


@mutant("PROC-19")
class BuffersAtTheEnd(Healthy):
    """Gathers its answers in a buffer once it drains, and exits without a flush."""

    def write(self, line: bytes) -> None:
        if not self.draining:
            super().write(line)


@mutant("PROC-19")
class ExitsInTheMiddle(Healthy):
    """Exits before its last answer is out."""

    def settle(self, request_id: Any, line: bytes) -> None:
        if self.draining and b'"result":{}' in line:
            os._exit(0)
        super().settle(request_id, line)


@mutant("LOG-1")
class LogsUnderOtherNames(Healthy):
    """Logs JSON whose members have other names."""

    def refuse(self, request_id: Any, refusal: Refusal) -> None:
        json.dump({"severity": "warn", "msg": refusal.message[:200]}, sys.stderr)
        sys.stderr.write("\n")
        sys.stderr.flush()
        super().refuse(request_id, refusal)


@mutant("PROC-18")
class FailsWithoutAWord(Healthy):
    """Ends with exit code 0, and says nothing, where it cannot start."""

    def settle(self, request_id: Any, line: bytes) -> None:
        try:
            super().settle(request_id, line)
        except OSError:
            os._exit(0)


@mutant("PROC-18")
class HangsAtItsStart(Healthy):
    """Waits for better times where it cannot start."""

    def write(self, line: bytes) -> None:
        try:
            super().write(line)
        except OSError:
            print("cannot write", file=sys.stderr)


@mutant("PROC-17")
class NeedsAHome(Healthy):
    """Reads a variable that it does not list, and fails without it."""

    def hello(self, params: Json) -> Json:
        return {**super().hello(params), "features": [os.environ["HOME"]][:0]}
