"""`python -m tests.chaos sweep | kill | terminals`: everything dies at every moment, and nothing is left."""

from __future__ import annotations

import argparse
import sys

from . import kill, sweep, terminals


def main() -> int:
    """The exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    one = commands.add_parser(
        "sweep",
        help="cut a run at each journal write and each wire message",
        description="Cut a run at each journal write and each wire message.",
        epilog=f"A run that does not come to its point is done again, {sweep.TRIES} times in all. "
        "Exit code 1: something was left, lost or done twice; or more than "
        f"{sweep.MISSED_PER_100} points in 100 (rounded up), or all, were not reached, "
        "so that too little is known of what happens there. The last line has the numbers.",
    )
    one.add_argument("--provider", choices=sweep.PROVIDERS, action="append", help="only with this one")
    one.add_argument("--only", default="", metavar="PATTERN", help="points whose name has or fits this")
    one.add_argument("--seed", type=int, default=0, help="which points a sample has")
    one.add_argument("--sample", type=int, metavar="N", help="so many points, from all steps")
    one.add_argument("--cells", type=int, metavar="N", help="runs at a time; by default six a core")
    one = commands.add_parser("kill", help="kill -9 at random moments of a crowd of twenty leases")
    one.add_argument("--seed", type=int, help="by default another one each time")
    one.add_argument("--moments", type=int, default=50, metavar="N", help="so many for each of host, worker and both")
    one.add_argument("--no-recovery", action="store_true", help="look without a next start: this must fail")
    one.add_argument("--cells", type=int, metavar="N", help="runs at a time")
    one = commands.add_parser("terminals", help="several processes on one store, and kills among them")
    one.add_argument("--seed", type=int, help="by default another one each time")
    one.add_argument("--minutes", type=float, default=5.0, metavar="N", help="for how long")
    one.add_argument("--terminals", type=int, default=3, metavar="N", help="how many at a time")
    given = parser.parse_args()
    if given.command == "terminals":
        return terminals.main(minutes=given.minutes, seed=given.seed, terminals=given.terminals)
    if given.command == "kill":
        return kill.main(seed=given.seed, count=given.moments, recovers=not given.no_recovery, cells=given.cells)
    return sweep.main(
        given.provider or sweep.PROVIDERS,
        only=given.only,
        sample=given.sample,
        seed=given.seed,
        cells=given.cells,
    )


if __name__ == "__main__":
    sys.exit(main())
