"""`python -m tests.planted [ID...]`: plants each bug in a copy of the workspace and lets the state machines find it."""

from __future__ import annotations

import argparse
import signal
import sys
import time
from collections.abc import Sequence

from tests.machines.trace import FIXTURES

from .bugs import FINDERS, ROOT, Bug, read_bugs
from .search import Search, baseline, replay, search, shorten, workspace_copy

SEEDS = (1, 2)


def main(arguments: Sequence[str] | None = None) -> int:
    """The command; 1 where a bug was not found, or something was found where there is none."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.planted",
        description="Plants bugs in a copy of the workspace, one at a time, and lets the state machines find them.",
    )
    parser.add_argument("id", nargs="*", help="which bugs; all of them where none is named")
    parser.add_argument("--seed", type=int, action="append", help="of hypothesis; may be given more than once")
    parser.add_argument("--save", action="store_true", help="keep what finds each bug as a trace, in few steps")
    parser.add_argument("--bugs-only", action="store_true", help="do not search the source as it is first")
    parser.add_argument("--list", action="store_true", help="say what is planted, and search for nothing")
    parser.add_argument("--show", action="store_true", help="show what pytest said where a bug was found")
    chosen = parser.parse_args(arguments)
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))  # the copy is taken away on the way out
    bugs = {bug.id: bug for bug in read_bugs()}
    if unknown := [name for name in chosen.id if name not in bugs]:
        parser.error(f"there is no bug {', '.join(unknown)}; --list names them")
    wanted = [bugs[name] for name in chosen.id] or list(bugs.values())
    if chosen.list:
        for bug in wanted:
            _say(f"{bug.id:34} {bug.found_by:16} {bug.says}")
        return 0
    seeds = chosen.seed or list(SEEDS)
    failed = 0
    for finder in sorted({bug.found_by for bug in wanted} if not chosen.bugs_only else ()):
        failed += _look_where_there_is_none(finder, seeds)
    for bug in wanted:
        failed += _look_for(bug, seeds, save=chosen.save, show=chosen.show)
    _say(f"{len(wanted)} bugs, seeds {', '.join(map(str, seeds))}: " + (f"{failed} failed" if failed else "all found"))
    return 1 if failed else 0


def _look_where_there_is_none(finder: str, seeds: Sequence[int]) -> int:
    failed = 0
    with workspace_copy(None) as copy:
        for seed in seeds:
            began = time.monotonic()
            ended = baseline(copy, FINDERS[finder], f"--hypothesis-seed={seed}")
            as_it_should = ended.verdict == "not found"
            _tell("(nothing planted)", finder, seed, ended, began, as_it_should=as_it_should)
            failed += not as_it_should
    return failed


def _look_for(bug: Bug, seeds: Sequence[int], *, save: bool, show: bool) -> int:
    failed = 0
    fixture = FIXTURES / f"{bug.id}.json"
    try:
        with workspace_copy(bug) as copy:
            for seed in seeds:
                began = time.monotonic()
                ended = search(copy, bug, bug.test, f"--hypothesis-seed={seed}")
                _tell(bug.id, bug.found_by, seed, ended, began, as_it_should=ended.verdict == "found")
                failed += ended.verdict != "found"
                if show:
                    _say(ended.report)
                if save and ended.trace is not None:
                    text = shorten(copy, ended.trace)
                    for path in (fixture, copy / fixture.relative_to(ROOT)):
                        path.write_text(text, encoding="utf-8")
                    save = False
            if bug.has_trace:
                began = time.monotonic()
                ended = replay(copy, bug)
                _tell(bug.id, "its trace", None, ended, began, as_it_should=ended.verdict == "found")
                failed += ended.verdict != "found"
    except ValueError as error:
        _say(f"{bug.id:34} cannot be planted: {error}")
        return 1
    return failed


def _tell(what: str, finder: str, seed: int | None, ended: Search, began: float, *, as_it_should: bool) -> None:
    place = finder if seed is None else f"{finder}, seed {seed}"
    _say(f"{what:34} {place:26} {ended.verdict:10} {time.monotonic() - began:5.1f} s")
    if not as_it_should:
        _say(ended.report)


def _say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    raise SystemExit(main())
