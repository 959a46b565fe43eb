"""What a command leaves behind, and a host that takes nothing, keep no command from its answer."""

import asyncio
import os
from typing import Any

import pytest

from providers.fake.tests.leases import Leases
from sandport_provider_fake.provider import FakeProvider
from sandport_provider_fake.testing import Fake
from sandport_sdk.testing import HostInMemory, Request, new_id
from sandport_sdk.v1 import Limits, errors, types

SLOW = "while :; do echo x; sleep 0.05; done"
FLOOD = "exec yes"
PATIENCE_S = 60


async def until(host: HostInMemory, sandbox_id: str, file: str) -> None:
    """Return once a command has made a file."""
    shell = f"until [ -e {file} ]; do sleep 0.01; done; rm {file}"
    await host.call("execute", types.ExecuteParams(sandbox_id=sandbox_id, shell=shell))


@pytest.mark.parametrize("chatter", [SLOW, FLOOD])
def test_what_a_command_leaves_writing_keeps_nobody_waiting_and_writes_on(fake: Fake, chatter: str) -> None:
    async def story(host: Leases, sandbox_id: str) -> None:
        def run(then: str, **params: Any) -> Request:
            # The child is in a session of its own, out of reach of what becomes of the command.
            child = f"setsid sh -c 'echo $$ >up.new; mv up.new up; {chatter}' &"
            return host.run(sandbox_id, f"{child} until [ -e up ]; do sleep 0.01; done; mv up pid; {then}", **params)

        async def of(request: Request) -> types.ExecuteResult:
            result: types.ExecuteResult = await asyncio.wait_for(request.result(), PATIENCE_S)
            return result

        kept = await of(run("echo last >&2; exit 3", timeoutMs=60_000))
        assert (kept.ended, kept.exit_code, kept.stdout.end, kept.stderr.data) == ("exited", 3, "heldOpen", b"last\n")
        left = int((fake.files(sandbox_id) / "pid").read_text())
        live = await of(running := run("exit 0", live=True))
        assert (live.ended, live.stdout.end, running.end_of("stdout")) == ("exited", "heldOpen", "heldOpen")
        assert live.stdout.total_bytes == len(running.stdout)
        late = await of(run("sleep 60", timeoutMs=1500))
        assert (late.ended, late.stdout.end) == ("timedOut", "heldOpen")
        running = run("touch down; sleep 60")
        await until(host, sandbox_id, "down")
        running.cancel()
        with pytest.raises(errors.Cancelled):
            await of(running)
        os.kill(left, 0)  # nobody closed its stream

        started = {"sandboxId": sandbox_id, "processId": "p"}
        await host.call("startProcess", {**started, "shell": f"setsid sh -c '{chatter}' & exit 4"})
        waited: types.WaitProcessResult = await asyncio.wait_for(host.call("waitProcess", started), PATIENCE_S)
        assert (waited.ended, waited.exit_code, waited.stdout.end) == ("exited", 4, "heldOpen")

    async def tell() -> None:
        async with Leases(fake) as host:
            sandbox_id = await host.acquire()
            await story(host, sandbox_id)
            await host.destroy(sandbox_id)

    asyncio.run(tell())


def test_output_that_waits_for_credit_is_the_commands_own_to_its_last_byte(fake: Fake) -> None:
    async def tell() -> None:
        limits = Limits(credit_bytes=1000)
        async with HostInMemory(FakeProvider, state_dir=fake.state_dir, limits=limits, credit="manual") as host:
            sandbox_id = new_id()
            await host.call("acquireLease", types.AcquireLeaseParams(sandbox_id=sandbox_id, ttl_ms=60_000))
            shell = "head -c 50000 /dev/zero; touch over"
            running = host.start("execute", types.ExecuteParams(sandbox_id=sandbox_id, shell=shell, live=True))
            await until(host, sandbox_id, "over")
            passes = types.ExecuteParams(sandbox_id=sandbox_id, shell="sleep 0.5")  # the moment that its streams get
            await host.call("execute", passes)
            assert not running.ended
            running.give_credit("stdout", 100_000)
            result: types.ExecuteResult = await asyncio.wait_for(running.result(), PATIENCE_S)
            assert (result.stdout.total_bytes, result.stdout.end) == (50_000, "seen")
            assert running.stdout == bytes(50_000)
            await host.call("destroyLease", types.DestroyLeaseParams(sandbox_id=sandbox_id))

    asyncio.run(tell())
