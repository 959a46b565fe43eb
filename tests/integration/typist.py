"""Somebody at a terminal of their own: starts a command on it, types, reads what is shown, changes its size."""

import fcntl
import os
import re
import select
import signal
import struct
import termios
import time
from types import TracebackType
from typing import Any, Self

from tests.integration.command import BOUND_S, Command


class Typist:
    """A terminal with a command on it, which is its controlling one, so that changes of its size are told."""

    def __init__(self, sandport: Command, *words: str, size: tuple[int, int] = (80, 24), **env: str) -> None:
        self._master, self._slave = os.openpty()
        self.shown = ""
        self.resize(*size)
        self.before = self.modes()
        self.process: Any = sandport.start(
            *words,
            env={"TERM": "xterm"} | env,
            stdin=self._slave,
            stdout=self._slave,
            stderr=self._slave,
            start_new_session=True,
            preexec_fn=_take_terminal,
        )

    def modes(self) -> list[Any]:
        """What its keys do now."""
        return termios.tcgetattr(self._slave)

    def resize(self, columns: int, rows: int) -> None:
        """As a window does it."""
        fcntl.ioctl(self._slave, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def press(self, text: str) -> None:
        """Press keys."""
        os.write(self._master, text.encode())

    def until(self, pattern: str) -> re.Match[str]:
        """Wait until something is shown that was not seen before; answers it, and has seen all up to its end."""
        end = time.monotonic() + BOUND_S
        while (found := re.search(pattern, self.shown)) is None:
            # Whoever has ended shows nothing more, and we hold the terminal open ourselves.
            over = self.process.poll() is not None or time.monotonic() > end
            assert self._look(0 if over else 0.2) or not over, (pattern, self.shown, self.process.poll())
        self.shown = self.shown[found.end() :]
        return found

    def ended(self) -> int:
        """Wait for the end of the command; answers its code. All that it showed is in `shown`."""
        end = time.monotonic() + BOUND_S
        while (code := self.process.poll()) is None:
            # A terminal that nobody reads is full at some time, and then the command waits and does not end.
            self._look(0.2)
            assert time.monotonic() < end, self.shown
        while self._look(0):
            pass
        return int(code)

    def _look(self, patience_s: float) -> bool:
        """Take in what is shown next; whether anything was."""
        if not select.select([self._master], [], [], patience_s)[0]:
            return False
        self.shown += os.read(self._master, 65536).decode(errors="replace")
        return True

    def leave(self) -> None:
        """Close the window."""
        for descriptor in (self._master, self._slave):
            if descriptor >= 0:
                os.close(descriptor)
        self._master = self._slave = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(self, _type: type[BaseException] | None, _value: object, _traceback: TracebackType | None) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        self.leave()


def _take_terminal() -> None:
    """In the child, before the command: system calls alone, as after a fork nothing else is safe."""
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)
    # Whoever started the tests in the background has had them ignore Ctrl-C, which a program takes over.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
