"""`sandport env` at work: the environments of the files in force, and those of the user's own file changed."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from sandport.configuration import (
    ENVIRONMENT_NAME,
    Configuration,
    EnvironmentSettings,
    load,
    parse_overrides,
)
from sandport.discovery import valid_name
from sandport.errors import ConfigurationInvalid, SandportError
from sandport.home import home_path
from sandport.lease.view import view

from . import exit_codes
from .answers import answered
from .application import Settings
from .failures import failure_of
from .listing import put_json, put_lines, put_table
from .messages import say, unicode_text
from .moments import now_ms
from .plan import variable
from .settings_file import change, own_file
from .toml_text import table_text, with_table, without_table
from .validation import validated

SECTION = "environments"


class EnvironmentFacts(Struct, frozen=True, kw_only=True, rename="camel"):
    """One environment, as it is shown."""

    name: str
    provider: str
    config: dict[str, Any]
    """As it was written."""
    variables: tuple[str, ...]
    """Names; their values are not shown."""
    source: str
    """The file that has it."""


def show_all(settings: Settings, *, as_json: bool) -> int:
    """Print the list; always 0."""
    with answered(as_json=as_json):
        configuration = load(settings.config)
        found = [facts_of(name, configuration) for name in sorted(configuration.environments)]
        if as_json:
            put_json({"environments": found})
        elif found:
            head = ("ENVIRONMENT", "PROVIDER", "CONFIG", "VARIABLES", "FROM")
            put_table(head, [_row(one) for one in found])
        else:
            say("there are no environments; as in: sandport env add ci -p local")
    return 0


def show_one(name: str, settings: Settings, *, as_json: bool) -> int:
    """Print one, with what its provider makes of its config; also where that refuses it."""
    with answered(as_json=as_json):
        configuration = load(settings.config)
        configuration.environment(name)
        facts, leases = facts_of(name, configuration), _leases(name)
    normal: dict[str, Any] | None = None
    failed: SandportError | None = None
    try:
        normal = validated(f"{SECTION}.{name}", facts.provider, facts.config, configuration, settings)
    except SandportError as error:
        failed = error
    if (code := settings.interrupts.exit_code) is not None:
        return code
    if as_json:
        error_facts = None if failed is None else failure_of(failed)
        put_json({"environment": facts, "validated": normal, "leases": leases, "error": error_facts})
    else:
        lines = [
            ("name", facts.name),
            ("provider", facts.provider),
            ("from", facts.source),
            ("variables", ", ".join(facts.variables)),
            ("config", _json(facts.config)),
            ("validated", "" if normal is None else _json(normal)),
            ("leases", ", ".join(leases)),
        ]
        put_lines([f"{label.ljust(9)}  {text}" for label, text in lines if text])
    if failed is not None:
        raise failed
    return 0


def add_one(
    name: str,
    settings: Settings,
    *,
    provider: str,
    overrides: Sequence[str],
    variables: Sequence[str],
    as_json: bool,
) -> int:
    """Ask the provider, and write it down."""
    with answered(as_json=as_json):
        _check_names(name, provider)
        env = dict(map(variable, variables))
        for key, content in env.items():
            _check_text(f"--env {key}", content)
        given = parse_overrides(overrides)
        path = own_file(settings.config)
        configuration = load(settings.config)
        if name in configuration.environments:
            raise ConfigurationInvalid(
                f"{name}: {_source(name, configuration)} defines it already; remove it first, or take another name"
            )
        normal = validated(f"{SECTION}.{name}", provider, given, configuration, settings, from_words=True)
        if (code := settings.interrupts.exit_code) is not None or normal is None:
            return code or exit_codes.OURS
        config = in_normal_form(given, normal)
        members: dict[str, object] = {"provider": provider}
        members |= {"config": config} if config else {}
        members |= {"env": env} if env else {}
        by_hand = "add it by hand:\n" + table_text((SECTION, name), members).rstrip("\n")
        change(path, lambda text: with_table(text, (SECTION, name), members), by_hand)
        facts = facts_of(name, load(settings.config))
    if as_json:
        put_json({"environment": facts, "validated": normal})
    else:
        put_lines([f"{name}: added to {facts.source}; as in: sandport run -e {name} -- COMMAND"])
    return 0


def remove_one(name: str, settings: Settings, *, sure: bool, as_json: bool) -> int:
    """Take it out of the user's own file."""
    with answered(as_json=as_json):
        configuration = load(settings.config)
        configuration.environment(name)
        path, source = own_file(settings.config), _source(name, configuration)
        if not _same(path, source):
            raise ConfigurationInvalid(
                f"{name}: is defined by {source}, which is not your own file; edit that, or name it with --config"
            )
        leases = _leases(name)
        if leases and not sure:
            raise ConfigurationInvalid(
                f"{name}: leases were made in it: {', '.join(leases)}\n"
                "they stay usable without it; to remove it: add --yes"
            )
        by_hand = f"remove [{SECTION}.{name}] by hand"
        change(path, lambda text: without_table(text, (SECTION, name)), by_hand)
    if as_json:
        put_json({"removed": name, "source": unicode_text(str(source)), "leases": leases})
    else:
        put_lines([f"{name}: removed from {source}"])
        if leases:
            say(f"leases that were made in it stay usable: {', '.join(leases)}")
    return 0


def in_normal_form(given: Mapping[str, Any], normal: Mapping[str, Any]) -> dict[str, Any]:
    """The keys that were given, with the values that the provider made of them; its defaults stay its own to change.

    What it did not answer, such as a secret, is as it was given.
    """
    found: dict[str, Any] = {}
    for key, value in given.items():
        taken = normal.get(key)
        if isinstance(value, dict) and isinstance(taken, dict):
            found[key] = in_normal_form(value, taken)
        else:
            found[key] = value if _has_none(taken) else taken
    return found


def _has_none(value: object) -> bool:
    match value:
        case None:
            return True
        case dict():
            return any(map(_has_none, value.values()))
        case list():
            return any(map(_has_none, value))
        case _:
            return False


def _check_names(name: str, provider: str) -> None:
    if not ENVIRONMENT_NAME.fullmatch(name):
        raise ConfigurationInvalid(f"{name}: an environment's name has letters, digits, '.', '-' and '_', at most 64")
    if not valid_name(provider):
        raise ConfigurationInvalid(f"-p {provider}: is not a provider's name")


def _check_text(option: str, text: str) -> None:
    if text.encode(errors="replace").decode(errors="replace") != text:
        raise ConfigurationInvalid(f"{option}: its value is not UTF-8, which sandport.toml has to be")


def facts_of(name: str, configuration: Configuration) -> EnvironmentFacts:
    """What is shown of one."""
    found: EnvironmentSettings = configuration.environments[name]
    return EnvironmentFacts(
        name=name,
        provider=found.provider,
        config=found.config,
        variables=tuple(sorted(found.env)),
        source=unicode_text(str(_source(name, configuration))),
    )


def _source(name: str, configuration: Configuration) -> Path:
    """Which of the files in force has it: no two have the same."""
    first = configuration.sources[0]
    return first if name in load(first).environments else configuration.sources[-1]


def _leases(name: str) -> list[str]:
    """Leases that were made in it and have not ended, by name or id."""
    found = view(home_path(os.environ), now_ms=now_ms()).leases
    return [one.lease.name or one.lease.id for one in found if one.lease.environment == name]


def _same(one: Path, other: Path) -> bool:
    try:
        return os.path.samefile(one, other)
    except OSError:
        # One of them is not there.
        return False


def _row(one: EnvironmentFacts) -> list[str]:
    return [
        one.name,
        one.provider,
        _json(one.config) if one.config else "-",
        ", ".join(one.variables) or "-",
        one.source,
    ]


def _json(value: object) -> str:
    return msgspec.json.encode(value).decode()
