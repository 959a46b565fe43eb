"""`sandport leases`: what its words mean."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

from .application import ExampleCommand, Settings, shared_options, write_examples
from .completion import complete_lease, complete_state

_F = TypeVar("_F", bound=Callable[..., Any])

EXAMPLES = """
sandport leases
sandport leases list --all --json | jq -r '.leases[] | select(.pending) | .id'
sandport leases show build
sandport leases end build lefjq2
sandport leases --watch                                  again and again, until Ctrl-C

LEASE is an id, a name, a sandbox's id, or the beginning of an id that only it has. 'list' and 'show' only read: what
they mark as waiting for clean-up is cleaned up by the next command that starts something, or by 'sandport reap'.
"""

LIST_EXAMPLES = """
sandport leases list
sandport leases list --all                               also those that are over, as far as they are remembered
sandport leases list --run run-42 --state kept
sandport leases list --json | jq -r '.leases[].id'
sandport leases list --watch 10                          drawn over itself every ten seconds
sandport leases list --watch --json | jq --unbuffered .pending

Exit codes: 0, also after the Ctrl-C that ends --watch; 129, 143 where SIGHUP or SIGTERM ends it; 141 nobody reads it
any more; 2 the journal cannot be read.
"""

SHOW_EXAMPLES = """
sandport leases show build
sandport leases show lefjq2 --json | jq .receipts
"""

END_EXAMPLES = """
sandport leases end build
sandport leases end lefjq2 lem4wa --json
sandport leases end build --force                        also while another process uses it

Exit codes: 0 all are confirmed gone, also those that had ended before; 2 no such lease; 125 one is used by another
process, or its end is not confirmed and clean-up goes on with it.
"""


_watch_option = click.option(
    "--watch",
    metavar="[SECONDS]",
    is_flag=False,
    flag_value="2",
    help="Show it again and again, every two seconds, until Ctrl-C; with --json a document a line.",
)


def _choice_options(function: _F) -> _F:
    """Which of them."""
    for option in (
        click.option("--state", metavar="STATE", shell_complete=complete_state, help="Only those in this state."),
        click.option("--run", metavar="RUN", help="Only those of this run."),
        click.option("--all", "ended", is_flag=True, help="Also those that are over."),
    ):
        function = option(function)
    return function


class LeasesGroup(click.Group):
    """A group that lists where it is given no word."""

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the examples."""
        write_examples(formatter, EXAMPLES)


@click.group(cls=LeasesGroup, invoke_without_command=True, short_help="List, show and end leases.")
@_choice_options
@_watch_option
@click.option("--json", "as_json", is_flag=True, help="One object on stdout.")
@shared_options
@click.pass_context
def command(ctx: click.Context, /, *, watch: str | None, as_json: bool, **chosen: Any) -> int:
    """List the leases of this machine's store, show one, or end some; without a word, list."""
    if ctx.invoked_subcommand is not None:
        ctx.meta["as_json"] = as_json
        ctx.meta["chosen"] = chosen
        ctx.meta["watch"] = watch
        return 0
    return _listed(ctx.obj, chosen, watch=watch, as_json=as_json)


def _listed(settings: Settings, chosen: dict[str, Any], *, watch: str | None, as_json: bool) -> int:
    from .lease_list import Choice, show_all

    choice = Choice(**chosen)
    if watch is not None:
        from . import lease_watch

        return lease_watch.watch(settings, watch, choice, as_json=as_json)
    return show_all(choice, as_json=as_json)


@command.command("list", cls=ExampleCommand, examples=LIST_EXAMPLES, short_help="List the leases.")
@_choice_options
@_watch_option
@click.option("--json", "as_json", is_flag=True, help="One object on stdout.")
@shared_options
@click.pass_context
def list_(ctx: click.Context, /, *, watch: str | None, as_json: bool, **chosen: Any) -> int:
    """List the leases that have not ended, and those whose sandbox is not confirmed gone."""
    before: dict[str, Any] = ctx.meta.get("chosen", {})
    return _listed(
        ctx.obj,
        {name: value or before.get(name) for name, value in chosen.items()},
        watch=watch or ctx.meta.get("watch"),
        as_json=as_json or ctx.meta.get("as_json", False),
    )


@command.command("show", cls=ExampleCommand, examples=SHOW_EXAMPLES, short_help="Show one lease.")
@click.option("--json", "as_json", is_flag=True, help="One object on stdout.")
@shared_options
@click.argument("lease", shell_complete=complete_lease)
@click.pass_context
def show(ctx: click.Context, *, lease: str, as_json: bool) -> int:
    """Show everything that is known of LEASE, and what was done to its sandbox, in order."""
    from .lease_page import show_one

    return show_one(lease, as_json=as_json or ctx.meta.get("as_json", False))


@command.command("end", cls=ExampleCommand, examples=END_EXAMPLES, short_help="End leases, and their sandboxes.")
@click.option("--force", is_flag=True, help="Also those that another process uses, which then loses them.")
@click.option("--json", "as_json", is_flag=True, help="One object on stdout.")
@shared_options
@click.argument("leases", metavar="LEASE...", nargs=-1, required=True, shell_complete=complete_lease)
@click.pass_context
def end(ctx: click.Context, /, **options: Any) -> int:
    """End each LEASE and destroy its sandbox."""
    from .lease_end import end_all

    settings: Settings = ctx.obj
    as_json = options["as_json"] or ctx.meta.get("as_json", False)
    return end_all(options["leases"], settings, force=options["force"], as_json=as_json)
