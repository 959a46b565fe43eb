"""`sandport run`: what its words mean; nothing is started here."""

from __future__ import annotations

from typing import Any

import click

from .application import Settings, shared_options
from .task_options import (
    EXIT_CODES,
    TaskCommand,
    command_argument,
    command_options,
    copy_options,
    keeping_options,
    output_options,
    place_options,
)

EXAMPLES = f"""
sandport run -- echo hello
sandport run -p local ls -l                              '--' may be left out before a plain name
sandport run --in src --in data.csv:in.csv -- ./build.sh
sandport run --in . --out report -- pytest -q            report/ comes back, also after a failure
sandport run --timeout 60 --json -- make 2>log | jq .code
printf 'one\\ntwo\\n' | sandport run --stdin - -- sort -r
sandport run --in . --exclude '*.log' --gitignore -- make        leave out what is no source
sandport run -c memory_bytes=512M -c pids=100 -- ./build.sh             limits; sandport providers local lists all
sandport run -p local -c isolation=none -- ./bench.sh
sandport run -c network=true --expose /srv/models -- ./answer.py        what isolation keeps away otherwise
sandport run --keep --name build --in . -- make          then: sandport exec build -- make test

sandport run -t --in . -- vi README.md                    on this terminal; Enter, '~', '.' leaves what answers no more

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
@place_options
@copy_options
@command_options
@keeping_options(ttl="Seconds until the sandbox ends by itself; an hour, eight with -t, or the timeout and more.")
@output_options
@shared_options
@command_argument
@click.pass_obj
def command(settings: Settings, /, **options: Any) -> int:
    """Run COMMAND in a new sandbox, and leave nothing of it behind.

    Its output appears as it comes, byte for byte, and its exit code becomes ours.
    """
    from .invocation import run
    from .plan import RunWish

    return run(RunWish(**options), settings)
