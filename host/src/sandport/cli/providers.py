"""`sandport providers`."""

from __future__ import annotations

import click

from .application import ExampleCommand, Settings, shared_options
from .completion import complete_provider

EXAMPLES = """
sandport providers
sandport providers local                                 what it can do, and the keys of its config, for -c
sandport providers --json | jq -r '.providers[].name'
sandport providers --probe
"""


@click.command(cls=ExampleCommand, examples=EXAMPLES, short_help="List the providers.")
@click.option("--probe", is_flag=True, help="Start a worker of each, and show what it says of itself.")
@click.option("--json", "as_json", is_flag=True, help="One object on stdout.")
@shared_options
@click.argument("name", metavar="[NAME]", required=False, shell_complete=complete_provider)
@click.pass_obj
def command(settings: Settings, *, name: str | None, probe: bool, as_json: bool) -> int:
    """List the providers that are installed, or configured in sandport.toml; or show one, with the keys of its config.

    Only metadata is read: without NAME or --probe no code of a provider runs.
    """
    from .catalogue import show

    return show(settings, name, probe=probe, as_json=as_json)
