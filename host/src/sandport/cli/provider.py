"""`sandport provider`: for authors of providers."""

from __future__ import annotations

import click

from .application import ExampleCommand, Settings, shared_options, write_examples
from .completion import complete_configured, complete_file

EXAMPLES = """
sandport provider new acme
sandport provider new acme-gpu --folder ~/src/acme
sandport provider add mine -- node worker.js             then: sandport run -p mine -- echo hello
sandport provider remove mine
"""

ADD_EXAMPLES = """
sandport provider add mine -- node worker.js
sandport provider add mine --env MINE_TOKEN -- python3 -m mine --region eu
sandport provider add mine --json -- ./worker | jq .hello

A worker is any program that speaks the protocol on its stdin and stdout. It is started once, and has to say hello,
before the command is written into your own sandport.toml (that of --config or $SANDPORT_CONFIG where there is one).
It is started from '/': the program, and each word that names a file here, are written with their whole path.

Exit codes: 0 added; 2 the name or the command will not do; 125 it does not come up, and the end of its log is shown.
Nothing was changed unless it is 0.
"""

REMOVE_EXAMPLES = """
sandport provider remove mine
sandport provider remove mine --yes                      also where environments or leases need it

Exit codes: 0 done; 2 no such provider, or it is in use; nothing was changed.
"""

NEW_EXAMPLES = """
sandport provider new acme
sandport provider new acme-gpu --folder ~/src/acme
sandport provider new acme --json | jq -r '.next[]'

Exit codes: 0 it is there; 2 the name will not do, or the folder is there already, and nothing was written.
"""


class ProviderGroup(click.Group):
    """The group, with examples."""

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write them."""
        write_examples(formatter, EXAMPLES)


@click.group(cls=ProviderGroup, short_help="Begin a provider, add a worker in any language, remove one.")
@shared_options
def command() -> None:
    """Begin a provider of your own, or add one that is there: a worker, in any language.

    What is installed is listed by: sandport providers
    """


@command.command("new", cls=ExampleCommand, examples=NEW_EXAMPLES)
@click.argument("name", metavar="NAME")
@click.option("--folder", metavar="DIR", type=click.Path(), help="Where; sandport-provider-NAME here by default.")
@click.option("--json", "as_json", is_flag=True, help="One object on stdout.")
@shared_options
@click.pass_obj
def new(settings: Settings, *, name: str, folder: str | None, as_json: bool) -> int:
    """Write a new provider: a package that works from its first commit on.

    Its sandboxes are folders of this machine, which nothing isolates; everything else that is asked of a provider is
    there, up to level 4 of the conformance kit. Put your own sandboxes in, and let the kit say whether they keep it.
    """
    from .answers import answered
    from .listing import put_json, put_lines
    from .provider_scaffold import make

    with answered(as_json=as_json):
        made = make(name, folder)
    if as_json:
        put_json(made)
        return 0
    put_lines(
        [
            f"{made.folder} is there: {len(made.files)} files, a provider called {made.name} that works.",
            "",
            "Next:",
            *(f"  {line}" for line in made.next),
            "",
            "Then put your sandboxes in; README.md there says where, and what is judged.",
        ]
    )
    return 0


@command.command("add", cls=ExampleCommand, examples=ADD_EXAMPLES, options_metavar="[OPTIONS] [--]")
@click.option("--env", "grants", metavar="VARIABLE", multiple=True, help="A variable of ours that the worker may see.")
@click.option("--yes", is_flag=True, help="Also in the place of an installed provider of this name.")
@click.option("--json", "as_json", is_flag=True, help="One object on stdout.")
@shared_options
@click.argument("name", metavar="NAME")
@click.argument(
    "words", metavar="COMMAND [ARGUMENT]...", nargs=-1, type=click.UNPROCESSED, shell_complete=complete_file
)
@click.pass_obj
def add(
    settings: Settings, *, name: str, words: tuple[str, ...], grants: tuple[str, ...], yes: bool, as_json: bool
) -> int:
    """Add COMMAND, a worker in any language, as provider NAME, once it has said hello.

    From then on 'sandport run -p NAME' has its sandboxes.
    """
    from .provider_command import add_one

    return add_one(name, settings, words=words, grants=grants, sure=yes, as_json=as_json)


@command.command("remove", cls=ExampleCommand, examples=REMOVE_EXAMPLES)
@click.option("--yes", is_flag=True, help="Also where environments or leases need it.")
@click.option("--json", "as_json", is_flag=True, help="One object on stdout.")
@shared_options
@click.argument("name", metavar="NAME", shell_complete=complete_configured)
@click.pass_obj
def remove(settings: Settings, *, name: str, yes: bool, as_json: bool) -> int:
    """Remove NAME from your own sandport.toml; environments and leases that need it are named first."""
    from .provider_command import remove_one

    return remove_one(name, settings, sure=yes, as_json=as_json)
