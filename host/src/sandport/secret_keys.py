"""Which keys of a provider's config name secrets, as its schema says; none is supplied by this host yet.

A value under such a key is likely to be the secret itself, and would lie in the journal in clear.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from sandport_protocol.v1 import InitializeResult

from .errors import UsageError

FORMAT = "secret-ref"
"""What a JSON Schema of a config says of such a key."""
_MOST_DEEP = 8


def refuse_secrets(provider: str, config: Mapping[str, Any], hello: InitializeResult) -> None:
    """Refuse a config that names a secret.

    Args:
        provider: Whose config it is.
        config: All that would be sent.
        hello: What its worker said of itself.

    Raises:
        UsageError: It sets such a key; the message names the way that works, and has no value of it.
    """
    schema = bytes(hello.provider.config_schema)
    if not config or FORMAT.encode() not in schema:
        return
    found = secret_keys(schema, config)
    if found:
        names = ", ".join(f'"{name}"' for name in hello.wants_env) or '"NAME"'
        raise UsageError(
            f"config {found[0]} is the name of a secret, and this host does not supply secrets yet; nothing was done, "
            "and nothing of it was written\n"
            "leave the key out, and give the value to the provider's worker in a variable that it reads (wants_env): "
            f"[providers.{provider}] env = [{names}]"
        )


def secret_keys(schema: bytes, config: Mapping[str, Any]) -> list[str]:
    """The keys of a config, with dots, that are set and name a secret."""
    try:
        whole = msgspec.json.decode(schema)
    except (msgspec.DecodeError, RecursionError):
        return []
    return list(_set_in(config, whole, whole, "", _MOST_DEEP))


def names_secret(kinds: Iterable[Mapping[str, Any]]) -> bool:
    """Whether one of the schemas that a value may have says so."""
    return any(kind.get("format") == FORMAT for kind in kinds)


def kinds_of(said: object, whole: object) -> list[dict[str, Any]]:
    """What a schema says here, references followed, and each of the kinds that it lets a value be."""
    here = followed(said, whole)
    found = [here]
    for several in (here.get("anyOf"), here.get("oneOf"), here.get("allOf")):
        if isinstance(several, list):
            found += (followed(one, whole) for one in several)
    return found


def followed(said: object, whole: object) -> dict[str, Any]:
    """What is said here, or there where it points to; nothing for what cannot be followed."""
    for _ in range(_MOST_DEEP):
        if not isinstance(said, dict):
            break
        reference = said.get("$ref")
        if not isinstance(reference, str):
            return said
        said = whole
        for part in reference.removeprefix("#/").split("/"):
            said = said.get(part) if isinstance(said, dict) else None
    return {}


def _set_in(value: object, said: object, whole: object, place: str, depth: int) -> Iterable[str]:
    kinds = kinds_of(said, whole)
    if value is None or depth == 0:
        return
    if names_secret(kinds):
        yield place
    for kind in kinds:
        if isinstance(value, Mapping):
            properties = kind.get("properties")
            known = properties if isinstance(properties, dict) else {}
            for key, inner in value.items():
                below = known.get(key, kind.get("additionalProperties"))
                yield from _set_in(inner, below, whole, f"{place}.{key}" if place else str(key), depth - 1)
        elif isinstance(value, list):
            for index, inner in enumerate(value):
                yield from _set_in(inner, kind.get("items"), whole, f"{place}[{index}]", depth - 1)
