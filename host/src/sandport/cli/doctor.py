"""`sandport doctor`."""

from __future__ import annotations

import click

from .application import ExampleCommand, Settings, shared_options

EXAMPLES = """
sandport doctor
sandport doctor --json | jq -c '.places.places[] | [.path, .sizeBytes]'
sandport doctor --json | jq '.checks[] | select(.state != "ok")'

Exit codes: 0 all is well, 1 something is wrong.
"""


@click.command(cls=ExampleCommand, examples=EXAMPLES, short_help="Check this installation.")
@click.option("--json", "as_json", is_flag=True, help="One object on stdout.")
@shared_options
@click.pass_obj
def command(settings: Settings, *, as_json: bool) -> int:
    """Check Python, the settings in force, the folder for state, the journal of leases, and that each worker starts.

    The sizes of workers' state, of logs, of the journal and of each sandbox's folder are told, and what room is left.

    Variables that a provider reads and does not get are listed, with the line of sandport.toml that grants them.
    """
    from .diagnosis import diagnose

    return diagnose(settings, as_json=as_json)
