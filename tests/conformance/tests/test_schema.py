"""The kit's own validator says what the schema says."""

from typing import Any

import pytest

from sandport_conformance import schema
from sandport_conformance.session import Session

GOOD = [
    ("ping", {}),
    ("ping", {"open": [1, "a"], "of the future": None}),
    ("execute", {"ended": "exited", "exitCode": 0}),
    ("execute", {"ended": "signalled", "signal": 9, "stdout": {"data": "aGkK"}}),
    ("acquireLease", {"handle": "h", "workingDirectory": {"b64": "/w=="}}),
]
BAD = [
    ("ping", [], "result is [], not of type object"),
    ("ping", {"open": {}}, "result.open is {}, not of type array"),
    ("ping", {"open": [1.5]}, "result.open[0] is 1.5"),
    ("ping", {"open": [True]}, "result.open[0] is True"),
    ("execute", {}, "result has no ended"),
    ("execute", {"ended": "crashed"}, "result.ended is 'crashed', not one of"),
    ("execute", {"ended": "exited"}, "result has no exitCode"),
    ("execute", {"ended": "exited", "exitCode": None}, "result.exitCode is None, not of type integer"),
    ("execute", {"ended": "signalled", "signal": 9, "exitCode": 1}, "result.exitCode is 1"),
    ("execute", {"ended": "exited", "exitCode": 0, "stdout": {"data": "a"}}, "which is not base64"),
    ("execute", {"ended": "exited", "exitCode": 256}, "result.exitCode is 256, above 255"),
    ("execute", {"ended": "exited", "exitCode": -1}, "result.exitCode is -1, below 0"),
    ("execute", {"ended": "signalled", "signal": 65}, "result.signal is 65, above 64"),
    ("acquireLease", {"handle": "h", "workingDirectory": "/", "maxProcesses": 0}, "result.maxProcesses is 0, below 1"),
    ("acquireLease", {"handle": "h"}, "result has no workingDirectory"),
    ("acquireLease", {"handle": "h", "workingDirectory": 1}, "result.workingDirectory is 1"),
]


@pytest.mark.parametrize(("method", "result"), GOOD)
def test_a_result_that_fits_has_no_fault(method: str, result: Any) -> None:
    assert schema.faults_of_result(method, result) == []


@pytest.mark.parametrize(("method", "result", "fault"), BAD)
def test_what_does_not_fit_is_named_by_its_path(method: str, result: Any, fault: str) -> None:
    faults = schema.faults_of_result(method, result)
    assert any(fault in found for found in faults), faults


@pytest.mark.parametrize("sandbox_id", ["sp" + "a" * 26 + "\n", "sp" + "a" * 25, "SP" + "a" * 26])
def test_a_pattern_means_the_whole_text(sandbox_id: str) -> None:
    rule = schema.protocol()["methods"]["destroyLease"]["params"]
    assert schema.faults({"sandboxId": sandbox_id}, rule, schema.protocol())


def test_every_keyword_of_the_schema_is_understood() -> None:
    """One that the validator passes over would let anything pass."""
    read = {
        *("$ref", "type", "const", "enum", "pattern", "contentEncoding", "minItems"),
        *("minimum", "maximum", "exclusiveMinimum"),
        *("required", "properties", "additionalProperties", "propertyNames", "items", "prefixItems"),
        *("anyOf", "oneOf", "allOf", "not", "if", "then", "else"),
        *("description", "default"),
    }

    def keywords(rule: Any) -> set[str]:
        if isinstance(rule, list):
            return set().union(*map(keywords, rule)) if rule else set()
        if not isinstance(rule, dict):
            return set()
        found = set(rule)
        for keyword, value in rule.items():
            if keyword == "properties":
                found |= keywords(list(value.values()))
            elif keyword not in ("default", "enum", "const", "required"):
                found |= keywords(value)
        return found

    assert keywords(list(schema.protocol()["$defs"].values())) <= read


def test_the_hello_of_the_healthy_worker_fits(session: Session) -> None:
    assert schema.faults_of_result("initialize", session.hello) == []
