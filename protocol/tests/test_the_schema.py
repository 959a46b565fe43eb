"""The published schema is fresh, is the same on every run, and judges messages as the structs do."""

from __future__ import annotations

import ast
import copy
import inspect
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import Struct

from protocol.tests.json_schema import accepts
from protocol.tests.strategies import MESSAGES, almost_messages, messages, structs
from sandport_protocol import capabilities, codec, errors, limits, methods, octets, states, v1
from sandport_protocol.envelope import Failure, Notification, Request, Success
from sandport_protocol.schema.__main__ import PUBLISHED, main
from sandport_protocol.schema.constraints import CONSTRAINTS
from sandport_protocol.schema.generate import document, rendered

SCHEMA: dict[str, Any] = json.loads(PUBLISHED.read_text(encoding="utf-8"))
DEFINITIONS: dict[str, Any] = SCHEMA["$defs"]


# ------------------------------------------------------------------ the file and the command


def test_the_published_file_is_fresh_and_says_in_its_first_member_what_makes_it() -> None:
    assert PUBLISHED.read_text(encoding="utf-8") == rendered()
    first = next(iter(SCHEMA))
    assert (first, "--write" in SCHEMA[first]) == ("$comment", True)


def test_two_interpreters_with_other_hash_seeds_make_the_same_bytes() -> None:
    code = "import sys; from sandport_protocol.schema.generate import rendered; sys.stdout.write(rendered())"
    made = {
        subprocess.run(
            [sys.executable, "-X", "utf8", "-c", code],
            env=os.environ | {"PYTHONHASHSEED": seed},
            capture_output=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    }
    assert made == {rendered().encode()}


def test_generating_changes_nothing_that_it_was_made_from() -> None:
    assert document() == document()
    before = copy.deepcopy(CONSTRAINTS)
    document()
    assert before == CONSTRAINTS


def test_the_command_finds_a_stale_file_shows_the_difference_and_mends_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    published = tmp_path / "v1.json"
    published.write_text(rendered().replace('"protocolVersion": 1', '"protocolVersion": 0', 1), encoding="utf-8")
    assert main(["--check"], published=published) == 1
    shown = capsys.readouterr().err
    assert '-  "protocolVersion": 0' in shown
    assert '+  "protocolVersion": 1' in shown
    assert shown.endswith("v1.json is stale; run: python -m sandport_protocol.schema --write\n")

    assert main(["--write"], published=published) == 0
    assert main(["--check"], published=published) == 0
    assert published.read_text(encoding="utf-8") == rendered()
    assert capsys.readouterr() == ("", "")


def test_a_missing_file_is_stale_and_a_long_difference_is_cut(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["--check"], published=tmp_path / "v1.json") == 1
    assert 0 < len(capsys.readouterr().err.splitlines()) < 50


@pytest.mark.parametrize("arguments", [[], ["--check", "--write"], ["--mend"]])
def test_the_command_wants_to_know_what_to_do(arguments: list[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 2


def test_the_command_runs_as_a_module() -> None:
    done = subprocess.run([sys.executable, "-m", "sandport_protocol.schema", "--check"], check=False)
    assert done.returncode == 0


# ------------------------------------------------------------------ content


def test_every_method_has_all_that_another_language_needs() -> None:
    assert list(SCHEMA["methods"]) == list(methods.METHODS)
    for name, entry in SCHEMA["methods"].items():
        method = methods.METHODS[name]
        assert entry["params"] == {"$ref": f"#/$defs/{method.params.__name__}"}
        assert entry["result"] == {"$ref": f"#/$defs/{method.result.__name__}"}
        assert entry["mandatory"] == (name in capabilities.MANDATORY)
        assert entry["repeatable"] == method.repeatable
        assert set(entry["errors"]) == {condition.__name__ for condition in method.errors}
        assert set(entry["errors"]) <= set(SCHEMA["errors"])
        assert all(entry[text] for text in ("description", "group", "repeat", "cancel"))


def test_notifications_errors_limits_and_names_are_those_of_the_tables() -> None:
    assert {n: (e["sender"], e["params"]["$ref"]) for n, e in SCHEMA["notifications"].items()} == {
        name: (note.sender, f"#/$defs/{note.params.__name__}") for name, note in methods.NOTIFICATIONS.items()
    }
    assert {n: (e["code"], e["retry"], e["dispatched"]) for n, e in SCHEMA["errors"].items()} == {
        each.__name__: (each.code, each.retry, each.dispatched) for each in errors.CONDITIONS
    }
    assert {n: e["default"] for n, e in SCHEMA["limits"].items()} == json.loads(codec.encode(limits.DEFAULTS))
    assert all(entry["description"] for entry in (*SCHEMA["limits"].values(), *SCHEMA["errors"].values()))
    assert SCHEMA["reserved"] == list(methods.RESERVED)
    assert SCHEMA["drafts"] == {name: list(members) for name, members in capabilities.RESERVED_GROUPS.items()}
    assert SCHEMA["groups"]["optional"] == {name: list(members) for name, members in capabilities.GROUPS.items()}


def test_the_lifecycle_can_be_built_again_from_the_schema() -> None:
    life = SCHEMA["lifecycle"]
    assert {(each["phase"], each["kind"]): each["next"] for each in life["moves"]} == states.MOVES
    assert {
        (each["state"], each["happening"]): (each["next"], each["outcome"]) for each in life["requestMoves"]
    } == states.REQUEST_MOVES
    assert life["refusals"] == states.REFUSALS
    assert life["timers"] == states.TIMERS
    named = {name for kind in ("call", "control", "report") for name in life["kinds"][kind]}
    assert named | {"initialize", "initialized", "ping", "shutdown"} == set(methods.METHODS) | set(
        methods.NOTIFICATIONS
    )


def test_every_reference_leads_to_a_definition_and_every_definition_is_used() -> None:
    used: set[str] = set()
    pending: list[Any] = [SCHEMA]
    while pending:
        item = pending.pop()
        if isinstance(item, dict):
            if "$ref" in item:
                used.add(item["$ref"].removeprefix("#/$defs/"))
            pending += item.values()
        elif isinstance(item, list):
            pending += item
    assert used == set(DEFINITIONS)


def test_what_stands_below_an_attribute_in_the_source_is_its_description() -> None:
    assert (
        DEFINITIONS["OutputParams"]["properties"]["offset"]["description"] == "Bytes of this stream before this piece."
    )
    inherited = "Program and arguments, never through a shell. Exactly one of `argv` and `shell` is given."
    assert DEFINITIONS["ExecuteParams"]["properties"]["argv"]["description"] == inherited
    assert "null" in DEFINITIONS["LeaseResult"]["properties"]["shell"]["description"]
    assert "None" not in rendered()


def test_every_definition_has_a_description() -> None:
    assert [name for name, each in DEFINITIONS.items() if not each["description"]] == []


def test_every_struct_with_rules_has_its_constraints_in_the_schema() -> None:
    with_rules = {
        value
        for module in (v1, limits, octets, errors)
        for value in vars(module).values()
        if isinstance(value, type)
        and issubclass(value, Struct)
        and hasattr(value, "__post_init__")
        and value.__name__ in DEFINITIONS
    }
    assert with_rules == set(CONSTRAINTS) - {Request, Notification, Success, Failure}


# ------------------------------------------------------------------ verdicts

WRONG_VALUES: list[Any] = [
    None, True, 0, -1, 1, 2**70, "", "text", "sp" + "a" * 26, "sp" + "a" * 26 + "\n", "a b", "\0", "x\0y", "AA==", "A",
    [], [1], [""], ["a", "\0"], [{"b64": ""}], {}, {"b64": "!"}, {"A=B": "c"}, {"A": "\0"}, {"A": "c"},
]  # fmt: skip


def changed(members: dict[str, Any], names: tuple[str, ...]) -> Iterator[dict[str, Any]]:
    """A message as it is, and with each one of its members taken away or given each wrong value."""
    yield members
    for name in (*names, "unknownMember"):
        yield {other: value for other, value in members.items() if other != name}
        for value in WRONG_VALUES:
            yield {**members, name: value}


def nul_in_b64(value: object) -> bool:
    """The one rule that JSON Schema cannot say: bytes that a program cannot be passed, inside base64."""
    if isinstance(value, dict):
        if isinstance(value.get("b64"), str):
            try:
                return b"\0" in codec.read_as(octets.B64, json.dumps(value).encode()).b64
            except ValueError:
                return False
        return any(map(nul_in_b64, value.values()))
    return isinstance(value, list) and any(map(nul_in_b64, value))


@pytest.mark.parametrize("cls", MESSAGES, ids=lambda cls: cls.__name__)
@settings(max_examples=settings().max_examples // 10)
@given(st.data())
def test_schema_and_struct_give_the_same_verdict(cls: type[Struct], data: st.DataObject) -> None:
    written = json.loads(codec.encode(data.draw(structs(cls))))
    for members in changed(written, cls.__struct_encode_fields__):
        try:
            codec.read_as(cls, json.dumps(members).encode())
        except ValueError:
            readable = False
        else:
            readable = True
        by_schema = accepts({"$ref": f"#/$defs/{cls.__name__}"}, members, DEFINITIONS)
        assert by_schema == readable or (nul_in_b64(members) and not readable), members


@given(messages)
def test_every_message_that_this_package_writes_satisfies_the_schema(
    message: Request | Notification | Success | Failure,
) -> None:
    written = json.loads(codec.write(message))
    kind = SCHEMA["messages"][type(message).__name__.lower()]
    assert accepts(kind, written, DEFINITIONS)


@given(almost_messages)
def test_what_the_schema_takes_for_a_message_the_codec_reads(members: dict[str, Any]) -> None:
    if any(accepts(kind, members, DEFINITIONS) for kind in SCHEMA["messages"].values()):
        codec.read(json.dumps(members).encode(), depth=64)


def test_the_prose_of_the_schema_names_no_python() -> None:
    for text in (word for word in rendered().split('"') if "__" in word):
        assert text.startswith("_meta"), text


def test_the_source_of_the_generator_writes_no_file() -> None:
    """Only the command does, so that a check can never mend what it judges."""
    from sandport_protocol.schema import generate

    names = {node.id for node in ast.walk(ast.parse(inspect.getsource(generate))) if isinstance(node, ast.Name)}
    assert not names & {"open", "Path", "print"}
