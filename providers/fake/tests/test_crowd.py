"""Many workers at one vendor at once, some of which are killed anywhere: the books hold."""

import asyncio
import threading

import pytest

from providers.fake.tests.leases import Leases
from providers.fake.tests.worker import Ended, Worker
from sandport_provider_fake.config import POINTS
from sandport_provider_fake.testing import Fake
from sandport_sdk.testing import new_id

LIVES = 4
WORKERS = 4


def live(fake: Fake) -> None:
    """Lives of sandboxes, one after the other, each with a worker that may be killed on the way."""
    for _ in range(LIVES):
        sandbox_id = new_id()
        with Worker(fake) as worker:
            try:
                worker.call(
                    "acquireLease", sandboxId=sandbox_id, ttlMs=600_000, config={"max_in_flight_creates": WORKERS}
                )
                worker.call("execute", sandboxId=sandbox_id, shell="sleep 600 & echo once >>runs")
                worker.listed()
                worker.destroy(sandbox_id)
            except Ended:
                continue


@pytest.mark.slow
def test_a_crowd_of_workers_that_die_anywhere_leaves_what_one_list_finds(fake: Fake) -> None:
    fake.seed(1)
    for point in POINTS:
        if point.startswith(("acquire", "execute", "destroy")):
            fake.order(point, "crash", probability=0.08, times=0, id=point)
    crowd = [threading.Thread(target=live, args=(fake,)) for _ in range(WORKERS)]
    for thread in crowd:
        thread.start()
    for thread in crowd:
        thread.join()
    assert len({line["pid"] for line in fake.journal("hello")}) == LIVES * WORKERS
    fake.clear()

    async def clear_up() -> None:
        async with Leases(fake) as host:
            listed = await host.listed()
            assert listed == [one.sandbox_id for one in fake.sandboxes()]
            for sandbox_id in listed:
                runs = fake.files(sandbox_id) / "runs"
                assert not runs.exists() or runs.read_text() == "once\n"
                assert await host.destroy(sandbox_id) == "destroyed"
            assert await host.listed() == []

    asyncio.run(clear_up())
    made = {line["sandboxId"] for line in fake.journal("create")}
    assert {line["sandboxId"] for line in fake.journal("destroyed")} == made
