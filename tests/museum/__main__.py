"""`python -m tests.museum --write` writes the page of the museum, `--check` says whether it is fresh."""

import argparse
import sys
from collections.abc import Sequence

from tests.museum.page import PAGE, render
from tests.museum.rows import problems_of, read_rows


def main(arguments: Sequence[str] | None = None) -> int:
    """The command; 1 where a row does not hold, or `--check` finds the page old."""
    parser = argparse.ArgumentParser(prog="python -m tests.museum", description="Public faults, and what shows them.")
    action = parser.add_mutually_exclusive_group(required=True)
    action.add_argument("--write", action="store_true", help="write MUSEUM.md from rows.toml")
    action.add_argument("--check", action="store_true", help="compare MUSEUM.md with rows.toml")
    chosen = parser.parse_args(arguments)
    rows = read_rows()
    problems = [problem for row in rows for problem in problems_of(row)]
    if chosen.write and not problems:
        PAGE.write_text(render(rows), encoding="utf-8")
    elif chosen.check and (not PAGE.is_file() or PAGE.read_text(encoding="utf-8") != render(rows)):
        problems.append(f"{PAGE.name} is old: run python -m tests.museum --write")
    sys.stderr.write("".join(f"{problem}\n" for problem in problems))
    return 1 if problems else 0


if __name__ == "__main__":
    raise SystemExit(main())
