"""The author's one file: how the worker is configured, what is slow, what is known to fail.

Everything has a default, so that `sandport-conformance run -- python worker.py` needs no file:

```toml
[worker]
config = { region = "eu" }            # sent as `config` wherever the protocol carries one
env = ["MYCLOUD_URL"]                 # variables that the worker may see besides the allow-list
secrets = { token = "MYCLOUD_TOKEN" } # secret's name = the variable that holds it here; never written anywhere

[run]
scale = 2.0                           # every time limit, times this
name_prefix = "ci"                    # begins the part of each sandbox id that the kit chooses

[commands]                            # how to do things in a sandbox that is no POSIX system
print = ["cmd", "/c", "echo {text}"]
flood = false                         # cannot be done there; the checks that need it are untestable

[[known_failures]]
check = "CMD-7"
reason = "the vendor's API merges both streams"
expires = 2027-01-31                  # optional; fails the run from this day on
```
"""

from __future__ import annotations

import datetime
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from .commands import DEFAULT_COMMANDS, Commands
from .outcomes import Misuse
from .schema import Json

_SECTIONS = {
    "worker": {"config", "env", "secrets"},
    "run": {"scale", "name_prefix"},
    "commands": None,
    "known_failures": None,
}
PASSED_ON = (
    "HOME",
    "HTTPS_PROXY",
    "HTTP_PROXY",
    "LANG",
    "LC_ALL",
    "LC_CTYPE",
    "NO_PROXY",
    "PATH",
    "REQUESTS_CA_BUNDLE",
    "SSL_CERT_DIR",
    "SSL_CERT_FILE",
    "TMPDIR",
    "TZ",
    "http_proxy",
    "https_proxy",
    "no_proxy",
)
"""The variables that a worker gets without being named, as from a host."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownFailure:
    """A check that fails, and that its author knows to fail."""

    check: str
    reason: str
    expires: datetime.date | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What the author's file says.

    Attributes:
        config: The provider's config.
        secrets: The secrets' values, by their names in the protocol.
        environ: The worker's whole environment, but for the token.
        scale: Multiplies every time limit.
        name_prefix: Begins the chosen part of every sandbox id.
        file: The author's file; None where there is none.
        commands: What to run in a sandbox.
        known_failures: Checks that may fail, by id.
    """

    config: Json = field(default_factory=dict)
    secrets: Mapping[str, str] = field(default_factory=dict)
    environ: Mapping[str, str] = field(default_factory=dict)
    scale: float = 1.0
    name_prefix: str = ""
    file: Path | None = None
    commands: Commands = field(default_factory=lambda: Commands(DEFAULT_COMMANDS))
    known_failures: Mapping[str, KnownFailure] = field(default_factory=dict)

    @property
    def no_config_works(self) -> str:
        """What to say where the worker takes none of what it was given, with the line that would mend it."""
        if self.file is None:
            return (
                "no config was given, and the worker does not do without: write `[worker] config`, and `secrets`, "
                "into a file for --config"
            )
        return f"`[worker] config` and `secrets` of {self.file} are not enough"

    @property
    def with_config(self) -> Json:
        """`config` and `secrets` as members of params."""
        return {"config": self.config, "secrets": dict(self.secrets)}


def load(path: Path | None, environ: Mapping[str, str]) -> Settings:
    """Read the author's file.

    Args:
        path: The file; None for the defaults.
        environ: The kit's own environment, which holds the secrets.

    Raises:
        Misuse: It cannot be read, has a key that nothing reads, or names a variable that is not set.
    """
    raw: dict[str, Any] = {}
    if path is not None:
        try:
            raw = tomllib.loads(path.read_text(encoding="utf-8"))
        except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
            raise Misuse(f"{path}: {error}") from error
    try:
        return replace(parse(raw, environ), file=path)
    except Misuse as error:
        raise Misuse(f"{path}: {error}") from error


def parse(raw: Mapping[str, Any], environ: Mapping[str, str]) -> Settings:
    """Settings from the parsed file; see `load`."""
    for section, content in raw.items():
        if section not in _SECTIONS:
            raise Misuse(f"nothing reads [{section}]; the sections are {', '.join(_SECTIONS)}")
        known = _SECTIONS[section]
        if known is not None:
            unknown = sorted(set(_table(content, section)) - known)
            if unknown:
                raise Misuse(f"nothing reads {section}.{unknown[0]}; it may hold {', '.join(sorted(known))}")
    worker = _table(raw.get("worker", {}), "worker")
    run = _table(raw.get("run", {}), "run")
    passed = [*PASSED_ON, *_strings(worker.get("env", []), "worker.env")]
    return Settings(
        config=_table(worker.get("config", {}), "worker.config"),
        secrets=_secrets(_table(worker.get("secrets", {}), "worker.secrets"), environ),
        environ={name: environ[name] for name in passed if name in environ},
        scale=_scale(run.get("scale", 1.0)),
        name_prefix=_prefix(run.get("name_prefix", "")),
        commands=Commands(DEFAULT_COMMANDS | _commands(_table(raw.get("commands", {}), "commands"))),
        known_failures=_known_failures(raw.get("known_failures", [])),
    )


def _table(value: object, name: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise Misuse(f"{name} must be a table")
    return value


def _strings(value: object, name: str) -> list[str]:
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        raise Misuse(f"{name} must be a list of strings")
    return value


def _secrets(names: dict[str, Any], environ: Mapping[str, str]) -> dict[str, str]:
    found = {}
    for name, variable in names.items():
        if not isinstance(variable, str):
            raise Misuse(f"worker.secrets.{name} must be the name of a variable")
        if not environ.get(variable):
            raise Misuse(f"worker.secrets.{name}: the variable {variable} is not set")
        found[name] = environ[variable]
    return found


def _scale(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= 1000:
        raise Misuse("run.scale must be a number above 0")
    return float(value)


def _prefix(value: object) -> str:
    if not isinstance(value, str) or not re.fullmatch(r"[a-z2-7]{0,8}", value):
        raise Misuse("run.name_prefix may have 8 characters of a-z and 2-7, as a sandbox id has")
    return value


def _commands(table: dict[str, Any]) -> dict[str, tuple[str, ...] | None]:
    found: dict[str, tuple[str, ...] | None] = {}
    for name, value in table.items():
        if name not in DEFAULT_COMMANDS:
            raise Misuse(f"no check runs commands.{name}; they run {', '.join(sorted(DEFAULT_COMMANDS))}")
        if value is False:
            found[name] = None
        else:
            found[name] = tuple(_strings(value, f"commands.{name}"))
            if not found[name]:
                raise Misuse(f"commands.{name} needs a program; `false` says that it cannot be done")
    return found


def _known_failures(value: object) -> dict[str, KnownFailure]:
    if not isinstance(value, list):
        raise Misuse("known_failures is written as [[known_failures]]")
    found: dict[str, KnownFailure] = {}
    for entry in value:
        table = _table(entry, "known_failures")
        check, reason, expires = table.get("check"), table.get("reason"), table.get("expires")
        if set(table) - {"check", "reason", "expires"}:
            raise Misuse("a known failure has `check`, `reason` and, if it likes, `expires`")
        if not isinstance(check, str) or not isinstance(reason, str) or not reason.strip():
            raise Misuse("a known failure names its check and gives a reason")
        if expires is not None and (not isinstance(expires, datetime.date) or isinstance(expires, datetime.datetime)):
            raise Misuse(f"known_failures: expires of {check} must be a date, as in 2027-01-31")
        if check in found:
            raise Misuse(f"known_failures: {check} is listed twice")
        found[check] = KnownFailure(check=check, reason=reason, expires=expires)
    return found
