"""A reader of JSON Schema as far as `v1.json` uses it; an unknown keyword is an error, never ignored.

It judges as the wire does: an integer is written without fraction, and what is base64 is checked.
"""

from __future__ import annotations

import base64
import binascii
import re
from typing import Any

_IGNORED = {"description", "default", "title"}
_SUBSCHEMA_LISTS = {"anyOf", "oneOf", "allOf", "prefixItems"}


def accepts(schema: dict[str, Any], value: object, definitions: dict[str, Any]) -> bool:
    """Whether a value satisfies a schema."""
    return _Reader(definitions).accepts(schema, value)


class _Reader:
    def __init__(self, definitions: dict[str, Any]) -> None:
        self.definitions = definitions

    def accepts(self, schema: dict[str, Any], value: object) -> bool:
        return all(
            getattr(self, f"_{keyword.lstrip('$')}")(argument, value, schema)
            for keyword, argument in schema.items()
            if keyword not in _IGNORED
        )

    def _ref(self, argument: str, value: object, schema: dict[str, Any]) -> bool:
        return self.accepts(self.definitions[argument.removeprefix("#/$defs/")], value)

    def _type(self, argument: str, value: object, schema: dict[str, Any]) -> bool:
        match argument:
            case "object":
                return isinstance(value, dict)
            case "array":
                return isinstance(value, list)
            case "string":
                return isinstance(value, str)
            case "integer":
                return isinstance(value, int) and not isinstance(value, bool)
            case "boolean":
                return isinstance(value, bool)
            case "null":
                return value is None
            case _:
                raise AssertionError(f"no such type: {argument}")

    def _anyOf(self, argument: list[Any], value: object, schema: dict[str, Any]) -> bool:  # noqa: N802 - a keyword
        return any(self.accepts(each, value) for each in argument)

    def _oneOf(self, argument: list[Any], value: object, schema: dict[str, Any]) -> bool:  # noqa: N802 - a keyword
        return sum(self.accepts(each, value) for each in argument) == 1

    def _allOf(self, argument: list[Any], value: object, schema: dict[str, Any]) -> bool:  # noqa: N802 - a keyword
        return all(self.accepts(each, value) for each in argument)

    def _not(self, argument: dict[str, Any], value: object, schema: dict[str, Any]) -> bool:
        return not self.accepts(argument, value)

    def _if(self, argument: dict[str, Any], value: object, schema: dict[str, Any]) -> bool:
        chosen = schema.get("then" if self.accepts(argument, value) else "else", {})
        return self.accepts(chosen, value)

    def _then(self, argument: object, value: object, schema: dict[str, Any]) -> bool:
        return True  # read with `if`

    _else = _then

    def _const(self, argument: object, value: object, schema: dict[str, Any]) -> bool:
        return type(value) is type(argument) and value == argument

    def _enum(self, argument: list[object], value: object, schema: dict[str, Any]) -> bool:
        return any(self._const(each, value, schema) for each in argument)

    def _pattern(self, argument: str, value: object, schema: dict[str, Any]) -> bool:
        # `$` is the very end there, and the end or a line feed before it here.
        return not isinstance(value, str) or re.search(re.sub(r"\$$", r"\\Z", argument), value) is not None

    def _minimum(self, argument: int, value: object, schema: dict[str, Any]) -> bool:
        return not isinstance(value, int) or value >= argument

    def _maximum(self, argument: int, value: object, schema: dict[str, Any]) -> bool:
        return not isinstance(value, int) or value <= argument

    def _exclusiveMinimum(self, argument: int, value: object, schema: dict[str, Any]) -> bool:  # noqa: N802 - a keyword
        return not isinstance(value, int) or value > argument

    def _minItems(self, argument: int, value: object, schema: dict[str, Any]) -> bool:  # noqa: N802 - a keyword
        return not isinstance(value, list) or len(value) >= argument

    def _items(self, argument: dict[str, Any], value: object, schema: dict[str, Any]) -> bool:
        start = len(schema.get("prefixItems", ()))
        return not isinstance(value, list) or all(self.accepts(argument, each) for each in value[start:])

    def _prefixItems(self, argument: list[Any], value: object, schema: dict[str, Any]) -> bool:  # noqa: N802 - a keyword
        return not isinstance(value, list) or all(map(self.accepts, argument, value))

    def _required(self, argument: list[str], value: object, schema: dict[str, Any]) -> bool:
        return not isinstance(value, dict) or all(name in value for name in argument)

    def _properties(self, argument: dict[str, Any], value: object, schema: dict[str, Any]) -> bool:
        return not isinstance(value, dict) or all(
            self.accepts(each, value[name]) for name, each in argument.items() if name in value
        )

    def _additionalProperties(self, argument: dict[str, Any], value: object, schema: dict[str, Any]) -> bool:  # noqa: N802 - a keyword
        known = schema.get("properties", {})
        return not isinstance(value, dict) or all(
            self.accepts(argument, each) for name, each in value.items() if name not in known
        )

    def _propertyNames(self, argument: dict[str, Any], value: object, schema: dict[str, Any]) -> bool:  # noqa: N802 - a keyword
        return not isinstance(value, dict) or all(self.accepts(argument, name) for name in value)

    def _contentEncoding(self, argument: str, value: object, schema: dict[str, Any]) -> bool:  # noqa: N802 - a keyword
        assert argument == "base64"
        if not isinstance(value, str):
            return True
        try:
            base64.b64decode(value, validate=True)
        except (binascii.Error, ValueError):
            return False
        return True
