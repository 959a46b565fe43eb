"""Starting a program in a session of its own, with the exec's own error where that fails."""

from __future__ import annotations

import errno
import os
import stat

TYPE_CHECKING = False  # That of `typing` costs more to import than all the rest.
if TYPE_CHECKING:
    import signal
else:
    import _signal as signal  # Without the other's import of `enum`, which is a third of a start.

Action = tuple[int, int, int] | tuple[int, int, str, int, int]
"""What posix_spawn does with one descriptor in the child."""
_RESET = [n for n in signal.valid_signals() if n not in (signal.SIGKILL, signal.SIGSTOP)]


class StartFailed(Exception):
    """A command was not started: at which stage, and the kernel's reason."""

    def __init__(self, stage: str, number: int) -> None:
        super().__init__(stage, number)
        self.stage = stage
        self.number = number


def spawn(argv: list[bytes], variables: dict[bytes, bytes], actions: list[Action]) -> int:
    """Start a program in a session of its own, found as execvp would find it; returns its pid.

    posix_spawn and not subprocess: no thread, no fork, and the exec's own error number.
    """
    program = argv[0]
    if b"/" in program:
        candidates = [program]
    else:
        folders = variables.get(b"PATH", b"").split(b":")
        candidates = [os.path.join(folder or b".", program) for folder in folders]
    failure = errno.ENOENT
    for candidate in candidates:
        try:
            found = os.stat(candidate)
        except OSError as error:
            if error.errno == errno.EACCES:
                failure = errno.EACCES
            continue
        if not stat.S_ISREG(found.st_mode) or not os.access(candidate, os.X_OK, effective_ids=True):
            failure = errno.EISDIR if stat.S_ISDIR(found.st_mode) else errno.EACCES
            continue
        try:
            return os.posix_spawn(
                candidate, argv, variables, file_actions=actions, setsid=True, setsigmask=(), setsigdef=_RESET
            )
        except OSError as error:
            if error.errno == errno.ENOENT:  # The file is there; what its first line or its header names is not.
                raise StartFailed("interpreter", errno.ENOENT) from None
            raise StartFailed("spawn", error.errno or errno.EIO) from None
    raise StartFailed("program", failure)
