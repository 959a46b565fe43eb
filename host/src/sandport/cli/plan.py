"""From the words of `run` and `exec` to a plan: everything that can be wrong without a sandbox is found here."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from msgspec import Struct

from sandport.configuration import Configuration, load, parse_overrides
from sandport.errors import UsageError
from sandport.lease.name import RULE, may_be_called
from sandport_protocol.v1 import VARIABLE_NAME

from .application import Settings
from .config_keys import keys_of
from .report import Ids
from .transfer import Manner, Transfer, into_sandbox, out_of_sandbox, outside, patterns

DEFAULT_PROVIDER = "local"
LOCAL_WORKING_DIRECTORY = "/sandbox"
"""Of an isolated sandbox of the default provider; without isolation it is one that nobody can know before."""
DEFAULT_TTL_S = 3600.0
TERMINAL_TTL_S = 8 * 3600.0
"""A person may well be longer at it than the hour that a command gets; the sandbox ends with the command anyway."""
_TOLD = ("TERM", "COLORTERM")
"""What a program has to know of the terminal."""
_BEYOND_TIMEOUT_S = 600.0
"""A sandbox outlives its command's time-out by this much: room for the copies before and after it."""
_LONGEST_S = 10 * 365 * 86400.0

Talk = Literal["quiet", "normal", "verbose"]


class Wish(Struct, frozen=True, kw_only=True):
    """The options as they were given, those that both commands take."""

    into: tuple[str, ...]
    out: tuple[str, ...]
    exclude: tuple[str, ...]
    gitignore: bool
    cwd: str | None
    env: tuple[str, ...]
    timeout: str | None
    stdin: str | None
    as_json: bool
    quiet: bool
    verbose: bool
    command: tuple[str, ...]
    terminal: bool = False
    """The command gets this terminal."""


class NewWish(Wish, frozen=True, kw_only=True):
    """The options of those that make a sandbox."""

    provider: str | None
    environment: str | None
    overrides: tuple[str, ...]
    expose: tuple[str, ...]
    ttl: str | None
    keep: bool
    name: str | None


class RunWish(NewWish, frozen=True, kw_only=True):
    """What `sandport run` was given."""


class ExecWish(Wish, frozen=True, kw_only=True):
    """What `sandport exec` was given."""

    lease: str


class NewLease(Struct, frozen=True, kw_only=True):
    """A sandbox that is to be made."""

    environment: str
    """What the host is asked for: an environment's name, or a provider's."""
    config: dict[str, Any]
    ttl_s: float
    keep: bool
    name: str | None
    exposes: tuple[str, ...] = ()
    """What `--expose` names, which is in the config too."""


class HeldLease(Struct, frozen=True, kw_only=True):
    """A sandbox that is there."""

    which: str
    """An id, a name, or the beginning of an id."""


class Task(Struct, frozen=True, kw_only=True):
    """What is to be done in the sandbox."""

    into: tuple[Transfer, ...]
    out: tuple[Transfer, ...]
    cwd: str | None
    env: dict[str, str]
    timeout_s: float | None
    stdin: int | None
    """An open descriptor; None for no input."""
    command: tuple[str, ...]
    """Empty: files are moved, and that is all."""
    on_terminal: bool = False
    """The command gets the user's terminal, for input and output."""
    as_json: bool
    talk: Talk


class Plan(Struct, frozen=True, kw_only=True):
    """What is to be done, and where."""

    configuration: Configuration
    """With nothing in it that could be taken for the provider that was named."""
    lease: NewLease | HeldLease
    task: Task
    ids: Ids


def plan_of_run(wish: RunWish, settings: Settings) -> Plan:
    """Check the options, and open what they name on this machine.

    Raises:
        UsageError: Something is wrong; the message names the option and the fix.
    """
    _check(wish, "run", "sandport run -- echo hello")
    return plan_of_new(wish, load(settings.config))


def plan_of_new(wish: NewWish, configuration: Configuration) -> Plan:
    """A plan with a sandbox that is to be made.

    Raises:
        UsageError: As `plan_of_run`.
    """
    if wish.provider is not None and wish.environment is not None:
        raise UsageError("-p and -e: give one of them; an environment names its provider")
    for option, value in (("-p", wish.provider), ("-e", wish.environment)):
        if value is not None and value.startswith("-"):
            raise UsageError(
                f"{option} wants a name after it, and {value!r} follows; as in: sandport run -p local -- true"
            )
    timeout_s = None if wish.timeout is None else seconds("--timeout", wish.timeout)
    base: dict[str, Any] = {}
    if wish.environment is not None:
        environment = wish.environment
        if environment in configuration.environments or not _is_provider(environment, configuration):
            found = configuration.environment(environment)
            provider, base = found.provider, found.config
        else:
            provider = environment  # as `Host.lease` takes it
    else:
        environment = provider = wish.provider or DEFAULT_PROVIDER
        # An environment of the same name is not what was asked for.
        configuration = Configuration(
            host=configuration.host, providers=configuration.providers, sources=configuration.sources
        )
    lease = NewLease(
        environment=environment,
        config=exposed(base, parse_overrides(wish.overrides), wish.expose),
        ttl_s=_ttl(wish.ttl, timeout_s, TERMINAL_TTL_S if wish.terminal else DEFAULT_TTL_S),
        keep=wish.keep,
        name=None if wish.name is None else _name(wish.name),
        exposes=tuple(wish.expose),
    )
    task = task_of(wish, timeout_s)
    if provider == DEFAULT_PROVIDER:
        for transfer in (*task.into, *task.out):
            if (why := outside(transfer.remote, LOCAL_WORKING_DIRECTORY)) is not None:
                raise UsageError(f"{transfer.option}: {why}")
    return Plan(
        configuration=configuration,
        lease=lease,
        task=task,
        ids=Ids(provider=provider, environment=wish.environment),
    )


def _is_provider(name: str, configuration: Configuration) -> bool:
    if name in configuration.providers:
        return True
    from sandport.discovery import discover

    return any(provider.name == name for provider in discover().providers)


def plan_of_exec(wish: ExecWish, settings: Settings) -> Plan:
    """As `plan_of_run`, for a lease that is there."""
    _check(wish, "exec", f"sandport exec {wish.lease or 'LEASE'} -- echo hello")
    if not wish.lease:
        raise UsageError("exec: the lease's id or name is empty; sandport leases shows those that there are")
    return plan_of_held(wish, wish.lease, load(settings.config))


def plan_of_held(wish: Wish, lease: str, configuration: Configuration) -> Plan:
    """A plan with a sandbox that is there.

    Raises:
        UsageError: As `plan_of_run`.
    """
    timeout_s = None if wish.timeout is None else seconds("--timeout", wish.timeout)
    return Plan(configuration=configuration, lease=HeldLease(which=lease), task=task_of(wish, timeout_s), ids=Ids())


def _check(wish: Wish, name: str, example: str) -> None:
    if not wish.command or not wish.command[0]:
        raise UsageError(f"{name}: there is no command\nas in: {example}")
    check_talk(quiet=wish.quiet, verbose=wish.verbose)
    check_selection(wish)
    if wish.terminal:
        if wish.as_json or wish.stdin is not None:
            option = "--json" if wish.as_json else f"--stdin {wish.stdin}"
            raise UsageError(
                f"{option}: the command's input and output are the terminal's with -t; leave one of them out"
            )
        check_terminal(f"{name} -t", "leave out -t")


def check_terminal(what: str, otherwise: str) -> None:
    """Refuse to lend a terminal that is not there.

    Raises:
        UsageError: Stdin or stdout is none.
    """
    for descriptor, name in ((0, "stdin"), (1, "stdout")):
        if not os.isatty(descriptor):
            raise UsageError(f"{what}: {name} is no terminal; without one: {otherwise}")


def check_selection(wish: Wish) -> None:
    """Refuse to leave something out of nothing.

    Raises:
        UsageError: Nothing is copied.
    """
    if (wish.exclude or wish.gitignore) and not (wish.into or (wish.out and wish.exclude)):
        option = f"--exclude {wish.exclude[0]}" if wish.exclude else "--gitignore"
        raise UsageError(f"{option}: nothing is copied that it could leave something out of; add --in LOCAL")


def check_talk(*, quiet: bool, verbose: bool) -> Talk:
    """How much to say.

    Raises:
        UsageError: Little and much.
    """
    if quiet and verbose:
        raise UsageError("-q and -v: give one of them")
    return "quiet" if quiet else "verbose" if verbose else "normal"


def check_exposes(directories: Sequence[str], provider: str, schema: bytes) -> None:
    """Refuse `--expose` for a provider whose config has no such member.

    Args:
        directories: As they were given.
        provider: Whose config it is.
        schema: Of that config, as the provider's worker says it.

    Raises:
        UsageError: It has none.
    """
    keys = keys_of(schema)
    # Where the schema does not list them all, the provider says what it knows.
    if directories and keys is not None and "expose" not in keys:
        raise UsageError(
            f"--expose {directories[0]}: provider {provider!r} does not show directories of this machine; copy it in "
            f"with --in {directories[0]}"
        )


def exposed(base: Mapping[str, Any], overrides: dict[str, Any], directories: Sequence[str]) -> dict[str, Any]:
    """The overrides with the directories that `--expose` names added to what the config exposes.

    Args:
        base: The config of the environment, which the overrides are laid over.
        overrides: What `-c` says.
        directories: As they were given, relative to the current folder.

    Raises:
        UsageError: One is none.
    """
    if not directories:
        return overrides
    there = overrides.get("expose", base.get("expose", []))
    if not isinstance(there, list) or not all(isinstance(path, str) for path in there):
        raise UsageError("--expose: config expose is no list of directories; correct it, or leave it out")
    found = []
    for directory in directories:
        path = os.path.abspath(directory)
        if not directory or not os.path.isdir(path):
            raise UsageError(f"--expose {directory}: there is no such folder here")
        if path.encode(errors="replace").decode(errors="replace") != path:
            raise UsageError(f"--expose {directory}: its path is not UTF-8, which a config has to be")
        found.append(path)
    return overrides | {"expose": list(dict.fromkeys([*there, *found]))}


def task_of(wish: Wish, timeout_s: float | None) -> Task:
    """What is to be done in the sandbox, with what the options name on this machine opened.

    Raises:
        UsageError: As `plan_of_run`.
    """
    # What the sandbox made is wanted back, also where the sources' own files say that it is no source.
    told = {name: value for name in _TOLD if wish.terminal and (value := os.environ.get(name))}
    excluding = Manner(exclude=patterns(wish.exclude))
    selecting = Manner(exclude=excluding.exclude, gitignore=wish.gitignore)
    return Task(
        into=tuple(into_sandbox(value, selecting) for value in wish.into),
        out=tuple(out_of_sandbox(value, excluding) for value in wish.out),
        cwd=wish.cwd,
        env=told | dict(map(variable, wish.env)),
        timeout_s=timeout_s,
        stdin=None if wish.stdin is None else _input(wish.stdin),
        command=wish.command,
        on_terminal=wish.terminal,
        as_json=wish.as_json,
        talk=check_talk(quiet=wish.quiet, verbose=wish.verbose),
    )


def _name(text: str) -> str:
    if not may_be_called(text):
        raise UsageError(f"--name {text}: expected {RULE}")
    return text


def seconds(option: str, text: str) -> float:
    """What an option says in seconds.

    Raises:
        UsageError: It is no number of them.
    """
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if value > _LONGEST_S:
        raise UsageError(f"{option} {text}: expected at most {_LONGEST_S:.0f} seconds, which are ten years")
    if not value > 0:
        raise UsageError(f"{option} {text}: expected a number of seconds above 0, as in {option} 90")
    return value


def _ttl(text: str | None, timeout_s: float | None, usual_s: float) -> float:
    if text is None:
        return usual_s if timeout_s is None else max(usual_s, timeout_s + _BEYOND_TIMEOUT_S)
    ttl_s = seconds("--ttl", text)
    if timeout_s is not None and timeout_s > ttl_s:
        raise UsageError(f"--ttl {text}: the sandbox would end before --timeout {timeout_s:g}; give at least that")
    return ttl_s


def variable(pair: str) -> tuple[str, str]:
    """What `--env` says.

    Raises:
        UsageError: It is no variable.
    """
    name, equals, value = pair.partition("=")
    if not equals:
        raise UsageError(f"--env {pair}: expected K=V, as in --env {name or 'K'}=1")
    if not VARIABLE_NAME.fullmatch(name):
        raise UsageError(f"--env {pair}: {name!r} is not a variable's name (letters, digits and _, no leading digit)")
    return name, value


def _input(path: str) -> int:
    if path == "-":
        return 0
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        raise UsageError(f"--stdin {path}: {error.strerror}") from error
    if os.path.isdir(descriptor):
        os.close(descriptor)
        raise UsageError(f"--stdin {path}: is a directory")
    return descriptor
