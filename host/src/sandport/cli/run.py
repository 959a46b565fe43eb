"""`sandport run`: what its words mean; nothing is started here."""

from __future__ import annotations

from typing import Any

import click

from .application import Settings, shared_options
from .completion import complete_directory, complete_environment, complete_provider
from .task_options import EXIT_CODES, TaskCommand, command_argument, command_options, copy_options, output_options

EXAMPLES = f"""
sandport run -- echo hello
sandport run -p local ls -l                              '--' may be left out before a plain name
sandport run --in src --in data.csv:in.csv -- ./build.sh
sandport run --in . --out report -- pytest -q            report/ comes back, also after a failure
sandport run --timeout 60 --json -- make 2>log | jq .code
printf 'one\\ntwo\\n' | sandport run --stdin - -- sort -r
sandport run --in . --exclude '*.log' --gitignore -- make        leave out what is no source
sandport run -p local -c isolation=none -- ./bench.sh
sandport run -c network=true --expose /srv/models -- ./answer.py        what isolation keeps away otherwise
sandport run --keep --name build --in . -- make          then: sandport exec build -- make test

With --keep the sandbox is kept also when the command failed or timed out, until 'sandport leases end' or its --ttl.
A signal, or a reader of our output that goes away, ends it all the same.
{EXIT_CODES}"""


@click.command(
    cls=TaskCommand,
    examples=EXAMPLES,
    context_settings={"allow_interspersed_args": False, "help_option_names": ["-h", "--help"]},
    options_metavar="[OPTIONS] [--]",
    short_help="Run a command in a new sandbox.",
)
@click.option("-p", "--provider", metavar="NAME", shell_complete=complete_provider, help="Where to; local by default.")
@click.option(
    "-e", "--environment", metavar="NAME", shell_complete=complete_environment, help="An environment of sandport.toml."
)
@click.option(
    "-c",
    "overrides",
    metavar="KEY=VALUE",
    multiple=True,
    help="Config of the provider, over the environment's; true, 3, [1, 2] as in TOML, dots nest.",
)
@click.option(
    "--expose",
    metavar="DIR",
    multiple=True,
    shell_complete=complete_directory,
    help="Show a folder of this machine inside, read-only, under its own path; provider local.",
)
@copy_options
@command_options
@click.option("--ttl", metavar="S", help="Seconds until the sandbox ends by itself; an hour, or the timeout and more.")
@click.option("--keep", is_flag=True, help="Keep the sandbox for 'sandport exec', and say its id.")
@click.option("--name", metavar="NAME", help="What to call the lease; an id stands for it otherwise.")
@output_options
@shared_options
@command_argument
@click.pass_obj
def command(settings: Settings, /, **options: Any) -> int:
    """Run COMMAND in a new sandbox, and leave nothing of it behind.

    Its output appears as it comes, byte for byte, and its exit code becomes ours.
    """
    from .plan import RunWish, run

    return run(RunWish(**options), settings)
