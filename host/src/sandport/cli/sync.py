"""`sandport sync`: what its words mean; nothing is started here."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click

from .application import Settings, shared_options, write_examples
from .completion import complete_file, complete_lease
from .task_options import TaskCommand, selection_options

_Option = Callable[[Callable[..., Any]], Callable[..., Any]]

EXIT_CODES = """
Exit codes: 0 all is there; 1 all but what is listed, with the reason; 2 wrong use or no such lease, nothing was copied;
125 it failed, and what is in place is whole; 130, 143, 129 interrupted by SIGINT, SIGTERM, SIGHUP.
"""

EXAMPLES = """
sandport sync in build .                                 the contents of this folder, into the working directory
sandport sync out build report                           report/ comes here
sandport sync in build src src --delete --dry-run        what would be copied, and deleted there

Both have more examples: sandport sync in --help
"""

IN_EXAMPLES = f"""
sandport sync in build .                                 the contents of this folder, into the working directory
sandport sync in build src src                           the contents of src into src there
sandport sync in build data.csv inputs/                  a file, under its own name
sandport sync in build . --gitignore --exclude '*.tmp'   sources only
sandport sync in build src src --delete -n               what would be copied and deleted there; nothing is written
sandport sync in build key.pem .key --mode 0600
{EXIT_CODES}"""

OUT_EXAMPLES = f"""
sandport sync out build report                           report/ comes here
sandport sync out build . result                         everything, into result/
sandport sync out build report --exclude '*.png' --json | jq .moved
sandport sync out build site public --delete -n          what would be copied, and deleted in public/
sandport sync out build images --max-bytes 20G
{EXIT_CODES}"""


class SyncGroup(click.Group):
    """A group with examples."""

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write them."""
        write_examples(formatter, EXAMPLES)


def _manner_options(*, deleted: str, extra: tuple[_Option, ...]) -> _Option:
    """How it is copied, and what is said of it."""

    def add(function: Callable[..., Any]) -> Callable[..., Any]:
        options: tuple[_Option, ...] = (
            click.option("-v", "--verbose", is_flag=True, help="List also what is left out and deleted."),
            click.option("-q", "--quiet", is_flag=True, help="Say nothing but errors."),
            click.option("--json", "as_json", is_flag=True, help="One object on stdout, as of 'sandport exec'."),
            click.option("--mode", metavar="OCTAL", help="Permission bits of a single file, such as 0600."),
            *extra,
            click.option("-n", "--dry-run", is_flag=True, help="List what would be done, and do nothing of it."),
            click.option("--delete", is_flag=True, help=deleted),
            *selection_options(
                exclude="Leave out; gitignore's patterns, from the top of the source. The last that matches decides.",
                gitignore="Leave out what .gitignore files of the source say.",
            ),
        )
        for option in options:
            function = option(function)
        return function

    return add


@click.group(cls=SyncGroup, short_help="Copy files in or out.")
@shared_options
def command() -> None:
    """Copy files into a sandbox that is there, or out of it.

    Content, modes, times, links and names arrive as they are. What is there beside them stays, unless --delete says
    otherwise.
    """


@command.command(
    "in",
    cls=TaskCommand,
    examples=IN_EXAMPLES,
    short_help="Copy a file, or a folder's contents, into a sandbox.",
)
@_manner_options(
    deleted="Delete there what LOCAL has not, unless it is left out.",
    extra=(
        click.option("--replace", is_flag=True, help="Destroy what is at REMOTE first."),
        click.option("--follow-symlinks", is_flag=True, help="Copy what links lead to, not the links."),
    ),
)
@shared_options
@click.argument("lease", shell_complete=complete_lease)
@click.argument("local", shell_complete=complete_file)
@click.argument("remote", required=False)
@click.pass_obj
def in_(settings: Settings, /, **options: Any) -> int:
    """Copy LOCAL into the sandbox of LEASE.

    A folder's contents become contents of REMOTE, by default of the working directory; a file becomes REMOTE, or goes
    into it where that is a folder. `.git` is copied too, unless it is excluded.
    """
    from .syncing import InWish, sync

    return sync(InWish(**options), settings)


@command.command(
    "out",
    cls=TaskCommand,
    examples=OUT_EXAMPLES,
    short_help="Copy a file, or a folder's contents, out of a sandbox.",
)
@_manner_options(
    deleted="Delete what REMOTE has not, unless it is left out; never in this folder, a home or a git work tree's top.",
    extra=(
        click.option("--max-entries", metavar="N", help="How many names to take at most; 1,000,000 by default."),
        click.option("--max-bytes", metavar="SIZE", help="How much to take at most; 8G by default."),
    ),
)
@shared_options
@click.argument("lease", shell_complete=complete_lease)
@click.argument("remote")
@click.argument("local", required=False, shell_complete=complete_file)
@click.pass_obj
def out(settings: Settings, /, **options: Any) -> int:
    """Copy REMOTE out of the sandbox of LEASE.

    A folder's contents become contents of LOCAL, by default of a folder of the same name here; a file becomes LOCAL,
    or goes into it where that is a folder. Files are replaced whole.
    """
    from .syncing import OutWish, sync

    return sync(OutWish(**options), settings)
