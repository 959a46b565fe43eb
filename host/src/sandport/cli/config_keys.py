"""The keys of a provider's config, as its schema has them: to list them, and to understand the words of `-c`.

What a schema does not say is the provider's to judge.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import msgspec
from msgspec import Struct

from sandport.errors import ConfigurationInvalid
from sandport.nearest import nearest
from sandport.secret_keys import followed, kinds_of, names_secret

_SIZE = re.compile(r"([0-9]{1,15}(?:\.[0-9]{1,6})?) ?([kKMGT])(i?)B?")
_POWERS = {"k": 1, "m": 2, "g": 3, "t": 4}
_TYPES = {
    "boolean": "true or false",
    "integer": "whole number",
    "number": "number",
    "string": "text",
    "array": "list",
    "object": "table",
}


class ConfigKey(Struct, frozen=True, kw_only=True, rename="camel"):
    """One key."""

    name: str
    type: str
    """In words."""
    default: str
    """As TOML has it; empty where it has none."""
    description: str
    types: frozenset[str]
    """As JSON Schema has them."""

    @property
    def is_size(self) -> bool:
        """Whether its value is a number of bytes."""
        return "integer" in self.types and self.name.endswith("_bytes")


def keys_of(schema: bytes) -> dict[str, ConfigKey] | None:
    """The keys at the top of a config, by name; None where a schema does not list them all."""
    try:
        whole = msgspec.json.decode(schema)
    except (msgspec.DecodeError, RecursionError):
        return None
    top = followed(whole, whole)
    properties = top.get("properties")
    if not isinstance(properties, dict) or top.get("additionalProperties") is not False:
        return None
    return {name: _key(name, followed(said, whole), whole) for name, said in properties.items()}


def fitted(overrides: Mapping[str, Any], schema: bytes) -> dict[str, Any]:
    """What `-c` says, with the sizes that it writes as people do (`512M`, `1.5GiB`) as numbers of bytes.

    Raises:
        ConfigurationInvalid: There is no such key, or its value is none that it can have; the message says what can be.
    """
    keys = keys_of(schema)
    if keys is None:
        return dict(overrides)
    return {name: _fitted(name, value, keys) for name, value in overrides.items()}


def _fitted(name: str, value: object, keys: Mapping[str, ConfigKey]) -> object:
    key = keys.get(name)
    if key is None:
        begun = [known for known in keys if known.startswith(name) or name.startswith(known)]
        hint = f"; did you mean {begun[0]!r}?" if len(begun) == 1 else nearest(name, keys)
        raise ConfigurationInvalid(f"-c {name}: unknown key{hint or '; there is: ' + (', '.join(keys) or 'none')}")
    if not isinstance(value, str) or "string" in key.types:
        return value
    if key.is_size:
        size = _bytes(value)
        if size is None:
            raise ConfigurationInvalid(f"-c {name}={value}: expected a number of bytes, as in 67108864, 64M or 64Mi")
        return size
    if "boolean" in key.types:
        raise ConfigurationInvalid(f"-c {name}={value}: expected true or false")
    return value


def _bytes(text: str) -> int | None:
    """K, M, G and T are powers of 1000; Ki, Mi, Gi and Ti of 1024."""
    match = _SIZE.fullmatch(text.strip())
    if match is None:
        return None
    unit: int = (1024 if match[3] else 1000) ** _POWERS[match[2].lower()]
    return round(float(match[1]) * unit)


def _key(name: str, said: Mapping[str, Any], whole: object) -> ConfigKey:
    kinds = kinds_of(said, whole)
    types = frozenset(one["type"] for one in kinds if isinstance(one.get("type"), str))
    values = [value for one in kinds if isinstance(one.get("enum"), list) for value in one["enum"]]
    words = [str(value) for value in values] or [_TYPES.get(kind, kind) for kind in sorted(types - {"null"})]
    types |= {"string" for value in values if isinstance(value, str)}
    default = said.get("default")
    about = [one["description"] for one in kinds if isinstance(one.get("description"), str)]
    return ConfigKey(
        name=name,
        type="name of a secret" if names_secret(kinds) else "|".join(words) or "-",
        default="" if default is None else msgspec.json.encode(default).decode(),
        description=" ".join(about[0].split()) if about else "",
        types=types,
    )
