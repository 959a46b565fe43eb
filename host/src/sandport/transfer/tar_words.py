"""What the sandbox's tar says on stderr of what it left out, or of what changed under it."""

from __future__ import annotations

import re
from typing import Final, Literal

from sandport.sync.ledger import Ledger
from sandport.sync.result import SkipKind

__all__ = ["notices_in"]

_WRITTEN: Final = "it was written to while it was read"
_REMOVED: Final = "it was removed before it could be read"
_SHRANK: Final = "it did not give the bytes that its size promised"
_DENIED: Final = "permission to read it was denied"
_SOCKET: Final = "it is a socket, which has no bytes to copy"

_LINES: Final[tuple[tuple[re.Pattern[bytes], SkipKind | Literal["change", ""], str], ...]] = (
    (re.compile(rb"tar: (.+?): file changed as we read it"), "change", _WRITTEN),
    (re.compile(rb"tar: (.+?): (?:Warning: )?File removed before we read it"), "change", _REMOVED),
    (re.compile(rb"tar: (.+?): (?:Warning: )?Cannot (?:stat|open): No such file or directory"), "change", _REMOVED),
    (re.compile(rb"tar: (.+?): File shrank by \d+ bytes?; padding with zeros"), "change", _SHRANK),
    (re.compile(rb"tar: (.+?): (?:Warning: )?Cannot (?:open|read|stat): Permission denied"), "denied", _DENIED),
    (re.compile(rb"tar: can't open '(.+)': Permission denied"), "denied", _DENIED),
    (re.compile(rb"tar: (.+?): (?:Permission denied)"), "denied", _DENIED),
    (re.compile(rb"tar: (.+?): socket ignored"), "special", _SOCKET),
    (re.compile(rb"tar: Exiting with failure status due to previous errors"), "", ""),
    (re.compile(rb"tar: error exit delayed from previous errors"), "", ""),
)
"""GNU's words, and BusyBox's where they differ."""

_ESCAPED: Final = re.compile(rb"\\([0-7]{3}|.)")
_LETTERS: Final = {b"n": b"\n", b"t": b"\t", b"r": b"\r", b"b": b"\b", b"f": b"\f", b"v": b"\v", b"a": b"\a"}


def notices_in(said: bytes, ledger: Ledger) -> bool:
    """Note what a tar said; whether all of it was understood, and there was something.

    Paths are told as `--quoting-style=escape` writes them; a tar that has no such option writes them as they are, and
    then a name with a backslash is told wrongly.
    """
    understood = bool(said.strip())
    for line in said.splitlines():
        if not line.strip():
            continue
        for pattern, what, reason in _LINES:
            found = pattern.fullmatch(line)
            if found is None:
                continue
            if what:
                path = _ESCAPED.sub(_unescaped, found[1]).removeprefix(b"./").rstrip(b"/")
                path = b"" if path == b"." else path
                if what == "change":
                    ledger.change(path, reason)
                else:
                    ledger.skip(path, reason, what)
            break
        else:
            understood = False
    return understood


def _unescaped(found: re.Match[bytes]) -> bytes:
    text = found[1]
    if len(text) == 3:
        return bytes((int(text, 8) & 255,))
    return _LETTERS.get(text, text)
