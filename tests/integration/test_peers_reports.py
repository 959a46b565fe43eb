"""What users of other sandboxes reported, of clocks, workers that do not serve, and providers that are not there."""

import json
import sys

import pytest

from sandport.errors import EnvironmentUnknown, WorkerStartFailed
from tests.integration.command import Command
from tests.integration.conftest import OpenHost
from tests.integration.stage import worker
from tests.integration.vendor import Vendor, states

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize("by_s", [-3600.0, 3600.0])
async def test_a_vendor_whose_clock_is_wrong_by_an_hour_costs_no_lease(vendor: Vendor, by_s: float) -> None:
    """97, forkd#288, microsandbox#831: a clock stood still, and what looked at times went wrong."""
    for point in ("acquire.before-answer", "attach.before-answer", "list.before-answer"):
        vendor.fake.order(point, "skew", by_s=by_s, times=0)
    async with vendor.host() as host:
        async with host.lease("env", ttl_s=600.0, keep=True, name="wrong") as sandbox:
            assert (await sandbox.execute(["true"], timeout_s=60.0)).ok
            await host.clean_up()
            assert await states(host) == {"leased": 1}
        await host.clean_up()
        async with host.attach("wrong") as sandbox:
            assert (await sandbox.execute(["true"], timeout_s=60.0)).ok
        await host.end_lease("wrong")
    vendor.fake.assert_nothing_left()


async def test_a_worker_that_ends_with_0_before_it_greets_is_told_with_the_likely_cause(open_host: OpenHost) -> None:
    """154, mvanhorn/paperclip-plugin-slack#6: a script that never called the function that serves ended with 0."""
    async with open_host(scripted=(sys.executable, "-S", "-c", "class MyProvider: pass")) as host:
        with pytest.raises(WorkerStartFailed, match="exited with code 0 before it said hello") as raised:
            await host.describe("scripted")
    assert "serve" in str(raised.value)


async def test_a_provider_that_finds_its_vendor_too_old_is_shown_with_what_it_found(
    open_host: OpenHost, sandport: Command
) -> None:
    """163, smolagents#1730, CubeSandbox#934, #1187: what runs in the sandboxes did not fit, and everything hung."""
    command = worker("finds_misfits")
    said = "agent 1 is too old, needs 2..3"
    async with open_host(scripted=command) as host:
        (check,) = (await host.probe("scripted")).checks
        assert (check.name, check.ok, check.detail) == ("agent", False, said)
    sandport.configure(f"[providers.scripted]\ncommand = {json.dumps(command)}\n")
    told = {one["name"]: one for one in sandport("doctor", "--json").object["checks"]}
    found = told["provider scripted, agent"]
    assert (found["state"], found["detail"]) == ("warning", said)


async def test_a_provider_that_is_not_installed_is_told_with_what_to_install(vendor: Vendor, sandport: Command) -> None:
    """162, deepagents#900: a missing back-end was a bare failure."""
    async with vendor.host() as host:
        with pytest.raises(EnvironmentUnknown) as raised:
            async with host.lease("docker"):
                pytest.fail("there is a lease")
    assert "'sandport providers' shows what is installed" in str(raised.value)
    done = sandport("run", "-p", "docker", "--", "true")
    assert done.code == 2
    assert "'sandport providers' shows what is installed" in done.err
