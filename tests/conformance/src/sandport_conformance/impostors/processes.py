"""Impostors that do not end, or leave something behind."""

from __future__ import annotations

import os
import signal
import subprocess
import threading

from sandport_conformance.mutants.healthy import Call, Healthy, Json

from .hellos import LAST_WORDS
from .impostor import Impostor

_A_WHILE_S = 0.3


class Deaf(Impostor):
    """Ends for nothing but SIGKILL."""

    def prepare_signals(self) -> None:
        super().prepare_signals()
        signal.signal(signal.SIGTERM, lambda *_: self.record("term"))

    def leave(self) -> None:
        self.record("stays")
        threading.Event().wait()

    def serve(self, call: Call) -> None:
        """Answer the shutdown and stay."""
        if call.method != "shutdown":
            super().serve(call)
            return
        self.answer(call.id, self.handle(call))

    def end(self) -> None:
        self.record("end")
        while True:
            signal.pause()


class LeavesAChild(Impostor):
    """Has a child in its group that ignores SIGTERM and does not carry the token."""

    own_session = False

    def accident(self, call: Call) -> Json:
        self.have_child()
        return Healthy.handle(self, call)

    def have_child(self) -> None:
        """Start it; it holds the pipes to the host."""
        child = subprocess.Popen(
            ["/bin/sh", "-c", "trap '' TERM; sleep 120; sleep 120"],
            env={"PATH": os.defpath},
            stdin=self.wire_in,
            stdout=self.wire_out,
            start_new_session=self.own_session,
        )
        self.record("child", child=child.pid)


class LeavesAChildAndCrashes(LeavesAChild):
    """Crashes while it has such a child."""

    def accident(self, call: Call) -> Json:
        self.have_child()
        self.say(LAST_WORDS)
        os._exit(7)


class LeavesADaemon(LeavesAChild):
    """Has a child in a session of its own that holds the pipes to the host."""

    own_session = True


class ExitsAtShutdown(Impostor):
    """Exits at once when it is told to shut down, without an answer."""

    def handle(self, call: Call) -> Json:
        if call.method == "shutdown":
            os._exit(0)
        return super().handle(call)


class LogFlood(Impostor):
    """Writes 8 MiB of lines to its log before it answers."""

    count = 8 << 10

    def accident(self, call: Call) -> Json:
        for number in range(self.count):
            self.say(f"flood {number:06} ".ljust(1023, "."))
        return Healthy.handle(self, call)


class LongLogLine(Impostor):
    """Writes 64 MiB to its log without a line feed before it answers."""

    mib = 64

    def accident(self, call: Call) -> Json:
        for _ in range(self.mib):
            left = memoryview(b"y" * (1 << 20))
            while left:
                left = left[os.write(2, left) :]
        self.say("")
        return Healthy.handle(self, call)


class TakesInputSlowly(Impostor):
    """Takes a while for each piece of input, so that whatever the host has to say is said meanwhile."""

    writes = 0

    def handle(self, call: Call) -> Json:
        if call.method != "writeProcess":
            return super().handle(call)
        with self.lock:
            self.writes += 1
            self.record("writes", open=self.writes)
        call.cancelled.wait(_A_WHILE_S)
        try:
            return super().handle(call)
        finally:
            with self.lock:
                self.writes -= 1
