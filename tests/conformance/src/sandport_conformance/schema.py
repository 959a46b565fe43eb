"""The schema file of the protocol, and a validator of the part of JSON Schema that it uses.

The kit has its own copy of `v1.json` and its own validator, so that a fault in ours cannot hide behind itself.
"""

from __future__ import annotations

import base64
import binascii
import json
import re
from functools import cache
from pathlib import Path
from typing import Any

Json = dict[str, Any]
"""A JSON object."""

_TYPES: dict[str, tuple[type, ...]] = {
    "object": (dict,),
    "array": (list,),
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
    "null": (type(None),),
}


@cache
def protocol() -> Json:
    """The whole of `v1.json`."""
    loaded: Json = json.loads(Path(__file__).with_name("v1.json").read_text(encoding="utf-8"))
    return loaded


def mandatory_methods() -> tuple[str, ...]:
    """The methods that every worker serves."""
    return tuple(protocol()["groups"]["mandatory"])


def optional_groups() -> dict[str, tuple[str, ...]]:
    """The optional methods, by the name of the group that is advertised as a whole."""
    return {name: tuple(methods) for name, methods in protocol()["groups"]["optional"].items()}


def error_code(condition: str) -> int:
    """The JSON-RPC code of a condition such as `NotAttached`."""
    code: int = protocol()["errors"][condition]["code"]
    return code


def condition_of(code: int) -> str:
    """The condition of a code, or the code itself where the protocol has none for it."""
    for name, error in protocol()["errors"].items():
        if error["code"] == code:
            return str(name)
    return f"code {code}"


def default_limits() -> dict[str, int]:
    """Every ceiling and wait, as a host sends it in its hello."""
    return {name: limit["default"] for name, limit in protocol()["limits"].items()}


def faults_of_result(method: str, result: object) -> list[str]:
    """What is wrong with a result of a method; empty when nothing is, or when the method is an extension."""
    known = protocol()["methods"].get(method)
    return [] if known is None else faults(result, known["result"], protocol(), "result")


def faults_of_notification(method: str, params: object) -> list[str]:
    """What is wrong with the params of a notification."""
    known = protocol()["notifications"].get(method)
    return [] if known is None else faults(params, known["params"], protocol(), "params")


def faults_of_error(error: object) -> list[str]:
    """What is wrong with an error object."""
    return faults(error, {"$ref": "#/$defs/ErrorObject"}, protocol(), "error")


def faults(value: Any, rule: Json, root: Json, path: str = "value") -> list[str]:
    """Where a value does not fit a schema, one sentence each; members that no rule names are allowed."""
    if "$ref" in rule:
        target: Any = root
        for part in rule["$ref"].removeprefix("#/").split("/"):
            target = target[part]
        rule = {**target, **{key: value for key, value in rule.items() if key != "$ref"}}
    return [*_plain(value, rule, path), *_members(value, rule, root, path), *_combined(value, rule, root, path)]


def fits(value: Any, rule: Json, root: Json) -> bool:
    """Whether a value fits a schema."""
    return not faults(value, rule, root)


def _is(value: Any, name: str) -> bool:
    if isinstance(value, bool):
        return name == "boolean"
    return isinstance(value, _TYPES[name])


def _plain(value: Any, rule: Json, path: str) -> list[str]:
    found = []
    shown = f"{value!r:.80}"
    if "type" in rule and not _is(value, rule["type"]):
        return [f"{path} is {shown}, not of type {rule['type']}"]
    if "const" in rule and value != rule["const"]:
        found.append(f"{path} is {shown}, not {rule['const']!r}")
    if "enum" in rule and value not in rule["enum"]:
        found.append(f"{path} is {shown}, not one of {rule['enum']}")
    if isinstance(value, str):
        # In Python `$` matches before a last line feed too.
        if "pattern" in rule and not re.search(rule["pattern"].replace("$", r"\Z"), value):
            found.append(f"{path} is {shown}, which does not match {rule['pattern']}")
        if rule.get("contentEncoding") == "base64" and not _is_base64(value):
            found.append(f"{path} is {shown}, which is not base64")
    if isinstance(value, int | float) and not isinstance(value, bool):
        if "minimum" in rule and value < rule["minimum"]:
            found.append(f"{path} is {shown}, below {rule['minimum']}")
        if "maximum" in rule and value > rule["maximum"]:
            found.append(f"{path} is {shown}, above {rule['maximum']}")
        if "exclusiveMinimum" in rule and value <= rule["exclusiveMinimum"]:
            found.append(f"{path} is {shown}, not above {rule['exclusiveMinimum']}")
    if isinstance(value, list) and len(value) < rule.get("minItems", 0):
        found.append(f"{path} has {len(value)} items, fewer than {rule['minItems']}")
    return found


def _members(value: Any, rule: Json, root: Json, path: str) -> list[str]:
    found = []
    if isinstance(value, dict):
        found += [f"{path} has no {name}" for name in rule.get("required", ()) if name not in value]
        properties = rule.get("properties", {})
        for name, member in value.items():
            if name in properties:
                found += faults(member, properties[name], root, f"{path}.{name}")
            elif isinstance(rule.get("additionalProperties"), dict):
                found += faults(member, rule["additionalProperties"], root, f"{path}.{name}")
            if "propertyNames" in rule:
                found += faults(name, rule["propertyNames"], root, f"a name in {path}")
    if isinstance(value, list):
        first = rule.get("prefixItems", [])
        for number, item in enumerate(value):
            if number < len(first):
                found += faults(item, first[number], root, f"{path}[{number}]")
            elif "items" in rule:
                found += faults(item, rule["items"], root, f"{path}[{number}]")
    return found


def _combined(value: Any, rule: Json, root: Json, path: str) -> list[str]:
    found = []
    if "anyOf" in rule:
        tries = [faults(value, choice, root, path) for choice in rule["anyOf"]]
        if all(tries):
            # The choice that came nearest says most: the one that failed deepest inside the value.
            found += max(tries, key=lambda one: max(len(text.split(" ")[0]) for text in one))
    if "oneOf" in rule and sum(fits(value, choice, root) for choice in rule["oneOf"]) != 1:
        found.append(f"{path} fits none or several of its forms")
    for choice in rule.get("allOf", ()):
        found += faults(value, choice, root, path)
    if "not" in rule and fits(value, rule["not"], root):
        found.append(f"{path} is {value!r:.80}, which is excluded")
    if "if" in rule:
        branch = "then" if fits(value, rule["if"], root) else "else"
        if branch in rule:
            found += faults(value, rule[branch], root, path)
    return found


def _is_base64(text: str) -> bool:
    try:
        base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        return False
    return True
