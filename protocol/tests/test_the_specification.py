"""SPEC.md says what the code says: its tables, its examples byte for byte, and an id on every requirement."""

from __future__ import annotations

import base64
import json
import re
from pathlib import Path
from typing import Any

import pytest

import sandport_protocol
from protocol.tests.json_schema import accepts
from sandport_protocol import codec
from sandport_protocol.capabilities import GROUPS, MANDATORY, RESERVED_GROUPS
from sandport_protocol.errors import CONDITIONS, from_wire
from sandport_protocol.events import HelloReceived, NotificationReceived, ReplyDue, RequestEnded, RequestReceived
from sandport_protocol.host_connection import HostConnection
from sandport_protocol.limits import DEFAULTS, Limits, agree
from sandport_protocol.methods import METHODS, NOTIFICATIONS, RESERVED
from sandport_protocol.schema.generate import document
from sandport_protocol.states import DRAINING
from sandport_protocol.v1 import InitializeParams
from sandport_protocol.worker_connection import WorkerConnection

SPEC = (Path(sandport_protocol.__file__).parents[2] / "SPEC.md").read_text(encoding="utf-8")
LINES = SPEC.splitlines()
REQUIREMENT = re.compile(
    r"- \*\*(?P<id>[A-Z]+-[0-9]+)\*\* \((?P<level>L[0-6]|-), (?P<binds>worker|host|both)\): (?P<text>.+)"
)
REQUIREMENTS = [found for line in LINES if (found := REQUIREMENT.fullmatch(line))]
SCHEMA = document()


def blocks(start: str) -> list[list[str]]:
    """The lines of each fenced block whose first line starts so."""
    found = re.findall(r"^```text\n(.*?)^```", SPEC, re.MULTILINE | re.DOTALL)
    return [block.splitlines() for block in found if block.startswith(start)]


def table(*heading: str) -> list[list[str]]:
    """The rows of the table whose heading begins so, as cells."""
    start = next(n for n, line in enumerate(LINES) if line.startswith("| " + " | ".join(heading) + " |"))
    rows = []
    for line in LINES[start + 2 :]:
        if not line.startswith("|"):
            break
        rows.append([cell.strip() for cell in line.strip("|").split("|")])
    return rows


# ------------------------------------------------------------------ requirements


def test_there_are_many_requirements_and_each_id_stands_once() -> None:
    ids = [each["id"] for each in REQUIREMENTS]
    assert len(ids) >= 180
    assert len(ids) == len(set(ids))


def test_every_requirement_says_must_or_should_and_nothing_else_does() -> None:
    silent = [each["id"] for each in REQUIREMENTS if not re.search(r"\b(MUST|SHOULD)\b", each["text"])]
    assert silent == []
    meaning = "**MUST** and **SHOULD** are meant as in RFC 2119"
    loose = [line for line in LINES if re.search(r"\b(MUST|SHOULD|MAY)\b", line) and not REQUIREMENT.fullmatch(line)]
    assert [line for line in loose if not line.startswith(meaning)] == []


def test_the_numbers_of_a_chapter_count_up_without_a_hole() -> None:
    numbers: dict[str, list[int]] = {}
    for each in REQUIREMENTS:
        area, number = each["id"].split("-")
        numbers.setdefault(area, []).append(int(number))
    assert {area: found for area, found in numbers.items() if found != list(range(1, len(found) + 1))} == {}


def test_what_another_requirement_refers_to_is_there() -> None:
    ids = {each["id"] for each in REQUIREMENTS}
    named = {name for each in REQUIREMENTS for name in re.findall(r"\b[A-Z]{3,6}-[0-9]+\b", each["text"])}
    assert {name for name in named if name.split("-")[0] in {each.split("-")[0] for each in ids}} <= ids


# ------------------------------------------------------------------ tables and names


def test_the_table_of_errors_is_the_tables() -> None:
    assert table("condition", "code") == [
        [name, str(each["code"]), each["retry"], each["dispatched"], each["description"]]
        for name, each in SCHEMA["errors"].items()
    ]


def test_the_table_of_methods_is_the_tables() -> None:
    assert table("method", "optional group") == [
        [
            f"`{name}`",
            "" if each["mandatory"] else f"`{each['group']}`",
            "yes" if each["repeatable"] else "no",
            each["repeat"],
            each["cancel"],
        ]
        for name, each in SCHEMA["methods"].items()
    ]


def test_the_table_of_limits_is_the_tables() -> None:
    assert table("limit", "kind") == [
        [f"`{name}`", each["kind"], f"{each['default']:,}", each["description"]]
        for name, each in SCHEMA["limits"].items()
    ]


def test_the_table_of_ranges_is_the_table() -> None:
    """Also: a name means one range, wherever it stands."""
    rows: dict[str, list[str]] = {}
    for definition in SCHEMA["$defs"].values():
        for name, member in definition.get("properties", {}).items():
            if "maximum" in member:
                row = [f"`{name}`", f"{member['minimum']:,}", f"{member['maximum']:,}"]
                assert rows.setdefault(name, row) == row
    assert table("number", "from") == [rows[name] for name in sorted(rows)]


def test_every_name_of_the_protocol_stands_in_the_specification() -> None:
    drafts = [method for members in RESERVED_GROUPS.values() for method in members]
    names = [*METHODS, *NOTIFICATIONS, *RESERVED, *drafts, *GROUPS, *Limits.__struct_encode_fields__]
    assert [name for name in names if f"`{name}`" not in SPEC] == []
    conditions = {condition.__name__: condition.code for condition in CONDITIONS}
    for name, code in re.findall(r"\b([A-Z]\w+) \((-32[0-9]{3})\)", SPEC):
        assert conditions[name] == int(code)


def test_the_chart_of_phases_has_every_phase() -> None:
    ((chart, *_),) = (block for block in blocks("new --initialize"))
    assert re.findall(r"\b(new|greeting|negotiated|serving|draining)\b", chart) == [
        "new", "greeting", "negotiated", "serving", "draining",
    ]  # fmt: skip


# ------------------------------------------------------------------ examples


def conversation(block: list[str]) -> list[tuple[str, bytes]]:
    """Who writes, and the frame."""
    return [(line[0], line[2:].encode() + b"\n") for line in block if line[0] in "→←"]


def test_the_example_session_is_what_both_sides_say() -> None:
    (block,) = blocks('→ {"jsonrpc":"2.0","id":1,"method":"initialize"')
    host, worker = HostConnection(), WorkerConnection()
    outcomes = []
    for sender, frame in conversation(block):
        if sender == "→":
            assert_call(frame)
            (event,) = worker.receive(frame)
            if isinstance(event, RequestReceived):
                params = codec.read_as(METHODS[event.method].params, event.params)
                request_id, _ = host.send_request(event.method, params)
                assert request_id == event.id, "ids count up"
            else:
                assert isinstance(event, NotificationReceived)
                host.send_initialized()
            continue
        (heard,) = host.receive(frame)
        match heard:
            case HelloReceived(hello=hello):
                assert hello.supported_methods == MANDATORY
                worker.negotiated(hello.supported_methods, agree(host.limits, hello.limits))
                worker.send_result(heard.id, hello)
            case NotificationReceived(method=method):
                assert_params(NOTIFICATIONS[method].params, heard.params)
            case RequestEnded(result=result, outcome=outcome):
                assert result is not None
                assert_params(METHODS[heard.method].result, result)
                outcomes.append((heard.method, outcome))
                worker.send_result(heard.id, result)
            case _:
                raise AssertionError(heard)
    assert outcomes == [(name, "result") for name in ("acquireLease", "execute", "destroyLease", "shutdown")]
    assert host.phase == worker.phase == DRAINING
    assert worker.open_ids == ()


def test_the_hello_of_the_example_has_every_limit_with_its_default() -> None:
    (block,) = blocks('→ {"jsonrpc":"2.0","id":1,"method":"initialize"')
    params = json.loads(conversation(block)[0][1])["params"]
    assert params["limits"] == json.loads(codec.encode(DEFAULTS))
    assert codec.read_as(InitializeParams, json.dumps(params).encode()).limits == DEFAULTS


def test_the_example_in_bytes_is_a_ping_and_its_pong() -> None:
    (block,) = blocks("→ 7b")
    (_, ping), (_, pong) = ((line[0], bytes.fromhex(line[2:])) for line in block)
    (count,) = re.findall(r"(\d+) bytes out and (\d+) bytes back", SPEC)
    assert tuple(map(int, count)) == (len(ping), len(pong))
    (event,) = WorkerConnection().receive(ping)
    assert isinstance(event, ReplyDue)
    assert json.loads(event.frame) == json.loads(pong)


def test_the_examples_of_what_goes_wrong_are_errors_of_the_table() -> None:
    (block,) = blocks('→ {"jsonrpc":"2.0","id":6,')
    met = []
    for sender, frame in conversation(block):
        if sender == "←":
            members = json.loads(frame)
            assert accepts(SCHEMA["messages"]["failure"], members, SCHEMA["$defs"])
            error = codec.read_error(codec.read(frame[:-1], depth=64).error)
            assert error is not None
            assert error.data is not None
            assert from_wire(error).condition == error.data.condition
            met.append(error.data.condition)
    assert met == ["ParseFailed", "NotAttached", "Cancelled"]


def test_the_examples_of_files_are_calls_and_answers_of_the_group() -> None:
    (block,) = blocks('→ {"jsonrpc":"2.0","id":1,"method":"syncIn"')
    asked, answered = (
        [frame for sender, frame in conversation(block) if sender == direction] for direction in ("→", "←")
    )
    for frame in asked:
        assert_call(frame)
    assert [json.loads(frame)["method"] for frame in asked] == list(GROUPS["sync"])
    assert_params(METHODS["syncIn"].result, codec.encode(json.loads(answered[0])["result"]))
    error = codec.read_error(codec.read(answered[1][:-1], depth=64).error)
    assert error is not None
    assert error.data is not None
    assert from_wire(error).condition == error.data.condition == "PathNotFound"


def test_the_examples_of_processes_and_of_attaching_are_calls_and_answers() -> None:
    """Every call fits its method, every answer the call of its id, and the output is credited, counted and ended."""
    (processes,) = blocks('→ {"jsonrpc":"2.0","id":1,"method":"startProcess"')
    (attach,) = blocks('→ {"jsonrpc":"2.0","id":1,"method":"attachLease"')
    for block in (processes, attach):
        asked: dict[int, str] = {}
        sent: dict[tuple[int, str], int] = {}
        for sender, frame in conversation(block):
            members = json.loads(frame)
            if "method" in members:
                assert_call(codec.encode({"params": {}, **members}))
            if sender == "→":
                asked.setdefault(members.get("id"), members["method"])
            elif members.get("method") == "output":
                params = members["params"]
                key = (params["id"], params["stream"])
                assert params["offset"] == sent.setdefault(key, params["offset"])
                sent[key] += len(base64.b64decode(params.get("data", "")))
            elif "result" in members:
                method = METHODS[asked[members["id"]]]
                assert_params(method.result, codec.encode(members["result"]))
                for (request_id, stream), total in sent.items():
                    assert request_id != members["id"] or members["result"][stream]["totalBytes"] == total
            else:
                error = codec.read_error(codec.read(frame[:-1], depth=64).error)
                assert error is not None
                assert error.data is not None
                assert from_wire(error).condition == error.data.condition


def test_the_failures_of_files_are_conditions_that_a_host_expects_of_the_group() -> None:
    expected = {condition.__name__ for name in GROUPS["sync"] for condition in METHODS[name].errors}
    rows = table("what happened", "condition")
    assert {condition.split(",")[0] for _, condition, *_ in rows} <= expected
    assert {dispatched for _, _, dispatched, _ in rows} == {"no", "unknown"}


def assert_call(frame: bytes) -> None:
    members = json.loads(frame)
    kind = "request" if "id" in members else "notification"
    assert accepts(SCHEMA["messages"][kind], members, SCHEMA["$defs"])
    name = members["method"]
    params = METHODS[name].params if name in METHODS else NOTIFICATIONS[name].params
    assert_params(params, codec.encode(members["params"]))


def assert_params(cls: type, raw: Any) -> None:
    members = json.loads(bytes(raw))
    codec.read_as(cls, bytes(raw))
    assert accepts({"$ref": f"#/$defs/{cls.__name__}"}, members, SCHEMA["$defs"])


@pytest.mark.parametrize("name", METHODS)
def test_every_method_is_explained_beyond_the_table(name: str) -> None:
    assert SPEC.count(f"`{name}`") > 1
