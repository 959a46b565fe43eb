"""What `sandport` exits with, beside a program's own code."""

from __future__ import annotations

USAGE = 2
"""Wrong use or configuration; nothing was started."""
TIMED_OUT = 124
OURS = 125
"""Sandport failed after something was started, or the command's word cannot be trusted."""
NOT_EXECUTABLE = 126
NOT_FOUND = 127
CLOSED_PIPE = 141
"""128 + SIGPIPE: whoever read our output went away, as a shell says it of any program in a pipe."""
