"""Several cells side by side, each a process that does one run at a time."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from queue import Empty, SimpleQueue

import msgspec

from .cell import Account, Order

ROOT = Path(__file__).resolve().parents[2]
PER_CORE = 6
"""A run waits more than it works: for processes to end, for the disk."""


class CellFailed(Exception):
    """A cell ended, or said what is no account: a fault of these tests themselves."""


def run_all(
    orders: Sequence[Order], *, cells: int, on_done: Callable[[int, Account], None] = lambda number, account: None
) -> list[Account]:
    """Do all runs; accounts in the order of the orders.

    Args:
        orders: The runs.
        cells: How many at a time.
        on_done: Told of each, from any thread, one call at a time.

    Raises:
        CellFailed: A cell did not come back; the others have finished what they were at.
    """
    waiting: SimpleQueue[tuple[int, Order]] = SimpleQueue()
    for numbered in enumerate(orders):
        waiting.put(numbered)
    accounts: dict[int, Account] = {}
    failures: list[str] = []
    lock = threading.Lock()

    def work() -> None:
        with subprocess.Popen(
            (sys.executable, "-m", "tests.chaos.cell"),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            cwd=ROOT,
            start_new_session=True,  # a Ctrl-C is ours: a cell finishes its run, and so leaves nothing
        ) as cell:
            assert cell.stdin is not None
            assert cell.stdout is not None
            while not failures:
                try:
                    number, order = waiting.get_nowait()
                except Empty:
                    break
                cell.stdin.write(msgspec.json.encode(order) + b"\n")
                cell.stdin.flush()
                line = cell.stdout.readline()
                if not line:
                    failures.append(f"the cell of {order} ended with {cell.wait()}")
                    break
                account = msgspec.json.decode(line, type=Account)
                with lock:
                    accounts[number] = account
                    on_done(number, account)
            cell.stdin.close()

    threads = [threading.Thread(target=work) for _ in range(max(1, min(cells, len(orders))))]
    for thread in threads:
        thread.start()
    try:
        for thread in threads:
            thread.join()
    except KeyboardInterrupt:
        failures.append("interrupted")
        for thread in threads:
            thread.join()
        raise
    if failures:
        raise CellFailed("; ".join(failures))
    return [accounts[number] for number in range(len(orders))]
