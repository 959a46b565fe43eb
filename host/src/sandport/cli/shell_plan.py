"""From the words of `shell` to a plan."""

from __future__ import annotations

import shlex

import msgspec

from sandport.command import SHELL
from sandport.configuration import load
from sandport.errors import UsageError

from .application import Settings
from .invocation import done
from .plan import NewWish, Plan, check_selection, check_talk, check_terminal, plan_of_held, plan_of_new
from .report import Ids


class ShellWish(NewWish, frozen=True, kw_only=True):
    """What `sandport shell` was given."""

    program: str | None
    lease: str | None


def shell(wish: ShellWish, settings: Settings) -> int:
    """Do what was asked for; answers the exit code."""
    ids = Ids(provider=wish.provider, environment=wish.environment)
    return done(lambda: plan_of_shell(wish, settings), settings, ids, as_json=False)


def plan_of_shell(wish: ShellWish, settings: Settings) -> Plan:
    """Check the options, and open what they name on this machine.

    Raises:
        UsageError: Something is wrong; the message names the option and the fix.
    """
    check_talk(quiet=wish.quiet, verbose=wish.verbose)
    check_selection(wish)
    other = f"exec {wish.lease}" if wish.lease else "run"
    check_terminal("shell", f"sandport {other} -- COMMAND")
    wish = msgspec.structs.replace(wish, command=_program(wish.program), terminal=True)
    if wish.lease is None:
        return plan_of_new(wish, load(settings.config))
    _check_held(wish, wish.lease)
    return plan_of_held(wish, wish.lease, load(settings.config))


def _program(text: str | None) -> tuple[str, ...]:
    if text is None:
        return SHELL
    try:
        words = tuple(shlex.split(text))
    except ValueError as error:
        raise UsageError(f"--program {text}: {error}") from error
    if not words:
        raise UsageError("--program: there is no command\nas in: --program 'python3 -i'")
    return words


def _check_held(wish: ShellWish, lease: str) -> None:
    if not lease:
        raise UsageError("shell: the lease's id or name is empty; sandport leases shows those that there are")
    given = {
        "-p": wish.provider,
        "-e": wish.environment,
        "-c": wish.overrides,
        "--expose": wish.expose,
        "--ttl": wish.ttl,
        "--keep": wish.keep,
        "--name": wish.name,
    }
    if option := next((option for option, value in given.items() if value), None):
        raise UsageError(f"{option}: is for a new sandbox, and {lease} is one that is there; leave one of them out")
