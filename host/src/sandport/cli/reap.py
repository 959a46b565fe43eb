"""`sandport reap`: what its words mean."""

from __future__ import annotations

from typing import Any

import click

from .application import ExampleCommand, Settings, shared_options
from .completion import complete_lease

EXAMPLES = """
sandport reap
sandport reap --wait 60                                  try again, for a minute at most, what is not confirmed
sandport reap --unknown                                  also list sandboxes that no lease here knows
sandport reap --unknown --yes                            and destroy them
sandport reap --forget sp4xk... --reason 'the account was closed'

Every command that starts something cleans up what is due. This one tries everything that waits, and says what came
of it. Leases that are kept, and those of live processes, are left alone.

Exit codes: 0 all is confirmed gone, or there was nothing; 125 something is not: the next command tries it again;
2 wrong use or configuration.
"""


@click.command(cls=ExampleCommand, examples=EXAMPLES, short_help="Clean up what killed or failed commands left.")
@click.option("--wait", "wait", metavar="S", help="Seconds to go on with what is not confirmed; one try by default.")
@click.option("--unknown", is_flag=True, help="Ask the providers for sandboxes of this store that no lease here knows.")
@click.option("--yes", is_flag=True, help="With --unknown: destroy them without a question.")
@click.option(
    "--forget",
    metavar="SANDBOX",
    shell_complete=complete_lease,
    help="Take a sandbox for gone that nobody can confirm; nothing is destroyed.",
)
@click.option("--reason", metavar="TEXT", help="With --forget: why; it is kept.")
@click.option("--json", "as_json", is_flag=True, help="One object on stdout.")
@shared_options
@click.pass_obj
def command(settings: Settings, /, **options: Any) -> int:
    """End sandboxes that nobody holds any more: of killed commands, failed clean-ups, leases that are over."""
    from .reaping import ReapWish, reap

    return reap(ReapWish(**options), settings)
