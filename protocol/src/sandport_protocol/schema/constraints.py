"""What a type cannot say, as JSON Schema: patterns, bounds, and members that exclude each other.

Every struct with rules in its `__post_init__` has an entry here with the same rules; a test reads random messages by
both and holds them to the same verdict. Only a NUL byte inside `b64`, and that a socket's path is counted in bytes and
not in characters, have no form here: SPEC.md says them. For the envelopes the entries say which members tell them
apart.
"""

from __future__ import annotations

from typing import Any

from msgspec import Struct

from sandport_protocol import v1
from sandport_protocol.capabilities import Capabilities
from sandport_protocol.envelope import Failure, Notification, Request, Success
from sandport_protocol.errors import ErrorData, Kept
from sandport_protocol.limits import Limits
from sandport_protocol.ranges import ranges_of

JsonSchema = dict[str, Any]

_SANDBOX_ID: JsonSchema = {"pattern": f"^{v1.SANDBOX_ID.pattern}$"}
_PROCESS_ID: JsonSchema = {"pattern": f"^{v1.PROCESS_ID.pattern}$"}
_NO_NUL: JsonSchema = {"pattern": r"^[^\u0000]*$"}
_ABOVE_0: JsonSchema = {"exclusiveMinimum": 0}
_EMPTY: JsonSchema = {"enum": ["", {"b64": ""}]}
_NOT_NULL: JsonSchema = {"not": {"type": "null"}}


def _given(name: str, schema: JsonSchema) -> JsonSchema:
    return {"required": [name], "properties": {name: schema}}


def _without(*names: str) -> JsonSchema:
    return {"not": {"anyOf": [{"required": [name]} for name in names]}}


def _ranges(cls: type[Struct]) -> JsonSchema:
    names = dict(zip(cls.__struct_fields__, cls.__struct_encode_fields__, strict=True))
    return {
        "properties": {names[name]: {"minimum": low, "maximum": high} for name, (low, high) in ranges_of(cls).items()}
    }


_COMMAND_MEMBERS: JsonSchema = {
    "sandboxId": _SANDBOX_ID,
    "argv": {
        "minItems": 1,
        "items": _NO_NUL,
        "allOf": [{"prefixItems": [{"not": _EMPTY}]}],
    },
    "shell": _NO_NUL,
    "cwd": _NO_NUL,
    "env": {
        "propertyNames": {"pattern": f"^{v1.VARIABLE_NAME.pattern}$"},
        "allOf": [{"additionalProperties": _NO_NUL}],
    },
    "timeoutMs": _ABOVE_0,
}
_ONE_COMMAND: JsonSchema = {"oneOf": [_given("argv", _NOT_NULL), _given("shell", _NOT_NULL)]}
_PROCESS: JsonSchema = {"properties": {"sandboxId": _SANDBOX_ID, "processId": _PROCESS_ID}}
_SYNC: JsonSchema = {
    "properties": {
        "sandboxId": _SANDBOX_ID,
        "socket": {"pattern": rf"^/[^\u0000]{{0,{v1.SOCKET_PATH_BYTES - 1}}}$"},
        "path": {**_NO_NUL, "not": _EMPTY},
    }
}
_RESULT: JsonSchema = {
    "allOf": [
        {
            "if": {"properties": {"ended": {"const": "exited"}}},
            "then": {
                "required": ["exitCode"],
                "properties": {"exitCode": {"type": "integer"}, "signal": {"type": "null"}},
            },
            "else": {"properties": {"exitCode": {"type": "null"}}},
        },
        {
            "if": {"properties": {"ended": {"const": "signalled"}}},
            "then": _given("signal", {"type": "integer"}),
        },
    ],
}

CONSTRAINTS: dict[type[Struct], JsonSchema] = {
    Request: {"properties": {"params": {"type": "object"}}},
    Notification: {"properties": {"params": {"type": "object"}}, **_without("id")},
    Success: _without("method", "error"),
    Failure: _without("method", "result"),
    Limits: {
        "properties": {
            wire_name: {"minimum": 0 if name.endswith("_ms") or name == "junk_bytes" else 1}
            for name, wire_name in zip(Limits.__struct_fields__, Limits.__struct_encode_fields__, strict=True)
        }
    },
    v1.AcquireLeaseParams: {"properties": {"sandboxId": _SANDBOX_ID, "ttlMs": _ABOVE_0}},
    v1.AttachLeaseParams: {"properties": {"sandboxId": _SANDBOX_ID}},
    v1.ListLeasesParams: {"properties": {"sandboxId": _SANDBOX_ID}},
    v1.DestroyLeaseParams: {"properties": {"sandboxId": _SANDBOX_ID}},
    v1.ExecuteParams: {"properties": {**_COMMAND_MEMBERS, "outputLimitBytes": {"minimum": 0}}, **_ONE_COMMAND},
    v1.ExecuteResult: {**_ranges(v1.ExecuteResult), **_RESULT},
    v1.StartProcessParams: {"properties": {**_COMMAND_MEMBERS, "processId": _PROCESS_ID}, **_ONE_COMMAND},
    v1.WriteProcessParams: _PROCESS,
    v1.SignalProcessParams: {
        **_PROCESS,
        "oneOf": [_given("signal", _NOT_NULL), _given("kill", {"const": True}), _given("resize", _NOT_NULL)],
    },
    v1.WaitProcessParams: _PROCESS,
    v1.WaitProcessResult: {**_ranges(v1.WaitProcessResult), **_RESULT},
    v1.SyncInParams: _SYNC,
    v1.SyncOutParams: _SYNC,
    v1.CreditParams: {"properties": {"bytes": _ABOVE_0}},
    **{
        cls: _ranges(cls)
        for cls in (
            v1.LeaseResult,
            v1.ListedLease,
            v1.StreamResult,
            v1.WriteProcessResult,
            v1.SyncInResult,
            v1.SyncOutResult,
            v1.ProgressParams,
            Capabilities,
            ErrorData,
            Kept,
        )
    },
}
"""By struct: keywords for the struct, and under `properties` keywords for single members."""
