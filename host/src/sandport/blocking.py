"""The same surface without `async`: for scripts, notebooks, and programs that have no event loop or have one already.

```python
from sandport import blocking

with blocking.Host.open() as host, host.lease("local") as sandbox:
    outcome = sandbox.execute(["echo", "hello"])
    print(outcome.exit_code, outcome.stdout.decode())
```

Each class here holds one of the asynchronous ones and has its methods under the same names, with the same arguments,
results and errors; `Host.abandon` and `Host.store` alone are not here. An `async with` becomes a `with`, an `async for`
a `for`. The host runs on an event loop in a thread of its own, so the thread that calls may have a loop that runs, as a
notebook's has. Several threads may use one host.

Callbacks (`on_output`, `on_lost`, `is_run_live`) and the hooks of plugins are called in that other thread, and hold up
the host while they run; they must not call back into it.

A Ctrl-C in the middle of a call cancels the call, and leaves the blocks around it in order: leases end. They also end
with a program, or a notebook's kernel, that leaves no block: one that was opened with `contextlib.ExitStack`, say.
"""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine, Generator, Iterator
from concurrent.futures import Future
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from typing import TYPE_CHECKING, Any, Concatenate, Generic, ParamSpec, TypeVar

from anyio.from_thread import BlockingPortal, start_blocking_portal

from . import host as _host
from . import process as _process
from . import sandbox as _sandbox

if TYPE_CHECKING:
    from sandport_protocol.v1 import LeaseResult, StreamName

    from .store.records import Ref

__all__ = ["Host", "Process", "Sandbox"]

P = ParamSpec("P")
R = TypeVar("R")
It = TypeVar("It")
Other = TypeVar("Other")


class _Mirror(Generic[It]):
    """Something asynchronous, and the way to the loop that it lives on."""

    def __init__(self, it: It, portal: BlockingPortal) -> None:
        self._it = it
        self._portal = portal

    def _call(self, call: Callable[[], Coroutine[Any, Any, R]]) -> R:
        future: Future[R] = self._portal.start_task_soon(call)
        try:
            return future.result()
        finally:
            # Whoever waits may be interrupted by anything that the handler of a signal raises, and the call ends with
            # that. One that is over, whether it answered or raised, stays as it is.
            future.cancel()


def _method(call: Callable[Concatenate[It, P], Coroutine[Any, Any, R]]) -> Callable[Concatenate[_Mirror[It], P], R]:
    """A method that waits for the one of the same name."""

    @functools.wraps(call)
    def blocking(self: _Mirror[It], /, *arguments: P.args, **options: P.kwargs) -> R:
        return self._call(functools.partial(call, self._it, *arguments, **options))

    return blocking


def _block(
    begin: Callable[Concatenate[It, P], AbstractAsyncContextManager[Other]],
    mirror: Callable[[Other, BlockingPortal], R],
) -> Callable[Concatenate[_Mirror[It], P], AbstractContextManager[R]]:
    """A method that answers a block; what it gives is mirrored too."""

    @functools.wraps(begin)
    @contextlib.contextmanager
    def blocking(self: _Mirror[It], /, *arguments: P.args, **options: P.kwargs) -> Generator[R]:
        try:
            with self._portal.wrap_async_context_manager(begin(self._it, *arguments, **options)) as inside:
                yield mirror(inside, self._portal)
        except RuntimeError:
            # The end of the program came before the end of the block, and has ended what it held.
            if not _END.reached:
                raise

    return blocking


class ProcessInput(_Mirror[_process.ProcessInput]):
    """A process's input; see `sandport.process.ProcessInput`."""

    write = _method(_process.ProcessInput.write)
    close = _method(_process.ProcessInput.close)


class Process(_Mirror[_process.Process]):
    """A process in a sandbox; see `sandport.Process`."""

    wait = _method(_process.Process.wait)
    signal = _method(_process.Process.signal)
    kill = _method(_process.Process.kill)
    resize = _method(_process.Process.resize)

    @property
    def id(self) -> str:
        """The host's name for it."""
        return self._it.id

    @property
    def stdin(self) -> ProcessInput:
        """Its input."""
        return ProcessInput(self._it.stdin, self._portal)

    @property
    def running(self) -> bool:
        """Whether its end has not been told yet."""
        return self._it.running

    def output(self) -> Iterator[tuple[StreamName, bytes]]:
        """Every piece of output as it comes; see `sandport.Process.output`."""
        pieces = self._it.output()
        try:
            while (piece := self._call(lambda: _next(pieces))) is not None:
                yield piece
        finally:
            self._call(lambda: _closed(pieces))


async def _next(pieces: AsyncIterator[R]) -> R | None:
    return await anext(pieces, None)


async def _closed(pieces: AsyncIterator[object]) -> None:
    assert isinstance(pieces, AsyncGenerator)  # so that what it holds is let go now, and not when it is collected
    await pieces.aclose()


class Sandbox(_Mirror[_sandbox.Sandbox]):
    """A leased sandbox; see `sandport.Sandbox`."""

    execute = _method(_sandbox.Sandbox.execute)
    start = _block(_sandbox.Sandbox.start, Process)
    shell = _block(_sandbox.Sandbox.shell, Process)
    sync_in = _method(_sandbox.Sandbox.sync_in)
    sync_out = _method(_sandbox.Sandbox.sync_out)
    read_bytes = _method(_sandbox.Sandbox.read_bytes)
    write_bytes = _method(_sandbox.Sandbox.write_bytes)
    keep = _method(_sandbox.Sandbox.keep)
    destroy = _method(_sandbox.Sandbox.destroy)

    @property
    def id(self) -> str:
        """The sandbox id, which is also on the vendor's resource."""
        return self._it.id

    @property
    def lease_id(self) -> str:
        """The lease's, by which it is found again where it is kept."""
        return self._it.lease_id

    @property
    def lease(self) -> LeaseResult:
        """What the provider answered at the acquire."""
        return self._it.lease

    @property
    def ref(self) -> Ref:
        """Which generation of it is leased."""
        return self._it.ref

    @property
    def working_directory(self) -> bytes:
        """Absolute path, in the sandbox, of the directory that relative paths start from."""
        return self._it.working_directory

    @property
    def remaining_s(self) -> float | None:
        """Seconds until the sandbox ends by itself; None where nobody ends it."""
        return self._it.remaining_s

    @property
    def kept(self) -> bool:
        """Whether it outlives its block."""
        return self._it.kept


class _Open:
    """A thread with a loop, and a host on it."""

    def __init__(self, begin: Callable[[], AbstractAsyncContextManager[_host.Host]]) -> None:
        self._thread = start_blocking_portal("asyncio")
        self.portal = self._thread.__enter__()
        try:
            self._block = self.portal.wrap_async_context_manager(begin())
            self.host = self._block.__enter__()
        except BaseException as error:
            self._stop(error)
            raise

    def close(self, error: BaseException | None) -> None:
        """End both, unless the end of the program has; what is raised is the host's own."""
        if self not in _END.open:
            return
        _END.open.discard(self)
        trace = None if error is None else error.__traceback__
        try:
            self._block.__exit__(None if error is None else type(error), error, trace)
        finally:
            self._stop(error)

    def abandon(self) -> None:
        """The program ends, and nobody left the block: end what it holds, or its thread is waited for for ever."""
        with contextlib.suppress(Exception):  # nobody is there any more; what failed is in the journal and in the log
            self._block.__exit__(None, None, None)
        self._stop(SystemExit())

    def _stop(self, error: BaseException | None) -> None:
        # With an error what still waits on the loop is cancelled, such as blocks of leases that nobody left.
        with contextlib.suppress(*(() if error is None else (type(error),))):
            self._thread.__exit__(None if error is None else type(error), error, None)


class _ProgramEnd:
    """What is still open when the program ends; a program, or a notebook, may leave no block."""

    def __init__(self) -> None:
        self.open: set[_Open] = set()
        self.reached = False

    def __call__(self) -> None:
        self.reached = True
        while self.open:
            self.open.pop().abandon()


_END = _ProgramEnd()
# What is registered with `atexit` runs after all threads were waited for. This is where the standard library's own
# executors end theirs, too; it is called in the reverse order, so before them.
threading._register_atexit(_END)  # type: ignore[attr-defined]


def _opened(
    begin: Callable[P, AbstractAsyncContextManager[_host.Host]],
) -> Callable[P, AbstractContextManager[Host]]:
    """What begins a thread with a loop, and a host on it."""

    @functools.wraps(begin)
    @contextlib.contextmanager
    def blocking(*arguments: P.args, **options: P.kwargs) -> Generator[Host]:
        opened = _Open(functools.partial(begin, *arguments, **options))
        _END.open.add(opened)
        try:
            yield Host(opened.host, opened.portal)
        except BaseException as error:
            opened.close(error)
            raise
        else:
            opened.close(None)

    return blocking


class Host(_Mirror[_host.Host]):
    """Leases sandboxes; see `sandport.Host`. Made by `open`."""

    open = staticmethod(_opened(_host.Host.open))
    lease = _block(_host.Host.lease, Sandbox)
    attach = _block(_host.Host.attach, Sandbox)
    describe = _method(_host.Host.describe)
    probe = _method(_host.Host.probe)
    validate = _method(_host.Host.validate)
    leases = _method(_host.Host.leases)
    end_lease = _method(_host.Host.end_lease)
    clean_up = _method(_host.Host.clean_up)
    find_unknown = _method(_host.Host.find_unknown)
    end_unknown = _method(_host.Host.end_unknown)
    forget = _method(_host.Host.forget)

    def provider_names(self) -> tuple[str, ...]:
        """Every provider that is installed or configured, sorted; nothing is started."""
        return self._it.provider_names()

    @property
    def instance(self) -> str:
        """The id of this host among those of its home."""
        return self._it.instance
