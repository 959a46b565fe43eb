"""`sandport exec`: what its words mean; nothing is started here."""

from __future__ import annotations

from typing import Any

import click

from .application import Settings, shared_options
from .completion import complete_lease
from .task_options import EXIT_CODES, TaskCommand, command_argument, command_options, copy_options, output_options

EXAMPLES = f"""
sandport exec build -- make test                         a name that 'sandport run --keep --name' gave
sandport exec lefjq2 ls -l                               the beginning of an id is enough
sandport exec build --in patch.diff --timeout 60 -- git apply patch.diff
sandport exec -t build -- python3                        on this terminal
sandport leases                                          those that there are

The sandbox stays as it was, whatever becomes of the command; a signal ends the command alone.
{EXIT_CODES}"""


class ExecCommand(TaskCommand):
    """Takes options on both sides of LEASE."""

    def arranged(self, args: list[str]) -> list[str]:
        """Options first, then '--', LEASE and the words of the command."""
        ahead, rest = self._options(args)
        if not rest or rest[0] == "--":
            return args
        behind, words = self._options(rest[1:])
        if not words and behind and behind[-1] in self._valued():
            return [*ahead, *behind]  # without its value, which the next word must not become
        if words[:1] == ["--"]:
            del words[0]
        return [*ahead, *behind, "--", rest[0], *words]

    def _valued(self) -> set[str]:
        return {
            name
            for param in self.params
            if isinstance(param, click.Option) and not param.is_flag
            for name in param.opts
        }

    def _options(self, args: list[str]) -> tuple[list[str], list[str]]:
        """The options that a line begins with, and what is behind them."""
        valued = self._valued()
        place = 0
        while place < len(args) and args[place].startswith("-") and args[place] not in ("-", "--"):
            # '--name=value' is one word; an option without its value is the parser's to complain about.
            place += 2 if args[place] in valued else 1
        return args[:place], args[place:]


@click.command(
    cls=ExecCommand,
    examples=EXAMPLES,
    context_settings={"allow_interspersed_args": False, "help_option_names": ["-h", "--help"]},
    options_metavar="[OPTIONS]",
    short_help="Run a command in a sandbox that is there already.",
)
@copy_options
@command_options
@output_options
@shared_options
@click.argument("lease", metavar="LEASE [--]", shell_complete=complete_lease)
@command_argument
@click.pass_obj
def command(settings: Settings, /, **options: Any) -> int:
    """Run COMMAND in the sandbox of LEASE: an id, a name, a sandbox's id, or the beginning of an id.

    Its output appears as it comes, byte for byte, and its exit code becomes ours.
    """
    from .invocation import exec_
    from .plan import ExecWish

    return exec_(ExecWish(**options), settings)
