"""Plugins by themselves: which are taken, in which order they are called, and what one that fails can do."""

import asyncio
import contextvars
import inspect
import subprocess
import sys
import time
import types
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from sandport import hooks
from sandport.errors import NotAuthorised, UsageError
from sandport.hooks import Action, LeaseIds, LeaseLostEvent, hookimpl
from sandport.log import Log
from sandport.plugins import Plugins
from sandport.worker.stderr import Level
from tests.integration.stage import ROOT

pytestmark = pytest.mark.anyio

IDS = LeaseIds(lease_id="le1", sandbox_id="sp1", provider="p", environment="e")
EVENT = LeaseLostEvent(lease=IDS, at_ms=1, why="x")
ACTION = Action(verb="end", provider="p", lease_id="le1")
LOST = "sandport_lease_lost"


class Written:
    """A log, kept."""

    def __init__(self) -> None:
        self.lines: list[tuple[Level, str, dict[str, Any]]] = []
        self.log = Log(lambda level, event, fields: self.lines.append((level, event, fields)), threshold="debug")

    @property
    def texts(self) -> list[str]:
        return [event for _, event, _ in self.lines]


@pytest.fixture
def written() -> Written:
    return Written()


def hung_in(plugins: Sequence[object], log: Log, *, quick_s: float = 60.0, **options: Any) -> Plugins:
    """Plugins that a busy machine does not make slow."""
    return Plugins(plugins, log, quick_s=quick_s, **options)


def plugin(name: str, **functions: Callable[..., Any]) -> types.ModuleType:
    """A module with these hooks."""
    made = types.ModuleType(name)
    for hook, function in functions.items():
        setattr(made, f"sandport_{hook}", hookimpl(function))
    return made


# ------------------------------------------------------------------ which are taken


class Unmarked:
    def sandport_authorise(self, action: Action) -> str:
        return "no"


class Misspelt:
    @hookimpl
    def sandport_authorize(self, action: Action) -> str:
        return "no"


class Greedy:
    @hookimpl
    def sandport_redact(self, text: str, level: str) -> str:
        return text


class Wrapping:
    @hookimpl(wrapper=True)
    def sandport_redact(self, text: str) -> Any:
        return (yield)


class AsyncRedactor:
    @hookimpl
    async def sandport_redact(self, text: str) -> str:
        return text


class Quiet:
    @hookimpl
    def sandport_redact(self, text: str) -> str:
        return text


@pytest.mark.parametrize(
    ("plugins", "why"),
    [
        ((Unmarked(),), "Unmarked implements no hook: mark"),
        ((Misspelt(),), "(?s)Misspelt cannot be used.*sandport_authorize.*the hooks are:.*sandport_authorise"),
        ((Greedy(),), "(?s)Greedy cannot be used.*level"),
        ((Wrapping(),), "sandport_redact of the plugin Wrapping is a wrapper"),
        ((AsyncRedactor(),), "sandport_redact of the plugin AsyncRedactor is async"),
        ((Quiet,), "Quiet is a class; give an object"),
        ((one := Quiet(), one), "Quiet.* cannot be used"),
        ((Quiet(), None), "NoneType implements no hook"),
    ],
)
def test_a_plugin_that_would_not_be_called_is_refused(plugins: tuple[object, ...], why: str, written: Written) -> None:
    """tox, datasette (1.17): an authoriser that is never asked is worse than none."""
    with pytest.raises(UsageError, match=why):
        hung_in(plugins, written.log)


def test_two_of_a_kind_are_two_plugins_each_with_a_name(written: Written) -> None:
    def raising(event: object) -> None:
        raise ValueError("broken")

    hung_in([plugin("a", lease_lost=raising), plugin("a", lease_lost=raising)], written.log).tell(LOST, EVENT)
    assert [text.split(" failed")[0] for text in written.texts] == [
        "sandport_lease_lost of the plugin a",
        "sandport_lease_lost of the plugin a (2)",
    ]


def test_without_plugins_pluggy_is_not_imported() -> None:
    program = (
        "import sys, sandport.host, sandport.blocking, sandport.errors;"
        "print([name for name in ('pluggy', 'sandport.hooks', 'sandport.plugins', 'sandport.lease.events')"
        " if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout == "[]\n"


def test_every_hook_has_one_argument_and_says_what_it_promises() -> None:
    specs = {name: spec for name, spec in vars(hooks.Specs).items() if name.startswith("sandport_")}
    assert set(specs) == {
        "sandport_lease_started",
        "sandport_lease_ended",
        "sandport_lease_lost",
        "sandport_command_started",
        "sandport_command_ended",
        "sandport_redact",
        "sandport_authorise",
    }
    readme = (ROOT / "host" / "README.md").read_text(encoding="utf-8")
    for name, spec in specs.items():
        _, argument = inspect.signature(spec).parameters
        assert f"`{name}({argument})`" in readme
        assert spec.__doc__


# ------------------------------------------------------------------ events


async def test_plugins_are_told_in_the_order_in_which_they_were_given(written: Written) -> None:
    told: list[str] = []
    plugins = hung_in(
        [
            plugin("a", lease_lost=lambda event: told.append(f"a {event.why}")),
            plugin("b", lease_lost=lambda: told.append("b")),
            plugin("c", lease_lost=lambda event: told.append(f"c {event.why}")),
        ],
        written.log,
    )
    plugins.tell(LOST, EVENT)
    assert told == ["a x", "b", "c x"]


@pytest.mark.parametrize("error", [ValueError("broken"), asyncio.CancelledError(), RecursionError()])
async def test_what_a_hook_raises_is_logged_once_and_the_others_are_told(
    error: BaseException, written: Written
) -> None:
    told: list[object] = []

    def note(event: object) -> None:
        told.append(event)

    def raising(event: object) -> None:
        raise error

    async def failing(event: object) -> None:
        raise error

    plugins = hung_in(
        [plugin("a", lease_lost=raising), plugin("b", lease_lost=failing), plugin("c", lease_lost=note)],
        written.log,
    )
    for _ in range(3):
        plugins.tell(LOST, EVENT)
    await plugins.finish()
    assert told == [EVENT] * 3
    assert [text.split(";")[0] for text in written.texts] == [
        f"sandport_lease_lost of the plugin {name} failed: {error!r}" for name in "ab"
    ]


async def test_a_plain_function_that_answers_a_coroutine_or_holds_up_the_loop_is_named(written: Written) -> None:
    async def work(event: object, more: str) -> None:
        pytest.fail("nobody said that it is async")

    quick_s = 0.01

    def holds_up(event: object) -> None:
        began_s = time.perf_counter()
        while time.perf_counter() - began_s <= quick_s:
            pass  # the clock is the one that the host measures with: when it lets go, it took too long for sure

    plugins = hung_in(
        [plugin("a", lease_lost=lambda event: work(event, "x")), plugin("b", lease_lost=holds_up)],
        written.log,
        quick_s=quick_s,
    )
    plugins.tell(LOST, EVENT)
    first, second = written.texts
    assert first.startswith("sandport_lease_lost of the plugin a failed: it answered a coroutine")
    assert second.startswith("sandport_lease_lost of the plugin b held up the event loop: for ")


async def test_async_hooks_are_told_in_order_one_at_a_time_and_nobody_waits_for_them(written: Written) -> None:
    told: list[str] = []
    go_on = asyncio.Event()

    async def slow(event: LeaseLostEvent) -> None:
        told.append(f"begin {event.why}")
        await go_on.wait()
        told.append(f"end {event.why}")

    plugins = hung_in([plugin("slow", lease_lost=slow), plugin("b", lease_lost=lambda: told.append("b"))], written.log)
    for why in "xy":
        plugins.tell(LOST, LeaseLostEvent(lease=IDS, at_ms=1, why=why))
    assert told == ["b", "b"]
    go_on.set()
    await plugins.finish()
    assert told == ["b", "b", "begin x", "end x", "begin y", "end y"]
    assert written.lines == []


async def test_an_async_hook_that_hangs_is_cut_and_the_next_event_is_told(written: Written) -> None:
    again = asyncio.Event()

    async def hangs(event: LeaseLostEvent) -> None:
        if event.why == "x":
            await asyncio.Event().wait()
        again.set()

    plugins = hung_in([plugin("a", lease_lost=hangs)], written.log, patience_s=0.2)
    for why in "xy":
        plugins.tell(LOST, LeaseLostEvent(lease=IDS, at_ms=1, why=why))
    await again.wait()
    assert "was cancelled: it took longer than 0.2 s" in written.texts[0]


async def test_the_end_of_a_host_does_not_wait_for_an_async_hook_that_ignores_its_cancel(written: Written) -> None:
    let_go, over = asyncio.Event(), asyncio.Event()

    async def stubborn(event: object) -> None:
        while not let_go.is_set():
            try:
                await let_go.wait()
            except asyncio.CancelledError:
                continue
        over.set()

    plugins = hung_in([plugin("a", lease_lost=stubborn)], written.log, patience_s=0.05)
    plugins.tell(LOST, EVENT)
    async with asyncio.timeout(60):
        await plugins.finish()
    assert not over.is_set()
    assert written.texts
    let_go.set()
    await over.wait()


async def test_events_that_nobody_takes_are_dropped_and_that_is_said_once(written: Written) -> None:
    told: list[str] = []
    go_on = asyncio.Event()

    async def slow(event: LeaseLostEvent) -> None:
        await go_on.wait()
        told.append(event.why)

    plugins = hung_in([plugin("a", lease_lost=slow)], written.log, waiting=3)
    for number in range(10):
        plugins.tell(LOST, LeaseLostEvent(lease=IDS, at_ms=1, why=str(number)))
    go_on.set()
    await plugins.finish()
    assert told == ["0", "1", "2"]
    (text,) = written.texts
    assert "3 events wait, and later ones are dropped" in text


# ------------------------------------------------------------------ redaction


def test_every_text_of_a_record_is_redacted_once_and_in_order_for_all_places(written: Written) -> None:
    files = Written()
    plugins = hung_in(
        [
            plugin("a", redact=lambda text: text.replace("hunter2", "<a>")),
            plugin("b", redact=lambda text: text.replace("<a>", "<b>")),
        ],
        written.log,
    )
    log = plugins.log.bind(pid=7, tenant="t hunter2").and_to(lambda *record: files.lines.append(record))
    log("info", "the word is hunter2", error=ValueError("hunter2"), none=None, ok=True)
    log("debug", "hunter2")
    redacted = {"pid": 7, "tenant": "t <b>", "error": "<b>", "none": None, "ok": True}
    assert files.lines == [("info", "the word is <b>", redacted)]
    assert written.lines == [*files.lines, ("debug", "<b>", {"pid": 7, "tenant": "t <b>"})]
    assert log.redacted("hunter2") == "<b>"


def _raising(text: str) -> str:
    raise KeyError(text)


@pytest.mark.parametrize(
    ("redact", "why"),
    [
        (_raising, "failed with KeyError"),
        (lambda text: None, "answered NoneType and no text"),
        (lambda text: text.encode(), "answered bytes and no text"),
    ],
)
def test_a_redactor_that_fails_withholds_the_text(redact: Callable[..., Any], why: str, written: Written) -> None:
    plugins = hung_in([plugin("good", redact=lambda text: text), plugin("bad", redact=redact)], written.log)
    plugins.log("error", "hunter2", who="hunter2", pid=1)
    withheld = f"[withheld: sandport_redact of the plugin bad {why}]"
    assert written.lines == [("error", withheld, {"who": withheld, "pid": 1})]


def test_what_a_hook_raised_is_redacted_too(written: Written) -> None:
    def raising(event: object) -> None:
        raise ValueError("hunter2")

    hung_in([plugin("a", lease_lost=raising, redact=lambda text: text.replace("hunter2", "*"))], written.log).tell(
        LOST, EVENT
    )
    assert "ValueError('*')" in written.texts[0]


# ------------------------------------------------------------------ the authoriser


async def _async_refusal(action: Action) -> str:
    await asyncio.sleep(0)
    return f"not this {action.lease_id}"


async def _hangs(action: Action) -> None:
    await asyncio.Event().wait()


async def _cancelled(action: Action) -> None:
    raise asyncio.CancelledError


@pytest.mark.parametrize(
    ("authorise", "why"),
    [
        (lambda action: "not today", "a refuses: not today$"),
        (lambda action: "", "a refuses: $"),
        (_async_refusal, "a refuses: not this le1"),
        (lambda action: action.no_such_attribute, "a refuses: it failed: AttributeError"),
        (_cancelled, "a refuses: it failed: CancelledError"),
        (_hangs, "a refuses: its answer took longer than 0.1 s"),
        (lambda action: True, "it answered bool, which is neither"),
        (lambda action: False, "it answered bool, which is neither"),
    ],
)
async def test_whatever_is_not_a_yes_refuses(authorise: Callable[..., Any], why: str, written: Written) -> None:
    asked: list[Action] = []

    def note(action: Action) -> None:
        asked.append(action)

    plugins = hung_in(
        [
            plugin("first", authorise=note),
            plugin("a", authorise=authorise),
            plugin("last", authorise=lambda action: pytest.fail("it was refused before")),
        ],
        written.log,
        patience_s=0.1,
    )
    with pytest.raises(NotAuthorised, match=why) as refused:
        await plugins.authorise(ACTION)
    assert (refused.value.retry, refused.value.dispatched) == ("never", "no")
    assert asked == [ACTION]


async def test_an_authoriser_sees_the_callers_context_and_its_cancel(written: Written) -> None:
    who = contextvars.ContextVar("who", default="nobody")
    asked = asyncio.Event()

    async def authorise() -> str | None:
        if who.get() == "ada":
            return None
        asked.set()
        await asyncio.Event().wait()
        return "unreachable"

    plugins = hung_in([plugin("a", authorise=authorise)], written.log)
    who.set("ada")
    await plugins.authorise(ACTION)
    who.set("eve")
    asking = asyncio.ensure_future(plugins.authorise(ACTION))
    await asked.wait()
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking
