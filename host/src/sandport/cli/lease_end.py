"""`sandport leases end`."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Literal

import anyio
import msgspec
from msgspec import Struct

from sandport.configuration import Configuration, load
from sandport.errors import SandportError
from sandport.host import Host
from sandport.lease.view import process_of
from sandport.store.errors import InUse, Stale

from . import exit_codes
from .answers import answered
from .application import Settings
from .failures import Failure, failure_of
from .hosting import hosted
from .lease_facts import process_text
from .listing import put_json, put_lines
from .messages import REAP, say, unicode_text
from .records import Records
from .status import Status


class Ended(Struct, frozen=True, kw_only=True, rename="camel"):
    """What became of one that was to be ended."""

    asked: str
    lease: str | None = None
    name: str | None = None
    sandbox: str | None = None
    end: Literal["gone", "later", "not ours", "refused"]
    """Confirmed gone; tried again later; another process is at it; nothing was changed."""
    before: bool = False
    """It had ended before."""
    detail: str = ""
    error: Failure | None = None


def end_all(leases: Sequence[str], settings: Settings, *, force: bool, as_json: bool) -> int:
    """End them one by one, also where one fails; answers the exit code."""
    with answered(as_json=as_json):
        configuration = load(settings.config)
        found: list[Ended] = []
        anyio.run(_end_all, leases, configuration, settings, force, as_json, found, backend="asyncio")
    if as_json:
        put_json({"leases": found})
    if (code := settings.interrupts.exit_code) is not None:
        return code
    if any(one.end != "gone" and (one.error is None or one.error.code != exit_codes.USAGE) for one in found):
        return exit_codes.OURS
    return exit_codes.USAGE if any(one.end != "gone" for one in found) else 0


async def _end_all(
    leases: Sequence[str],
    configuration: Configuration,
    settings: Settings,
    force: bool,  # noqa: FBT001 - anyio.run passes by place
    as_json: bool,  # noqa: FBT001
    found: list[Ended],
) -> None:
    status = Status(quiet=False)
    async with hosted(configuration, settings.interrupts, Records(settings, usual="error")) as host:
        for asked in dict.fromkeys(leases):
            with status.doing(f"ending {asked}"):
                one = await _end(host, asked, force=force)
            found.append(one)
            _tell(one, as_json=as_json)
    if len(found) < len(set(leases)):
        say(f"interrupted; {len(set(leases)) - len(found)} were not ended")


async def _end(host: Host, asked: str, *, force: bool) -> Ended:
    try:
        leased = await host.store.leased(asked)
        lease = leased.lease
        attempted = await host.end_lease(lease.id, force=force)
    except SandportError as error:
        failure = failure_of(error)
        if holders := _holders(error):
            people = [await asyncio.to_thread(process_of, host.home.root, holder) for holder in holders]
            used = ", ".join(map(process_text, people))
            message = f"it is used by process {used}; --force ends it all the same"
            failure = msgspec.structs.replace(failure, message=message)
        return Ended(asked=asked, end="refused", detail=failure.message, error=failure)
    return Ended(
        asked=asked,
        lease=lease.id,
        name=lease.name,
        sandbox=attempted.sandbox_id,
        end=attempted.end,
        detail=unicode_text(attempted.detail),
        before=leased.sandbox.state == "gone" or leased.sandbox.generation != lease.generation,
    )


def _holders(error: SandportError) -> tuple[str, ...]:
    """The instances that stand in the way of an end without force."""
    if isinstance(error, InUse):
        return tuple(use.instance for use in error.uses)
    if isinstance(error, Stale) and error.row is not None and error.row.owner is not None:
        return (error.row.owner,)
    return ()


def _tell(one: Ended, *, as_json: bool) -> None:
    if one.end == "gone":
        if not as_json:
            put_lines([f"{one.asked}: had ended before" if one.before else f"{one.asked}: ended"])
    elif one.end == "refused":
        # An unknown one is named by its message already.
        named = one.error is not None and one.error.code == exit_codes.USAGE
        say(one.detail if named else f"{one.asked}: {one.detail}")
    elif one.end == "later":
        say(f"{one.asked}: its end is not confirmed: {one.detail}\nclean-up goes on with it; to go on now: {REAP}")
    else:
        say(f"{one.asked}: its end is left to another process: {one.detail}")
