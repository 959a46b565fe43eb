"""What the command says on stderr: short lines, safe to print, never a reason to fail."""

from __future__ import annotations

import os

from .descriptors import write_all

_PREFIX = "sandport: "

REAP = "sandport reap"
"""The command that ends what another one left."""


def printable(text: str) -> str:
    """One line without control characters: a provider's words must not steer the terminal."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape", "surrogatepass").decode("ascii") for c in text)


def unicode_text(text: str) -> str:
    """The same text with bytes that were not UTF-8 spelled out, so that any encoder takes it."""
    return os.fsencode(text).decode("utf-8", "backslashreplace") if not _encodes(text) else text


def _encodes(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def say(message: str) -> None:
    """Write a message to stderr: its first line after our name, further ones below it."""
    lines = [printable(line) for line in message.splitlines()] or [""]
    write("\n".join([_PREFIX + lines[0], *(" " * len(_PREFIX) + line for line in lines[1:])]) + "\n")


def write(text: str) -> None:
    """Write text to stderr as it is."""
    try:
        write_all(2, text.encode("utf-8", "backslashreplace"))
    except OSError:
        # Nobody reads our messages any more; there is no other place to say so, and the exit code still tells.
        return
