"""TOML as text: a table to add to a file, and one to take out of it; what cannot be done safely is not done.

A library that keeps comments would be a dependency of every host for two commands. Here the text around a table is
never touched, and what comes out is read again: unless it says exactly what the file said, with the table or without,
it is refused.
"""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Mapping
from typing import Any

_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")


class NotEditable(Exception):
    """The file is written in a way in which this cannot be done by adding or taking out lines."""


def value_text(value: object) -> str:
    """A value of JSON as one line of TOML.

    Raises:
        ValueError: TOML has no such value.
    """
    match value:
        case bool():
            return str(value).lower()
        case str():
            # JSON's escapes are TOML's too, which wants one more.
            return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
        case int() | float():
            return repr(value)
        case dict():
            inner = ", ".join(f"{key_text(key)} = {value_text(item)}" for key, item in value.items())
            return f"{{ {inner} }}" if inner else "{}"
        case list() | tuple():
            return f"[{', '.join(map(value_text, value))}]"
        case _:
            raise ValueError(f"TOML has no {type(value).__name__}")


def key_text(key: str) -> str:
    """A key, quoted where it has to be."""
    return key if _BARE_KEY.fullmatch(key) else value_text(key)


def table_text(path: tuple[str, ...], members: Mapping[str, object]) -> str:
    """A table with its head."""
    lines = [f"[{'.'.join(map(key_text, path))}]", *(f"{key_text(k)} = {value_text(v)}" for k, v in members.items())]
    return "\n".join(lines) + "\n"


def with_table(text: str, path: tuple[str, str], members: Mapping[str, object]) -> str:
    """The text with a table at its end.

    Raises:
        NotEditable: It cannot stand there.
    """
    head = text.rstrip("\n")
    added = (head + "\n\n" if head else "") + table_text(path, members)
    expected = tomllib.loads(text)
    section = expected.setdefault(path[0], {})
    if not isinstance(section, dict) or path[1] in section:
        raise NotEditable
    section[path[1]] = dict(members)
    return _checked(added, expected)


def without_table(text: str, path: tuple[str, str]) -> str:
    """The text without a table and the tables below it; comments in front of the next one stay.

    Raises:
        NotEditable: The table has no head of its own, or something else is in the way.
    """
    kept: list[str] = []
    ours: list[str] = []
    inside = False
    for line in text.split("\n"):
        head = _head(line)
        if head is not None:
            if inside:
                kept += _behind(ours)
                ours = []
            inside = head[:2] == path
        (ours if inside else kept).append(line)
    if inside:
        kept += _behind(ours)
    expected = tomllib.loads(text)
    section = expected.get(path[0])
    if not isinstance(section, dict):
        raise NotEditable
    section.pop(path[1], None)
    # Where the last table went, blank lines in front of it are no end of a file.
    result = "\n".join(kept).rstrip("\n")
    return _checked(result + "\n" if result else "", expected)


def _behind(lines: list[str]) -> list[str]:
    """What stands behind a table's last key: it belongs to what comes next."""
    last = max(index for index, line in enumerate(lines) if line.strip() and not line.lstrip().startswith("#"))
    rest = lines[last + 1 :]
    return rest[1:] if rest and not rest[0].strip() else rest


def _head(line: str) -> tuple[str, ...] | None:
    """The keys of a line that opens a table; a line of a longer value may look like one, which `_checked` finds."""
    if not line.lstrip().startswith("["):
        return None
    try:
        inner: Any = tomllib.loads(line)
    except tomllib.TOMLDecodeError:
        return None
    keys: list[str] = []
    while isinstance(inner, dict) and inner:
        (key,) = inner
        keys.append(key)
        inner = inner[key]
    return tuple(keys)


def _checked(text: str, expected: dict[str, Any]) -> str:
    try:
        found = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise NotEditable from error
    if _filled(found) != _filled(expected):
        raise NotEditable
    return text


def _filled(table: dict[str, Any]) -> dict[str, Any]:
    """Without sections that are empty: a section may go with the last table in it."""
    return {key: value for key, value in table.items() if value != {}}
