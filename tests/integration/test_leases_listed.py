"""`Host.leases`: what `sandport leases` lists, for an embedder; it only reads."""

import os
from typing import Any

import msgspec
import pytest

from sandport import LeaseInfo, blocking
from sandport.errors import UsageError
from sandport.lease.info import STATES
from tests.integration.command import Command
from tests.integration.stage import QUICK, configuration
from tests.integration.vendor import Vendor


@pytest.mark.anyio
async def test_each_lease_is_listed_with_what_it_was_given_and_who_uses_it(vendor: Vendor) -> None:
    async with vendor.host() as host:
        assert await host.leases() == ()
        ids: dict[str, Any] = {"run": "run-1", "tenant": "acme", "principal": "ada", "workspace": "w", "work_item": "t"}
        async with host.lease("env", name="box", workload="test", **ids) as sandbox:
            (found,) = await host.leases()
            assert isinstance(found, LeaseInfo)
            assert (found.id, found.name, found.sandbox_id) == (sandbox.lease_id, "box", sandbox.id)
            assert (found.state, found.sandbox_state, found.kept, found.pending) == ("active", "leased", False, None)
            assert {field: getattr(found, field) for field in ids} == ids
            assert (found.provider, found.environment, found.workload) == ("fake", "env", "test")
            assert found.requested_at_ms <= (found.active_at_ms or 0)
            assert found.owner is not None
            assert (found.owner.pid, found.owner.live, found.owner.instance) == (os.getpid(), True, host.instance)
        assert await host.leases() == ()
        (found,) = await host.leases(ended=True)
        assert (found.state, found.reason, found.sandbox_state) == ("ended", "its block is over", "gone")


@pytest.mark.anyio
async def test_they_are_chosen_by_run_name_and_state(vendor: Vendor) -> None:
    async with vendor.host() as host:
        async with (
            host.lease("env", run="one", name="a") as a,
            host.lease("env", run="one", keep=True) as b,
            host.lease("env", run="two") as c,
        ):
            one, other, third = a.lease_id, b.lease_id, c.lease_id
            wanted = {
                (): [one, other, third],
                (("run", "one"),): [one, other],
                (("run", "one"), ("state", "kept")): [other],
                (("state", "active"),): [one, third],
                (("name", "a"),): [one],
                (("name", one),): [],
                (("run", "three"),): [],
                (("state", "ended"),): [],
            }
            for words, ids in wanted.items():
                assert [found.id for found in await host.leases(**dict(words))] == ids, words  # type: ignore[arg-type]
        assert [found.id for found in await host.leases()] == [other]
        assert [found.id for found in await host.leases(state="ended")] == [one, third]
        await host.end_lease(other)
        with pytest.raises(UsageError, match="did you mean 'active'"):
            await host.leases(state="activ")  # type: ignore[arg-type]
        assert set(STATES) >= {"requested", "active", "kept", "ended"}


@pytest.mark.anyio
async def test_one_whose_end_is_not_confirmed_is_listed_with_what_waits(vendor: Vendor) -> None:
    vendor.fake.order("destroy.before", "throttle", retry_after_ms=3_600_000, times=0)
    async with vendor.host() as host:
        async with host.lease("env"):
            pass
        (found,) = await host.leases()
        assert (found.state, found.reason, found.sandbox_state) == ("ending", "its block is over", "ending")
        assert found.pending is not None
        assert found.pending.why == "ending"
        assert found.last_error
    vendor.fake.clear()
    async with vendor.host() as host:
        await host.clean_up()
        assert await host.leases() == ()
    vendor.fake.assert_nothing_left()


def test_the_command_lists_the_same_and_chooses_as_it_does(sandport: Command) -> None:
    with blocking.Host.open(configuration({}, timing=QUICK), home=sandport.home) as host:
        with host.lease("local", config={"isolation": "none"}, run="one", name="box"):
            (found,) = host.leases()
            (shown,) = sandport.leases("--run", "one", "--state", "active")
            plain = msgspec.to_builtins(found)
            for key in ("id", "name", "state", "provider", "environment", "run", "tenant", "kept", "generation"):
                assert shown[key] == plain[key]
            assert shown["sandbox"] == found.sandbox_id
            assert shown["owner"]["pid"] == os.getpid()
            assert sandport.leases("--run", "two") == sandport.leases("--state", "kept") == []
            assert sandport("leases", "list", "--run", "two").lines == ["sandport: there are no such leases"]
            assert sandport("leases", "--run", "two", "list", "--json").object["leases"] == []
        (over,) = sandport.leases("--state", "ended")
        assert (over["id"], over["state"]) == (found.id, "ended")
    done = sandport("leases", "--state", "activ", "--json")
    assert (done.code, done.object["error"]["condition"]) == (2, "UsageError")
    assert "did you mean 'active'?" in done.err
