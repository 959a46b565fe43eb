"""Leases whose blocks are left when their loop is shut down: `asyncio.run` cancels every task of the process at once.

The end of a lease needs its host's worker then, and what was under way; neither may be cancelled with the rest.
Jupyter, web servers and `sys.exit` in any task end loops in this way.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

BEGINNING = """
import asyncio, sys
from sandport import Host

leased = asyncio.Event()

async def holds():
    async with Host.open(home=sys.argv[1]) as host, host.lease("local") as sandbox:
        leased.set()
        await sandbox.execute(["sleep", "600"])
"""
ENDINGS = {
    "main is over": """
async def main():
    task = asyncio.create_task(holds())
    await leased.wait()
    await asyncio.sleep(0)
""",
    "another task exits": """
async def quits():
    await leased.wait()
    sys.exit(0)

async def main():
    tasks = asyncio.create_task(holds()), asyncio.create_task(quits())
    await asyncio.sleep(600)
""",
    "its own callback exits": """
def quits(stream, data):
    sys.exit(0)

async def main():
    async with Host.open(home=sys.argv[1]) as host, host.lease("local") as sandbox:
        await sandbox.execute(["sh", "-c", "echo hi; sleep 600"], on_output=quits)
""",
    "nobody leaves its block": """
async def main():
    global blocks
    opened = Host.open(home=sys.argv[1])
    lease = (await opened.__aenter__()).lease("local")
    await (await lease.__aenter__()).execute(["true"])
    blocks = opened, lease
""",
    "it is being acquired": """
from sandport.hooks import hookimpl

class Looks:
    @hookimpl
    def sandport_authorise(self, action):
        leased.set()

async def acquires():
    async with Host.open(home=sys.argv[1], plugins=[Looks()]) as host, host.lease("local"):
        await asyncio.sleep(600)

async def main():
    task = asyncio.create_task(acquires())
    await leased.wait()
""",
    "it is being released": """
async def releases():
    async with Host.open(home=sys.argv[1]) as host:
        async with host.lease("local") as sandbox:
            await sandbox.execute(["true"])
            leased.set()

async def main():
    task = asyncio.create_task(releases())
    await leased.wait()
    for _ in range(20):
        await asyncio.sleep(0)
""",
}


@pytest.mark.parametrize("ending", ENDINGS)
def test_a_loop_that_is_shut_down_ends_the_leases_of_every_task(ending: str, tmp_path: Path) -> None:
    script = BEGINNING + ENDINGS[ending] + "\nasyncio.run(main())\n"
    command = [sys.executable, "-c", script, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    left = [name for name in os.listdir(tmp_path / "workers" / "local") if name.startswith("sp")]
    assert left == [], done.stderr
    with contextlib.closing(sqlite3.connect(tmp_path / "journal.db")) as journal:
        assert [state for (state,) in journal.execute("SELECT state FROM sandbox")] == ["gone"], done.stderr
    assert "not confirmed" not in done.stderr
