"""`sandport provider add` and `remove`: a worker's command in the user's own file, once it has said hello."""

from __future__ import annotations

import os
import shlex
import shutil
from collections.abc import Sequence

import anyio
import msgspec
from msgspec import Struct

from sandport.configuration import Configuration, ProviderSettings, load
from sandport.discovery import discover, valid_name
from sandport.errors import ConfigurationInvalid, ProviderUnknown, UsageError
from sandport.home import home_path
from sandport.lease.view import view
from sandport.nearest import nearest
from sandport_protocol.v1 import VARIABLE_NAME

from . import exit_codes
from .answers import answered
from .application import Settings
from .hosting import hosted
from .inventory import Hello
from .listing import put_json, put_lines
from .messages import say, unicode_text
from .moments import now_ms
from .probing import hello_of
from .records import Records
from .settings_file import change, own_file
from .status import Status
from .toml_text import table_text, with_table, without_table

SECTION = "providers"


class CommandFacts(Struct, frozen=True, kw_only=True, rename="camel"):
    """A provider of the user's own file, as it is shown."""

    name: str
    command: tuple[str, ...]
    """As it was written."""
    grants: tuple[str, ...]
    """Variables that its worker may see beside the allow-list."""
    source: str
    """The file that has it."""


def add_one(
    name: str, settings: Settings, *, words: Sequence[str], grants: Sequence[str], sure: bool, as_json: bool
) -> int:
    """Start it, hear its hello, and write it down."""
    with answered(as_json=as_json):
        _check(name, grants)
        command = startable(words)
        path = own_file(settings.config)
        configuration = load(settings.config)
        if name in configuration.providers:
            raise ConfigurationInvalid(
                f"{name}: {configuration.sources[0]} has "
                f"[{SECTION}.{name}] already; remove that first, or take another name"
            )
        _check_installed(name, sure=sure)
        candidate = ProviderSettings(command=command, env=tuple(grants))
        tried = msgspec.structs.replace(configuration, providers=configuration.providers | {name: candidate})
        hello = anyio.run(_greeted, name, tried, settings, backend="asyncio")
        if (code := settings.interrupts.exit_code) is not None or hello is None:
            return code or exit_codes.OURS
        members: dict[str, object] = {"command": list(command)}
        members |= {"env": list(grants)} if grants else {}
        by_hand = "add it by hand:\n" + table_text((SECTION, name), members).rstrip("\n")
        change(path, lambda text: with_table(text, (SECTION, name), members), by_hand)
    facts = CommandFacts(name=name, command=command, grants=tuple(grants), source=unicode_text(str(path)))
    if as_json:
        put_json({"provider": facts, "hello": hello})
        return 0
    put_lines(
        [
            f"{name}: {hello.display_name} {hello.version} said hello: {hello.abilities()}",
            f"{name}: added to {facts.source} as: {shlex.join(command)}",
            f"as in: sandport run -p {name} -- COMMAND",
            f"to have it judged: sandport-conformance run -- {shlex.join(command)}",
        ]
    )
    if hello.withheld:
        say(
            f"{name} reads variables that are set here and were not granted: {', '.join(hello.withheld)}\n"
            f"to grant them: sandport provider remove {name}, and add it with --env {hello.withheld[0]}"
        )
    return 0


def remove_one(name: str, settings: Settings, *, sure: bool, as_json: bool) -> int:
    """Take it out of the user's own file."""
    with answered(as_json=as_json):
        configuration = load(settings.config)
        if name not in configuration.providers:
            raise ProviderUnknown(_absent(name, configuration))
        path = own_file(settings.config)
        environments = sorted(one for one, found in configuration.environments.items() if found.provider == name)
        leases = _leases(name)
        if (environments or leases) and not sure:
            raise ConfigurationInvalid(_in_the_way(name, environments, leases))
        by_hand = f"remove [{SECTION}.{name}] by hand"
        change(path, lambda text: without_table(text, (SECTION, name)), by_hand)
    source = unicode_text(str(path))
    if as_json:
        put_json({"removed": name, "source": source, "environments": environments, "leases": leases})
    else:
        put_lines([f"{name}: removed from {source}"])
        if leases:
            say(f"nobody can end these until it is added again: {', '.join(leases)}")
    return 0


def startable(words: Sequence[str]) -> tuple[str, ...]:
    """A command with what it names here under its whole path: a worker is started from `/`, by whatever calls later.

    That is the program, as found here or on PATH, and each further word that is a file here, or a path to something.

    Raises:
        UsageError: There is no such program; a word is not text.
    """
    for word in words:
        if word.encode(errors="replace").decode(errors="replace") != word:
            raise UsageError("COMMAND: is not UTF-8, which sandport.toml has to be")
    program = shutil.which(words[0]) if words and words[0] else None
    if program is None:
        raise UsageError(
            f"COMMAND: there is no program {words[0]!r} here or on PATH that may be run\n"
            "a script is started by what runs it, as in: -- node worker.js"
            if words and words[0]
            else "add: there is no command\nas in: sandport provider add mine -- node worker.js"
        )
    return (os.path.abspath(program), *(os.path.abspath(word) if _is_here(word) else word for word in words[1:]))


def _is_here(word: str) -> bool:
    return os.path.isfile(word) or (("/" in word or word in {".", ".."}) and os.path.exists(word))


def _check(name: str, grants: Sequence[str]) -> None:
    if not valid_name(name):
        raise UsageError(
            f"{name}: a provider's name has lower-case letters, digits, '-' and '_', a letter first, at most 64"
        )
    for variable in grants:
        if not VARIABLE_NAME.fullmatch(variable):
            raise UsageError(
                f"--env {variable}: is not a variable's name; the worker gets the value that it has when it is started"
            )


def _check_installed(name: str, *, sure: bool) -> None:
    there = [provider.distribution for provider in discover().providers if provider.name == name]
    if there and not sure:
        raise ConfigurationInvalid(
            f"{name}: {there[0]} installs a provider of this name, whose place the command would take\n"
            "take another name; or, if that is meant: add --yes"
        )


async def _greeted(name: str, configuration: Configuration, settings: Settings) -> Hello | None:
    records = Records(settings, usual="critical")
    hello: Hello | None = None
    # Whoever asks does not change: what waits for clean-up is left to wait.
    async with hosted(configuration, settings.interrupts, records, cleans_up=False) as host:
        with Status(quiet=False).doing(f"waiting for the hello of {name}"):
            hello = hello_of(await host.describe(name))
    return hello


def _absent(name: str, configuration: Configuration) -> str:
    installed = {provider.name: provider.distribution for provider in discover().providers}
    if name in installed:
        return f"{name}: is installed, and no command of yours; as in: pip uninstall {installed[name]}"
    there = ", ".join(sorted(configuration.providers)) or "none"
    return f"{name}: sandport.toml has no such provider{nearest(name, configuration.providers)}; there are: {there}"


def _leases(name: str) -> list[str]:
    """Those whose sandboxes are not gone, by name or id."""
    found = view(home_path(os.environ), now_ms=now_ms()).leases
    return [one.lease.name or one.lease.id for one in found if one.sandbox.provider == name]


def _in_the_way(name: str, environments: Sequence[str], leases: Sequence[str]) -> str:
    lines = []
    if leases:
        lines.append(
            f"nobody could end its sandboxes without it; end them first: sandport leases end {' '.join(leases)}"
        )
    if environments:
        lines.append(f"these environments are of no use without it: {', '.join(environments)}")
    return "\n".join([f"{name}: is in use", *lines, "to remove it all the same: add --yes"])
