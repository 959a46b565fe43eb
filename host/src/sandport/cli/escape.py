"""The way out of a shell that answers no more: Enter, `~`, `.`, as other programs of this kind have it."""

from __future__ import annotations

_TILDE, _DOT = 0x7E, 0x2E
_LINE_ENDS = (0x0D, 0x0A)


class Escape:
    """Looks for it in what is typed, however that is cut into pieces; sans-IO.

    A tilde behind Enter waits for the next key; two of them are one. Everything else is passed on as it is.

    Attributes:
        wanted: It was typed: nothing behind it is passed on.
    """

    def __init__(self) -> None:
        self.wanted = False
        self._at_start = True
        self._tilde = False

    def passed(self, data: bytes) -> bytes:
        """What of it is for the program."""
        found = bytearray()
        for byte in data:
            if self._tilde:
                self._tilde = False
                if byte == _DOT:
                    self.wanted = True
                    break
                found.append(_TILDE)
                if byte == _TILDE:
                    self._at_start = False
                    continue
            elif self._at_start and byte == _TILDE:
                self._tilde = True
                continue
            found.append(byte)
            self._at_start = byte in _LINE_ENDS
        return bytes(found)
