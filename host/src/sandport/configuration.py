"""sandport.toml: what it may say, where it is found, and what is wrong with it.

```toml
version = 1

[host.timing]
close_grace_s = 20.0

[providers.kubernetes]
command = ["/opt/kube/bin/python", "-m", "sandport_provider_kubernetes"]    # only where it is not installed beside us
env = ["KUBECONFIG"]                                                        # variables that the worker may see
limits = { wedge_ms = 60000 }

[environments.ci]
provider = "kubernetes"
config = { namespace = "ci", image = "python:3.13" }
env = { PYTHONDONTWRITEBYTECODE = "1" }
```

A file that the user named, or has in the folder for settings, may say all of this. One that merely lies in the
current folder may define environments and nothing else: a cloned repository must neither start programs of its choice
nor hand variables to them.
"""

from __future__ import annotations

import errno
import math
import os
import re
import stat
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar, cast

import msgspec
from msgspec import Struct, field

from sandport_protocol.limits import Limits
from sandport_protocol.v1 import VARIABLE_NAME

from .discovery import valid_name
from .errors import ConfigurationInvalid, EnvironmentUnknown
from .home import home_directory
from .lease.delays import Delays
from .nearest import nearest
from .numbers import Timing

FILE_NAME = "sandport.toml"
VERSION = 1
CEILING_BYTES = 1024 * 1024
"""A settings file is read whole; what is larger is something else."""

ENVIRONMENT_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")

_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")
_S = TypeVar("_S", bound=Struct)


class HostSettings(Struct, frozen=True, kw_only=True):
    """`[host]`."""

    timing: Timing = Timing()
    """The host's waits, in seconds, by the names in `sandport.numbers`."""
    clean_up: Delays = Delays()
    """When ending a sandbox is tried again, in seconds, by the names in `sandport.lease.delays`."""
    plugins: tuple[str, ...] = ()
    """Installed plugins that every host with these settings has, by name and in this order; see `sandport.hooks`."""


class ProviderSettings(Struct, frozen=True, kw_only=True):
    """`[providers.NAME]`."""

    command: tuple[str, ...] = ()
    """Program and arguments of the worker; empty: the installed distribution's module, with this interpreter."""
    env: tuple[str, ...] = ()
    """Names of variables that the worker gets beside the allow-list."""
    isolation: Literal["tenant", "shared"] = "tenant"
    """Whether each tenant gets a worker of its own."""
    creates_at_once: Annotated[int, msgspec.Meta(ge=1)] | None = None
    """How many sandboxes are created side by side for one tenant, or for all that is leased without one; by default the
    vendor teaches that. Tenants that share an account each get so many."""
    limits: Limits = Limits()
    """The wire's limits for this provider, by the names in `sandport_protocol.limits`."""


class EnvironmentSettings(Struct, frozen=True, kw_only=True):
    """`[environments.NAME]`."""

    provider: str
    config: dict[str, Any] = field(default_factory=dict)
    """What the provider gets, as JSON; it validates that itself."""
    env: dict[str, str] = field(default_factory=dict)
    """Variables of every command that runs there."""


class Configuration(Struct, frozen=True, kw_only=True):
    """Everything that is configured."""

    host: HostSettings = HostSettings()
    providers: dict[str, ProviderSettings] = field(default_factory=dict)
    environments: dict[str, EnvironmentSettings] = field(default_factory=dict)
    sources: tuple[Path, ...] = ()
    """The files that were read, the trusted one first."""

    def environment(self, name: str) -> EnvironmentSettings:
        """The environment of this name.

        Raises:
            EnvironmentUnknown: There is none; the message has the nearest name, or says where to define one.
        """
        try:
            return self.environments[name]
        except KeyError:
            where = " and ".join(map(str, self.sources)) or f"no {FILE_NAME} was found"
            raise EnvironmentUnknown(
                f"there is no environment {name!r} ({where}){_nearest(name, self.environments)}\n"
                f'define it in {FILE_NAME}: [environments.{name}] provider = "..."'
            ) from None


# ------------------------------------------------------------------ where it is found


def user_file(environ: Mapping[str, str]) -> Path | None:
    """Where the user's own settings are kept; None where there is no home directory."""
    base = environ.get("XDG_CONFIG_HOME", "")
    if os.path.isabs(base):
        return Path(base, "sandport", FILE_NAME)
    home = home_directory(environ)
    return Path(home, ".config", "sandport", FILE_NAME) if os.path.isabs(home) else None


def load(
    path: str | Path | None = None, *, environ: Mapping[str, str] | None = None, cwd: str | Path | None = None
) -> Configuration:
    """Read the settings that are in force.

    One trusted file is read: `path`, else the one that `$SANDPORT_CONFIG` names, else the user's own if there is one.
    Unless `path` is given, environments of a sandport.toml in the current folder are added.

    Args:
        path: A file that the user named; it must exist, and is then the only one.
        environ: The environment; by default the process's.
        cwd: The current folder; by default the process's.

    Raises:
        ConfigurationInvalid: A file cannot be read, or says something that it may not; the message names the file,
            the key and what would be right.
    """
    environ = os.environ if environ is None else environ
    if path is not None:
        return _trusted(Path(path), "--config, or Host.open")
    named = environ.get("SANDPORT_CONFIG")
    own = user_file(environ)
    if named:
        trusted = _trusted(Path(named), "$SANDPORT_CONFIG")
    elif own is not None and (table := _read_file(own)) is not None:
        trusted = _whole(table, own)
    else:
        trusted = Configuration()
    try:
        current = Path(cwd or os.curdir).absolute()
    except FileNotFoundError:
        # The current folder was deleted: there is no file in it.
        return trusted
    return _with_found(trusted, current / FILE_NAME)


def _trusted(path: Path, origin: str) -> Configuration:
    table = _read_file(path)
    if table is None:
        raise ConfigurationInvalid(f"{path}: no such file (named by {origin}); name one that exists")
    return _whole(table, path)


def _with_found(trusted: Configuration, path: Path) -> Configuration:
    """The trusted settings, and the environments of the file in the current folder."""
    if any(_same_file(path, source) for source in trusted.sources):
        return trusted
    table = _read_file(path)
    if table is None:
        return trusted
    for section in ("host", "providers"):
        if section in table:
            inner = next(iter(table[section]), "") if isinstance(table[section], dict) else ""
            raise ConfigurationInvalid(
                f"{path}: {_dotted(section, inner)}: a file that was only found in the current folder may define "
                "environments, not programs, grants or the host\n"
                f"move the section to {user_file(os.environ) or 'your own file'}, or trust this file with --config"
            )
    found = _whole(table, path)
    for name in found.environments:
        if name in trusted.environments:
            raise ConfigurationInvalid(
                f"{path}: {_dotted('environments', name)}: {trusted.sources[0]} defines it too; rename one of them, "
                "or name one file with --config"
            )
    return Configuration(
        host=trusted.host,
        providers=trusted.providers,
        environments=trusted.environments | found.environments,
        sources=(*trusted.sources, path),
    )


def _same_file(one: Path, other: Path) -> bool:
    try:
        return os.path.samefile(one, other)
    except OSError:
        # One of them went away; then they are not the same.
        return False


def _read_file(path: Path) -> dict[str, Any] | None:
    """The file's tables; None where there is no such file."""
    try:
        # Without O_NONBLOCK, opening a FIFO that somebody left under this name would wait for ever.
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        if error.errno in {errno.ENOENT, errno.ENOTDIR}:
            return None
        raise ConfigurationInvalid(
            f"{path}: cannot be read: {error.strerror}; give this user the right to it"
        ) from error
    with open(descriptor, "rb") as file:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise ConfigurationInvalid(f"{path}: is not a regular file; name a {FILE_NAME}")
        if status.st_size > CEILING_BYTES:
            raise ConfigurationInvalid(f"{path}: is larger than {CEILING_BYTES // 1024} KiB; is it a {FILE_NAME}?")
        content = file.read(CEILING_BYTES)
    try:
        return tomllib.loads(content.decode())
    except UnicodeDecodeError as error:
        raise ConfigurationInvalid(f"{path}: is not UTF-8 (byte {error.start})") from error
    except tomllib.TOMLDecodeError as error:
        raise ConfigurationInvalid(f"{path}: is not TOML: {error}") from error
    except RecursionError as error:
        raise ConfigurationInvalid(f"{path}: is nested too deeply") from error


# ------------------------------------------------------------------ what it may say


def _whole(table: dict[str, Any], path: Path) -> Configuration:
    reader = _Reader(path)
    reader.check_version(table)
    reader.check_keys(table, ("version", "host", "providers", "environments"), "")
    providers = {
        name: reader.provider(value, _dotted("providers", name))
        for name, value in reader.table(table.get("providers", {}), "providers").items()
    }
    environments = {
        name: reader.environment(value, name)
        for name, value in reader.table(table.get("environments", {}), "environments").items()
    }
    return Configuration(
        host=reader.struct(HostSettings, table.get("host", {}), "host"),
        providers=providers,
        environments=environments,
        sources=(path.absolute(),),
    )


class _Reader:
    """Turns tables into structs; every complaint names the file and the dotted path of the key."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def wrong(self, where: str, problem: str) -> ConfigurationInvalid:
        return ConfigurationInvalid(f"{self._path}: {where}: {problem}")

    def check_version(self, table: dict[str, Any]) -> None:
        version = table.get("version")
        if version is None:
            raise self.wrong("version", f"is missing; write version = {VERSION} on the first line")
        if isinstance(version, bool) or not isinstance(version, int) or version < 1:
            raise self.wrong("version", f"expected the number {VERSION}, not {_kind(version)}")
        if version > VERSION:
            raise self.wrong("version", f"{version} is newer than {VERSION}, which this sandport reads; upgrade it")

    def check_keys(self, table: dict[str, Any], known: Iterable[str], where: str) -> None:
        for key in table:
            if key not in known:
                raise self.wrong(_dotted(where, key), f"unknown key{_nearest(key, known)}")

    def table(self, value: object, where: str) -> dict[str, Any]:
        if not isinstance(value, dict):
            raise self.wrong(where, f"expected a table, not {_kind(value)}")
        return cast("dict[str, Any]", value)

    def struct(self, kind: type[_S], value: object, where: str) -> _S:
        """A table as a struct, each key under the struct's own name for it."""
        table = self.table(value, where)
        fields = {field.name: field for field in msgspec.structs.fields(kind)}
        self.check_keys(table, fields, where)
        values: dict[str, Any] = {}
        for name, described in fields.items():
            here = _dotted(where, name)
            if name in table:
                values[name] = self.value(described.type, table[name], here)
            elif described.required:
                raise self.wrong(here, "is missing")
        return kind(**values)

    def value(self, kind: Any, value: object, where: str) -> Any:
        if isinstance(kind, type) and issubclass(kind, Struct):
            return self.struct(kind, value, where)
        try:
            converted = msgspec.convert(value, kind)
        except msgspec.ValidationError as error:
            raise self.wrong(where, _in_words(str(error))) from error
        if isinstance(converted, (int, float)) and not (math.isfinite(converted) and converted > 0):
            raise self.wrong(where, f"expected a number above 0, not {converted}")
        return converted

    def provider(self, value: object, where: str) -> ProviderSettings:
        name = where.partition(".")[2]
        if not valid_name(name):
            raise self.wrong(where, "a provider's name has lower-case letters, digits, '-' and '_', a letter first")
        settings = self.struct(ProviderSettings, value, where)
        if "command" in self.table(value, where):
            self.check_command(settings.command, f"{where}.command")
        for variable in settings.env:
            self.check_variable(variable, f"{where}.env")
        return settings

    def check_command(self, command: tuple[str, ...], where: str) -> None:
        if not command or not command[0]:
            raise self.wrong(where, "expected a program and its arguments, as a list of strings")
        if any("\0" in part for part in command):
            raise self.wrong(where, "a NUL byte cannot be passed to a program")
        if "/" in command[0] and not os.path.isabs(command[0]):
            raise self.wrong(where, f"{command[0]!r} should be an absolute path, or a name to find on PATH")

    def check_variable(self, name: str, where: str) -> None:
        if not VARIABLE_NAME.fullmatch(name):
            raise self.wrong(where, f"{name!r} is not a variable's name (letters, digits and _, no leading digit)")

    def environment(self, value: object, name: str) -> EnvironmentSettings:
        where = _dotted("environments", name)
        if not ENVIRONMENT_NAME.fullmatch(name):
            raise self.wrong(where, "an environment's name has letters, digits, '.', '-' and '_', at most 64")
        settings = self.struct(EnvironmentSettings, value, where)
        if not valid_name(settings.provider):
            raise self.wrong(f"{where}.provider", f"{settings.provider!r} is not a provider's name")
        if fault := _not_json(settings.config, f"{where}.config"):
            raise self.wrong(*fault)
        for variable, content in settings.env.items():
            self.check_variable(variable, f"{where}.env")
            if "\0" in content:
                raise self.wrong(_dotted(f"{where}.env", variable), "a NUL byte cannot be passed to a program")
        return settings


def _not_json(value: object, where: str) -> tuple[str, str] | None:
    """Where and why a value of TOML has no form in JSON; None if it has one."""
    match value:
        case dict():
            inner = ((_dotted(where, str(key)), item) for key, item in value.items())
        case list():
            inner = ((f"{where}[{index}]", item) for index, item in enumerate(value))
        case bool() | str():
            return None
        case int() if -(2**63) <= value < 2**64:
            return None
        case float() if math.isfinite(value):
            return None
        case int() | float():
            return where, f"{value} does not fit a number of JSON"
        case _:
            return where, f"a provider's config is JSON, which has no {_kind(value)}; write it as a string"
    for place, item in inner:
        if fault := _not_json(item, place):
            return fault
    return None


# ------------------------------------------------------------------ -c KEY=VALUE


def parse_overrides(pairs: Iterable[str]) -> dict[str, Any]:
    """The config that options of the form KEY=VALUE spell.

    A value that is one of TOML's (`true`, `3`, `"text"`, `["a", "b"]`) is taken as such, anything else as a string.
    Dots in a key nest; of two equal keys the later holds.

    Raises:
        ConfigurationInvalid: An option is not of that form, or contradicts an earlier one.
    """
    config: dict[str, Any] = {}
    for pair in pairs:
        key, equals, text = pair.partition("=")
        parts = [part.strip() for part in key.split(".")]
        if not equals or not all(parts):
            raise ConfigurationInvalid(f"-c {pair}: expected KEY=VALUE, as in -c network=true or -c pids=100")
        if not _is_text(pair):
            raise ConfigurationInvalid(f"-c {pair}: is not UTF-8")
        table = config
        for depth, part in enumerate(parts[:-1], start=1):
            inner = table.setdefault(part, {})
            if not isinstance(inner, dict):
                raise ConfigurationInvalid(
                    f"-c {pair}: {'.'.join(parts[:depth])} was given a value before; leave one of the two out"
                )
            table = inner
        if isinstance(table.get(parts[-1]), dict):
            raise ConfigurationInvalid(
                f"-c {pair}: keys below {key.strip()} were given before; leave one of the two out"
            )
        table[parts[-1]] = _scalar(text)
    return config


def overridden(config: Mapping[str, Any], overrides: Mapping[str, Any]) -> dict[str, Any]:
    """A config with others laid over it: tables are merged, everything else is replaced."""
    merged = dict(config)
    for key, value in overrides.items():
        below = merged.get(key)
        merged[key] = overridden(below, value) if isinstance(below, dict) and isinstance(value, dict) else value
    return merged


def _is_text(argument: str) -> bool:
    # Bytes of an argument that were not UTF-8 stand in it as surrogates.
    try:
        argument.encode()
    except UnicodeEncodeError:
        return False
    return True


def _scalar(text: str) -> Any:
    # Inside a list, a comment or a second line cannot end the value early and drop what stands behind it.
    if "\n" in text or text.rstrip().endswith(","):
        return text
    try:
        values = tomllib.loads(f"value = [{text}]")["value"]
    except (tomllib.TOMLDecodeError, RecursionError):
        return text
    if len(values) != 1 or _not_json(values[0], ""):
        return text
    return values[0]


# ------------------------------------------------------------------ words


def _dotted(where: str, key: str) -> str:
    quoted = key if _BARE_KEY.fullmatch(key) else f'"{key}"'
    return f"{where}.{quoted}" if where and key else where or quoted


def _nearest(name: str, known: Iterable[str]) -> str:
    names = sorted(known)
    return nearest(name, names) or (f"; there is: {', '.join(names)}" if names else "")


_WORDS = {
    "array": "a list",
    "object": "a table",
    "str": "a string",
    "int": "a whole number",
    "float": "a number",
    "bool": "true or false",
    "null": "nothing",
}


def types_in_words(message: str) -> str:
    """The same message with what msgspec calls types called what TOML's are; a provider's has them too."""

    def told(match: re.Match[str]) -> str:
        kinds = [_WORDS.get(kind.strip(), kind.strip()) for kind in match[1].split("|")]
        return " or ".join(kinds)

    return re.sub(r"`(\w+(?: \| \w+)*)`", told, message).replace(", got ", ", not ")


def _in_words(message: str) -> str:
    """Msgspec's complaint in the words of TOML, without its path for the outermost value."""
    message, _, path = message.partition(" - at ")
    message = types_in_words(message)
    place = path.strip("`").removeprefix("$")
    return message[:1].lower() + message[1:] + (f" (in {place})" if place else "")


def _kind(value: object) -> str:
    match value:
        case bool():
            return str(value).lower()
        case str():
            return "a string"
        case int() | float():
            return f"the number {value}"
        case dict():
            return "a table"
        case list():
            return "a list"
        case _:
            return "date or time"
