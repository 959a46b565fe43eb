"""Methods come in groups, whole or not at all."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandport_protocol.capabilities import (
    GROUPS,
    MANDATORY,
    RESERVED_GROUPS,
    effective_groups,
    incomplete_groups,
    missing_mandatory,
)
from sandport_protocol.methods import METHODS, NOTIFICATIONS, RESERVED

optional = st.sets(st.sampled_from([method for group in (GROUPS | RESERVED_GROUPS).values() for method in group]))


def test_every_method_is_mandatory_or_in_one_optional_group() -> None:
    grouped = [method for members in GROUPS.values() for method in members]
    assert sorted([*MANDATORY, *grouped]) == sorted(METHODS)
    for name, members in GROUPS.items():
        assert {METHODS[method].group for method in members} == {name}
    assert {METHODS[method].group for method in MANDATORY} == {"session", "config", "lease", "command"}


def test_no_name_means_two_things() -> None:
    drafts = [method for members in RESERVED_GROUPS.values() for method in members]
    names = [*METHODS, *NOTIFICATIONS, *drafts, *RESERVED]
    assert len(names) == len(set(names))


@given(optional)
def test_a_group_in_part_is_named_with_what_it_lacks(methods: set[str]) -> None:
    missing = incomplete_groups(methods)
    for name, members in (GROUPS | RESERVED_GROUPS).items():
        absent = tuple(method for method in members if method not in methods)
        assert missing.get(name) == (absent if 0 < len(absent) < len(members) else None)


@given(st.sets(st.sampled_from(MANDATORY)))
def test_missing_mandatory_methods_are_named_in_order(methods: set[str]) -> None:
    assert missing_mandatory(methods) == tuple(method for method in MANDATORY if method not in methods)


@pytest.mark.parametrize(
    ("methods", "without", "expected"),
    [
        (GROUPS["process"], (), {"process"}),
        (GROUPS["process"][1:], (), set()),
        (GROUPS["process"], ("process",), set()),
        (GROUPS["process"], ("pty",), {"process"}),
        (GROUPS["process"] + GROUPS["sync"], ("process",), {"sync"}),
        (GROUPS["sync"][:1], (), set()),
        ((), (), set()),
    ],
)
def test_a_group_can_be_used_when_it_is_whole_and_not_taken_away(
    methods: tuple[str, ...], without: tuple[str, ...], expected: set[str]
) -> None:
    assert effective_groups(methods, without) == expected


def test_only_what_may_be_repeated_is_marked_so() -> None:
    never = {"initialize", "acquireLease", "execute", "startProcess", "writeProcess", "signalProcess", "waitProcess"}
    never |= {"syncIn", "syncOut"}  # the socket of the first is used up
    assert {name for name, method in METHODS.items() if not method.repeatable} == never
