"""`sandport providers`."""

from __future__ import annotations

import click

from .application import ExampleCommand, Settings, shared_options

EXAMPLES = """
sandport providers
sandport providers --json | jq -r '.providers[].name'
sandport providers --probe
"""


@click.command(cls=ExampleCommand, examples=EXAMPLES, short_help="List the providers.")
@click.option("--probe", is_flag=True, help="Start a worker of each, and show what it says of itself.")
@click.option("--json", "as_json", is_flag=True, help="One object on stdout.")
@shared_options
@click.pass_obj
def command(settings: Settings, *, probe: bool, as_json: bool) -> int:
    """List the providers that are installed, or configured in sandport.toml.

    Only metadata is read: without --probe no code of a provider runs.
    """
    from .catalogue import show

    return show(settings, probe=probe, as_json=as_json)
