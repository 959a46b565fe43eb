"""The dispatcher in memory: what needs no process to be shown, and the tool that authors test with."""

import asyncio
import logging
import threading
from collections.abc import Callable
from typing import Any

import pytest
from msgspec import Raw

from sandport_protocol.limits import Limits
from sandport_sdk.testing import HostInMemory, new_id
from sandport_sdk.v1 import Call, Session, errors, extension, types
from sdk.tests.plain import DONE, Plain, command

pytestmark = pytest.mark.anyio


async def test_a_lease_from_acquire_to_destroy() -> None:
    class Made(Plain):
        """As it is."""

    async with HostInMemory(Made) as host:
        sandbox_id = new_id()
        lease = await host.call("acquireLease", types.AcquireLeaseParams(sandbox_id=sandbox_id, ttl_ms=1000))
        assert lease == types.LeaseResult(handle="h", working_directory="/")
        destroyed = await host.call("destroyLease", {"sandboxId": sandbox_id})
        assert destroyed == types.DestroyLeaseResult(state="gone")


# ------------------------------------------------------------ results


@pytest.mark.parametrize(
    ("result", "said"),
    [
        (None, "execute returned NoneType, not ExecuteResult"),
        ({"ended": "exited"}, "execute returned dict, not ExecuteResult"),
        (types.ProbeResult(), "execute returned ProbeResult, not ExecuteResult"),
        (types.ExecuteResult(ended="exited", exit_code=0, notes=(object(),)), "object"),  # type: ignore[arg-type]
        (types.ExecuteResult(ended="exited", exit_code=0, notes=("\udc80",)), "surrogates"),
    ],
)
async def test_what_is_no_result_is_an_internal_error(result: Any, said: str) -> None:
    class Made(Plain):
        async def execute(self, params: types.ExecuteParams, call: Call) -> types.ExecuteResult:
            return result  # type: ignore[no-any-return]

    async with HostInMemory(Made) as host:
        with pytest.raises(errors.Internal, match=said):
            await host.call("execute", types.ExecuteParams(sandbox_id=new_id(), argv=("x",)))
        assert await host.call("probe") == types.ProbeResult()


@pytest.mark.parametrize(
    ("end", "said"),
    [
        ({"exit_code": 256}, "exitCode must be from 0 to 255, not 256: .* os.waitstatus_to_exitcode"),
        ({"exit_code": -1}, "not -1"),
        ({"ended": "signalled", "signal": 137}, "not 137: a shell says so for signal 9"),
    ],
)
async def test_an_end_that_no_program_has_fails_where_it_is_built_and_says_what_to_do(
    end: dict[str, Any], said: str
) -> None:
    class Made(Plain):
        async def execute(self, params: types.ExecuteParams, call: Call) -> types.ExecuteResult:
            return types.ExecuteResult(**{"ended": "exited", **end})

    async with HostInMemory(Made) as host:
        with pytest.raises(errors.Internal, match=said) as raised:
            await host.call("execute", types.ExecuteParams(sandbox_id=new_id(), argv=("x",)))
        assert raised.value.dispatched == "unknown"  # it ran
        assert await host.call("probe") == types.ProbeResult()


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (float("inf"), "inf"),
        (Raw(b'{"a":\n1}'), "spans lines"),
        (Raw(b'{"a": NaN}'), "malformed"),
        (object(), "object"),
        ({"half": "\ud800"}, "surrogates"),
        ({None: 1}, "keys"),
        ({"inside": Raw(b"[]")}, "Raw"),
    ],
)
async def test_free_values_that_are_no_line_of_json_are_internal_errors(value: Any, said: str) -> None:
    class Made(Plain):
        @extension("x-plain/value")
        async def value(self, params: Any, call: Call) -> Any:
            return value

        async def validate_config(self, params: types.ValidateConfigParams, call: Call) -> types.ValidateConfigResult:
            return types.ValidateConfigResult(config=value)

    async with HostInMemory(Made) as host:
        with pytest.raises(errors.Internal, match=said):
            await host.call("x-plain/value")
        if isinstance(value, Raw):
            with pytest.raises(errors.Internal, match=said):
                await host.call("validateConfig")


async def test_an_error_whose_text_is_no_text_still_reaches_the_host(monkeypatch: pytest.MonkeyPatch) -> None:
    # Between the processes that share the tests a captured log travels as UTF-8, which cannot hold this text either.
    monkeypatch.setattr(logging.getLogger("sandport_sdk"), "propagate", False)

    class Made(Plain):
        async def probe(self, params: types.ProbeParams, call: Call) -> types.ProbeResult:
            raise errors.QuotaExceeded("half a surrogate: \udc80", dispatched="no")

    async with HostInMemory(Made) as host:
        with pytest.raises(errors.Internal, match="half a surrogate") as caught:
            await host.call("probe")
        assert caught.value.dispatched == "no"


async def test_a_result_whose_members_are_wrong_is_found_by_the_host_in_memory() -> None:
    class Made(Plain):
        async def list_leases(self, params: types.ListLeasesParams, call: Call) -> types.ListLeasesResult:
            return types.ListLeasesResult(next_cursor=7)  # type: ignore[arg-type]

    async with HostInMemory(Made) as host:
        with pytest.raises(AssertionError, match=r"listLeases does not fit .*nextCursor"):
            await host.call("listLeases")


# ------------------------------------------------------------ a session


async def test_the_session_is_what_the_host_said() -> None:
    seen: list[Session] = []

    class Made(Plain):
        def __init__(self, session: Session) -> None:
            super().__init__(session)
            seen.append(session)

    async with HostInMemory(Made, state_dir="/state", store_id="mine", limits=Limits(chunk_bytes=7)) as host:
        (session,) = seen
        assert (session.store_id, str(session.state_dir), session.host.name) == ("mine", "/state", "host-in-memory")
        assert session.limits.chunk_bytes == 7
        assert host.hello.limits.chunk_bytes == Limits().chunk_bytes, "a worker announces what it can keep itself"


@pytest.mark.parametrize("threaded", [False, True])
async def test_prepare_and_close_run_once_each_in_the_loop_or_in_a_thread(threaded: bool) -> None:
    steps: list[tuple[str, bool]] = []

    def note(step: str) -> None:
        steps.append((step, threading.current_thread() is not threading.main_thread()))

    class InLoop(Plain):
        async def prepare(self) -> None:
            note("prepare")

        async def close(self) -> None:
            note("close")

    class InThread(Plain):
        def prepare(self) -> None:
            note("prepare")

        def close(self) -> None:
            note("close")

    async with HostInMemory(InThread if threaded else InLoop) as host:
        assert steps == [("prepare", threaded)]
        await host.call("probe")
    assert steps == [("prepare", threaded), ("close", threaded)]


async def test_a_prepare_that_fails_fails_the_start_and_close_still_runs() -> None:
    closed = []

    class Made(Plain):
        async def prepare(self) -> None:
            raise errors.Unavailable("the vendor is down")

        async def close(self) -> None:
            closed.append(True)

    with pytest.raises(errors.Unavailable, match="the vendor is down"):
        async with HostInMemory(Made):
            pass
    assert closed == [True]


async def test_a_close_that_fails_does_not_keep_the_worker() -> None:
    class Made(Plain):
        async def close(self) -> None:
            raise SystemExit(9)

    async with HostInMemory(Made) as host:
        assert await host.end_input() == 0


async def test_calls_that_waited_for_a_failed_prepare_get_its_error() -> None:
    preparing, asked = asyncio.Event(), asyncio.Event()

    class Made(Plain):
        async def prepare(self) -> None:
            preparing.set()
            await asked.wait()
            raise errors.AuthenticationFailed("no key")

    host = HostInMemory(Made)
    entering = asyncio.create_task(host.__aenter__())
    await preparing.wait()
    request = host.start("probe")
    asked.set()
    with pytest.raises(errors.AuthenticationFailed, match="no key"):
        await entering
    with pytest.raises(errors.AuthenticationFailed) as caught:
        await request.result()
    assert caught.value.dispatched == "no"


@pytest.mark.parametrize("raises", [asyncio.CancelledError, lambda: errors.Cancelled("cut", dispatched="yes")])
async def test_a_cancelled_call_never_says_that_its_effect_is_certain(raises: Callable[[], BaseException]) -> None:
    class Made(Plain):
        async def execute(self, params: types.ExecuteParams, call: Call) -> types.ExecuteResult:
            call.dispatched = "yes"
            await call.output("stdout", b"began")
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                raise raises() from None
            return DONE

    async with HostInMemory(Made) as host:
        request = host.start("execute", command())
        await request.received("stdout", 1)
        request.cancel()
        with pytest.raises(errors.Cancelled) as caught:
            await request.result()
        assert caught.value.dispatched == "unknown"
