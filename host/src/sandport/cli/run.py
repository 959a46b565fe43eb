"""`sandport run`: what its words mean; nothing is started here."""

from __future__ import annotations

from typing import Any

import click

from .application import ExampleCommand, Settings, shared_options
from .completion import complete_environment, complete_file, complete_provider

EXAMPLES = """
sandport run -- echo hello
sandport run -p local ls -l                              '--' may be left out before a plain name
sandport run --in src --in data.csv:in.csv -- ./build.sh
sandport run --in . --out report -- pytest -q            report/ comes back, also after a failure
sandport run --timeout 60 --json -- make 2>log | jq .code
printf 'one\\ntwo\\n' | sandport run --stdin - -- sort -r
sandport run -p local -c isolation=none -- ./bench.sh

Exit codes: the program's own; 124 timed out; 126 not executable; 127 not found; 128+n ended by signal n;
130, 143, 129 interrupted by SIGINT, SIGTERM, SIGHUP; 141 nobody reads our output any more; 2 wrong use or
configuration, nothing was started; 125 Sandport's own failure. --json tells a program's code from ours.
"""


class RunCommand(ExampleCommand):
    """Notes that an object was asked for even where the rest of the line cannot be understood."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse; on a fault, `--json` still gets its object."""
        ours = args[: args.index("--")] if "--" in args else list(args)
        try:
            return super().parse_args(ctx, args)
        except click.UsageError as error:
            if "--json" in ours and not ctx.resilient_parsing:
                from .failures import misuse
                from .report import Ids, Report

                report = Report(ids=Ids())
                report.failed(misuse(error.format_message()))
                report.write()
            raise


@click.command(
    cls=RunCommand,
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
    "--in",
    "into",
    metavar="LOCAL[:REMOTE]",
    multiple=True,
    shell_complete=complete_file,
    help="Copy in first: a file, or a folder's contents. '\\:' is a colon in a name.",
)
@click.option(
    "--out",
    metavar="REMOTE[:LOCAL]",
    multiple=True,
    help="Copy out afterwards, also when the command failed; nothing here is deleted.",
)
@click.option("--cwd", metavar="DIR", help="Where to run, from the sandbox's working directory.")
@click.option("--env", metavar="K=V", multiple=True, help="A variable of the command.")
@click.option("--timeout", metavar="S", help="Seconds until the command is killed; none by default.")
@click.option("--ttl", metavar="S", help="Seconds until the sandbox ends by itself; an hour, or the timeout and more.")
@click.option(
    "--stdin",
    metavar="FILE",
    shell_complete=complete_file,
    help="The command's input, '-' for ours; empty by default.",
)
@click.option("--json", "as_json", is_flag=True, help="One object on stdout; the command's output goes to stderr.")
@click.option("-q", "--quiet", is_flag=True, help="Say nothing but errors.")
@click.option("-v", "--verbose", is_flag=True, help="Say what is done, and how long it took.")
@shared_options
@click.argument(
    "command", metavar="COMMAND [ARGUMENT]...", nargs=-1, type=click.UNPROCESSED, shell_complete=complete_file
)
@click.pass_obj
def command(settings: Settings, /, **options: Any) -> int:
    """Run COMMAND in a new sandbox, and leave nothing of it behind.

    Its output appears as it comes, byte for byte, and its exit code becomes ours.
    """
    from .plan import Wish, run

    return run(Wish(**options), settings)
