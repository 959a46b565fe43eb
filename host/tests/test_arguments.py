"""Whatever is passed to a public call is taken, or refused in words before anything is sent."""

import contextlib
import datetime
import inspect
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandport import Host, Sandbox
from sandport.arguments import PARAMETERS, check_config, hold
from sandport.errors import SandportError, UsageError
from tests.integration.stage import Journal, Records, configuration, worker

pytestmark = pytest.mark.anyio

SURROGATE, LONE = "\udcff", "\ud800"
VALUES: tuple[Any, ...] = (
    None,
    True,
    0,
    3,
    -1,
    1.5,
    float("nan"),
    float("inf"),
    10**30,
    10**5000,
    "",
    "text",
    "YWJj",
    "two\nlines",
    "r\r",
    "\0",
    SURROGATE,
    LONE,
    b"bytes",
    b"\0",
    bytearray(b"x"),
    memoryview(b"abcd").cast("H"),
    object(),
    object,
    [],
    [1],
    ["a", None],
    [LONE],
    ["\0"],
    (1,),
    (80, 24),
    (0, -1),
    ("a", "b"),
    {"a"},
    {},
    {1: 2},
    {"a": object()},
    {"A": LONE},
    {"A": "\0"},
    {"A": float("nan")},
    Path("x"),
    Path("a\0b"),
    len,
    datetime.date(2020, 1, 1),
)
"""Something of each type, and the hard ones of those that are right."""
GOOD: dict[str, dict[str, Any]] = {
    "lease": {"environment": "scripted"},
    "attach": {"lease": "none such"},
    "execute": {"argv": ["true"]},
    "start": {"argv": ["true"]},
    "sync_in": {"local": "/nonexistent", "remote": "x"},
    "sync_out": {"remote": "x", "local": "/nonexistent/x"},
    "read_bytes": {"remote": "x"},
    "write_bytes": {"remote": "x", "data": b""},
}
"""Calls that are right in themselves, whatever becomes of them."""


def parameters(call: Callable[..., Any]) -> list[str]:
    return [name for name in inspect.signature(call).parameters if name != "self"]


CALLS: tuple[tuple[str, str], ...] = tuple(
    (name, parameter)
    for name in GOOD
    for parameter in parameters(getattr(Host if name in ("lease", "attach") else Sandbox, name))
)


async def called(owner: object, name: str, arguments: dict[str, Any]) -> None:
    """One call from its start to its end."""
    answer = getattr(owner, name)(**arguments)
    if isinstance(answer, contextlib.AbstractAsyncContextManager):
        async with answer:
            pass
    elif isinstance(answer, Awaitable):
        await answer


def words_of(name: str, parameter: str, value: Any, error: BaseException) -> str:
    given = "a huge number" if value == 10**5000 else f"{value!r:.40}"
    return f"{name}({parameter}={given}): {error!r}"


async def test_a_value_of_any_type_is_taken_or_refused_and_never_an_error_of_pythons(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Text was decoded as base64, and what else was wrong was a TypeError, an AttributeError or the wire's words."""
    monkeypatch.chdir(tmp_path)  # folders that a call makes are made here
    journal = Journal(tmp_path / "journal")

    def sent() -> int:
        return sum(entry.get("method") not in ("ping", "cancel") for entry in journal)

    wrong = []
    refused = set()
    command = worker("well_behaved", journal=journal.path)
    async with (
        Host.open(configuration({"scripted": command}), home=tmp_path / "home", log=Records().log) as host,
        host.lease("scripted") as sandbox,
    ):
        for name, parameter in CALLS:
            owner = host if name in ("lease", "attach") else sandbox
            for value in VALUES:
                before = journal.path.stat().st_size
                count = sent() if before else 0
                try:
                    await called(owner, name, GOOD[name] | {parameter: value})
                except UsageError as error:
                    refused.add((name, parameter))
                    if error.dispatched != "no" or (journal.path.stat().st_size > before and sent() > count):
                        wrong.append("was sent: " + words_of(name, parameter, value, error))
                except SandportError:
                    pass  # of what was meant, as a file that is not there
                except BaseException as error:  # noqa: BLE001 - whatever it is, it is what must not come
                    if parameter.startswith("on_") and callable(value):
                        continue  # its own, handed on as it is
                    wrong.append(words_of(name, parameter, value, error))
    assert "\n".join(wrong) == ""
    assert refused == set(CALLS)


@pytest.mark.parametrize("name", ["lease", "attach", "leases", "end_lease", "forget", "describe", "probe", "validate"])
async def test_a_host_holds_each_of_its_arguments(tmp_path: Path, name: str) -> None:
    missing = {parameter for parameter in parameters(getattr(Host, name)) if parameter not in PARAMETERS}
    assert missing == set()


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"stdin": "YWJj"}, "stdin is bytes, and what was given is the text 'YWJj'; encode it"),
        ({"data": "text"}, "data is bytes, and what was given is the text 'text'; encode it"),
        ({"stdin": None}, "stdin is bytes, and what was given is None"),
        (
            {"egress": "none"},
            'egress is an Egress, such as Egress(mode="none"), or None, and what was given is the text',
        ),
        ({"timeout_s": "3"}, "timeout_s is seconds, a number, or None, and what was given is the text '3'"),
        ({"ttl_s": "5"}, "ttl_s is seconds, a number, and what was given is the text '5'"),
        ({"config": [1]}, "config is a table, such as a dict, or None, and what was given is of type list"),
        ({"run": 3}, "run is one line of text, or None, and what was given is 3"),
        ({"run": "r\n"}, "run is one line of text, or None, and what was given is the text 'r\\n'"),
    ],
)
def test_the_words_have_the_name_what_is_wanted_and_what_was_given(given: dict[str, Any], words: str) -> None:
    with pytest.raises(UsageError) as raised:
        hold(**given)
    assert words in str(raised.value)


_PLAIN = st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats(allow_nan=False, allow_infinity=False)
_JSON = st.recursive(
    _PLAIN | st.text(st.characters(exclude_categories=["Cs"])),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(st.characters(exclude_categories=["Cs"])), inner),
    max_leaves=10,
)
_NOT_JSON = st.sampled_from(
    [object(), {1}, b"x", datetime.date(2020, 1, 1), float("nan"), LONE, 2**64, {3: 4}, {LONE: 1}]
)


@given(config=st.dictionaries(st.text(max_size=3), _JSON), bad=_NOT_JSON, path=st.lists(st.booleans(), max_size=4))
def test_a_config_is_what_json_has_at_any_depth(config: dict[str, Any], bad: Any, path: list[bool]) -> None:
    check_config(config)
    for listed in path:
        bad = [bad] if listed else {"in": bad}
    with pytest.raises(UsageError, match="config"):
        check_config({**config, "at": bad})


def test_a_config_that_is_nested_without_an_end_is_refused() -> None:
    deep: list[Any] = []
    deep.append(deep)
    with pytest.raises(UsageError, match="nested more than 100 deep"):
        check_config({"at": deep})
