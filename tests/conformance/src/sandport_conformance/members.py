"""What must hold for the members of every object on the wire, whoever writes them."""

from __future__ import annotations

import base64
import binascii
import json
import re
from collections.abc import Iterator
from typing import Any

from . import schema
from .messages import read
from .schema import Json

_EXTENSION = re.compile(r"x-[a-z0-9-]+/.+")


class Twice(Exception):
    """A member stands twice in one object; the message is its name."""


def no_member_twice(pairs: list[tuple[str, Any]]) -> Json:
    """An object of its members, for `json.loads`.

    Raises:
        Twice: One stands there twice.
    """
    found = dict(pairs)
    if len(found) != len(pairs):
        names = [name for name, _ in pairs]
        raise Twice(repr(next(name for name in names if names.count(name) > 1)))
    return found


def half_pair(value: object) -> str | None:
    """A string with half a surrogate pair, wherever it stands."""
    if isinstance(value, str):
        try:
            value.encode()
        except UnicodeEncodeError:
            return value
        return None
    parts = [*value.keys(), *value.values()] if isinstance(value, dict) else value if isinstance(value, list) else ()
    return next((found for part in parts if (found := half_pair(part)) is not None), None)


def faults_of_host(line: bytes) -> list[tuple[str, str]]:
    """What is wrong with a line of a host's: requirements that it breaks, each with the reason."""
    message = read(0.0, line)
    if message is None:
        return []
    found = [] if message.breaks in ("", "MSG-16") else [(message.breaks, str(message.fault))]  # a host's are requests
    fractions: list[str] = []
    try:
        body = json.loads(line, object_pairs_hook=no_member_twice, parse_float=fractions.append)
    except Twice as twice:
        return [*found, ("MSG-18", f"the member {twice} stands twice in one object")]
    except (ValueError, RecursionError):
        return found
    found += [("MSG-17", f"{text} is no integer") for text in fractions]  # no member that hosts write is a fraction
    if half := half_pair(body):
        found.append(("FRAME-18", f"half a surrogate pair in {half!r:.80}"))
    found += [("OCT-2", f"{text!r:.80} is text, and was written as bytes") for text in _needless_bytes(body)]
    found += [("EVO-3", f"{name!r:.80} is neither in the protocol nor x-<provider>/<name>") for name in _unknown(body)]
    return found


def _needless_bytes(value: object) -> Iterator[str]:
    """Strings in the form for bytes that could have been written as they are."""
    if isinstance(value, dict) and list(value) == ["b64"] and isinstance(value["b64"], str):
        try:
            yield base64.b64decode(value["b64"], validate=True).decode()
        except (binascii.Error, UnicodeDecodeError):
            return
    for part in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from _needless_bytes(part)


def _unknown(body: object) -> list[str]:
    if not isinstance(body, dict):
        return []
    method, params, known = body.get("method"), body.get("params"), schema.protocol()
    names = [method] if isinstance(method, str) and method not in {**known["methods"], **known["notifications"]} else []
    if method == "initialize" and isinstance(params, dict) and isinstance(params.get("features"), list):
        names += [feature for feature in params["features"] if isinstance(feature, str)]
    return [name for name in names if not _EXTENSION.fullmatch(name)]
