"""`sandport provider`: for authors of providers."""

from __future__ import annotations

import click

from .application import ExampleCommand, Settings, shared_options, write_examples

EXAMPLES = """
sandport provider new acme
sandport provider new acme-gpu --folder ~/src/acme
"""

NEW_EXAMPLES = f"""{EXAMPLES}sandport provider new acme --json | jq -r '.next[]'

Exit codes: 0 it is there; 2 the name will not do, or the folder is there already, and nothing was written.
"""


class ProviderGroup(click.Group):
    """The group, with examples."""

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write them."""
        write_examples(formatter, EXAMPLES)


@click.group(cls=ProviderGroup, short_help="Begin a provider of your own.")
@shared_options
def command() -> None:
    """Begin a provider of your own.

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
