"""Orders: each happens where and as often as it says, over all workers."""

import pytest

from sandport_provider_fake.provider import FakeProvider
from sandport_provider_fake.testing import Fake
from sandport_sdk.testing import HostInMemory, new_id
from sandport_sdk.v1 import errors, types

pytestmark = pytest.mark.anyio


async def test_a_throttled_acquire_says_when_to_come_back_and_made_nothing(fake: Fake) -> None:
    fake.order("acquire.before", "throttle", retry_after_ms=1500)
    async with HostInMemory(FakeProvider, state_dir=fake.state_dir) as host:
        params = types.AcquireLeaseParams(sandbox_id=new_id(), ttl_ms=60_000)
        with pytest.raises(errors.RateLimited) as raised:
            await host.call("acquireLease", params)
        assert (raised.value.retry_after_s, raised.value.dispatched) == (1.5, "no")
        assert fake.sandboxes() == []
        await host.call("acquireLease", params)
        assert [one.sandbox_id for one in fake.sandboxes()] == [params.sandbox_id]
        await host.call("destroyLease", types.DestroyLeaseParams(sandbox_id=params.sandbox_id))
    assert len(fake.journal("fault", action="throttle")) == 1
