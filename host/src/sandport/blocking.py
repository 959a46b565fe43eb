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
the host while they run. A call back into it raises UsageError: hand what is to be done to another thread.

A Ctrl-C in the middle of a call, or while a block is entered, cancels that, waits for the end of it, and leaves the
blocks around it in order: leases end. One while a block is left waits on until it is. A second Ctrl-C in either wait is
raised at once, and the end goes on in the other thread. It is the same with whatever else the handler of a signal
raises.

Leases also end with a program, or a notebook's kernel, that leaves no block: one that was opened with
`contextlib.ExitStack`, say. A block that is not left ends when nothing refers to it any more, so hold what `open` or
`lease` returned for as long as you use what it gave. After its block a host raises UsageError, in a forked child
StoreClosed; there its blocks are left without effect, for they are the parent's.
"""

from __future__ import annotations

import functools
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine, Iterator
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from typing import TYPE_CHECKING, Any, Concatenate, Generic, ParamSpec, TypeVar

from . import host as _host
from . import process as _process
from . import sandbox as _sandbox
from .blocking_thread import Block, LoopThread, OwnThread, Work

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

    def __init__(self, it: It, thread: LoopThread) -> None:
        self._it = it
        self._thread = thread


def _method(call: Callable[Concatenate[It, P], Coroutine[Any, Any, R]]) -> Callable[Concatenate[_Mirror[It], P], R]:
    """A method that waits for the one of the same name."""

    @functools.wraps(call)
    def blocking(self: _Mirror[It], /, *arguments: P.args, **options: P.kwargs) -> R:
        return self._thread.call(functools.partial(call, self._it, *arguments, **options))

    return blocking


def _block(
    begin: Callable[Concatenate[It, P], AbstractAsyncContextManager[Other]],
    mirror: Callable[[Other, LoopThread], R],
) -> Callable[Concatenate[_Mirror[It], P], AbstractContextManager[R]]:
    """A method that answers a block; what it gives is mirrored too."""

    @functools.wraps(begin)
    def blocking(self: _Mirror[It], /, *arguments: P.args, **options: P.kwargs) -> AbstractContextManager[R]:
        return Block(self._thread, begin(self._it, *arguments, **options), mirror)

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
        return ProcessInput(self._it.stdin, self._thread)

    @property
    def running(self) -> bool:
        """Whether its end has not been told yet."""
        return self._it.running

    def output(self) -> Iterator[tuple[StreamName, bytes]]:
        """Every piece of output as it comes; see `sandport.Process.output`."""
        pieces = self._it.output()
        try:
            while (piece := self._thread.call(lambda: _next(pieces))) is not None:
                yield piece
        finally:
            # Not waited for: whoever lets an iteration go may be the collector, in any thread. What comes after this on
            # the loop finds it closed.
            self._thread.begin(Work(lambda: _closed(pieces)))


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


def _opened(
    begin: Callable[P, AbstractAsyncContextManager[_host.Host]],
) -> Callable[P, AbstractContextManager[Host]]:
    """What begins a thread with a loop, and a host on it."""

    @functools.wraps(begin)
    def blocking(*arguments: P.args, **options: P.kwargs) -> AbstractContextManager[Host]:
        return OwnThread(begin(*arguments, **options), Host)

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
