"""The commands, each imported when it is called; options that all of them take; and what a failure looks like."""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import click

from . import exit_codes
from .interrupts import Interrupts
from .messages import say, words_of, write

_F = TypeVar("_F", bound=Callable[..., Any])

PROGRAM = "sandport"
COMPLETE_VARIABLE = "_SANDPORT_COMPLETE"
LEVELS = ("debug", "info", "warning", "error", "critical")

# Name: the module that defines it (as `command`), and its line in the list.
COMMANDS = {
    "run": ("sandport.cli.run", "Run a command in a new sandbox, with live output and its exit code."),
    "exec": ("sandport.cli.exec", "Run a command in a sandbox that is there already."),
    "shell": ("sandport.cli.shell", "Open a shell in a sandbox, on this terminal."),
    "sync": ("sandport.cli.sync", "Copy files into a sandbox that is there, or out of it."),
    "leases": ("sandport.cli.leases", "List the sandboxes that are leased, show one, end some."),
    "reap": ("sandport.cli.reap", "Clean up what killed or failed commands left."),
    "env": ("sandport.cli.env", "List, show, probe, add and remove environments of sandport.toml."),
    "providers": ("sandport.cli.providers", "List the providers that are installed or configured."),
    "provider": ("sandport.cli.provider", "Begin a provider of your own, add a worker in any language, remove one."),
    "doctor": ("sandport.cli.doctor", "Check this installation, and say what to do where something is wrong."),
}


class Settings:
    """What the options that all commands share say."""

    def __init__(self, interrupts: Interrupts) -> None:
        self.interrupts = interrupts
        self.config: str | None = None
        self.debug = False
        self.log_level: str | None = None
        self.log_format = "plain"


def _store(ctx: click.Context, param: click.Parameter, value: Any) -> None:
    # The option may stand before or behind the command's name; only where it was given does it say something.
    if ctx.get_parameter_source(str(param.name)) is not click.core.ParameterSource.DEFAULT:
        setattr(ctx.find_root().obj, str(param.name), value)


def shared_options(function: _F) -> _F:
    """Options that every command takes, also before its name."""
    for option in (
        click.option(
            "--debug", is_flag=True, expose_value=False, callback=_store, help="Log everything; show tracebacks."
        ),
        click.option(
            "--log-format",
            type=click.Choice(("plain", "json")),
            default="plain",
            expose_value=False,
            callback=_store,
            help="How log records look on stderr.",
        ),
        click.option(
            "--log-level",
            type=click.Choice(LEVELS),
            expose_value=False,
            callback=_store,
            help="The least severe records to show; warning by default.",
        ),
        click.option(
            "--config",
            metavar="FILE",
            type=click.Path(),
            expose_value=False,
            callback=_store,
            help="The sandport.toml to use, and trust; then the only one.",
        ),
    ):
        function = option(function)
    return function


class ExampleCommand(click.Command):
    """A command whose help ends with examples, printed as they are written."""

    def __init__(self, *args: Any, examples: str = "", **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.examples = examples

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the examples."""
        write_examples(formatter, self.examples)


def write_examples(formatter: click.HelpFormatter, examples: str) -> None:
    """A section whose lines are kept."""
    formatter.write("\nExamples:\n")
    for line in examples.strip("\n").splitlines():
        formatter.write(f"  {line}\n" if line else "\n")


class Application(click.Group):
    """The group of all commands; its list of them imports none."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """The names, in the order of the list above."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import a command."""
        if cmd_name not in COMMANDS:
            return None
        import importlib

        command: click.Command = importlib.import_module(COMMANDS[cmd_name][0]).command
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Which command is meant; of one that there is not, the closest is named, as for an option."""
        if args[0] not in COMMANDS and args[0][:1] != "-" and not ctx.resilient_parsing:
            from sandport.nearest import nearest

            ctx.fail(words_of(f"No such command {args[0]!r}{nearest(args[0], COMMANDS)}"))
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The list, from the table."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, line) for name, (_, line) in COMMANDS.items()])

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Examples, and what is good to know."""
        write_examples(formatter, EXAMPLES)
        formatter.write(f"\n{GOOD_TO_KNOW}")


EXAMPLES = """
sandport run -- python -c 'print("hello")'
sandport run --in . --out report -- pytest --junit-xml report/junit.xml
sandport run --keep --name try -- make; sandport exec try -- make test; sandport leases end try
sandport shell
sandport providers --probe
sandport doctor
"""

GOOD_TO_KNOW = """\
State is kept in $SANDPORT_HOME (default: the platform's folder for state).
NO_COLOR turns colours off; output that is no terminal has none anyway.

Completions:
  bash  eval "$(_SANDPORT_COMPLETE=bash_source sandport)"       in ~/.bashrc
  zsh   eval "$(_SANDPORT_COMPLETE=zsh_source sandport)"        in ~/.zshrc
  fish  _SANDPORT_COMPLETE=fish_source sandport | source        in ~/.config/fish/completions/sandport.fish
"""


def _version(ctx: click.Context, _param: click.Parameter, value: bool) -> None:  # noqa: FBT001 - click's signature
    if value and not ctx.resilient_parsing:
        from sandport import __version__

        click.echo(f"sandport {__version__}")
        ctx.exit()


@click.command(
    PROGRAM,
    cls=Application,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    subcommand_metavar="COMMAND [ARGUMENT]...",
)
@click.option(
    "-V", "--version", is_flag=True, is_eager=True, expose_value=False, callback=_version, help="Show the version."
)
@shared_options
def application() -> None:
    """Run commands in sandboxes, on any provider."""


def invoke(arguments: Sequence[str] | None, interrupts: Interrupts) -> int:
    """Parse, run, and turn whatever comes of it into an exit code and at most a few lines on stderr."""
    settings = Settings(interrupts)
    try:
        code = _called(list(sys.argv[1:] if arguments is None else arguments), settings)
        if sys.stdout is not None:  # it is, where the caller closed it
            sys.stdout.flush()
    except click.exceptions.NoArgsIsHelpError as error:
        write(error.format_message() + "\n")
        return exit_codes.USAGE
    except click.ClickException as error:
        return _usage(error)
    except OSError as error:
        if error.errno != errno.EPIPE:
            return _unexpected(error, settings)
        # What is still buffered has no reader; without this the interpreter would try again, and complain.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        return exit_codes.CLOSED_PIPE
    except Exception as error:  # noqa: BLE001 - no traceback reaches a user; --debug shows it
        return _known(error, settings)
    return code


def _called(arguments: list[str], settings: Settings) -> int:
    # Not click's own `main`: it answers a closed pipe with 1, which is a program's code.
    if instruction := os.environ.get(COMPLETE_VARIABLE):
        from click.shell_completion import shell_complete

        return shell_complete(application, {"obj": settings}, PROGRAM, COMPLETE_VARIABLE, instruction)
    try:
        with application.make_context(PROGRAM, arguments, obj=settings) as ctx:
            code: int = application.invoke(ctx)
            return code
    except click.exceptions.Exit as end:
        return end.exit_code


def _usage(error: click.ClickException) -> int:
    ctx = error.ctx if isinstance(error, click.UsageError) else None
    path = ctx.command_path if ctx is not None else PROGRAM
    say(f"{error.format_message()}\nfor help: {path} --help")
    return exit_codes.USAGE


def _known(error: Exception, settings: Settings) -> int:
    from .failures import OutputFailed, failure_of

    failure = failure_of(error)
    if failure.condition == OutputFailed.__name__ and (code := settings.interrupts.exit_code) is not None:
        return code  # a signal ended it; that nobody read what it had to say of that is no matter
    if settings.debug or failure.condition == "Bug":
        return _unexpected(error, settings)
    if failure.code != exit_codes.CLOSED_PIPE:  # as any program in a pipe: whoever closed it knows
        say(failure.message)
    return failure.code


def _unexpected(error: Exception, settings: Settings) -> int:
    if settings.debug:
        import traceback

        write("".join(traceback.format_exception(error)))
    else:
        say(f"a fault in sandport itself: {type(error).__name__}: {error}\nrun it again with --debug for the traceback")
    return exit_codes.OURS
