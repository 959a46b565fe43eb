"""Making, opening and ending a sandbox: what happens to its folder and its init, and under which lock.

Above: the provider's methods. Below: `Sandbox`, which is what this worker holds of one that is there; `places` and
`survivors` for what is there without an init. Each step leaves something that a list shows and a destroy ends: a worker
may be killed before the next one.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import time
from typing import TYPE_CHECKING, Literal

from sandport_sdk.v1 import errors

from .cgroup_places import CgroupUnavailable
from .cgroups import Cgroup
from .errors import limit_failed, sandbox_failed
from .finishing import to_its_end
from .launch import InitProcess
from .machine import NoBubblewrap
from .sandbox import ANNOUNCE_S, END_S, PAUSE_S, NotUp, Sandbox
from .survivors import sweep

if TYPE_CHECKING:
    from .bubblewrap import Boundary
    from .isolation import Isolation
    from .places import Place, Record

LOCK_S = END_S + 10.0
"""What another worker gets that starts an init, or ends one and removes what it has left."""

State = Literal["attached", "gone", "unreachable"]


async def create(
    loop: asyncio.AbstractEventLoop,
    place: Place,
    *,
    store_id: str,
    ttl_ms: int,
    grace_ms: int,
    credit_bytes: int,
    isolation: Isolation,
    keep: bool = False,
    boundary: Boundary | None = None,
) -> Sandbox:
    """Make a sandbox; whatever goes wrong, and wherever it is cut, nothing of it is left.

    Raises:
        InvalidParams: The id was used before.
        NotSupported: A limit of the boundary cannot be had.
        NotUp: Its init did not come up.
        WireError: The machine does not let us.
    """
    try:
        place.reserve()
        record = place.create(store_id=store_id, ttl_ms=ttl_ms, keep=keep, boundary=boundary)
    except FileExistsError:
        place.release()
        raise errors.InvalidParams(
            f"there is a sandbox {place.sandbox_id} already; an id serves one create",
            detail=errors.Detail(field="sandboxId"),
            dispatched="no",
        ) from None
    except OSError as error:
        place.release()
        raise sandbox_failed(error, dispatched="no") from error
    try:
        return await _start(loop, place, record, isolation, grace_ms=grace_ms, credit_bytes=credit_bytes)
    finally:
        place.release()


async def _start(
    loop: asyncio.AbstractEventLoop,
    place: Place,
    record: Record,
    isolation: Isolation,
    *,
    grace_ms: int,
    credit_bytes: int,
) -> Sandbox:
    """Start the init of a sandbox whose folder was just made; where that fails, the folder goes."""
    sandbox = Sandbox(loop, place, record, credit_bytes=credit_bytes)
    lock = None
    try:
        lock = place.lock()
        if lock is None or place.read_record() != record:
            raise FileNotFoundError(errno.ENOENT, "the sandbox is destroyed while it is made", str(place.path))
        machine = await isolation.machine() if record.boundary is not None else None
        await sandbox.start_init(machine, grace_ms=grace_ms)
    except BaseException as error:
        sandbox.close()
        await to_its_end(asyncio.to_thread(_discard, record, place))
        if isinstance(error, OSError):
            raise sandbox_failed(error, dispatched="no") from error
        if isinstance(error, CgroupUnavailable):
            raise limit_failed(error) from error
        raise
    finally:
        if lock is not None:
            os.close(lock)
    return sandbox


async def attach(
    loop: asyncio.AbstractEventLoop,
    place: Place,
    *,
    grace_ms: int,
    credit_bytes: int,
    isolation: Isolation,
    keep: bool | None = None,
) -> tuple[State, Sandbox | None]:
    """Open a sandbox that is there; where its init was killed, end what that left and start another.

    Raises:
        WireError: The machine does not let us; the sandbox is as it was.
    """
    try:
        return await _attach(loop, place, isolation, grace_ms=grace_ms, credit_bytes=credit_bytes, keep=keep)
    except NotUp as error:
        obstacle = None if error.isolated else await isolation.obstacle()
        raise not_up(error, obstacle) from error
    except NoBubblewrap as error:
        raise errors.Unavailable(
            f"the sandbox is isolated, and cannot be any more: {error}", dispatched="no"
        ) from error
    except CgroupUnavailable as error:
        raise limit_failed(error) from error
    except OSError as error:
        raise sandbox_failed(error, dispatched="no") from error


def not_up(error: NotUp, obstacle: str | None) -> errors.WireError:
    """What to answer where an init did not come up; `obstacle` is why there is no isolation, where that is why."""
    why = f"the sandbox cannot be isolated: {obstacle}" if obstacle else f"the sandbox's init did not come up: {error}"
    return errors.Unavailable(why, dispatched="no")


async def _attach(
    loop: asyncio.AbstractEventLoop,
    place: Place,
    isolation: Isolation,
    *,
    grace_ms: int,
    credit_bytes: int,
    keep: bool | None,
) -> tuple[State, Sandbox | None]:
    record = place.read_record()
    if record is not None:
        sandbox = Sandbox(loop, place, record, credit_bytes=credit_bytes)
        copied = place.is_copy(record)
        if not copied and await sandbox.connect(grace_ms=grace_ms, keep=keep):
            return "attached", sandbox
        init = InitProcess.of(loop, place.read_identity(), record.token)
        # The original's goes on; two that take each other's processes for their own must not run at once.
        if init is not None and not await _has_ended(init, 0.0 if copied else ANNOUNCE_S):
            return "unreachable", None
    lock = await _locked(place)
    if lock is None:
        return ("unreachable" if place.exists() else "gone"), None
    try:
        record = place.read_record()
        if record is None or record.expires_at_ms <= time.time_ns() // 1_000_000:
            try:
                await _remove(loop, place, grace_ms=grace_ms)
            except (errors.Unavailable, OSError):
                return "unreachable", None
            return "gone", None
        sandbox = Sandbox(loop, place, record, credit_bytes=credit_bytes)
        if not place.is_copy(record) and await sandbox.connect(grace_ms=grace_ms, keep=keep):
            return "attached", sandbox  # Another worker held the lock, and has started one.
        if await to_its_end(asyncio.to_thread(sweep, place, inits=True)):
            return "unreachable", None
        wanted = record._replace(keep=record.keep if keep is None else keep, folder=place.folder())
        if wanted != record:
            sandbox.record = wanted
            place.write_record(wanted)
        machine = await isolation.machine() if record.boundary is not None else None
        await sandbox.start_init(machine, grace_ms=grace_ms, revived=True)
    finally:
        os.close(lock)
    sandbox.lost_processes = True
    return "attached", sandbox


async def destroy(
    loop: asyncio.AbstractEventLoop, place: Place, attached: Sandbox | None, *, grace_ms: int
) -> Literal["destroyed", "gone"]:
    """End a sandbox, whether this worker is attached to it or not; returns once nothing of it is left.

    Raises:
        Unavailable: Something of it could not be ended or removed in time; a repeat goes on with it.
    """
    state: Literal["destroyed", "gone"] = "destroyed" if place.exists() else "gone"
    if attached is not None and attached.alive:
        state = "destroyed"
        await _end_of(await attached.ask_to_end(), place)
    if place.exists():
        await _remove_locked(loop, place, grace_ms=grace_ms)
    if attached is not None:
        await attached.init_has_ended()
    return state


async def _remove_locked(loop: asyncio.AbstractEventLoop, place: Place, *, grace_ms: int) -> None:
    lock = None
    try:
        lock = await _locked(place)
        if lock is not None:
            await _remove(loop, place, grace_ms=grace_ms)
        elif place.exists():
            raise errors.Unavailable("another worker starts or ends this sandbox just now", dispatched="no")
    except OSError as error:
        raise sandbox_failed(error, dispatched="yes") from error
    finally:
        if lock is not None:
            os.close(lock)


async def _locked(place: Place) -> int | None:
    """The place's lock; None where it is gone, or another worker does not let go of it."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + LOCK_S
    with contextlib.suppress(FileNotFoundError):
        lock = place.lock()
        while lock is None and loop.time() < deadline:
            await asyncio.sleep(PAUSE_S)
            lock = place.lock()
        if lock is None or place.is_locked_by(lock):
            return lock
        os.close(lock)  # It was removed while we waited.
    return None


async def _remove(loop: asyncio.AbstractEventLoop, place: Place, *, grace_ms: int) -> None:
    """End the init that this worker is not attached to and what one has left, then the place; its lock is held.

    Raises:
        Unavailable: Something could not be ended.
        OSError: Something could not be removed.
    """
    record = place.read_record()
    sandbox = Sandbox(loop, place, record, credit_bytes=0) if record is not None else None
    init = None
    try:
        if place.is_copy(record):
            pass  # what runs belongs to the folder that this one was copied from
        elif sandbox is not None and await sandbox.connect(grace_ms=grace_ms):
            await _end_of(await sandbox.ask_to_end(), place)
        else:
            init = InitProcess.of(loop, place.read_identity(), record.token if record is not None else None)
            if init is not None and place.read_record() is not None:
                init.kill_tree()  # It runs, and does not listen.
            await _end_of(init, place)
    finally:
        if sandbox is not None:
            sandbox.close()
        if init is not None:
            init.close()
    if place.exists():
        left = await to_its_end(asyncio.to_thread(sweep, place, inits=True))
        if left:
            raise errors.Unavailable(f"these processes of the sandbox do not end: {left}", dispatched="yes")
        await asyncio.to_thread(_discard, record, place)


def _discard(record: Record | None, place: Place) -> None:
    """Remove the cgroup that a sandbox has or, where its record is gone, may have; then its folder.

    Raises:
        OSError: Something in the cgroup does not end, or something cannot be removed.
    """
    if record is None or (record.boundary is not None and record.boundary.in_cgroup and not place.is_copy(record)):
        Cgroup.discard(place.sandbox_id)
    place.remove()


async def _end_of(init: InitProcess | None, place: Place) -> None:
    """Wait for an init that ends."""
    if init is not None and not await init.wait(END_S):
        raise errors.Unavailable(
            f"the sandbox has not ended within {END_S:g} s; its init goes on with it: {place.log_tail()}",
            dispatched="yes",
        )


async def _has_ended(init: InitProcess, timeout_s: float) -> bool:
    try:
        return await init.wait(timeout_s)
    finally:
        init.close()
