"""Work that is finished although whoever waits for it is cancelled: the ends of calls, sandboxes and workers.

anyio's shield keeps out anyio's own scopes only. What asyncio itself cancels (its time-outs, its task groups, Ctrl-C)
would be cut in the middle of a clean-up, and a second cancel would cut what the first one began. Here the work runs in
a task of its own, and the cancel is passed on when it is over.
"""

from __future__ import annotations

import asyncio
from asyncio.tasks import _unregister_task  # documented, for who adds tasks of a kind of his own
from collections.abc import Coroutine
from typing import Any, TypeVar

import anyio

_T = TypeVar("_T")


def outliving(work: Coroutine[Any, Any, _T], *, name: str | None = None) -> asyncio.Task[_T]:
    """A task that is ended by whoever started it, and by nobody else; the caller must keep it.

    `asyncio.run` cancels at its end every task that `asyncio.all_tasks` names, all at once. Blocks of tasks that still
    run are left then, and the ends of their leases need what the host does by itself: its workers, and ends that are
    under way. So these are not named there.
    """
    task = asyncio.get_running_loop().create_task(work, name=name)
    _unregister_task(task)
    return task


async def finished(work: Coroutine[Any, Any, _T]) -> _T:
    """The result of the work, which must bound itself.

    Cancel: the work goes on to its end; the cancel is raised then.
    """
    task = outliving(work)
    await _outlast(task, None)
    return task.result()


async def finished_within(task: asyncio.Task[Any], limit_s: float) -> bool:
    """Whether the task was done within the limit; it runs on where it was not.

    Cancel: waits on, to the end or the limit; the cancel is raised then.
    """
    await _outlast(task, limit_s)
    return task.done()


async def _outlast(task: asyncio.Task[Any], limit_s: float | None) -> None:
    loop = asyncio.get_running_loop()
    end = None if limit_s is None else loop.time() + limit_s
    cut: asyncio.CancelledError | None = None
    # Without the shield a cancelled scope would cancel this wait again and again until it is left.
    with anyio.CancelScope(shield=True):
        while not task.done():
            left_s = None if end is None else end - loop.time()
            if left_s is not None and left_s <= 0:
                break
            try:
                await asyncio.wait((task,), timeout=left_s)
            except asyncio.CancelledError as error:
                cut = error
    if cut is not None:
        if task.done() and not task.cancelled():
            task.exception()  # seen: the cancel is what is raised, and the work reports its own failures
        raise cut
