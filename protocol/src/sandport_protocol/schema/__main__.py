"""`python -m sandport_protocol.schema --check | --write`: is the published schema fresh, or make it so."""

from __future__ import annotations

import argparse
import difflib
import itertools
import sys
from pathlib import Path

from .generate import rendered

PUBLISHED = Path(__file__).with_name("v1.json")
_SHOWN_LINES = 40


def main(arguments: list[str] | None = None, *, published: Path = PUBLISHED) -> int:
    """Run the command; the exit status is 1 where `--check` finds the file stale."""
    parser = argparse.ArgumentParser(
        prog="python -m sandport_protocol.schema", description="The published JSON Schema of the protocol."
    )
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--check", action="store_true", help=f"fail when {published.name} is not what --write would make")
    what.add_argument("--write", action="store_true", help=f"make {published.name} anew")
    wanted = rendered()
    if parser.parse_args(arguments).write:
        published.write_text(wanted, encoding="utf-8")
        return 0
    present = published.read_text(encoding="utf-8") if published.exists() else ""
    if present == wanted:
        return 0
    difference = difflib.unified_diff(
        present.splitlines(), wanted.splitlines(), published.name, "generated now", n=1, lineterm=""
    )
    for line in itertools.islice(difference, _SHOWN_LINES):
        sys.stderr.write(line + "\n")
    sys.stderr.write(f"{published.name} is stale; run: python -m sandport_protocol.schema --write\n")
    return 1


if __name__ == "__main__":
    sys.exit(main())
