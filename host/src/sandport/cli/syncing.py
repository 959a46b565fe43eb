"""From the words of `sandport sync` to a plan: everything that can be wrong without a sandbox is found here."""

from __future__ import annotations

import os

from msgspec import Struct

from sandport.configuration import load
from sandport.errors import UsageError

from .application import Settings
from .invocation import done
from .plan import HeldLease, Plan, Task, check_talk
from .report import Ids
from .transfer import Manner, Transfer, octal, patterns, size_bytes, transfer_in, transfer_out


class SyncWish(Struct, frozen=True, kw_only=True):
    """The options as they were given, those of both directions."""

    lease: str
    exclude: tuple[str, ...]
    gitignore: bool
    delete: bool
    dry_run: bool
    mode: str | None
    as_json: bool
    quiet: bool
    verbose: bool


class InWish(SyncWish, frozen=True, kw_only=True):
    """What `sandport sync in` was given."""

    local: str
    remote: str | None
    replace: bool
    follow_symlinks: bool


class OutWish(SyncWish, frozen=True, kw_only=True):
    """What `sandport sync out` was given."""

    remote: str
    local: str | None
    max_bytes: str | None
    max_entries: str | None


def sync(wish: InWish | OutWish, settings: Settings) -> int:
    """Do what was asked for; answers the exit code."""
    return done(lambda: plan_of_sync(wish, settings), settings, Ids(), as_json=wish.as_json)


def plan_of_sync(wish: InWish | OutWish, settings: Settings) -> Plan:
    """Check the options, and look for what they name on this machine.

    Raises:
        UsageError: Something is wrong; the message names the option and the fix.
    """
    if not wish.lease:
        raise UsageError("sync: the lease's id or name is empty; sandport leases shows those that there are")
    talk = check_talk(quiet=wish.quiet, verbose=wish.verbose)
    transfer = _into(wish) if isinstance(wish, InWish) else _out_of(wish)
    return Plan(
        configuration=load(settings.config),
        lease=HeldLease(which=wish.lease),
        task=Task(
            into=(transfer,) if isinstance(wish, InWish) else (),
            out=(transfer,) if isinstance(wish, OutWish) else (),
            cwd=None,
            env={},
            timeout_s=None,
            stdin=None,
            command=(),
            as_json=wish.as_json,
            talk=talk,
        ),
        ids=Ids(),
    )


def _into(wish: InWish) -> Transfer:
    if wish.replace and wish.delete:
        raise UsageError("--replace and --delete: give one of them; what is replaced has nothing that could be deleted")
    manner = Manner(
        exclude=patterns(wish.exclude),
        gitignore=wish.gitignore,
        follow_symlinks=wish.follow_symlinks,
        replace=wish.replace,
        delete=wish.delete,
        dry_run=wish.dry_run,
        mode=None if wish.mode is None else octal("--mode", wish.mode),
    )
    local, remote = _named(wish.local, "LOCAL"), None if wish.remote is None else _named(wish.remote, "REMOTE")
    transfer = transfer_in(local, remote, "sync in", manner)
    if wish.mode is not None and os.path.isdir(local):
        raise UsageError(f"--mode {wish.mode}: is for a single file; {local!r} is a folder, whose files keep their own")
    return transfer


def _out_of(wish: OutWish) -> Transfer:
    manner = Manner(
        exclude=patterns(wish.exclude),
        gitignore=wish.gitignore,
        delete=wish.delete,
        dry_run=wish.dry_run,
        mode=None if wish.mode is None else octal("--mode", wish.mode),
        max_bytes=None if wish.max_bytes is None else size_bytes("--max-bytes", wish.max_bytes),
        max_entries=None if wish.max_entries is None else _count("--max-entries", wish.max_entries),
    )
    remote, local = _named(wish.remote, "REMOTE"), None if wish.local is None else _named(wish.local, "LOCAL")
    example = f"sandport sync out {wish.lease} {remote} LOCAL"
    transfer = transfer_out(remote, local, "sync out", manner, example=example)
    if wish.delete and local is None and os.path.normpath(transfer.local) == os.curdir:
        raise UsageError(f"--delete: would empty the current folder; say where to, as in {example}")
    return transfer


def _named(path: str, what: str) -> str:
    if not path:
        raise UsageError(f"sync: {what} is empty; '.' is the folder itself")
    return path


def _count(option: str, text: str) -> int:
    if not (text.isascii() and text.isdigit() and int(text)):
        raise UsageError(f"{option} {text}: expected a number above 0, as in {option} 5000000")
    return int(text)
