"""Each kind of store keeps each promise of the contract."""

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

from host.tests.store.contract import PROMISES, Promise
from host.tests.store.making import Books, Factory
from sandport.store.sqlite import SqliteStore


def sqlite(folder: Path) -> Factory:
    return lambda clock: SqliteStore.open(folder / "store.db", clock=clock)


@pytest.mark.parametrize("kind", [sqlite])
@pytest.mark.parametrize("promise", PROMISES, ids=lambda promise: promise.__name__)
def test_a_store_keeps_its_promise(kind: Callable[[Path], Factory], promise: Promise, tmp_path: Path) -> None:
    async def main() -> None:
        async with Books(kind(tmp_path)) as books:
            await promise(books)

    asyncio.run(main())
