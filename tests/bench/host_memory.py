"""A host that holds many idle leases, then many idle workers, and says what its own memory grew by.

    python -m tests.bench.host_memory LEASES WORKERS

Prints JSON: bytes of resident memory for each lease, and for each worker. The fake vendor's sandboxes are records and
folders, so that nothing but the host's books is weighed.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import json
import os
import sys
import tempfile
from pathlib import Path

from sandport.host import Host

PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


def resident_bytes() -> int:
    """What this process has in memory, after everything that can be freed is."""
    gc.collect()
    return int(Path("/proc/self/statm").read_text().split()[1]) * PAGE_BYTES


async def weigh(leases: int, workers: int) -> dict[str, float]:
    """Open a host in a folder of its own, and weigh it."""
    with tempfile.TemporaryDirectory(prefix="sandport-bench-") as home:
        async with Host.open(home=home, environ={"PATH": os.environ["PATH"], "HOME": home}) as host:
            async with contextlib.AsyncExitStack() as stack:
                # Workers first: they would else be given the memory that the leases have left.
                for number in range(2):
                    await stack.enter_async_context(host.lease("fake", tenant=f"first {number}"))
                before = resident_bytes()
                for number in range(workers):
                    await stack.enter_async_context(host.lease("fake", tenant=f"tenant {number}"))
                per_worker = (resident_bytes() - before) / workers
            async with contextlib.AsyncExitStack() as stack:
                for _ in range(20):  # what is paid once: caches, pools, the first page of everything
                    await stack.enter_async_context(host.lease("fake"))
                before = resident_bytes()
                for _ in range(leases):
                    await stack.enter_async_context(host.lease("fake"))
                per_lease = (resident_bytes() - before) / leases
    return {"lease": per_lease, "worker": per_worker}


if __name__ == "__main__":
    print(json.dumps(asyncio.run(weigh(*map(int, sys.argv[1:])))))
