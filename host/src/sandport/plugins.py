"""The plugins of one host: registered once, then called one by one, each failure kept to itself.

pluggy checks and orders them; the calls are made here, since its own stop at the first that raises. What is promised to
whoever writes one is in `hooks`.
"""

from __future__ import annotations

import asyncio
import inspect
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Final, Literal

import pluggy
from msgspec import Struct

from .closing import outliving
from .errors import NotAuthorised, UsageError
from .hooks import PATIENCE_S, PROJECT, WAITING, Action, Specs
from .installed_plugins import find_plugin, load_plugin
from .log import Log
from .worker.stderr import Level

QUICK_S: Final = 0.25
"""A plain function that holds up the event loop for longer is named in the log, once."""
Fault = Literal["failed", "was cancelled", "is too slow", "held up the event loop"]
_LETS_GO_S: Final = 1.0
"""How long an `async` hook that was cancelled is waited for."""


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


Blame = Callable[[Implementation, Fault, str], None]


class Plugins:
    """What an embedder hung into its host.

    Args:
        plugins: Objects or modules with functions that are marked with `hookimpl`; a string names an installed one.
        log: Where failures of theirs are noted, and all else of the host.
        patience_s: How long one call of an `async` hook may take.
        waiting: How many events may wait for one plugin.
        quick_s: What a plain function may take unnoticed.

    Raises:
        UsageError: One of them cannot be used; none was called.

    Attributes:
        log: The same log, redacted.
    """

    def __init__(
        self,
        plugins: Sequence[object],
        log: Log,
        *,
        patience_s: float = PATIENCE_S,
        waiting: int = WAITING,
        quick_s: float = QUICK_S,
    ) -> None:
        self._quick_s = quick_s
        self._patience_s = patience_s
        self._waiting = waiting
        self._implementations = _registered(plugins)
        self.log = log.redacted_by(self.redact) if self.hears("sandport_redact") else log
        self._mailboxes: dict[str, Mailbox] = {}
        self._blamed: set[tuple[str, str, Fault]] = set()

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
            self.blame(implementation, "failed", repr(error))
            return
        if inspect.iscoroutine(answer):
            answer.close()
            self.blame(implementation, "failed", "it answered a coroutine, which nobody awaits; use `async def`")
        elif (took_s := time.perf_counter() - began_s) > self._quick_s:
            self.blame(implementation, "held up the event loop", f"for {took_s:.1f} s; make it quick, or `async`")

    def _mailbox(self, plugin: str) -> Mailbox:
        mailbox = self._mailboxes.get(plugin)
        if mailbox is None:
            mailbox = Mailbox(self.blame, patience_s=self._patience_s, waiting=self._waiting)
            self._mailboxes[plugin] = mailbox
        return mailbox

    def blame(self, implementation: Implementation, fault: Fault, how: str) -> None:
        """Note what was wrong with a hook of a plugin, the first time of each kind."""
        key = (implementation.plugin, implementation.hook, fault)
        if key not in self._blamed:
            self._blamed.add(key)
            level: Level = "warning" if fault == "held up the event loop" else "error"
            self.log(level, f"{implementation} {fault}: {how}; all else goes on, and no more of this is logged")

    async def finish(self) -> None:
        """Wait for what is still to be told, so long as one call may take; what is not told then never is."""
        working = [box.task for box in self._mailboxes.values() if box.task is not None and not box.task.done()]
        if not working:
            return
        _, late = await asyncio.wait(working, timeout=self._patience_s)
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
        limit = asyncio.timeout(self._patience_s)
        try:
            answer = implementation(action)
            if inspect.isawaitable(answer):
                async with limit:
                    answer = await answer
        except TimeoutError as error:
            return f"its answer took longer than {self._patience_s:g} s" if limit.expired() else f"it failed: {error!r}"
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
    """The events for one plugin's `async` hooks: told one at a time, in order, each within bounds.

    Args:
        blame: Told what was wrong.
        patience_s: How long one call may take.
        waiting: How many events may wait.
    """

    def __init__(self, blame: Blame, *, patience_s: float, waiting: int) -> None:
        self._blame = blame
        self._patience_s = patience_s
        self._waiting = waiting
        self._events: deque[tuple[Implementation, Struct]] = deque()
        self.task: asyncio.Task[None] | None = None

    def put(self, implementation: Implementation, event: Struct) -> None:
        """Have it told; dropped where too many wait."""
        if len(self._events) >= self._waiting:
            self._blame(implementation, "is too slow", f"{self._waiting} events wait, and later ones are dropped")
            return
        self._events.append((implementation, event))
        if self.task is None or self.task.done():
            self.task = outliving(self._serve(), name="sandport plugin")

    async def _serve(self) -> None:
        while self._events:
            await self._tell(*self._events.popleft())

    async def _tell(self, implementation: Implementation, event: Struct) -> None:
        # In a task of its own: one that does not heed its cancel must not hold up the next event.
        telling = asyncio.get_running_loop().create_task(implementation(event), name=f"sandport {implementation}")
        try:
            await asyncio.wait((telling,), timeout=self._patience_s)
        finally:
            if cut := not telling.done():
                telling.cancel()
                telling.add_done_callback(_seen)
                await asyncio.wait((telling,), timeout=_LETS_GO_S)
                self._blame(implementation, "was cancelled", f"it took longer than {self._patience_s:g} s")
        if not cut:
            error = asyncio.CancelledError() if telling.cancelled() else telling.exception()
            if error is not None:
                self._blame(implementation, "failed", repr(error))


def _seen(task: asyncio.Task[Any]) -> None:
    """What it raises after it was cut is of no interest to anybody."""
    if not task.cancelled():
        task.exception()


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
    for given in plugins:
        plugin = load_plugin(find_plugin(given)) if isinstance(given, str) else given
        name = _unique(given if isinstance(given, str) else _name(plugin), names)
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


def _name(plugin: object) -> str:
    name = getattr(plugin, "__name__", None)
    return name if isinstance(name, str) else type(plugin).__name__


def _unique(plain: str, taken: set[str]) -> str:
    number, unique = 1, plain
    while unique in taken:
        number += 1
        unique = f"{plain} ({number})"
    return unique


def _usable(hook: str, found: pluggy.HookImpl) -> Implementation:
    implementation = Implementation(hook, found.plugin_name, found)
    if found.hookwrapper or found.wrapper:
        raise UsageError(f"{implementation} is a wrapper, which hooks of a host cannot be; make it a plain function")
    if inspect.isgeneratorfunction(found.function) or inspect.isasyncgenfunction(found.function):
        raise UsageError(f"{implementation} is a generator, which nobody iterates; make it a plain function")
    if hook == "sandport_redact" and implementation.is_async:
        raise UsageError(f"{implementation} is async; a log record waits for nothing: make it a plain function")
    return implementation
