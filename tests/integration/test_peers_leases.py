"""What users of other sandboxes reported of their leases, done with the fake vendor.

A number is the row of the museum's `P` rooms that a test belongs to (see tests/museum).
"""

import asyncio

import pytest

from sandport.errors import ConfigInvalid, Internal
from tests.integration.stage import PATIENCE_S
from tests.integration.vendor import Vendor, states

pytestmark = pytest.mark.anyio

HOUR_S = 3600.0


async def test_a_lease_that_names_no_limit_has_the_hour_that_is_promised(vendor: Vendor) -> None:
    """121, OpenSandbox#636: where no limit was given there was a crash."""
    vendor.fake.clock.stand_still()
    async with vendor.host() as host, host.lease("env") as sandbox:
        (record,) = vendor.fake.sandboxes()
        assert record.expires_at_ms == round((vendor.fake.clock.now_s + HOUR_S) * 1000)
        assert (await sandbox.execute(["true"])).ok
    vendor.fake.assert_nothing_left()


async def test_what_the_environment_says_now_holds_for_no_lease_that_was_there_before(vendor: Vendor) -> None:
    """114, paperclip#10264: a rule changed between begin and end of a lease, and the end went by the new one."""
    async with vendor.host(config={"clock": "real"}) as host:
        for name in ("used", "ended"):
            async with host.lease("env", keep=True, name=name):
                pass
        # Of this one only the id is known, so that its end begins with a list.
        vendor.fake.order("acquire.before-answer", "error", condition="Internal", dispatched="unknown")
        vendor.fake.order("list.before", "error", times=0)
        with pytest.raises(Internal):
            async with host.lease("env"):
                pytest.fail("there is a lease")
        assert await states(host) == {"leased": 2, "doubtful": 1}
    vendor.fake.clear()
    async with vendor.host(config={"no_such_key": 1}) as host:
        with pytest.raises(ConfigInvalid):
            async with host.lease("env"):
                pytest.fail("there is a lease")
        async with host.attach("used") as sandbox:
            assert (await sandbox.execute(["true"])).ok
        for name in ("used", "ended"):
            assert (await host.end_lease(name)).end == "gone"
        async with asyncio.timeout(PATIENCE_S):
            while set(await states(host)) & {"leased", "doubtful", "ending"}:
                await host.clean_up()
                await asyncio.sleep(0.01)
    vendor.fake.assert_nothing_left()
