"""Lines of gitignore's dialect, and which of them speak of a name.

The meaning is that of git's own `dir.c` and `wildmatch.c`, on bytes. Lines may be an enemy's, so that nothing here
takes more steps for a name than the length of the lines times that of the name: parts between stars are found from
the left and never tried again, and a line with slashes advances one directory at a time, as the walk does.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import cached_property
from typing import Final, NamedTuple, TypeAlias

__all__ = ["NO_STATE", "Rule", "Rules", "State", "lines_of", "rule_of"]

_SLASH: Final = ord("/")
_BACKSLASH: Final = ord("\\")
_STAR: Final = ord("*")

_ANY: Final = frozenset(range(256)) - {_SLASH}

_SPACE: Final = frozenset(b" \t\n\r")
_PRINT: Final = frozenset(range(0x20, 0x7F))
_LOWER: Final = frozenset(b"abcdefghijklmnopqrstuvwxyz")
_UPPER: Final = frozenset(b"ABCDEFGHIJKLMNOPQRSTUVWXYZ")
_DIGIT: Final = frozenset(b"0123456789")
_CLASSES: Final = {
    b"alnum": _LOWER | _UPPER | _DIGIT,
    b"alpha": _LOWER | _UPPER,
    b"blank": frozenset(b" \t"),
    b"cntrl": frozenset([*range(0x20), 0x7F]),
    b"digit": _DIGIT,
    b"graph": _PRINT - _SPACE,
    b"lower": _LOWER,
    b"print": _PRINT,
    b"punct": _PRINT - _LOWER - _UPPER - _DIGIT - _SPACE,
    b"space": _SPACE,
    b"upper": _UPPER,
    b"xdigit": _DIGIT | frozenset(b"abcdefABCDEF"),
}
"""As git has them: ASCII only, and no vertical tab or form feed among the spaces."""


class _Star:
    """Any bytes within one name."""


class _Descend:
    """Any number of directories, also none; at the end of a line anything below."""


_WEIGHT_OF_NAME: Final = 128
_WEIGHT_OF_GLOB: Final = 512

STAR: Final = _Star()
DESCEND: Final = _Descend()

_Token: TypeAlias = "int | frozenset[int] | _Star"
_Part: TypeAlias = "bytes | re.Pattern[bytes] | _Descend"

Position: TypeAlias = tuple[int, int]
"""Of which line, and which of its parts the next name has to match."""

State: TypeAlias = tuple[Position, ...]
"""How far the lines with slashes have got in a directory."""

NO_STATE: Final[State] = ()


class Rule(NamedTuple):
    """One line that can match something."""

    negated: bool
    directories_only: bool
    anchored: bool
    """It has a slash, so that it speaks of paths and not of names anywhere."""
    parts: tuple[tuple[_Token, ...] | _Descend, ...]


class _Never(Exception):
    """The line can match nothing."""


def lines_of(content: bytes) -> list[bytes]:
    """The patterns in an ignore file: no comments, no blank lines, no blanks that end a line unquoted."""
    lines = []
    for line in content.removeprefix(b"\xef\xbb\xbf").split(b"\n"):
        if not line or line.startswith(b"#"):
            continue
        pattern = _unpadded(line.removesuffix(b"\r").partition(b"\0")[0])
        if pattern:
            lines.append(pattern)
    return lines


def _unpadded(line: bytes) -> bytes:
    kept = line.rstrip(b" ")
    quotes = len(kept) - len(kept.rstrip(b"\\"))
    # An odd backslash quotes the first of the blanks behind it.
    return line[: len(kept) + 1] if quotes % 2 and len(kept) < len(line) else kept


def rule_of(pattern: bytes) -> Rule | None:
    """Understand one pattern; None if it can match nothing."""
    negated = pattern.startswith(b"!")
    body = pattern[negated:]
    directories_only = body.endswith(b"/")
    if directories_only:
        body = body[:-1]
    anchored = b"/" in body
    try:
        parts = _Reader(body.removeprefix(b"/") if anchored else body, anchored=anchored).parts()
    except _Never:
        return None
    return Rule(negated, directories_only, anchored, parts)


class _Reader:
    """Takes a pattern apart, from left to right."""

    def __init__(self, pattern: bytes, *, anchored: bool) -> None:
        self._pattern = pattern
        self._anchored = anchored
        self._at = 0
        self._done: list[tuple[_Token, ...] | _Descend] = []
        self._part: list[_Token] = []
        self._expected = True
        """Whether another part must follow for the line to mean anything."""

    def parts(self) -> tuple[tuple[_Token, ...] | _Descend, ...]:
        while self._at < len(self._pattern):
            byte = self._pattern[self._at]
            self._at += 1
            if byte == _STAR:
                self._stars()
            elif byte == ord("?"):
                self._part.append(_ANY)
            elif byte == ord("["):
                self._part.append(self._set())
            elif byte == _BACKSLASH:
                self._literal(self._next())
            else:
                self._literal(byte)
        if self._part:
            self._done.append(tuple(self._part))
        elif self._expected:
            raise _Never
        return tuple(self._done)

    def _next(self) -> int:
        if self._at >= len(self._pattern):
            raise _Never
        self._at += 1
        return self._pattern[self._at - 1]

    def _literal(self, byte: int) -> None:
        if byte != _SLASH:
            self._part.append(byte)
            return
        if not self._part:
            raise _Never
        self._done.append(tuple(self._part))
        self._part = []
        self._expected = True

    def _stars(self) -> None:
        first = self._at - 1
        while self._pattern[self._at : self._at + 1] == b"*":
            self._at += 1
        behind = self._pattern[self._at : self._at + 2]
        descends = self._anchored and self._at - first > 1 and not self._part
        if not descends or not (behind in (b"", b"\\/") or behind.startswith(b"/")):
            # Git documents that other runs of stars are as one.
            self._part.append(STAR)
            return
        if behind == b"\\/":
            # Git's short cut for no directory at all does not see through the backslash.
            self._done.append((STAR,))
            self._at += 1
        self._done.append(DESCEND)
        self._expected = bool(behind)
        self._at += self._expected

    def _set(self) -> frozenset[int]:
        negated = self._pattern[self._at : self._at + 1] in (b"!", b"^")
        self._at += negated
        members: set[int] = set()
        before = 0
        byte = self._next()
        while True:
            behind = self._pattern[self._at : self._at + 1]
            if byte == _BACKSLASH:
                before = self._next()
                members.add(before)
            elif byte == ord("-") and before and behind not in (b"", b"]"):
                last = self._next()
                members.update(range(before, (self._next() if last == _BACKSLASH else last) + 1))
                before = 0
            elif byte == ord("[") and behind == b":" and (named := self._class()) is not None:
                members |= named
                before = 0
            else:
                members.add(byte)
                before = byte
            byte = self._next()
            if byte == ord("]"):
                break
        return (_ANY - members) if negated else frozenset(members) & _ANY

    def _class(self) -> frozenset[int] | None:
        """A named class; None where it only begins like one."""
        start = self._at + 1
        end = self._pattern.find(b"]", start)
        if end < 0:
            raise _Never
        if end == start or self._pattern[end - 1] != ord(":"):
            return None
        named = _CLASSES.get(self._pattern[start : end - 1])
        if named is None:
            raise _Never
        self._at = end + 1
        return named


def _matcher(tokens: tuple[_Token, ...]) -> bytes | re.Pattern[bytes]:
    literal = bytes(token for token in tokens if isinstance(token, int))
    return literal if len(literal) == len(tokens) else re.compile(_expression(tokens), re.DOTALL)


def _expression(tokens: tuple[_Token, ...]) -> bytes:
    """A regular expression that takes no more steps than its length times the name's."""
    pieces = [b""]
    for token in tokens:
        if isinstance(token, _Star):
            pieces.append(b"")
        elif isinstance(token, int):
            pieces[-1] += re.escape(bytes([token]))
        else:
            pieces[-1] += _one_of(token)
    if len(pieces) == 1:
        return pieces[0]
    first, *middle, last = pieces
    # What is found first leaves the most for what follows, so none of it need be given back.
    return first + b"".join(b"(?>[^/]*?%b)" % piece for piece in middle if piece) + b"[^/]*" + last


def _one_of(members: frozenset[int]) -> bytes:
    if members == _ANY:
        return b"[^/]"
    if not members:
        return b"(?!)"
    ranges = []
    ordered = sorted(members)
    first = before = ordered[0]
    for member in (*ordered[1:], -1):
        if member != before + 1:
            ranges.append(b"\\x%02x-\\x%02x" % (first, before))
            first = member
        before = member
    return b"[" + b"".join(ranges) + b"]"


class Rules:
    """The lines of one file, or of one caller; the last one that speaks of a name decides.

    Args:
        rules: In their order.
        size_bytes: How long they were, written down.
    """

    def __init__(self, rules: Iterable[Rule], *, size_bytes: int = 0) -> None:
        self._negated: list[bool] = []
        self._names: dict[bytes, int] = {}
        self._directories: dict[bytes, int] = {}
        self._globs: list[tuple[int, bytes]] = []
        """Which line, and the expression for it."""
        self._paths: dict[int, tuple[_Part, ...]] = {}
        self._paths_of_directories: set[int] = set()
        positions = 0
        for index, rule in enumerate(rules):
            self._negated.append(rule.negated)
            if rule.anchored:
                self._paths[index] = tuple(
                    part if isinstance(part, _Descend) else _matcher(part) for part in rule.parts
                )
                positions += len(rule.parts)
                if rule.directories_only:
                    self._paths_of_directories.add(index)
                continue
            (tokens,) = rule.parts
            assert not isinstance(tokens, _Descend)
            name = bytes(token for token in tokens if isinstance(token, int))
            if len(name) < len(tokens):
                end = b"/" if rule.directories_only else b"/?"
                self._globs.append((index, _expression(tokens) + end + rb"\Z()"))
            elif rule.directories_only:
                self._directories[name] = index
            else:
                self._names[name] = index
        self._globs.reverse()
        self.speaks_of_names = bool(self._names or self._directories or self._globs)
        """Whether a line says something anywhere, however deep."""
        names = len(self._names) + len(self._directories)
        self.weight = size_bytes + _WEIGHT_OF_NAME * names + _WEIGHT_OF_GLOB * (len(self._globs) + positions)
        """About how many bytes of memory they take, at most."""

    def __bool__(self) -> bool:
        return bool(self._negated)

    @cached_property
    def start(self) -> State:
        """The state in the directory that the lines belong to."""
        return self._closed({(index, 0) for index in self._paths})

    @cached_property
    def _expression(self) -> re.Pattern[bytes]:
        # The empty group at the end of each alternative tells which one it was; the last lines come first.
        return re.compile(b"|".join(expression for _, expression in self._globs), re.DOTALL)

    def advance(self, state: State, name: bytes) -> State:
        """The state below a directory of this name."""
        found: set[Position] = set()
        for position in state:
            index, place = position
            parts = self._paths[index]
            part = parts[place]
            if isinstance(part, _Descend):
                found.add(position)
            elif place + 1 < len(parts) and _fits(part, name):
                found.add((index, place + 1))
        return self._closed(found) if found else NO_STATE

    def _closed(self, found: set[Position]) -> State:
        for index, first in list(found):
            parts = self._paths[index]
            place = first
            while isinstance(parts[place], _Descend) and place + 1 < len(parts):
                place += 1
                found.add((index, place))
        return tuple(sorted(found, reverse=True))

    def verdict(self, state: State, name: bytes, *, is_directory: bool) -> bool | None:
        """Whether the name is to be left out; None if no line speaks of it."""
        best = self._names.get(name, -1)
        if is_directory:
            best = max(best, self._directories.get(name, -1))
        if self._globs:
            match = self._expression.match(name + b"/" if is_directory else name)
            if match is not None and match.lastindex is not None:
                best = max(best, self._globs[match.lastindex - 1][0])
        for index, place in state:
            if index <= best:
                break
            parts = self._paths[index]
            if place + 1 < len(parts) or (index in self._paths_of_directories and not is_directory):
                continue
            part = parts[place]
            if isinstance(part, _Descend) or _fits(part, name):
                best = index
        return None if best < 0 else not self._negated[best]


def _fits(part: bytes | re.Pattern[bytes], name: bytes) -> bool:
    return part == name if isinstance(part, bytes) else part.fullmatch(name) is not None
