"""A failure keeps its name, its advice and its claim about the effect all the way from one side to the other."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import Raw

from protocol.tests.strategies import structs, texts
from sandport_protocol import codec, errors
from sandport_protocol.errors import CONDITIONS, Detail, ErrorData, ErrorObject, Internal, Partial, WireError, from_wire

each_condition = pytest.mark.parametrize("condition", CONDITIONS, ids=lambda condition: condition.__name__)
retries = st.sampled_from(["now", "later", "never"])
effects = st.sampled_from(["no", "yes", "unknown"])


def through_the_wire(error: ErrorObject) -> WireError:
    read = codec.read_error(Raw(codec.encode(error)))
    assert read is not None
    return from_wire(read)


@each_condition
@settings(max_examples=settings().max_examples // 5)
@given(st.data())
def test_a_condition_arrives_with_everything_that_it_said(condition: type[WireError], data: st.DataObject) -> None:
    sent = condition(
        data.draw(texts),
        retry=data.draw(st.one_of(st.none(), retries)),
        dispatched=data.draw(st.one_of(st.none(), effects)),
        retry_after_s=data.draw(st.none() | st.integers(0, 10**9).map(lambda ms: ms / 1000)),
        detail=data.draw(st.none() | structs(Detail)),
        partial=data.draw(st.none() | structs(Partial)),
    )
    got = through_the_wire(sent.to_wire())
    assert type(got) is condition
    for name in ("message", "retry", "dispatched", "retry_after_s", "detail", "partial", "condition"):
        assert getattr(got, name) == getattr(sent, name), name


@each_condition
def test_a_condition_is_named_on_the_wire_and_says_what_it_means(condition: type[WireError]) -> None:
    sent = json.loads(codec.encode(condition("x").to_wire()))
    assert sent["data"]["condition"] == condition.__name__
    assert condition.__doc__
    assert condition.__doc__.endswith(".")


def test_every_condition_is_in_the_table_once_with_a_code_of_its_own() -> None:
    defined = {each for each in vars(errors).values() if isinstance(each, type) and issubclass(each, WireError)} - {
        WireError
    }
    assert len(CONDITIONS) == len(set(CONDITIONS)) == len({condition.code for condition in CONDITIONS})
    assert set(CONDITIONS) == defined


def test_codes_are_json_rpcs_own_or_in_the_range_that_it_leaves_to_servers() -> None:
    reserved = {-32700, -32600, -32601, -32602, -32603}
    assert all(condition.code in reserved or -32099 <= condition.code <= -32000 for condition in CONDITIONS)


@given(
    st.integers().filter(lambda code: code not in {condition.code for condition in CONDITIONS}), texts, retries, effects
)
def test_an_unknown_code_is_internal_and_loses_nothing(code: int, message: str, retry: str, dispatched: str) -> None:
    data = ErrorData(condition="FromTheFuture", retry=retry, dispatched=dispatched)  # type: ignore[arg-type]
    got = through_the_wire(ErrorObject(code, message, data))
    assert type(got) is Internal
    assert got.message == f"{message} (unknown error code {code})"
    assert (got.retry, got.dispatched) == (retry, dispatched)


@each_condition
def test_an_error_without_data_says_nothing_about_the_effect(condition: type[WireError]) -> None:
    got = through_the_wire(ErrorObject(condition.code, "x"))
    assert type(got) is condition
    assert got.dispatched == "unknown"
    assert got.retry == condition.retry


@pytest.mark.parametrize(
    "data",
    [
        {"retry": "soon"},
        {"dispatched": True},
        "text",
        [1],
        {"partial": {"stdout": {"data": "not base64!"}}},
        {"detail": "text"},
    ],
)
def test_data_of_another_form_is_dropped_and_code_and_message_stay(data: object) -> None:
    raw = Raw(json.dumps({"code": -32014, "message": "full", "data": data}).encode())
    assert codec.read_error(raw) == ErrorObject(-32014, "full")


@pytest.mark.parametrize("raw", [b"null", b"1", b'"boom"', b"{}", b'{"message":"x"}', b'{"code":"1","message":"x"}'])
def test_what_has_no_code_is_no_error_object(raw: bytes) -> None:
    assert codec.read_error(Raw(raw)) is None


def test_an_error_without_a_message_is_one() -> None:
    assert codec.read_error(Raw(b'{"code":-32014}')) == ErrorObject(-32014, "")


def test_the_text_of_an_error_is_its_message() -> None:
    assert str(errors.TooLarge("too much")) == "too much"


def test_a_fault_of_the_answering_side_claims_nothing_about_the_effect() -> None:
    got = through_the_wire(codec.internal("it broke"))
    assert (type(got), got.message, got.dispatched) == (Internal, "it broke", "unknown")
