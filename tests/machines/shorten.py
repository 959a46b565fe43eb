"""`python -m tests.machines.shorten FILE`: takes every step out of a failing trace that it can fail without.

Faster than hypothesis shrinks, since nothing is drawn: each try is only played.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from .trace import play, read, render
from .worlds import WORLDS

Steps = list[tuple[str, dict[str, Any]]]


def fails(machine: str, steps: Steps) -> bool:
    """Whether something does not hold; what else goes wrong is a fault of the steps and does not count."""
    try:
        play(WORLDS[machine](), steps)
    except AssertionError:
        return True
    except Exception:  # noqa: BLE001 - without the steps before it, a step may make no sense
        return False
    return False


def shortened(machine: str, steps: Steps) -> Steps:
    """The same failure, or another one, in fewer steps; the first one stays."""
    before = 0
    while before != len(steps):
        before = len(steps)
        size = max(1, len(steps) // 4)
        while size:
            at = 1
            while at < len(steps):
                fewer = steps[:at] + steps[at + size :]
                if fails(machine, fewer):
                    steps = fewer
                else:
                    at += size
            size //= 2
    return steps


def main(arguments: Sequence[str]) -> int:
    """The command; 1 where a trace does not fail at all."""
    for name in arguments:
        machine, steps = read(Path(name))
        if not fails(machine, steps):
            sys.stderr.write(f"{name} does not fail\n")
            return 1
        Path(name).write_text(render(machine, shortened(machine, steps)), encoding="utf-8")
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
