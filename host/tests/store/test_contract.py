"""Each kind of store keeps each promise of the contract."""

import asyncio
import inspect
from collections.abc import Callable
from pathlib import Path

import pytest

from host.tests.store.contract import clean_up, leases, owners, promises, refusals, rows, sandboxes, uses
from host.tests.store.contract.promises import Promise
from host.tests.store.making import Books, Factory
from sandport.store.sqlite import SqliteStore

PARTS = (sandboxes, refusals, leases, uses, owners, clean_up, rows)
PROMISES = [promise for part in PARTS for promise in part.promise]


def sqlite(folder: Path) -> Factory:
    return lambda clock: SqliteStore.open(folder / "store.db", clock=clock)


@pytest.mark.parametrize("kind", [sqlite])
@pytest.mark.parametrize("promise", PROMISES, ids=lambda promise: promise.__name__)
def test_a_store_keeps_its_promise(kind: Callable[[Path], Factory], promise: Promise, tmp_path: Path) -> None:
    async def main() -> None:
        async with Books(kind(tmp_path)) as books:
            await promise(books)

    asyncio.run(main())


def test_no_part_of_the_contract_is_left_out() -> None:
    """Each file of the folder is a part, and each function in it that takes a store is a promise."""
    assert promises.__file__ is not None
    files = {path.stem for path in Path(promises.__file__).parent.glob("*.py")}
    assert {part.__name__.rpartition(".")[2] for part in PARTS} == files - {"promises"}
    for part in PARTS:
        written = [each for each in vars(part).values() if inspect.iscoroutinefunction(each)]
        own = [each for each in written if each.__module__ == part.__name__]
        assert own == part.promise
