"""Which hosts of a home are dead, and what their workers left: the kernel's word, not a clock's.

An instance is dead when its lock can be had. Its workers end by themselves when their input ends; one that does not is
killed, if its identity is proven, and what only carries a token is reported and left alone.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

from msgspec import Struct

from sandport import instances
from sandport.store.errors import StoreUnusable
from sandport.worker import survivors

ORPHANS_S = 3.0
"""Workers of a dead host end by themselves within the SDK's drain; after that they are killed."""


class Dead(Struct, frozen=True, kw_only=True):
    """Instances that are proven dead."""

    owners: frozenset[str] = frozenset()
    """Those that rows of the journal name."""
    others: frozenset[str] = frozenset()


class Deaths(Protocol):
    """How a host knows of the others."""

    async def look(self, owners: frozenset[str]) -> Dead:
        """Who is dead of these and of all that are known otherwise."""

    async def end_workers(self, instance: str) -> list[str]:
        """See to it that a dead instance's workers have ended; in words, what still runs and is left alone."""

    async def clear(self, named: frozenset[str]) -> None:
        """Forget dead instances whose workers have been seen to, but for these."""


class KernelDeaths:
    """Locks in the home, and processes in /proc.

    Args:
        root: The home.
    """

    def __init__(self, root: Path) -> None:
        self._root = root
        self._seen_to: set[str] = set()

    async def look(self, owners: frozenset[str]) -> Dead:
        """Ask for each instance's lock.

        Raises:
            StoreUnusable: The folder or a file in it cannot be read, so that nothing is known.
        """
        with self._explained():
            return await asyncio.to_thread(self._look, owners)

    @contextlib.contextmanager
    def _explained(self) -> Iterator[None]:
        # Too many open files is enough for it, and is over some time: nobody may take that for a death.
        try:
            yield
        except OSError as error:
            raise StoreUnusable(
                f"{error.filename or self._root / 'instances'}: {error.strerror}; Sandport keeps there which of its "
                "processes live\nfree space there, or give this user the right to read and write it"
            ) from error

    def _look(self, owners: frozenset[str]) -> Dead:
        dead = instances.dead(self._root, self._known() | owners)
        return Dead(owners=dead & owners, others=dead - owners)

    def _known(self) -> frozenset[str]:
        try:
            names = os.listdir(self._root / "instances")
        except FileNotFoundError:
            return frozenset()
        return frozenset(name for name in names if instances.INSTANCE_ID.fullmatch(name))

    async def end_workers(self, instance: str) -> list[str]:
        """Wait for them, then kill what is proven to be theirs. Repeat: finds nothing."""
        with self._explained():
            left = await survivors.end_workers(self._root, instance, patience_s=ORPHANS_S)
        self._seen_to.add(instance)
        return [str(survivor) for survivor in left]

    async def clear(self, named: frozenset[str]) -> None:
        """Remove the files of dead instances whose workers have been seen to, but for these."""
        with self._explained():
            await asyncio.to_thread(self._clear, named)

    def _clear(self, named: frozenset[str]) -> None:
        # Who died after the look keeps its file: without it nobody would look for what its workers left.
        instances.clear_dead(self._root, named | (self._known() - self._seen_to))
