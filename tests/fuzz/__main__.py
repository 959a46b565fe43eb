"""`./dev fuzz`: random bytes, guided by what code they reach, into everything of ours that parses somebody else's.

    ./dev fuzz                            ten minutes, shared by all targets
    ./dev fuzz archives --seconds 60      one of them

What is found is kept in a file, and the run fails; `--try FILE` shows it again. It becomes a test then.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from tests.fuzz.targets import TARGETS

ROOT = Path(__file__).resolve().parents[2]
FOUND = ROOT / ".cache" / "fuzz"
LONGEST_BYTES = 16 * 1024
SLOW_S = 10
"""An input that takes so long is a finding too."""
MEMORY_MB = 1024


def fuzzed(name: str, seconds: int) -> tuple[bool, str]:
    """Run one target; whether it is sound, and a line about it."""
    corpus = FOUND / "corpus" / name
    corpus.mkdir(parents=True, exist_ok=True)
    for number, seed in enumerate(TARGETS[name].seeds):
        (corpus / f"seed-{number}").write_bytes(seed)
    options = [
        str(corpus),
        f"-max_total_time={seconds}",
        f"-max_len={LONGEST_BYTES}",
        f"-timeout={SLOW_S}",
        f"-rss_limit_mb={MEMORY_MB}",
        f"-artifact_prefix={FOUND}/{name}-",
        "-print_final_stats=1",
    ]
    began = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-m", "tests.fuzz.one", name, *options], cwd=ROOT, capture_output=True, text=True, check=False
    )
    took_s = time.monotonic() - began
    runs = re.search(r"number_of_executed_units:\s+(\d+)", done.stderr)
    count = f"{int(runs[1]):,} inputs in {took_s:.0f} s" if runs else f"{took_s:.0f} s"
    if done.returncode == 0 and runs:
        return True, f"ok     {name:12} {count}, nothing found"
    place = re.search(r"Test unit written to (\S+)", done.stderr)
    said = "\n".join(f"       {line}" for line in done.stderr.splitlines()[-25:])
    return False, f"FOUND  {name:12} {count}; the input is {place[1] if place else 'not kept'}\n{said}"


def main(arguments: Sequence[str] | None = None) -> int:
    """The command: 0 where nothing was found."""
    parser = argparse.ArgumentParser(prog="./dev fuzz", description="Random bytes into every parser of ours.")
    parser.add_argument("targets", nargs="*", metavar="TARGET", help=f"of {', '.join(TARGETS)} (default: all)")
    parser.add_argument("--seconds", type=int, default=600, help="for all targets together (default: %(default)s)")
    parser.add_argument("--try", dest="again", type=Path, metavar="FILE", help="give one input to the target, once")
    chosen = parser.parse_args(arguments)
    names = chosen.targets or list(TARGETS)
    for name in names:
        if name not in TARGETS:
            parser.error(f"there is no target {name!r}; there are: {', '.join(TARGETS)}")
    if chosen.again is not None:
        for name in names:
            TARGETS[name].run(chosen.again.read_bytes())
        return 0
    FOUND.mkdir(parents=True, exist_ok=True)
    sound = True
    for name in names:
        well, line = fuzzed(name, max(1, chosen.seconds // len(names)))
        sound = sound and well
        print(line, flush=True)
    return 0 if sound else 1


if __name__ == "__main__":
    raise SystemExit(main())
