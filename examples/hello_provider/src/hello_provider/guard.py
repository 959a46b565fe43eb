"""Ends our commands when this worker is gone, however it went: who is killed has no time to tidy up."""

from __future__ import annotations

import asyncio

# Reads `+ GROUP` and `- GROUP`; the end of its input is the end of the worker.
SCRIPT = """
groups=
while read -r sign group; do
    case $sign in
        +) groups="$groups $group" ;;
        -) kept=
           for each in $groups; do [ "$each" = "$group" ] || kept="$kept $each"; done
           groups=$kept ;;
    esac
done
for each in $groups; do kill -s KILL -- "-$each"; done
"""


class Guard:
    """A process that waits for the end of a pipe which only this worker holds."""

    def __init__(self) -> None:
        self._process: asyncio.subprocess.Process | None = None

    async def start(self) -> None:
        """Start it, in a session of its own: a signal to the worker's group must not end it first."""
        self._process = await asyncio.create_subprocess_exec(
            "/bin/sh", "-c", SCRIPT, stdin=asyncio.subprocess.PIPE, cwd="/", start_new_session=True
        )

    def watch(self, group: int) -> None:
        """A group was made."""
        self._tell(f"+ {group}\n")

    def forget(self, group: int) -> None:
        """A group is gone."""
        self._tell(f"- {group}\n")

    async def close(self) -> None:
        """End it."""
        if self._process is not None and self._process.stdin is not None:
            self._process.stdin.close()
            await self._process.wait()

    def _tell(self, line: str) -> None:
        if self._process is not None and self._process.stdin is not None:
            self._process.stdin.write(line.encode())
