"""Asking a provider whether a config is good, and what it is with every default filled in."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import anyio
import msgspec

from sandport.configuration import Configuration, types_in_words
from sandport.errors import ConfigurationInvalid
from sandport.secret_keys import refuse_secrets
from sandport_protocol.v1 import ValidateConfigResult

from .application import Settings
from .config_keys import fitted
from .hosting import hosted
from .records import Records
from .status import Status


def validated(
    where: str,
    provider: str,
    config: Mapping[str, Any],
    configuration: Configuration,
    settings: Settings,
    *,
    from_words: bool = False,
) -> dict[str, Any] | None:
    """A config in its provider's normal form; None where a signal came first.

    Args:
        where: What has the config, for the message.
        provider: Who is asked; its worker is started for it.
        config: As it was written.
        configuration, settings: What is in force.
        from_words: It is what `-c` said, which may write sizes as people do.

    Raises:
        ConfigurationInvalid: It refuses the config; the message names each field.
        SandportError: It cannot be asked.
    """
    fit = fitted if from_words else _as_written
    found = anyio.run(_validated, provider, config, fit, configuration, settings, backend="asyncio")
    return None if found is None else checked(where, provider, found)


def checked(where: str, provider: str, found: ValidateConfigResult) -> dict[str, Any]:
    """The config in its provider's normal form.

    Raises:
        ConfigurationInvalid: It refuses the config; the message names each field.
    """
    if found.issues:
        told = [f"{issue.field}: {types_in_words(issue.message)}" for issue in found.issues]
        raise ConfigurationInvalid("\n".join([f"{where}: provider {provider} refuses its config", *told]))
    normal: dict[str, Any] = msgspec.json.decode(found.config)
    return normal


def _as_written(config: Mapping[str, Any], _schema: bytes) -> Mapping[str, Any]:
    return config


async def _validated(
    provider: str,
    config: Mapping[str, Any],
    fit: Callable[[Mapping[str, Any], bytes], Mapping[str, Any]],
    configuration: Configuration,
    settings: Settings,
) -> ValidateConfigResult | None:
    records = Records(settings, usual="error")
    answer: ValidateConfigResult | None = None
    # Whoever asks does not change: what waits for clean-up is left to wait.
    async with hosted(configuration, settings.interrupts, records, cleans_up=False) as host:
        with Status(quiet=False).doing(f"asking {provider}"):
            facts = await host.describe(provider)
            fitting = fit(config, bytes(facts.hello.provider.config_schema))
            refuse_secrets(provider, fitting, facts.hello)
            answer = await host.validate(provider, fitting)
    return answer
