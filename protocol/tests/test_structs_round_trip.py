"""What one side writes the other reads, for every struct; a reader of today skips what a writer of tomorrow adds."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import Raw, Struct

from protocol.tests.strategies import MESSAGES, PARAMS, RESULTS, messages, structs
from sandport_protocol import codec, v1
from sandport_protocol.envelope import Failure, Notification, Request, Success

FEWER = settings(max_examples=settings().max_examples // 3)
"""Where what is drawn matters less than for which struct."""
each_struct = pytest.mark.parametrize("cls", MESSAGES, ids=lambda cls: cls.__name__)


@each_struct
@FEWER
@given(st.data())
def test_what_was_written_is_what_is_read(cls: type[Struct], data: st.DataObject) -> None:
    value = data.draw(structs(cls))
    assert codec.read_as(cls, codec.encode(value)) == value
    # And through another JSON library.
    text = json.dumps(json.loads(codec.encode(value)))
    assert as_plain(codec.read_as(cls, text.encode())) == as_plain(value)


@given(messages)
def test_an_envelope_says_what_kind_of_message_it_is(message: Struct) -> None:
    incoming = codec.read(codec.write(message)[:-1], depth=64)
    absent = msgspec.UNSET
    match message:
        case Request(id=id_, method=method):
            assert (incoming.id, type(incoming.id), incoming.method) == (id_, type(id_), method)
        case Notification(method=method):
            assert (incoming.id, incoming.method) == (absent, method)
        case Success(id=id_):
            assert (incoming.id, incoming.method, bool(len(incoming.result))) == (id_, absent, True)
        case Failure(id=id_, error=error):
            assert (incoming.id, incoming.method, codec.read_error(incoming.error)) == (id_, absent, error)


@each_struct
@FEWER
@given(st.data())
def test_a_reader_of_today_skips_the_members_of_a_newer_writer(cls: type[Struct], data: st.DataObject) -> None:
    value = data.draw(structs(cls))
    new = data.draw(st.lists(st.sampled_from(NEW_MEMBERS), min_size=1, max_size=3))
    nothing_new: list[dict[str, Any]] = [{}]
    newer, today = (json.dumps(spread(value, members)).encode() for members in (new, nothing_new))
    assert codec.read_as(cls, newer) == codec.read_as(cls, today)


@given(st.one_of([structs(cls) for cls in PARAMS + RESULTS]))
def test_null_says_the_same_as_no_member(value: Struct) -> None:
    members = as_plain(value)
    assert isinstance(members, dict)
    nulls = {
        wire_name: None
        for name, wire_name in zip(value.__struct_fields__, value.__struct_encode_fields__, strict=True)
        if getattr(value, name) is None
    }
    cls = type(value)
    assert read(cls, {**members, **nulls}) == read(cls, {k: v for k, v in members.items() if k not in nulls})


def read(cls: type[Struct], members: dict[str, Any]) -> Struct:
    return codec.read_as(cls, json.dumps(members).encode())


def as_plain(value: object) -> object:
    """JSON values with equal numbers equal, whatever their text was; a `Raw` as what it says."""
    return json.loads(codec.encode(value))


NEW_MEMBERS: list[dict[str, Any]] = [
    {},
    {"new": None},
    {"new": [1, 2.5, {"new": []}], "neu\u2028": "\u2028"},
    {"": True, "_meta2": {"sandboxId": 7}},
    {"new": 10**30},
]


def spread(value: object, new: list[dict[str, Any]]) -> Any:
    """A struct as JSON, each struct in it with one of the new sets of members; free-form members stay as they are."""
    if isinstance(value, Raw):
        return json.loads(bytes(value))
    if isinstance(value, Struct):
        fields = zip(value.__struct_fields__, value.__struct_encode_fields__, strict=True)
        known = {wire_name: spread(getattr(value, name), new) for name, wire_name in fields}
        return {**new[len(known) % len(new)], **known}
    if isinstance(value, tuple):
        return [spread(each, new) for each in value]
    if isinstance(value, dict):
        return {key: spread(each, new) for key, each in value.items()}
    return as_plain(value)


SANDBOX = "sp" + "a" * 26
REFUSED: list[tuple[type[Struct], dict[str, Any], str]] = [
    (v1.AcquireLeaseParams, {"sandboxId": "sp-1", "ttlMs": 1}, "sandboxId"),
    (v1.AcquireLeaseParams, {"sandboxId": SANDBOX + "\n", "ttlMs": 1}, "sandboxId"),
    (v1.AcquireLeaseParams, {"sandboxId": SANDBOX, "ttlMs": 0}, "ttlMs"),
    (v1.AcquireLeaseParams, {"sandboxId": SANDBOX}, "ttlMs"),
    (v1.AttachLeaseParams, {"sandboxId": "", "handle": "h"}, "sandboxId"),
    (v1.ListLeasesParams, {"sandboxId": "*"}, "sandboxId"),
    (v1.DestroyLeaseParams, {"sandboxId": SANDBOX.upper()}, "sandboxId"),
    (v1.ExecuteParams, {"sandboxId": SANDBOX}, "argv and shell"),
    (v1.ExecuteParams, {"sandboxId": SANDBOX, "argv": ["a"], "shell": "a"}, "argv and shell"),
    (v1.ExecuteParams, {"sandboxId": SANDBOX, "argv": []}, "argv"),
    (v1.ExecuteParams, {"sandboxId": SANDBOX, "argv": [""]}, "argv"),
    (v1.ExecuteParams, {"sandboxId": SANDBOX, "argv": [{"b64": ""}]}, "argv"),
    (v1.ExecuteParams, {"sandboxId": SANDBOX, "argv": ["a", "b\0"]}, "argv: a NUL"),
    (v1.ExecuteParams, {"sandboxId": SANDBOX, "argv": ["a", {"b64": "AA=="}]}, "argv: a NUL"),
    (v1.ExecuteParams, {"sandboxId": SANDBOX, "shell": "\0"}, "shell: a NUL"),
    (v1.ExecuteParams, {"sandboxId": SANDBOX, "argv": ["a"], "cwd": "\0"}, "cwd: a NUL"),
    (v1.ExecuteParams, {"sandboxId": SANDBOX, "argv": ["a"], "env": {"A": "\0"}}, "env: a NUL"),
    (v1.ExecuteParams, {"sandboxId": SANDBOX, "argv": ["a"], "env": {"A=B": ""}}, "variable's name"),
    (v1.ExecuteParams, {"sandboxId": SANDBOX, "argv": ["a"], "env": {"": ""}}, "variable's name"),
    (v1.ExecuteParams, {"sandboxId": SANDBOX, "argv": ["a"], "timeoutMs": 0}, "timeoutMs"),
    (v1.ExecuteParams, {"sandboxId": SANDBOX, "argv": ["a"], "outputLimitBytes": -1}, "outputLimitBytes"),
    (v1.ExecuteParams, {"sandboxId": SANDBOX, "argv": ["a"], "stdin": "not base64!"}, "stdin"),
    (v1.StartProcessParams, {"sandboxId": SANDBOX, "argv": ["a"], "processId": "a b"}, "processId"),
    (v1.WriteProcessParams, {"sandboxId": SANDBOX, "processId": ""}, "processId"),
    (v1.SignalProcessParams, {"sandboxId": SANDBOX, "processId": "p"}, "exactly one"),
    (v1.SignalProcessParams, {"sandboxId": SANDBOX, "processId": "p", "signal": 9, "kill": True}, "exactly one"),
    (v1.WaitProcessParams, {"sandboxId": SANDBOX, "processId": "p" * 65}, "processId"),
    (v1.ExecuteResult, {"ended": "exited"}, "exitCode"),
    (v1.ExecuteResult, {"ended": "timedOut", "exitCode": 0}, "exitCode"),
    (v1.ExecuteResult, {"ended": "signalled"}, "signal"),
    (v1.WaitProcessResult, {"ended": "finished"}, "ended"),
    (v1.CreditParams, {"id": 1, "stream": "stdout", "bytes": 0}, "bytes"),
    (v1.CreditParams, {"id": True, "stream": "stdout", "bytes": 1}, "id"),
    (v1.SyncInParams, {"sandboxId": "", "socket": "/s", "path": "."}, "sandboxId"),
    (v1.SyncInParams, {"sandboxId": SANDBOX, "socket": "s", "path": "."}, "socket must be an absolute"),
    (v1.SyncInParams, {"sandboxId": SANDBOX, "socket": "/\0", "path": "."}, "socket must be an absolute"),
    (v1.SyncInParams, {"sandboxId": SANDBOX, "socket": "/" + "s" * 107, "path": "."}, "107 bytes"),
    (v1.SyncOutParams, {"sandboxId": SANDBOX, "socket": "/" + "é" * 54, "path": "."}, "107 bytes"),
    (v1.SyncOutParams, {"sandboxId": SANDBOX, "socket": "/s", "path": ""}, "path"),
    (v1.SyncOutParams, {"sandboxId": SANDBOX, "socket": "/s", "path": {"b64": "AA=="}}, "path"),
    (v1.SyncOutParams, {"sandboxId": SANDBOX, "socket": "/s"}, "path"),
    (v1.SyncInResult, {}, "bytes"),
    (v1.SyncOutResult, {"bytes": -1}, "bytes"),
    (v1.InitializeParams, {"protocolVersions": [1]}, "host"),
    (v1.PingResult, {"open": [None]}, "open"),
]


@pytest.mark.parametrize(("cls", "members", "named"), REFUSED)
def test_what_breaks_a_rule_is_refused_by_name(cls: type[Struct], members: dict[str, Any], named: str) -> None:
    with pytest.raises(ValueError, match=named):
        codec.read_as(cls, json.dumps(members).encode())


def test_the_rules_hold_where_a_struct_is_built_too() -> None:
    with pytest.raises(ValueError, match="exactly one"):
        v1.ExecuteParams(sandbox_id=SANDBOX, argv=("a",), shell="a")
    with pytest.raises(ValueError, match="exitCode"):
        v1.ExecuteResult(ended="exited")


@given(st.binary(min_size=17, max_size=64))
def test_a_new_sandbox_id_is_one_and_uses_130_bits(entropy: bytes) -> None:
    made = v1.new_sandbox_id(entropy)
    v1.check_sandbox_id(made)
    number = int.from_bytes(entropy, "big") % 2**130
    letters = "abcdefghijklmnopqrstuvwxyz234567"
    assert sum(letters.index(letter) << (5 * place) for place, letter in enumerate(made[2:])) == number


@given(st.binary(max_size=16))
def test_too_little_entropy_is_refused(entropy: bytes) -> None:
    with pytest.raises(ValueError, match="17 random bytes"):
        v1.new_sandbox_id(entropy)


@pytest.mark.parametrize("params", [b"[]", b"null", b"1", b'"a"', b"[1,2]"])
def test_params_by_position_are_refused(params: bytes) -> None:
    with pytest.raises(ValueError, match="object"):
        codec.read_as(v1.PingParams, params)


def test_absent_params_are_an_empty_object() -> None:
    assert codec.read_as(v1.PingParams, Raw()) == v1.PingParams()
