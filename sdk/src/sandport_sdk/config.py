"""A provider's config: one frozen struct, decoded strictly, whose faults name the key.

Above: `Provider.config_of` and the default `validate_config`. Below: msgspec, whose messages are turned into a dotted
path that begins with `config` and, for a misspelt key, the nearest name that exists.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

from msgspec import DecodeError, Meta, Raw, Struct, ValidationError
from msgspec.json import Decoder

from sandport_protocol import codec
from sandport_protocol.errors import ConfigInvalid, Detail
from sandport_protocol.v1 import Issue

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

_PLACE = re.compile(r"(?P<text>.*) - at `(?P<path>[^`]*)`", re.DOTALL)
_UNKNOWN = re.compile(r"Object contains unknown field `(?P<key>.*)`", re.DOTALL)
_MISSING = re.compile(r"Object missing required field `(?P<key>.*)`", re.DOTALL)
_STEP = re.compile(r"\.([^.\[]+)|\[[^\]]*\]")

SecretRef = Annotated[str, Meta(extra_json_schema={"format": "secret-ref"})]
"""A config key that names a secret: its value comes in `params.secrets` under this name, never in the config."""


class Config(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a provider's config structs derive from, nested ones too.

    `class MyConfig(Config, frozen=True, kw_only=True): ...`; the two are inherited, and repeated for type checkers.
    Strict: no unknown key, no value of another type. Keys are spelt as the fields are. A `__post_init__` that raises
    ValueError adds a rule of your own; its message reaches the user with the path of the struct.
    """


_C = TypeVar("_C", bound=Struct)


def decode(type_: type[_C], raw: bytes | Raw) -> _C:
    """A config as its struct.

    Raises:
        ConfigInvalid: It does not fit; `detail.field` has the dotted path, such as `config.network.mode`.
    """
    try:
        return _decode(type_, raw)
    except (DecodeError, ValueError, RecursionError) as error:
        issue = _issue(type_, error)
    raise ConfigInvalid(f"{issue.field}: {issue.message}", detail=Detail(field=issue.field))


def issues(type_: type[Struct], raw: bytes | Raw) -> tuple[Issue, ...]:
    """What is wrong with a config: nothing, or the first fault that was found, and each unknown key before it."""
    return tuple(_faults(type_, raw))


def schema(type_: type[Struct]) -> Raw:
    """The JSON Schema of a config struct, for the hello."""
    if not type_.__struct_fields__:
        return Raw(b'{"type":"object","properties":{},"additionalProperties":false}')
    # Here and not above: it costs some milliseconds of each start, and not every provider has a config.
    from msgspec.json import schema as json_schema

    return Raw(codec.encode(json_schema(type_)))


def nearest(name: str, among: Iterable[str], *, likeness: float = 0.75) -> str | None:
    """The name that somebody who wrote `name` probably meant; `likeness` runs from 0 to 1, the same name."""
    from difflib import get_close_matches

    names = {_plain(candidate): candidate for candidate in among}
    found = get_close_matches(_plain(name), names, n=1, cutoff=likeness)
    return names[found[0]] if found else None


def _plain(name: str) -> str:
    return name.replace("_", "").replace("-", "").lower()


def _decode(type_: type[_C], raw: bytes | Raw) -> _C:
    return Decoder(type_).decode(raw if len(raw) else b"{}")


def _faults(type_: type[Struct], raw: bytes | Raw) -> Iterator[Issue]:
    try:
        left = codec.read_as(object, raw)
    except ValueError as error:
        yield Issue(field="config", message=str(error))
        return
    while True:
        try:
            _decode(type_, codec.encode(left))
        except (DecodeError, ValueError, RecursionError) as error:
            yield _issue(type_, error)
            if not _drop_unknown(left, str(error)):
                return
        else:
            return


def _issue(type_: type[Struct], error: Exception) -> Issue:
    text, path = _split(str(error)) if isinstance(error, ValidationError) else (str(error), "")
    if unknown := _UNKNOWN.fullmatch(text):
        key = unknown["key"]
        fields = _fields_at(type_, path)
        meant = nearest(key, fields)
        hint = f"did you mean {meant!r}?" if meant else f"known are {', '.join(fields) or 'no keys at all'}"
        return Issue(field=f"config{path}.{key}", message=f"unknown key; {hint}")
    if missing := _MISSING.fullmatch(text):
        return Issue(field=f"config{path}.{missing['key']}", message="this key is needed")
    return Issue(field=f"config{path}", message=text)


def _split(message: str) -> tuple[str, str]:
    """The text of a fault, and its path without the leading `$`."""
    place = _PLACE.fullmatch(message)
    return (place["text"], place["path"].removeprefix("$")) if place else (message, "")


def _fields_at(type_: type[Struct], path: str) -> tuple[str, ...]:
    """The keys that the struct at a path knows; those of every struct there, where it is one of several."""
    from msgspec.structs import fields

    types = [type_]
    for step in _STEP.finditer(path):
        key = step[1]
        inner = [field.type for type_ in types for field in fields(type_) if key is None or field.encode_name == key]
        # An index or a key of a mapping leads into what the step before it named already.
        types = types if key is None else [struct for found in inner for struct in _structs_in(found)]
    return tuple(field.encode_name for type_ in types for field in fields(type_))


def _structs_in(type_: Any) -> Iterator[type[Struct]]:
    if isinstance(type_, type) and issubclass(type_, Struct):
        yield type_
        return
    for argument in getattr(type_, "__args__", ()):
        yield from _structs_in(argument)


def _drop_unknown(value: object, message: str) -> bool:
    """Take the key that a message complains about out of a decoded config; False where there is none."""
    text, path = _split(message)
    unknown = _UNKNOWN.fullmatch(text)
    if unknown is None or "[" in path:
        return False
    for step in _STEP.finditer(path):
        value = value[step[1]] if isinstance(value, dict) else None
    return isinstance(value, dict) and value.pop(unknown["key"], None) is not None
