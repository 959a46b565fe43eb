"""`python -m tests.chaos sweep | kill | terminals`: everything dies at every moment, and nothing is left."""

from __future__ import annotations

import argparse
import sys

from . import sweep


def main() -> int:
    """The exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    one = commands.add_parser("sweep", help="cut a run at each journal write and each wire message")
    one.add_argument("--provider", choices=sweep.PROVIDERS, action="append", help="only with this one")
    one.add_argument("--only", default="", metavar="PATTERN", help="points whose name has or fits this")
    one.add_argument("--seed", type=int, default=0, help="which points a sample has")
    one.add_argument("--sample", type=int, metavar="N", help="so many points, from all steps")
    one.add_argument("--cells", type=int, metavar="N", help="runs at a time; by default six a core")
    given = parser.parse_args()
    return sweep.main(
        given.provider or sweep.PROVIDERS,
        only=given.only,
        sample=given.sample,
        seed=given.seed,
        cells=given.cells,
    )


if __name__ == "__main__":
    sys.exit(main())
