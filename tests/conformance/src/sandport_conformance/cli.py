"""The command `sandport-conformance`."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from signal import Signals
from typing import TYPE_CHECKING

from .interruption import number_of, stoppable
from .outcomes import Misuse

if TYPE_CHECKING:
    from .report import Report

DOORS = {
    "host": "judge a host: play misbehaving workers to it",
    "matrix": "prove the kit on workers that are broken on purpose",
}
"""Commands that are modules of this package, each with a `main` that takes its arguments and answers the exit code."""

_EPILOG = """exit codes:
  0  conformant
  1  not conformant
  2  wrong usage, or an author's file that cannot be used
  3  the worker was started and never served; a program that is not there is 2
  4  a fault of the kit itself
  128 + n  ended by signal n (SIGINT, SIGTERM, SIGHUP), with what it had started

examples:
  sandport-conformance run -- python worker.py
  sandport-conformance run --level L1 --html report.html -- ./worker --verbose
  sandport-conformance run --level L0 --fail-fast -- ./worker
  sandport-conformance explain FRAME-6
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command.

    Args:
        arguments: Those of the command line; the process's own where None.

    Returns:
        The exit code.
    """
    given = list(sys.argv[1:] if arguments is None else arguments)
    try:
        with stoppable():
            return _perform(given)
    except Misuse as error:
        sys.stderr.write(f"sandport-conformance: {error}\n")
        return 2
    except BrokenPipeError:
        return 1  # whoever read our output had enough
    except KeyboardInterrupt as interrupt:
        number = number_of(interrupt)
        notes = "".join(f"\n  {note}" for note in getattr(interrupt, "__notes__", ()))
        sys.stderr.write(f"sandport-conformance: interrupted by {Signals(number).name}{notes}\n")
        return 128 + number


def _perform(given: list[str]) -> int:
    if given and given[0] in DOORS:
        import importlib

        return int(importlib.import_module(f".{given[0]}", __package__).main(given[1:]))
    chosen, command = _parse(_parser(), given)
    return int(chosen.perform(chosen, command))


def _parse(parser: argparse.ArgumentParser, arguments: list[str]) -> tuple[argparse.Namespace, list[str]]:
    # What stands after `--` is the worker's, whatever it looks like.
    own, command = arguments, []
    if "--" in arguments:
        cut = arguments.index("--")
        own, command = arguments[:cut], arguments[cut + 1 :]
    chosen, strangers = parser.parse_known_args(own)
    if strangers and chosen.takes_command and "--" not in arguments:
        parser.error(f"unrecognized arguments: {' '.join(strangers)}; the worker's command comes after `--`")
    if strangers:
        parser.error(f"unrecognized arguments: {' '.join(strangers)}")
    if command and not chosen.takes_command:
        parser.error("only `run` takes a command after `--`")
    return chosen, command


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="sandport-conformance",
        description="Judges a Sandport worker, in any language, over real pipes.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.set_defaults(takes_command=False)
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)

    run = commands.add_parser(
        "run",
        help="judge a worker command",
        usage="sandport-conformance run [OPTION...] -- WORKER COMMAND",
        description="Starts the command as a host would, and judges what it does.",
    )
    run.set_defaults(perform=_run, takes_command=True)
    run.add_argument("--config", type=Path, metavar="FILE", help="the author's file (TOML)")
    run.add_argument("--level", metavar="LEVEL", help="judge up to this level, L0 to L4 (default: L3)")
    run.add_argument("--only", action="extend", nargs="+", default=[], metavar="ID", help="judge only these checks")
    run.add_argument("--fail-fast", action="store_true", help="end with the first check that fails")
    run.add_argument("--seed", type=int, metavar="N", help="repeat the choices of an earlier run")
    run.add_argument("--scale", type=float, metavar="X", help="multiply every time limit, over the author's file")
    run.add_argument("--json", type=Path, metavar="OUT", help="write the report as JSON")
    run.add_argument("--junit", type=Path, metavar="OUT", help="write the report as JUnit XML")
    run.add_argument("--html", type=Path, metavar="OUT", help="write the report as one page")
    run.add_argument("--quiet", action="store_true", help="print what fails and the last line, nothing else")

    listing = commands.add_parser("list", help="list the checks", description="Lists the checks in running order.")
    listing.set_defaults(perform=_list)
    listing.add_argument("--level", default="L6", metavar="LEVEL", help="up to this level (default: L6)")

    explain = commands.add_parser(
        "explain",
        help="tell all about a check",
        description="Tells all about a check: its clause, its reason, who failed it, and workers that it must catch.",
    )
    explain.set_defaults(perform=_explain)
    explain.add_argument(
        "ids", metavar="ID", nargs="+", help="a check, a requirement, a level, or a broken worker's name"
    )

    diff = commands.add_parser(
        "diff", help="compare two reports", description="Compares two JSON reports; 1 where the second is worse."
    )
    diff.set_defaults(perform=_diff)
    diff.add_argument("before", type=Path, metavar="A.json")
    diff.add_argument("after", type=Path, metavar="B.json")

    for name, text in DOORS.items():
        commands.add_parser(name, help=text, add_help=False)
    return parser


def _run(chosen: argparse.Namespace, command: list[str]) -> int:
    import os
    from dataclasses import replace

    from .catalogue import DEFAULT_LEVEL, expect_checks
    from .command_line import resolve
    from .progress import Progress
    from .run import judge
    from .settings import load

    if chosen.only and chosen.level:
        raise Misuse("--only names the checks, and --level the level up to which all are judged: give one of them")
    level = chosen.level or DEFAULT_LEVEL
    expect_checks(level)
    settings = load(chosen.config, os.environ)
    if chosen.scale is not None:
        if not chosen.scale > 0:
            raise Misuse("--scale must be above 0")
        settings = replace(settings, scale=chosen.scale)
    targets = {"json": chosen.json, "junit": chosen.junit, "html": chosen.html}
    for path in filter(None, targets.values()):
        if not path.parent.is_dir():
            raise Misuse(f"{path}: there is no directory {path.parent}")
    progress = Progress(sys.stdout, quiet=chosen.quiet)
    report = judge(
        resolve(command),
        settings=settings,
        level=level,
        only=chosen.only,
        seed=chosen.seed,
        fail_fast=chosen.fail_fast,
        options=_repeated(chosen),
        on_result=progress.result,
    )
    progress.end(report)
    _write(report, targets)
    return report.exit_code


def _repeated(chosen: argparse.Namespace) -> list[str]:
    """What a command that repeats a run must be given too, whatever it judges."""
    config = [] if chosen.config is None else ["--config", str(chosen.config)]
    return config if chosen.scale is None else [*config, "--scale", f"{chosen.scale:g}"]


def _write(report: Report, targets: dict[str, Path | None]) -> None:
    if targets["json"]:
        from .report_json import to_json

        targets["json"].write_text(to_json(report), encoding="utf-8")
    if targets["junit"]:
        from .report_junit import to_junit

        targets["junit"].write_text(to_junit(report), encoding="utf-8")
    if targets["html"]:
        from .report_html import to_html

        targets["html"].write_text(to_html(report), encoding="utf-8")


def _list(chosen: argparse.Namespace, command: list[str]) -> int:
    from .catalogue import select

    checks = select(level=chosen.level)
    width = max((len(check.id) for check in checks), default=0)
    for check in checks:
        sys.stdout.write(f"{check.level}  {check.severity:6}  {check.id:{width}}  {check.title}\n")
    return 0


def _explain(chosen: argparse.Namespace, command: list[str]) -> int:
    from .explanation import explain

    sys.stdout.write("\n".join([explain(name) for name in chosen.ids]))
    return 0


def _diff(chosen: argparse.Namespace, command: list[str]) -> int:
    from .comparison import compare

    comparison = compare(chosen.before, chosen.after)
    sys.stdout.write(comparison.text)
    return 1 if comparison.worse else 0
