"""The main job, watched from outside: a real project's tests run in a sandbox, and afterwards nothing is left.

    ./dev demo
    ./dev demo --sabotage        leave a process behind on purpose; the check at the end must fail

This process does none of the work. It makes itself the one that orphans fall to, starts `job.py` in a child, and when
that has ended looks for what outlived it: processes, files of state, temporary files, rows of the journal. A zombie has
ended and does not count. Exit code 0: the job was done and nothing is left.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import os
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
PR_SET_CHILD_SUBREAPER = 36
SETTLE_S = 2.0
"""A process that is ending may still be seen for a moment."""
PREPARE = """
import asyncio, sandport

async def open_and_close():
    async with sandport.Host.open() as host:
        await host.describe("local")

asyncio.run(open_and_close())
"""
"""What a host keeps between runs: its version, its journal, the folders of its workers."""


def step(text: str) -> None:
    """A heading, which a terminal shows in bold."""
    line = f"== {text}"
    print(f"\n\033[1m{line}\033[0m" if sys.stdout.isatty() else f"\n{line}", flush=True)


def become_subreaper() -> None:
    """Make every orphan below this process a child of it, instead of letting it disappear to PID 1.

    Raises:
        OSError: The system cannot do that; then the demo cannot prove anything about processes.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"prctl(PR_SET_CHILD_SUBREAPER): {os.strerror(number)}")


def below(pid: int) -> Iterator[tuple[int, str]]:
    """Pid and command line of every process that descends from `pid` and has not ended."""
    parents: dict[int, tuple[int, str]] = {}
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            stat = (entry / "stat").read_text()
            line = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
        except OSError:
            continue  # it ended while we looked
        name, _, rest = stat.rpartition(")")
        state, parent = rest.split()[:2]
        if state not in "ZX":
            parents[int(entry.name)] = (int(parent), line or name.partition("(")[2])
    for child, (_, line) in parents.items():
        above = child
        while above in parents and above != pid:
            above = parents[above][0]
        if above == pid and child != pid:
            yield child, line


def files_in(folder: Path) -> set[str]:
    """Every name below a folder."""
    return {str(path.relative_to(folder)) for path in folder.rglob("*")}


def leftovers(home: Path, scratch: Path, home_before: set[str]) -> list[str]:
    """What outlived the job, in words."""
    until = time.monotonic() + SETTLE_S
    while (alive := list(below(os.getpid()))) and time.monotonic() < until:
        time.sleep(0.02)
    found = [f"process {pid}: {line[:100]}" for pid, line in alive]
    found += [f"file of state: {name}" for name in sorted(files_in(home) - home_before)]
    found += [f"temporary file: {name}" for name in sorted(files_in(scratch))]
    with contextlib.closing(sqlite3.connect(f"file:{home}/journal.db?mode=ro", uri=True)) as journal:
        rows = journal.execute("SELECT id, state FROM sandbox WHERE state != 'gone'")
        found += [f"row of the journal: {sandbox} is {state}" for sandbox, state in rows]
    return found


def main() -> int:
    """Run the job and look after it."""
    parser = argparse.ArgumentParser(prog="./dev demo", description="Run a real project's tests in a sandbox.")
    parser.add_argument("--sabotage", action="store_true", help="leave a process behind; the last check must fail")
    parser.add_argument("--offline", action="store_true", help="do not fetch anything: use this repository's protocol/")
    options = parser.parse_args()
    become_subreaper()
    with tempfile.TemporaryDirectory(prefix="sandport-demo-") as folder:
        home, scratch = Path(folder, "home"), Path(folder, "tmp")
        home.mkdir(mode=0o700)
        scratch.mkdir(mode=0o700)
        environ = os.environ | {"SANDPORT_HOME": str(home), "TMPDIR": str(scratch)}
        # What a host keeps between runs is made first, so that only what a run leaves shows up.
        subprocess.run([sys.executable, "-c", PREPARE], check=True, env=environ)
        before = files_in(home)
        command = [sys.executable, "-m", "examples.demo.job", *(["--offline"] if options.offline else [])]
        done = subprocess.run(command, env=environ, cwd=REPOSITORY, check=False)
        if options.sabotage:
            subprocess.Popen(["sleep", "60"], start_new_session=True)
        step("nothing is left")
        found = leftovers(home, scratch, before)
        for line in found:
            print(f"LEFT: {line}")
        if not found:
            print("no process, no file of state, no temporary file, no sandbox in the journal")
        for pid, _ in list(below(os.getpid())):
            os.kill(pid, 9)
    if done.returncode != 0:
        print(f"\nthe job failed with exit code {done.returncode}")
    return done.returncode or (1 if found else 0)


if __name__ == "__main__":
    sys.exit(main())
