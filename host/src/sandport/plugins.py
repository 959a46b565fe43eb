"""The plugins of one host: registered once, then called one by one, each failure kept to itself.

pluggy checks and orders them; the calls are made here, since its own stop at the first that raises. What is promised to
whoever writes one is in `hooks`.
"""

from __future__ import annotations

import asyncio
import inspect
import time
from collections import deque
from collections.abc import Awaitable, Sequence
from typing import Any, Final

import pluggy
from msgspec import Struct

from .errors import NotAuthorised, UsageError
from .hooks import PATIENCE_S, PROJECT, WAITING, Action, Specs
from .log import Log

QUICK_S: Final = 0.1
"""A plain function that holds up the event loop for longer is named in the log, once."""
_LETS_GO_S: Final = 1.0
"""How long an `async` hook that was cancelled is waited for."""
_ANSWERED: Final = ("sandport_redact", "sandport_authorise")
"""Hooks whose answer counts; all others are told of an event."""


class Implementation:
    """One hook of one plugin."""

    def __init__(self, hook: str, plugin: str, found: pluggy.HookImpl) -> None:
        self.hook = hook
        self.plugin = plugin
        self._function = found.function
        self._takes_value = bool(found.argnames)
        self.is_async = inspect.iscoroutinefunction(found.function)

    def __call__(self, value: object) -> Any:
        """Call it; each hook has one argument, which it may do without."""
        return self._function(value) if self._takes_value else self._function()

    def __str__(self) -> str:
        return f"{self.hook} of the plugin {self.plugin}"


class Plugins:
    """What an embedder hung into its host.

    Args:
        plugins: Objects or modules with functions that are marked with `hookimpl`.
        log: Where failures of theirs are noted, and all else of the host.

    Raises:
        UsageError: One of them cannot be used; none was called.

    Attributes:
        log: The same log, redacted.
    """

    def __init__(self, plugins: Sequence[object], log: Log) -> None:
        self._implementations = _registered(plugins)
        self.log = log.redacted_by(self.redact) if self.hears("sandport_redact") else log
        self._mailboxes: dict[str, Mailbox] = {}
        self._blamed: set[tuple[str, str]] = set()

    def hears(self, *hooks: str) -> bool:
        """Whether somebody implements one of these."""
        return any(self._implementations[hook] for hook in hooks)

    # -------------------------------------------------------------- events

    def tell(self, hook: str, event: Struct) -> None:
        """Tell everybody of an event; raises nothing, waits for nothing. On the host's event loop."""
        for implementation in self._implementations[hook]:
            if implementation.is_async:
                self._mailbox(implementation.plugin).put(implementation, event)
            else:
                self._call(implementation, event)

    def _call(self, implementation: Implementation, event: Struct) -> None:
        began_s = time.perf_counter()
        try:
            answer = implementation(event)
        except (Exception, asyncio.CancelledError) as error:  # noqa: BLE001 - the embedder's; the run goes on
            self.blame(implementation, f"failed: {error!r}")
            return
        if inspect.iscoroutine(answer):
            answer.close()
            self.blame(implementation, "answered a coroutine that nobody awaits; define it with `async def`")
        elif (took_s := time.perf_counter() - began_s) > QUICK_S:
            self.blame(implementation, f"held up the event loop for {took_s:.1f} s; make it `async`, or quick")

    def _mailbox(self, plugin: str) -> Mailbox:
        mailbox = self._mailboxes.get(plugin)
        if mailbox is None:
            mailbox = self._mailboxes[plugin] = Mailbox(self)
        return mailbox

    def blame(self, implementation: Implementation, what: str) -> None:
        """Note what was wrong with a hook of a plugin, the first time."""
        key = (implementation.plugin, implementation.hook)
        if key not in self._blamed:
            self._blamed.add(key)
            self.log("error", f"{implementation} {what}; the run goes on, and more of it is not logged")

    async def finish(self) -> None:
        """Wait for what is still to be told, so long as one call may take; what is not told then never is."""
        working = [box.task for box in self._mailboxes.values() if box.task is not None and not box.task.done()]
        if not working:
            return
        _, late = await asyncio.wait(working, timeout=PATIENCE_S)
        for task in late:
            task.cancel()
        if late:
            await asyncio.wait(late, timeout=2 * _LETS_GO_S)
            self.log("error", f"{len(late)} plugins were not told of everything before the host closed")

    # -------------------------------------------------------------- answers

    def redact(self, text: str) -> str:
        """The text as it may be written; in place of one that cannot be redacted, why."""
        for implementation in self._implementations["sandport_redact"]:
            try:
                answer = implementation(text)
            except (Exception, asyncio.CancelledError) as error:  # noqa: BLE001 - what it says may have the text
                return f"[withheld: {implementation} failed with {type(error).__name__}]"
            if not isinstance(answer, str):
                if inspect.iscoroutine(answer):
                    answer.close()
                return f"[withheld: {implementation} answered {type(answer).__name__} and no text]"
            text = answer
        return text

    async def authorise(self, action: Action) -> None:
        """Ask everybody whether this may be done.

        Raises:
            NotAuthorised: Somebody refuses, or failed over it.
        """
        for implementation in self._implementations["sandport_authorise"]:
            reason = await self._refusal(implementation, action)
            if reason is not None:
                what = action.lease_id or action.sandbox_id or action.environment
                raise NotAuthorised(f"{action.verb} {what}: {implementation.plugin} refuses: {reason}")

    async def _refusal(self, implementation: Implementation, action: Action) -> str | None:
        try:
            answer = implementation(action)
            if inspect.isawaitable(answer):
                answer = await _within_patience(answer)
        except TimeoutError:
            return f"its answer took longer than {PATIENCE_S:g} s"
        except asyncio.CancelledError as error:
            if _is_cancelled():
                raise
            return f"it failed: {error!r}"
        except Exception as error:  # noqa: BLE001 - the embedder's; whatever it is, nobody said yes
            return f"it failed: {error!r}"
        if answer is None or isinstance(answer, str):
            return answer
        return f"it answered {type(answer).__name__}, which is neither a reason nor None"


class Mailbox:
    """The events for one plugin's `async` hooks: told one at a time, in order, each within bounds."""

    def __init__(self, plugins: Plugins) -> None:
        self._plugins = plugins
        self._events: deque[tuple[Implementation, Struct]] = deque()
        self.task: asyncio.Task[None] | None = None

    def put(self, implementation: Implementation, event: Struct) -> None:
        """Have it told; dropped where too many wait."""
        if len(self._events) >= WAITING:
            self._plugins.blame(implementation, f"is so slow that {WAITING} events wait, and later ones are dropped")
            return
        self._events.append((implementation, event))
        if self.task is None or self.task.done():
            self.task = asyncio.get_running_loop().create_task(self._serve(), name="sandport plugin")

    async def _serve(self) -> None:
        while self._events:
            await self._tell(*self._events.popleft())

    async def _tell(self, implementation: Implementation, event: Struct) -> None:
        # In a task of its own: one that does not heed its cancel must not hold up the next event.
        telling = asyncio.get_running_loop().create_task(implementation(event), name=f"sandport {implementation}")
        try:
            await asyncio.wait((telling,), timeout=PATIENCE_S)
        finally:
            if not telling.done():
                telling.cancel()
                await asyncio.wait((telling,), timeout=_LETS_GO_S)
                self._plugins.blame(implementation, "was cancelled: it took too long")
        if telling.done() and not telling.cancelled() and (error := telling.exception()) is not None:
            self._plugins.blame(implementation, f"failed: {error!r}")


async def _within_patience(answer: Awaitable[Any]) -> Any:
    async with asyncio.timeout(PATIENCE_S):
        return await answer


def _is_cancelled() -> bool:
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


def _registered(plugins: Sequence[object]) -> dict[str, list[Implementation]]:
    """Every hook's implementations in the order of the calls."""
    manager = pluggy.PluginManager(PROJECT)
    manager.add_hookspecs(Specs)
    hooks = sorted(name for name in vars(Specs) if name.startswith(f"{PROJECT}_"))
    names: set[str] = set()
    named: list[tuple[str, object]] = []
    for plugin in plugins:
        name = _name(plugin, names)
        if isinstance(plugin, type):
            raise UsageError(f"the plugin {name} is a class; give an object of it")
        names.add(name)
        named.append((name, plugin))
    # pluggy has the last one that was registered first.
    for name, plugin in reversed(named):
        try:
            manager.register(plugin, name)
            manager.check_pending()
        except (pluggy.PluginValidationError, ValueError) as error:
            raise UsageError(f"the plugin {name} cannot be used: {error}\nthe hooks are: {', '.join(hooks)}") from error
        if not manager.get_hookcallers(plugin):
            raise UsageError(
                f"the plugin {name} implements no hook: mark its functions with sandport.hooks.hookimpl\n"
                f"the hooks are: {', '.join(hooks)}"
            )
    return {
        hook: [_usable(hook, found) for found in reversed(getattr(manager.hook, hook).get_hookimpls())]
        for hook in hooks
    }


def _name(plugin: object, taken: set[str]) -> str:
    name = getattr(plugin, "__name__", None)
    plain = name if isinstance(name, str) else type(plugin).__qualname__
    number, unique = 1, plain
    while unique in taken:
        number += 1
        unique = f"{plain} ({number})"
    return unique


def _usable(hook: str, found: pluggy.HookImpl) -> Implementation:
    implementation = Implementation(hook, found.plugin_name, found)
    if found.hookwrapper or found.wrapper:
        raise UsageError(f"{implementation} is a wrapper, which hooks of a host cannot be")
    if inspect.isgeneratorfunction(found.function) or inspect.isasyncgenfunction(found.function):
        raise UsageError(f"{implementation} is a generator, which nobody iterates")
    if hook == "sandport_redact" and implementation.is_async:
        raise UsageError(f"{implementation} is async; a log record waits for nothing")
    return implementation
