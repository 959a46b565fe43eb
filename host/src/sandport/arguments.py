"""The arguments of the public calls, held to their types before anything is done or sent.

What an embedder passes has no types when it runs. One of the wrong type would be guessed at (text as base64), or be an
error of the wire's, or of Python's, whose words are about something else.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from msgspec import Struct

from sandport_protocol.v1 import VARIABLE_NAME, Egress

from .errors import UsageError

LONGEST_S = 10.0**9
"""Thirty years: what is longer means no limit, and is said with None."""
MOST_COLUMNS = 65535
_DEEPEST = 100
_MOST = 2**63 - 1
_SHOWN = 60


class Kind(Struct, frozen=True):
    """What values a parameter takes."""

    wanted: str
    """In words: what the parameter is."""
    fits: Callable[[Any], bool]
    encode: bool = False
    """Text is likely to be meant for its bytes."""
    optional: bool = False
    """None is as good."""


def hold(**given: object) -> None:
    """Hold arguments to what `PARAMETERS` says of their names.

    Raises:
        UsageError: One is of another type; the message has its name, what is wanted, and what was given.
    """
    for name, value in given.items():
        kind = PARAMETERS[name]
        if value is None and kind.optional:
            continue  # most of them, and a command is held to ten
        if not kind.fits(value):
            raise _wrong(name, kind, value)


def hold_to(kind: Kind, **given: object) -> None:
    """`hold` for names that mean something else in this call."""
    for name, value in given.items():
        if not kind.fits(value):
            raise _wrong(name, kind, value)


def check_seconds(name: str, value: float, *, or_none: str = "") -> None:
    """Hold a time to its bounds.

    Raises:
        UsageError: It is not above 0, or beyond the longest.
    """
    if not 0 < value <= LONGEST_S:
        raise UsageError(f"{name} is {shown(value)}; give seconds above 0{or_none}; at most {LONGEST_S:,.0f}")


def check_variables(env: Mapping[Any, Any]) -> None:
    """Hold the variables of commands to what every system takes.

    Raises:
        UsageError: One has no variable's name, or a value that no program can be given.
    """
    for variable, value in env.items():
        if not isinstance(variable, str) or not VARIABLE_NAME.fullmatch(variable):
            raise UsageError(
                f"env: {shown(variable)} is not a variable's name (letters, digits and _, no leading digit)"
            )
        if not isinstance(value, str | bytes):
            raise UsageError(f"env: {variable} is {shown(value)}; a variable's value is text or bytes")
        if not _is_text(value) and not isinstance(value, bytes):
            raise UsageError(f"env: {variable} has a surrogate that stands for no byte; pass bytes")
        if "\0" in value if isinstance(value, str) else b"\0" in value:
            raise UsageError(f"env: {variable} has a NUL byte, which cannot be passed to a program")


def check_config(config: Mapping[Any, Any]) -> None:
    """Hold a provider's config to what JSON has.

    Raises:
        UsageError: Something in it has no form there; the message says where.
    """
    if fault := _not_json(config, "config", _DEEPEST):
        raise UsageError(fault)


def shown(value: object) -> str:
    """A value in a message: itself where it is short and plain, else its type."""
    if value is None or isinstance(value, bool):
        return str(value)
    if isinstance(value, str | bytes):
        kind = "the text " if isinstance(value, str) else ""
        return f"{kind}{value!r}" if len(value) <= _SHOWN else f"{kind}{value[:_SHOWN]!r}..."
    if isinstance(value, float) or (isinstance(value, int) and abs(value) < 10**18):
        return str(value)
    return f"of type {type(value).__name__}" if not isinstance(value, int) else "a number of more than 18 digits"


def _wrong(name: str, kind: Kind, value: object) -> UsageError:
    fix = "; encode it" if kind.encode and isinstance(value, str) else ""
    return UsageError(f"{name} is {kind.wanted}, and what was given is {shown(value)}{fix}")


# ------------------------------------------------------------------ kinds


def _or_none(kind: Kind) -> Kind:
    return Kind(f"{kind.wanted}, or None", kind.fits, encode=kind.encode, optional=True)


def _is_text(value: object) -> bool:
    if not isinstance(value, str):
        return False
    try:
        os.fsencode(value)
    except UnicodeEncodeError:
        return False
    return True


def _is_line(value: object) -> bool:
    # Not `isprintable`, which several languages' spaces are not.
    return (
        isinstance(value, str)
        and not any(c < " " or "\x7f" <= c <= "\x9f" or c in "\u2028\u2029" for c in value)
        and _is_utf8(value)
    )


def _is_utf8(value: str) -> bool:
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and -_MOST <= value <= _MOST


def _is_path(value: object) -> bool:
    if not isinstance(value, str | bytes | os.PathLike):
        return False
    path: str | bytes = os.fspath(value)
    if isinstance(path, bytes):
        return b"\0" not in path
    return "\0" not in path and _is_text(path)


def _is_egress(value: object) -> bool:
    if not isinstance(value, Egress) or value.mode not in ("all", "none", "listed"):
        return False
    listed: tuple[object, ...] = (value.hosts, value.cidrs)
    return all(isinstance(names, tuple) and all(map(_is_line, names)) for names in listed)


def _is_size(value: object) -> bool:
    return (
        isinstance(value, tuple | list)
        and len(value) == 2
        and all(_is_whole(item) and 0 < item <= MOST_COLUMNS for item in value)
    )


def _is_patterns(value: object) -> bool:
    return isinstance(value, Sequence) and all(isinstance(item, str) and _is_text(item) for item in value)


def _not_json(value: object, where: str, depth: int) -> str | None:
    if depth == 0:
        return f"{where.partition('.')[0]} is nested more than {_DEEPEST} deep"
    if isinstance(value, Mapping):
        for key, item in value.items():
            if not isinstance(key, str) or not _is_utf8(key):
                return f"{where} has the key {shown(key)}; a key is text"
            if fault := _not_json(item, f"{where}.{key}", depth - 1):
                return fault
        return None
    if isinstance(value, list | tuple):
        faults = (_not_json(item, f"{where}[{index}]", depth - 1) for index, item in enumerate(value))
        return next(filter(None, faults), None)
    fault = _not_plain(value)
    return f"{where} is {fault}" if fault else None


def _not_plain(value: object) -> str | None:
    if value is None or isinstance(value, bool):
        return None
    if isinstance(value, str):
        return None if _is_utf8(value) else "text that is not UTF-8, which JSON has to be"
    if isinstance(value, int | float):
        fits = math.isfinite(value) if isinstance(value, float) else -(2**63) <= value < 2**64
        return None if fits else f"{shown(value)}, which does not fit a number of JSON"
    return f"{shown(value)}; a provider's config is JSON: text, numbers, true, false, lists and tables"


_TEXT = Kind("text", _is_text)
_LINE = Kind("one line of text", _is_line)
FLAG = Kind("True or False", lambda value: isinstance(value, bool))
_SECONDS = Kind("seconds, a number", _is_number)
COUNT = Kind("a whole number", _is_whole)
AMOUNT = Kind("a whole number, 0 or more", lambda value: _is_whole(value) and value >= 0)
_PATH = Kind("a path, as text without NUL, bytes or a Path", _is_path)
_CALLBACK = _or_none(Kind("something to call", callable))
_TABLE = _or_none(Kind("a table, such as a dict", lambda value: isinstance(value, Mapping)))
_ID = _or_none(_LINE)
_SIZE = Kind(f"columns and rows, two whole numbers from 1 to {MOST_COLUMNS}", _is_size)

PARAMETERS: dict[str, Kind] = {
    "argv": _or_none(
        Kind("a list of words", lambda value: isinstance(value, Sequence) and not isinstance(value, bytearray))
    ),
    "config": _TABLE,
    "cwd": _or_none(_PATH),
    "data": Kind("bytes", lambda value: isinstance(value, bytes | bytearray | memoryview), encode=True),
    "delete": FLAG,
    "dry_run": FLAG,
    "egress": _or_none(Kind('an Egress, such as Egress(mode="none")', _is_egress)),
    "ended": FLAG,
    "env": _TABLE,
    "environment": _TEXT,
    "everything": FLAG,
    "exclude": Kind("a list of patterns", _is_patterns),
    "follow_symlinks": FLAG,
    "force": FLAG,
    "gitignore": FLAG,
    "keep": FLAG,
    "lease": _TEXT,
    "local": _PATH,
    "max_bytes": _or_none(AMOUNT),
    "max_entries": _or_none(AMOUNT),
    "mode": _or_none(COUNT),
    "name": _or_none(_TEXT),
    "on_lost": _CALLBACK,
    "on_output": _CALLBACK,
    "on_progress": _CALLBACK,
    "output_limit_bytes": COUNT,
    "principal": _ID,
    "provider": _TEXT,
    "pty": _or_none(_SIZE),
    "reason": _TEXT,
    "remote": _PATH,
    "replace": FLAG,
    "run": _ID,
    "sandbox_id": _LINE,
    "shell": _or_none(Kind("text or bytes", lambda value: isinstance(value, str | bytes))),
    "size": _SIZE,
    "spill_to": _or_none(
        Kind("a folder, as text or a Path", lambda value: _is_path(value) and _is_text(os.fspath(value)))
    ),
    "state": _or_none(_TEXT),
    "stdin": Kind("bytes", lambda value: isinstance(value, bytes | bytearray | memoryview), encode=True),
    "tenant": _ID,
    "timeout_s": _or_none(_SECONDS),
    "ttl_s": _SECONDS,
    "user": _or_none(_LINE),
    "work_item": _ID,
    "workload": _ID,
    "workspace": _ID,
}
"""What each parameter of the public calls takes; one name means one thing everywhere (`start` has a flag `stdin`)."""
