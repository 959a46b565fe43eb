"""What the command says on stderr: short lines, safe to print, never a reason to fail."""

from __future__ import annotations

import re

from .descriptors import write_all

_PREFIX = "sandport: "

_SPELLED = re.compile(r"(?<!\\)\\udc([89a-f][0-9a-f])")

REAP = "sandport reap"
"""The command that ends what another one left."""


def printable(text: str) -> str:
    """One line without control characters: a provider's words must not steer the terminal."""
    return "".join(c if c.isprintable() else _spelled(c) for c in text)


def _spelled(c: str) -> str:
    if "\udc80" <= c <= "\udcff":  # a byte of our arguments that is not UTF-8
        return f"\\x{ord(c) - 0xDC00:02x}"
    return c.encode("unicode_escape", "surrogatepass").decode("ascii")


def unicode_text(text: str) -> str:
    """The same text with bytes that were not UTF-8 spelled out, so that any encoder takes it."""
    if _encodes(text):
        return text
    try:
        # Not `fsencode`: where the locale is ASCII, what else is in the text may be no ASCII.
        return text.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")
    except UnicodeEncodeError:
        return text.encode("utf-8", "backslashreplace").decode()


def words_of(error: object) -> str:
    """What an error says, with bytes that were not UTF-8 shown as everywhere, in quotation marks or not.

    Messages have names as `repr` shows them, which spells out the surrogate that stands for such a byte.
    """
    return unicode_text(_SPELLED.sub(lambda match: chr(0xDC00 + int(match[1], 16)), str(error)))


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
