"""What `sandport doctor` looks at."""

from __future__ import annotations

import os
import platform
import stat
import sys

from msgspec import Struct

from sandport.configuration import Configuration, load
from sandport.errors import ConfigurationInvalid, UsageError
from sandport.home import Home, home_path

from .application import Settings
from .checks import Check, State
from .failures import failure_of
from .inventory import Inventory, Listed, inventory
from .journal_checks import JournalFacts, look_at_journal
from .listing import Colour, coloured, put, put_json
from .messages import printable, unicode_text
from .places import Places, look_at_places

OLDEST = (3, 11)
_COLOURS: dict[State, Colour] = {"ok": "green", "warning": "yellow", "wrong": "red"}


class Diagnosis(Struct, frozen=True, kw_only=True, rename="camel"):
    """Everything that was looked at."""

    ok: bool
    version: str
    checks: tuple[Check, ...]
    journal: JournalFacts | None
    """Null where it cannot be read."""
    places: Places | None
    """Null where the home cannot be used."""
    providers: tuple[Listed, ...]


def diagnose(settings: Settings, *, as_json: bool) -> int:
    """Look at everything and print what was found; 1 where something is wrong, else 0."""
    from sandport import __version__

    configuration, about_settings = _settings(settings)
    about_home, places = _home()
    checks = [_python(), about_settings, about_home]
    journal: JournalFacts | None = None
    if places is not None:
        checks += places.checks()
        journal, about_journal = look_at_journal()
        checks += about_journal
    about_plugins = [_plugin(name) for name in configuration.host.plugins]
    checks += about_plugins
    found = inventory(configuration)
    # Without a plugin that was asked for nothing is started: it may be the one that redacts what a worker writes.
    if journal is not None and all(check.state == "ok" for check in about_plugins):
        checks += _ask(found, configuration, settings)
        if (code := settings.interrupts.exit_code) is not None:
            return code
    for provider in found.providers:
        checks += [_provider(provider), *_probe(provider)]
    checks += [Check(name="metadata", state="wrong", detail=fault.message) for fault in found.faults]
    if not found.providers:
        fix = "pip install sandport-provider-local"
        checks.append(Check(name="providers", state="wrong", detail="none is installed or configured", fix=fix))
    ok = all(check.state != "wrong" for check in checks)
    if as_json:
        put_json(
            Diagnosis(
                ok=ok,
                version=__version__,
                checks=tuple(checks),
                journal=journal,
                places=places,
                providers=found.providers,
            )
        )
    else:
        for check in checks:
            put("".join(line + "\n" for line in _lines(check)).encode())
    return 0 if ok else 1


def _python() -> Check:
    version = f"{platform.python_version()} ({sys.executable or 'embedded in a program'})"
    if sys.version_info < OLDEST:
        return Check(name="python", state="wrong", detail=version, fix="use Python 3.11 or newer")
    return Check(name="python", state="ok", detail=version)


def _settings(settings: Settings) -> tuple[Configuration, Check]:
    try:
        configuration = load(settings.config)
    except ConfigurationInvalid as error:
        # The rest is looked at as if there were no file, so that one typing error does not hide what else is wrong.
        return Configuration(), Check(name="settings", state="wrong", detail=unicode_text(str(error)))
    files = ", ".join(unicode_text(str(source)) for source in configuration.sources)
    return configuration, Check(name="settings", state="ok", detail=files or "no sandport.toml: everything by default")


def _home() -> tuple[Check, Places | None]:
    try:
        root = home_path(os.environ)
        fresh = not root.exists()
        home = Home.open()
    except UsageError as error:
        message, _, fix = unicode_text(str(error)).partition("\n")
        return Check(name="home", state="wrong", detail=message, fix=fix or None), None
    except OSError as error:
        return Check(name="home", state="wrong", detail=unicode_text(str(error))), None
    mode = stat.S_IMODE(home.root.stat().st_mode)
    parts = [f"{unicode_text(str(home.root))}, mode {mode:04o}, store {home.store_id}"]
    if fresh:
        parts.append("just made")
    places = look_at_places(home.root)
    if not os.access(home.root, os.W_OK | os.X_OK):
        detail = f"{parts[0]}: the home is read-only, and nothing can be leased or ended from it"
        fix = "make the folder and its file system writable for you, or set SANDPORT_HOME to a folder that is"
        return Check(name="home", state="wrong", detail=detail, fix=fix), places
    return Check(name="home", state="ok", detail=", ".join(parts + places.sizes())), places


def _plugin(name: str) -> Check:
    from sandport.installed_plugins import find_plugin
    from sandport.log import Log
    from sandport.plugins import Plugins

    try:
        entry = find_plugin(name)
        Plugins([name], Log())
    except UsageError as error:
        message, _, fix = unicode_text(str(error)).partition("\n")
        return Check(name=f"plugin {name}", state="wrong", detail=message, fix=fix or None)
    detail = f"{entry.distribution} {entry.version} ({entry.value}), imported into every host"
    return Check(name=f"plugin {name}", state="ok", detail=unicode_text(detail))


def _ask(found: Inventory, configuration: Configuration, settings: Settings) -> list[Check]:
    """Ask every provider; what keeps a host from asking is one thing more that is wrong, and not the end of it all."""
    from .probing import ask_all

    try:
        ask_all(found, configuration, settings)
    except Exception as error:  # noqa: BLE001 - whatever it is, the rest of the report is wanted all the more
        failure = failure_of(error)
        message, _, fix = failure.message.partition("\n")
        return [Check(name="host", state="wrong", detail=f"cannot be opened: {message}", fix=fix or None)]
    return []


def _provider(provider: Listed) -> Check:
    name = f"provider {provider.name}"
    if provider.fault is not None:
        message, _, fix = provider.fault.message.partition("\n")
        return Check(name=name, state="wrong", detail=message, fix=fix or None, log_tail=provider.fault.log_tail)
    hello = provider.hello
    if hello is None:
        return Check(name=name, state="warning", detail="was not asked: a host needs home, journal and plugins")
    detail = f"{hello.version}, worker ready in {provider.start_ms} ms"
    if not hello.withheld:
        return Check(name=name, state="ok", detail=detail)
    return Check(
        name=name,
        state="warning",
        detail=f"{detail}; set here and withheld from it: {', '.join(hello.withheld)}",
        fix=f"to grant them, in sandport.toml: {provider.grant_line()}",
    )


def _probe(provider: Listed) -> list[Check]:
    """What the provider itself has found; what is not well may be so for one config only, so it warns."""
    found = [
        Check(
            name=f"provider {provider.name}, {unicode_text(one.name)}",
            state="ok" if one.ok else "warning",
            detail=unicode_text(one.detail),
        )
        for one in provider.probe
    ]
    if provider.probe_fault is not None:
        found.append(Check(name=f"provider {provider.name}, probe", state="warning", detail=provider.probe_fault))
    return found


def _lines(check: Check) -> list[str]:
    mark = {"ok": "ok", "warning": "warn", "wrong": "WRONG"}[check.state]
    head = coloured(mark.ljust(6), _COLOURS[check.state])
    # A message of several lines, such as one that ends with its remedy.
    first, *rest = f"{check.name}: {check.detail}".splitlines()
    rest += check.fix.splitlines() if check.fix else []
    rest += [f"| {line}" for line in check.log_tail]
    return [head + printable(first), *(" " * 6 + printable(line) for line in rest)]
