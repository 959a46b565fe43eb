"""`sandport shell`: what its words mean; nothing is started here."""

from __future__ import annotations

from typing import Any

import click

from .application import ExampleCommand, Settings, shared_options
from .completion import complete_lease
from .task_options import command_options, copy_options, keeping_options, place_options, talk_options

EXAMPLES = """
sandport shell                                           a new sandbox, gone when the shell ends
sandport shell -e ci --in . --gitignore                  with this folder's files in it
sandport shell --keep --name try                         then: sandport exec try -- make
sandport shell try                                       in a sandbox that is there, which stays as it was
sandport shell try --program 'python3 -i'

Every key is the shell's, Ctrl-C and Ctrl-Z too. What gets you out of one that answers no more: Enter, '~', '.'; two
tildes behind Enter are one. A new size of the terminal is passed on.

Exit codes: the shell's own; 124 timed out; 126, 127 no such program; 128+n ended by signal n; 130 left with '~.';
141 the terminal went away; 2 wrong use, no terminal here or at the provider, nothing was started; 125 Sandport's own
failure.
"""


@click.command(
    cls=ExampleCommand,
    examples=EXAMPLES,
    options_metavar="[OPTIONS]",
    short_help="Open a shell in a sandbox.",
)
@place_options
@copy_options
@click.option("--program", metavar="COMMAND", help="What to run instead of bash, or sh where that is not there.")
@command_options
@keeping_options(ttl="Seconds until a new sandbox ends by itself; eight hours, or the timeout and more.")
@talk_options
@shared_options
@click.argument("lease", required=False, shell_complete=complete_lease)
@click.pass_obj
def command(settings: Settings, /, **options: Any) -> int:
    """Open a shell in a new sandbox, or in that of LEASE: an id, a name, or the beginning of an id.

    It has this terminal. A new sandbox is gone when it ends, unless it is to be kept.
    """
    from .shell_plan import ShellWish, shell

    return shell(ShellWish(stdin=None, as_json=False, command=(), **options), settings)
