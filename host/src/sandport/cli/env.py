"""`sandport env`: what its words mean."""

from __future__ import annotations

import click

from .application import ExampleCommand, Settings, shared_options, write_examples
from .completion import complete_environment, complete_provider

EXAMPLES = """
sandport env
sandport env add ci -p local -c isolation=require -c network=true --env CI=1
sandport env show ci
sandport env probe ci
sandport env remove ci

An environment is a provider, its config, and variables for every command that runs there: 'sandport run -e ci'. 'add'
and 'remove' change your own sandport.toml (that of --config or $SANDPORT_CONFIG where there is one); one in the current
folder is only read. Values of variables are not shown. For a value that nobody else may read use a grant to the
provider's worker instead: the file has it in clear.

Exit codes: 0 done; 2 no such environment, one that is there, or a config that its provider refuses, and nothing was
changed; 125 the provider cannot be asked; 1 'probe' found something that is not well.
"""

ADD_EXAMPLES = """
sandport env add ci -p local
sandport env add big -p local -c memory_bytes=2G -c 'expose=["/srv/models"]' --env MODELS=/srv/models

The provider is asked whether it takes the config. What is written are the keys that were given, in its normal form.
"""

SHOW_EXAMPLES = """
sandport env show ci
sandport env show ci --json | jq .validated
"""

PROBE_EXAMPLES = """
sandport env probe ci
sandport env probe ci --json | jq '.checks[] | select(.ok | not)'

Nothing is created. Exit codes: 0 all is well; 1 a check is not; 2 no such environment, or a config that its provider
refuses; 125 the provider cannot be asked.
"""

REMOVE_EXAMPLES = """
sandport env remove ci
sandport env remove ci --yes                             also where leases were made in it; these stay usable
"""

LIST_EXAMPLES = """
sandport env list
sandport env list --json | jq -r '.environments[].name'
"""


class EnvGroup(click.Group):
    """A group that lists where it is given no word."""

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the examples."""
        write_examples(formatter, EXAMPLES)


_json_option = click.option("--json", "as_json", is_flag=True, help="One object on stdout.")


@click.group(cls=EnvGroup, invoke_without_command=True, short_help="List, show, probe, add and remove environments.")
@_json_option
@shared_options
@click.pass_context
def command(ctx: click.Context, *, as_json: bool) -> int:
    """List the environments of sandport.toml, show one, add one, remove one; without a word, list."""
    if ctx.invoked_subcommand is not None:
        ctx.meta["as_json"] = as_json
        return 0
    from .environments import show_all

    return show_all(ctx.find_root().obj, as_json=as_json)


def _wants_json(ctx: click.Context, *, as_json: bool) -> bool:
    return as_json or ctx.meta.get("as_json", False)


@command.command("list", cls=ExampleCommand, examples=LIST_EXAMPLES, short_help="List the environments.")
@_json_option
@shared_options
@click.pass_context
def list_(ctx: click.Context, *, as_json: bool) -> int:
    """List the environments of the files in force; nothing is started."""
    from .environments import show_all

    return show_all(ctx.find_root().obj, as_json=_wants_json(ctx, as_json=as_json))


@command.command("show", cls=ExampleCommand, examples=SHOW_EXAMPLES, short_help="Show one environment.")
@_json_option
@shared_options
@click.argument("name", shell_complete=complete_environment)
@click.pass_context
def show(ctx: click.Context, *, name: str, as_json: bool) -> int:
    """Show NAME: where it comes from, its config as written and as its provider takes it, with every default."""
    from .environments import show_one

    return show_one(name, ctx.find_root().obj, as_json=_wants_json(ctx, as_json=as_json))


@command.command("probe", cls=ExampleCommand, examples=PROBE_EXAMPLES, short_help="Ask whether one works here.")
@_json_option
@shared_options
@click.argument("name", shell_complete=complete_environment)
@click.pass_context
def probe(ctx: click.Context, *, name: str, as_json: bool) -> int:
    """Ask the provider of NAME whether its config is good, and whether what its sandboxes need is there."""
    from .env_probe import probe_one

    return probe_one(name, ctx.find_root().obj, as_json=_wants_json(ctx, as_json=as_json))


@command.command("add", cls=ExampleCommand, examples=ADD_EXAMPLES, short_help="Add an environment.")
@click.option("-p", "--provider", metavar="NAME", required=True, shell_complete=complete_provider, help="Its provider.")
@click.option(
    "-c",
    "overrides",
    metavar="KEY=VALUE",
    multiple=True,
    help="Config of the provider; true, 3, [1, 2] as in TOML, sizes as 512M too; dots nest.",
)
@click.option("--env", "variables", metavar="K=V", multiple=True, help="A variable of every command that runs there.")
@_json_option
@shared_options
@click.argument("name")
@click.pass_context
def add(
    ctx: click.Context,
    *,
    name: str,
    provider: str,
    overrides: tuple[str, ...],
    variables: tuple[str, ...],
    as_json: bool,
) -> int:
    """Add NAME to your own sandport.toml, once its provider has taken the config."""
    from .environments import add_one

    settings: Settings = ctx.find_root().obj
    wants_json = _wants_json(ctx, as_json=as_json)
    return add_one(name, settings, provider=provider, overrides=overrides, variables=variables, as_json=wants_json)


@command.command("remove", cls=ExampleCommand, examples=REMOVE_EXAMPLES, short_help="Remove an environment.")
@click.option("--yes", is_flag=True, help="Also where leases were made in it.")
@_json_option
@shared_options
@click.argument("name", shell_complete=complete_environment)
@click.pass_context
def remove(ctx: click.Context, *, name: str, yes: bool, as_json: bool) -> int:
    """Remove NAME from your own sandport.toml; leases that were made in it are named first, and stay usable."""
    from .environments import remove_one

    return remove_one(name, ctx.find_root().obj, sure=yes, as_json=_wants_json(ctx, as_json=as_json))
