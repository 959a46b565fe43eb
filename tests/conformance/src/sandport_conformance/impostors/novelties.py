"""Impostors that are sound, and say what another language or a later version would say."""

from __future__ import annotations

import json
from typing import Any

from sandport_conformance import schema
from sandport_conformance.mutants.healthy import Json, key_of
from sandport_conformance.mutants.leases import Leases

from .impostor import Impostor

_FREE = ("config", "configSchema", "detail")
"""Members whose own members are not the protocol's."""


class OddNotes(Leases):
    """Has a note for each lease in which there is every separator of lines that is none of the wire's."""

    def lease_of(self, sandbox_id: str, egress: Json | None = None) -> Json:
        return {**super().lease_of(sandbox_id, egress), "notes": ["1\u20282\u20293\u00854\v5\f6"]}


class OtherSeparators(Impostor):
    """Writes separators of lines that are content."""

    leases_class = OddNotes

    def encode(self, message: Json) -> bytes:
        return json.dumps(message, ensure_ascii=False).encode() + b"\n"


class LaterMembers(Impostor):
    """Has a member in each object that nobody knows yet."""

    def encode(self, message: Json) -> bytes:
        return super().encode(_with_more(message))


def _with_more(value: Any) -> Any:
    if isinstance(value, list):
        return [_with_more(one) for one in value]
    if not isinstance(value, dict):
        return value
    kept = {name: member if name in _FREE else _with_more(member) for name, member in value.items()}
    return {**kept, "later": {"ended": "exited", "of": [None, 1.5]}}


class LaterNotifications(Impostor):
    """Notifies before each answer of what nobody knows yet."""

    def settle(self, request_id: Any, line: bytes) -> None:
        self.notify("later", {"id": request_id, "stream": "stdout", "data": "eA=="})
        self.notify("x-impostor/tick", {})
        super().settle(request_id, line)


class SaysNull(Impostor):
    """Writes every member that it could leave out, as null."""

    def answer(self, request_id: Any, result: Json) -> None:
        call = self.open.get(key_of(request_id))
        method = call.method if call else "initialize" if "supportedMethods" in result else "ping"
        super().answer(request_id, _with_nulls(schema.protocol()["methods"][method]["result"], result))

    def notify(self, method: str, params: Json) -> None:
        super().notify(method, _with_nulls(schema.protocol()["notifications"][method]["params"], params))


def _with_nulls(rule: Json, value: Json) -> Json:
    members = schema.protocol()["$defs"].get(rule.get("$ref", "").rpartition("/")[2], rule).get("properties", {})
    return {**{name: None for name, member in members.items() if member.get("default", 0) is None}, **value}
