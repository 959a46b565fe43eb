"""What the property tests draw from: values of every struct of the protocol, streams of bytes, and cuts in them.

The structs are built from their own type information, so that a new member is drawn without a change here. Where a
struct's rules reach over several members, `_RULES` picks values that keep them; a struct that refuses a drawn value
fails the test.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from itertools import pairwise
from typing import Any, TypeVar

import msgspec
from hypothesis import strategies as st
from msgspec import Raw, Struct, inspect

from sandport_protocol import v1
from sandport_protocol.envelope import Failure, Notification, Request, Success
from sandport_protocol.errors import ErrorObject
from sandport_protocol.limits import Limits
from sandport_protocol.methods import METHODS, NOTIFICATIONS
from sandport_protocol.octets import B64
from sandport_protocol.ranges import ranges_of

S = TypeVar("S", bound=Struct)
Draw = Callable[[st.SearchStrategy[Any]], Any]

PARAMS: list[type[Struct]] = [method.params for method in METHODS.values()]
RESULTS: list[type[Struct]] = [method.result for method in METHODS.values()]
NOTES: list[type[Struct]] = [note.params for note in NOTIFICATIONS.values()]
MESSAGES: list[type[Struct]] = [*PARAMS, *RESULTS, *NOTES, ErrorObject]
"""Every struct that is a params, a result or an error of its own."""

# ------------------------------------------------------------------ plain values

separators = st.sampled_from(["\u2028", "\u2029", "\u0085", "\x0b", "\x0c", "\x1c", "\x1e", "\r", "\n", "\t", "\0"])
"""What some line reader somewhere takes for the end of a line; in a JSON string all of them are content."""
texts = st.one_of(
    st.text(max_size=20),
    st.lists(st.one_of(separators, st.text(max_size=3)), max_size=6).map("".join),
)
integers = st.one_of(st.integers(-(2**15), 2**15), st.sampled_from([2**53 + 1, 2**63, 2**64, -(2**63) - 1, 10**30]))
ids = st.one_of(
    st.sampled_from([0, "0", 1, "1", "a", "", 9007199254740993, -1, 2**64, 10**100, "\u2028", "é"]), integers, texts
)
json_values = st.recursive(
    st.one_of(st.none(), st.booleans(), integers, st.floats(allow_nan=False, allow_infinity=False), texts),
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(texts, inner, max_size=4)),
    max_leaves=12,
)
json_objects = st.dictionaries(texts, json_values, max_size=4)
raws = json_objects.map(lambda value: Raw(msgspec.json.encode(value)))

sandbox_ids = st.text("abcdefghijklmnopqrstuvwxyz234567", min_size=26, max_size=26).map("sp".__add__)
process_ids = st.from_regex(v1.PROCESS_ID, fullmatch=True)
variable_names = st.from_regex(v1.VARIABLE_NAME, fullmatch=True)
above_0 = st.integers(1, 2**40)

_argument_texts = texts.map(lambda text: text.replace("\0", ""))
_argument_bytes = st.binary(max_size=12).map(lambda data: B64(data.replace(b"\0", b"")))
arguments = st.one_of(_argument_texts, _argument_bytes)
programs = arguments.filter(lambda value: value not in ("", B64(b"")))

# ------------------------------------------------------------------ structs

_FIELDS: dict[str, st.SearchStrategy[Any]] = {
    "sandbox_id": sandbox_ids,
    "process_id": process_ids,
    "ttl_ms": above_0,
    "output_limit_bytes": st.integers(0, 2**40),
}


def _command(draw: Draw, values: dict[str, Any]) -> None:
    by_argv = draw(st.booleans())
    values["argv"] = (draw(programs), *draw(st.lists(arguments, max_size=3))) if by_argv else None
    values["shell"] = None if by_argv else draw(arguments)
    values["cwd"] = draw(st.none() | arguments)
    values["env"] = draw(st.dictionaries(variable_names, arguments, max_size=3))
    values["timeout_ms"] = draw(st.none() | above_0)


def _command_result(draw: Draw, values: dict[str, Any]) -> None:
    values["exit_code"] = draw(st.integers(0, 255)) if values["ended"] == "exited" else None
    if values["ended"] == "exited":
        values["signal"] = None
    elif values["ended"] == "signalled":
        values["signal"] = draw(st.integers(1, 64))


def _one_signal(draw: Draw, values: dict[str, Any]) -> None:
    chosen = draw(st.sampled_from(["signal", "kill", "resize"]))
    values["signal"] = draw(st.integers(1, 64)) if chosen == "signal" else None
    values["kill"] = chosen == "kill"
    values["resize"] = draw(structs(v1.PtySize)) if chosen == "resize" else None


def _credit(draw: Draw, values: dict[str, Any]) -> None:
    values["bytes"] = draw(above_0)


def _sync(draw: Draw, values: dict[str, Any]) -> None:
    values["socket"] = "/" + draw(st.text("abc/._-é\n ", max_size=v1.SOCKET_PATH_BYTES // 2))
    values["path"] = draw(programs)


def _limits(draw: Draw, values: dict[str, Any]) -> None:
    for name in values:
        values[name] = draw(above_0)


def _listing(draw: Draw, values: dict[str, Any]) -> None:
    values["sandbox_id"] = draw(st.none() | sandbox_ids)


_RULES: dict[type[Struct], Callable[[Draw, dict[str, Any]], None]] = {
    Limits: _limits,
    v1.ListLeasesParams: _listing,
    v1.ExecuteParams: _command,
    v1.StartProcessParams: _command,
    v1.ExecuteResult: _command_result,
    v1.WaitProcessResult: _command_result,
    v1.SignalProcessParams: _one_signal,
    v1.CreditParams: _credit,
    v1.SyncInParams: _sync,
    v1.SyncOutParams: _sync,
}


@functools.cache
def structs(cls: type[S]) -> st.SearchStrategy[S]:
    """Values of a struct that keep its rules; optional members are there or not."""
    info = inspect.type_info(cls)
    assert isinstance(info, inspect.StructType)
    fields = {field.name: _FIELDS.get(field.name, _of_type(field.type)) for field in info.fields}
    for name, (least, most) in ranges_of(cls).items():
        # What may be null is left out often enough by being optional.
        fields[name] = st.one_of(st.integers(least, most), st.sampled_from([least, most]))
    optional = {field.name for field in info.fields if not field.required}

    @st.composite
    def build(draw: Draw) -> S:
        left_out = draw(st.sets(st.sampled_from(sorted(optional)))) if optional else set()
        values = {name: draw(strategy) for name, strategy in fields.items() if name not in left_out}
        if cls in _RULES:
            _RULES[cls](draw, values)
        return cls(**values)

    return build()


def _of_type(info: inspect.Type) -> st.SearchStrategy[Any]:  # noqa: C901, PLR0911, RUF100 - one case for each type
    match info:
        case inspect.StructType(cls=cls):
            return st.deferred(lambda: structs(cls))
        case inspect.UnionType(types=types):
            return st.one_of([_of_type(each) for each in types])
        case inspect.LiteralType(values=values):
            return st.sampled_from(values)
        case inspect.VarTupleType(item_type=item):
            return st.lists(_of_type(item), max_size=3).map(tuple)
        case inspect.DictType(key_type=key, value_type=value):
            return st.dictionaries(_of_type(key), _of_type(value), max_size=3)
        case inspect.IntType():
            return integers
        case inspect.StrType():
            return texts
        case inspect.BytesType():
            return st.binary(max_size=40)
        case inspect.BoolType():
            return st.booleans()
        case inspect.NoneType():
            return st.none()
        case inspect.RawType():
            return raws
        case _:
            raise AssertionError(f"no strategy for {info}")


def one_of_structs(classes: list[type[Struct]]) -> st.SearchStrategy[Any]:
    """A value of any of the structs."""
    return st.sampled_from(classes).flatmap(structs)


# ------------------------------------------------------------------ frames and streams

_methods = st.sampled_from([*METHODS, "x-any/thing", "noSuchMethod", ""])
_note_names = st.sampled_from([*NOTIFICATIONS, "noSuchNote"])
_any_params = st.one_of(one_of_structs(PARAMS), json_objects)

requests = st.builds(Request, ids, _methods, _any_params)
notifications = st.builds(Notification, _note_names, st.one_of(one_of_structs(NOTES), json_objects))
successes = st.builds(Success, ids, st.one_of(one_of_structs(RESULTS), json_values))
failures = st.builds(Failure, st.one_of(ids, st.none()), structs(ErrorObject))
messages = st.one_of(requests, notifications, successes, failures)

# Objects that almost are messages: right names, any values.
almost_messages = st.dictionaries(
    st.sampled_from(["jsonrpc", "id", "method", "params", "result", "error", "extra"]),
    st.one_of(json_values, st.just("2.0"), st.just("ping"), ids),
    max_size=7,
)
almost_lines = almost_messages.map(lambda value: msgspec.json.encode({"jsonrpc": "2.0", **value}))

HOSTILE_LINES: dict[str, bytes] = {
    "opening brackets": b"[" * 200_000,
    "brackets": b"[" * 200_000 + b"]" * 200_000,
    "objects": b'{"a":' * 200_000 + b"1" + b"}" * 200_000,
    "brackets in params": b'{"jsonrpc":"2.0","id":1,"method":"ping","params":' + b"[" * 200_000 + b"]" * 200_000 + b"}",
    "closing brackets": b"]" * 200_000,
    "brackets of both kinds": b"[{" * 100_000,
    "a string that never ends": b"[" * 100 + b'"' + b'\\"' * 100_000,
    "a string of brackets": b'"' + b"[" * 200_000 + b'"',
    "a huge id": b'{"jsonrpc":"2.0","method":"ping","id":' + b"9" * 200_000 + b"}",
    "an id of 4,300 digits": b'{"jsonrpc":"2.0","method":"execute","id":' + b"9" * 4300 + b"}",
    "an id of 4,301 digits": b'{"jsonrpc":"2.0","method":"execute","id":' + b"9" * 4301 + b"}",
    "a huge exponent": b'{"jsonrpc":"2.0","method":"ping","id":1e999999}',
    "a huge number in params": b'{"jsonrpc":"2.0","id":1,"method":"ping","params":{"a":' + b"9" * 200_000 + b"}}",
    "a lone surrogate in an id": b'{"jsonrpc":"2.0","method":"ping","id":"\\ud800"}',
    "surrogates the wrong way round": b'{"jsonrpc":"2.0","method":"ping","id":"\\udc00\\ud800"}',
    "a lone surrogate in a method": b'{"jsonrpc":"2.0","method":"\\udfff","id":1}',
    "a lone surrogate in params": b'{"jsonrpc":"2.0","method":"ping","id":1,"params":{"a":"\\ud800"}}',
    "a lone surrogate in a name": b'{"jsonrpc":"2.0","method":"ping","id":1,"\\ud800":1}',
    "NaN": b'{"jsonrpc":"2.0","method":"ping","id":1,"params":{"a":NaN}}',
    "Infinity": b'{"jsonrpc":"2.0","method":"ping","id":1,"params":{"a":Infinity}}',
    "-Infinity": b'{"jsonrpc":"2.0","id":1,"result":-Infinity}',
    "NaN as id": b'{"jsonrpc":"2.0","method":"ping","id":NaN}',
    "a byte order mark": b'\xef\xbb\xbf{"jsonrpc":"2.0","method":"ping","id":1}',
    "UTF-16": '{"jsonrpc":"2.0","method":"ping","id":1}'.encode("utf-16-le"),
    "bytes that are no UTF-8 in params": b'{"jsonrpc":"2.0","method":"ping","id":1,"params":{"a":"\xff"}}',
    "a surrogate's bytes in a result": b'{"jsonrpc":"2.0","id":1,"result":"\xed\xa0\x80"}',
    "an empty batch": b"[]",
    "a batch": b'[{"jsonrpc":"2.0","method":"ping","id":1},{"jsonrpc":"2.0","method":"ping","id":2}]',
    "a null id": b'{"jsonrpc":"2.0","method":"ping","id":null}',
    "a bool id": b'{"jsonrpc":"2.0","method":"ping","id":true}',
    "a float id": b'{"jsonrpc":"2.0","method":"ping","id":1.0}',
    "an id that is an object": b'{"jsonrpc":"2.0","method":"ping","id":{}}',
    "duplicate members": b'{"jsonrpc":"2.0","id":1,"id":2,"method":"ping","method":"execute"}',
    "no version": b'{"method":"ping","id":1}',
    "another version": b'{"jsonrpc":"1.0","method":"ping","id":1}',
    "a result and an error": b'{"jsonrpc":"2.0","id":1,"result":{},"error":{"code":1,"message":""}}',
    "neither result nor error": b'{"jsonrpc":"2.0","id":1}',
    "an error that is a string": b'{"jsonrpc":"2.0","id":1,"error":"boom"}',
    "an error whose code is a string": b'{"jsonrpc":"2.0","id":1,"error":{"code":"1","message":""}}',
    "a null error": b'{"jsonrpc":"2.0","id":1,"error":null}',
    "an error without id": b'{"jsonrpc":"2.0","id":null,"error":{"code":1,"message":""}}',
    "two values": b'{"jsonrpc":"2.0","method":"ping","id":1}{}',
    "half a message": b'{"jsonrpc":"2.0","meth',
    "a scalar": b"7",
    "a NUL": b"\0",
    "vertical tab": b"\x0b",
    "a raw control character in a string": b'{"jsonrpc":"2.0","method":"pi\x01ng","id":1}',
    "prose": b"Welcome to the runtime! It's [ready].",
}
"""Lines that some reader somewhere choked on, by what is wrong with them."""

lines = st.one_of(
    messages.map(msgspec.json.encode),
    almost_lines,
    st.sampled_from([line for line in HOSTILE_LINES.values() if len(line) < 500]),
    st.binary(max_size=40).map(lambda data: data.replace(b"\n", b"")),
    st.sampled_from([b"", b" ", b"\r", b"\t \r"]),
)
streams = st.tuples(
    st.lists(st.tuples(lines, st.sampled_from([b"\n", b"\r\n", b"\n\n"])).map(b"".join), max_size=8), lines
).map(lambda parts: b"".join(parts[0]) + parts[1])
"""Bytes of a pipe: lines of every kind, the last of them perhaps unfinished."""


def cut(data: bytes, places: list[int]) -> list[bytes]:
    """The data in chunks, cut at the places."""
    bounds = [0, *sorted(place for place in places if place <= len(data)), len(data)]
    return [data[start:end] for start, end in pairwise(bounds)]


@st.composite
def chunked(draw: Draw, source: st.SearchStrategy[bytes] = streams) -> tuple[bytes, list[bytes]]:
    """A stream, whole and in pieces; some pieces are empty, some one byte."""
    data: bytes = draw(source)
    every_byte = draw(st.booleans()) and len(data) < 300
    places = list(range(len(data))) if every_byte else draw(st.lists(st.integers(0, max(len(data), 1)), max_size=12))
    return data, cut(data, places)
