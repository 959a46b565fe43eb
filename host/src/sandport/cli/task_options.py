"""The options that `sandport run`, `exec` and `shell` share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

from .application import ExampleCommand
from .completion import complete_directory, complete_environment, complete_file, complete_provider

_F = TypeVar("_F", bound=Callable[..., Any])

EXIT_CODES = """
Exit codes: the program's own; 124 timed out; 126 not executable; 127 not found; 128+n ended by signal n;
130, 143, 129 interrupted by SIGINT, SIGTERM, SIGHUP; 141 nobody reads our output any more; 2 wrong use or
configuration, nothing was started; 125 Sandport's own failure, an --in that cannot all be read, so that
nothing was started, or the program's 0 where something that --out wants is missing, was refused, or changed while it
was read. --json tells a program's code from ours.
"""


class TaskCommand(ExampleCommand):
    """Notes that an object was asked for even where the rest of the line cannot be understood."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse; on a fault, `--json` still gets its object."""
        ours = args[: args.index("--")] if "--" in args else list(args)
        try:
            return super().parse_args(ctx, self.arranged(args))
        except click.UsageError as error:
            if "--json" in ours and not ctx.resilient_parsing:
                from .failures import misuse
                from .report import Ids, Report

                report = Report(ids=Ids())
                report.failed(misuse(error.format_message()))
                report.write()
            raise

    def arranged(self, args: list[str]) -> list[str]:
        """The words in the order in which they are parsed: options, then arguments."""
        return args


def copy_options(function: _F) -> _F:
    """What goes in before, and comes out afterwards."""
    for option in (
        *selection_options(
            exclude="Leave out of what is copied, in and out; gitignore's patterns, from the top of each.",
            gitignore="Leave out of what goes in what .gitignore files say.",
        ),
        click.option(
            "--out",
            metavar="REMOTE[:LOCAL]",
            multiple=True,
            help="Copy out afterwards, also when the command failed; nothing here is deleted.",
        ),
        click.option(
            "--in",
            "into",
            metavar="LOCAL[:REMOTE]",
            multiple=True,
            shell_complete=complete_file,
            help="Copy in first: a file, or a folder's contents. '\\:' is a colon in a name.",
        ),
    ):
        function = option(function)
    return function


def selection_options(*, exclude: str, gitignore: str) -> tuple[Callable[[_F], _F], Callable[[_F], _F]]:
    """What is left out, with the words for it; the last one of the options first."""
    return (
        click.option("--gitignore", is_flag=True, help=gitignore),
        click.option("--exclude", metavar="PATTERN", multiple=True, help=exclude),
    )


def place_options(function: _F) -> _F:
    """Where a new sandbox is made, and with what."""
    for option in (
        click.option(
            "--expose",
            metavar="DIR",
            multiple=True,
            shell_complete=complete_directory,
            help="Show a folder of this machine inside, read-only, under its own path; provider local.",
        ),
        click.option(
            "-c",
            "overrides",
            metavar="KEY=VALUE",
            multiple=True,
            help="Config of the provider, such as limits, over the environment's; 'sandport providers NAME' lists it.",
        ),
        click.option(
            "-e",
            "--environment",
            metavar="NAME",
            shell_complete=complete_environment,
            help="An environment of sandport.toml, or a provider.",
        ),
        click.option(
            "-p",
            "--provider",
            metavar="NAME",
            shell_complete=complete_provider,
            help="Where to; local by default.",
        ),
    ):
        function = option(function)
    return function


def keeping_options(*, ttl: str) -> Callable[[_F], _F]:
    """How long a new sandbox is there, with the words for it."""

    def decorated(function: _F) -> _F:
        for option in (
            click.option("--name", metavar="NAME", help="What to call the lease; an id stands for it otherwise."),
            click.option("--keep", is_flag=True, help="Keep the sandbox for 'sandport exec', and say its id."),
            click.option("--ttl", metavar="S", help=ttl),
        ):
            function = option(function)
        return function

    return decorated


def command_options(function: _F) -> _F:
    """How the command runs."""
    for option in (
        click.option("--timeout", metavar="S", help="Seconds until the command is killed; none by default."),
        click.option("--env", metavar="K=V", multiple=True, help="A variable of the command."),
        click.option("--cwd", metavar="DIR", help="Where to run, from the sandbox's working directory."),
    ):
        function = option(function)
    return function


def output_options(function: _F) -> _F:
    """Its input, and what is said."""
    for option in (
        talk_options,
        click.option(
            "-t",
            "--terminal",
            is_flag=True,
            help="Give the command this terminal, with its size and every key, as 'sandport shell' does.",
        ),
        click.option(
            "--json", "as_json", is_flag=True, help="One object on stdout; the command's output goes to stderr."
        ),
        click.option(
            "--stdin",
            metavar="FILE",
            shell_complete=complete_file,
            help="The command's input, '-' for ours; empty by default.",
        ),
    ):
        function = option(function)
    return function


def talk_options(function: _F) -> _F:
    """How much is said."""
    for option in (
        click.option("-v", "--verbose", is_flag=True, help="Say what is done, and how long it took."),
        click.option("-q", "--quiet", is_flag=True, help="Say nothing but errors, and what a sandbox lacks."),
    ):
        function = option(function)
    return function


def command_argument(function: _F) -> _F:
    """The command itself; everything behind its first word is its own."""
    return click.argument(
        "command", metavar="COMMAND [ARGUMENT]...", nargs=-1, type=click.UNPROCESSED, shell_complete=complete_file
    )(function)
