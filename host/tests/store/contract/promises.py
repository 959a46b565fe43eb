"""What every store promises, whatever keeps it: tests that take a store opened twice.

Each file beside this one is a part of the contract; whoever writes another store reads them all. `test_contract` runs
every part over each kind of store. A store that joins brings a factory that opens the same store again at each call, as
another process would.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from host.tests.store.making import Books

Promise = Callable[[Books], Awaitable[None]]


class Promises(list[Promise]):
    """Those of one part, which decorates each with its list: `@promise`."""

    def __call__(self, test: Promise) -> Promise:
        """Make it part of the contract."""
        self.append(test)
        return test
