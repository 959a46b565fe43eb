"""`sandport env probe`: whether an environment works here, as its provider finds it."""

from __future__ import annotations

from typing import Any

import anyio
import msgspec
from msgspec import Struct

from sandport.configuration import Configuration, EnvironmentSettings, load
from sandport_protocol.v1 import ProbeCheck, ProbeResult

from .answers import answered
from .application import Settings
from .environments import EnvironmentFacts, facts_of
from .hosting import hosted
from .listing import put_json, put_lines, put_table
from .messages import say, unicode_text
from .records import Records
from .status import Status
from .validation import checked


class Probed(Struct, frozen=True, kw_only=True, rename="camel"):
    """What was found, for `--json`."""

    ok: bool
    environment: EnvironmentFacts
    validated: dict[str, Any]
    """Its config, with every default of its provider's."""
    checks: tuple[ProbeCheck, ...]
    without: tuple[str, ...]
    """Abilities that the config takes away."""


def probe_one(name: str, settings: Settings, *, as_json: bool) -> int:
    """Ask its provider; 1 where a check is not well, else 0."""
    with answered(as_json=as_json):
        configuration = load(settings.config)
        configuration.environment(name)
        found = anyio.run(_probed, name, configuration, settings, backend="asyncio")
    if (code := settings.interrupts.exit_code) is not None or found is None:
        return code or 0
    if as_json:
        put_json(found)
    else:
        _put(found)
    return 0 if found.ok else 1


async def _probed(name: str, configuration: Configuration, settings: Settings) -> Probed | None:
    stored: EnvironmentSettings = configuration.environment(name)
    records = Records(settings, usual="error")
    found: Probed | None = None
    # Whoever asks does not change: what waits for clean-up is left to wait.
    async with hosted(configuration, settings.interrupts, records, cleans_up=False) as host:
        with Status(quiet=False).doing(f"asking {stored.provider}"):
            answer = await host.validate(stored.provider, stored.config)
            normal = checked(f"environments.{name}", stored.provider, answer)
            found = _found(name, configuration, normal, await host.probe(name))
    return found


def _found(name: str, configuration: Configuration, normal: dict[str, Any], result: ProbeResult) -> Probed:
    checks = tuple(
        ProbeCheck(name=unicode_text(one.name), ok=one.ok, detail=unicode_text(one.detail)) for one in result.checks
    )
    return Probed(
        ok=all(one.ok for one in checks),
        environment=facts_of(name, configuration),
        validated=normal,
        checks=checks,
        without=tuple(map(unicode_text, result.without)),
    )


def _put(found: Probed) -> None:
    facts = found.environment
    rows = [("config", "ok", msgspec.json.encode(found.validated).decode())]
    rows += [(one.name, "ok" if one.ok else "WRONG", one.detail or "-") for one in found.checks]
    put_table(("CHECK", "STATE", "DETAIL"), rows)
    if found.without:
        put_lines([f"this config takes away: {', '.join(found.without)}"])
    if not found.ok:
        wrong = sum(not one.ok for one in found.checks)
        say(f"{facts.name}: provider {facts.provider} finds {wrong} of {len(found.checks)} checks not well")
