"""Names for the shell to complete."""

from __future__ import annotations

from typing import Any

import click
from click.shell_completion import CompletionItem


def complete_provider(ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[str]:
    """Providers that are installed or configured."""
    from sandport.discovery import discover

    names = {provider.name for provider in discover().providers} | set(_configured(ctx, "providers"))
    return sorted(name for name in names if name.startswith(incomplete))


def complete_configured(ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[str]:
    """Providers of the user's own file."""
    return sorted(name for name in _configured(ctx, "providers") if name.startswith(incomplete))


def complete_environment(ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[str]:
    """Environments of the files in force."""
    return sorted(name for name in _configured(ctx, "environments") if name.startswith(incomplete))


def complete_file(_ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Files, which the shell knows better."""
    return [CompletionItem(incomplete, type="file")]


def complete_directory(_ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Folders, which the shell knows better."""
    return [CompletionItem(incomplete, type="dir")]


def _configured(ctx: click.Context, section: str) -> dict[str, Any]:
    from sandport.configuration import load
    from sandport.errors import ConfigurationInvalid

    try:
        found: dict[str, Any] = getattr(load(ctx.find_root().obj.config), section)
    except ConfigurationInvalid:
        # Somebody is in the middle of a line: the command itself will say what is wrong with the file.
        return {}
    return found


def complete_state(_ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[str]:
    """States that a lease may be in."""
    from sandport.lease.info import STATES

    return [word for word in STATES if word.startswith(incomplete)]


def complete_lease(_ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[str]:
    """Ids and names of leases that have not ended."""
    import os

    from sandport.errors import UsageError
    from sandport.home import home_path
    from sandport.lease.view import lease_names

    try:
        names = lease_names(home_path(os.environ))
    except UsageError:
        # As above: the command itself will say what is wrong with the journal.
        return []
    return sorted(name for name in names if name.startswith(incomplete))
