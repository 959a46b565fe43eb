"""What `sandport` exits with, beside a program's own code."""

from __future__ import annotations

INCOMPLETE = 1
"""Files were moved, all but those that are listed with the reason."""
USAGE = 2
"""Wrong use or configuration, a lease that is not there, a journal that cannot be read; nothing was started."""
TIMED_OUT = 124
OURS = 125
"""Sandport failed after something was started; the command's word cannot be trusted; a lease has ended or is used by
another process; the end of a sandbox is not confirmed; after exit code 0 a result did not come out, or not whole."""
NOT_EXECUTABLE = 126
NOT_FOUND = 127
CLOSED_PIPE = 141
"""128 + SIGPIPE: whoever read our output went away, as a shell says it of any program in a pipe."""
