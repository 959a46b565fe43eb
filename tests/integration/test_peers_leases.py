"""What users of other sandboxes reported of their leases, done with the fake vendor.

A number is the row of the museum's `P` rooms that a test belongs to (see tests/museum).
"""

import pytest

from tests.integration.vendor import Vendor

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
