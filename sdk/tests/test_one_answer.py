"""Each id is answered exactly once, in whatever order things happen."""

import asyncio
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from sandport_protocol import codec
from sandport_sdk.dispatch import Dispatcher
from sandport_sdk.v1 import Call, Session, extension
from sdk.tests.plain import Plain

STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("call"), st.sampled_from(["quick", "slow", "stubborn", "threaded", "raises"])),
        st.tuples(st.just("cancel"), st.integers(0, 30)),
        st.tuples(st.just("turn"), st.integers(1, 3)),
        st.tuples(st.just("release"), st.just(0)),
        st.tuples(st.just("ready"), st.just(0)),
    ),
    max_size=40,
)


class Mixed(Plain):
    def __init__(self, session: Session) -> None:
        super().__init__(session)
        self.ready = asyncio.Event()
        self.gate = asyncio.Event()

    async def prepare(self) -> None:
        await self.ready.wait()

    @extension("x-plain/quick")
    async def quick(self, params: Any, call: Call) -> Any:
        return "quick"

    @extension("x-plain/slow")
    async def slow(self, params: Any, call: Call) -> Any:
        await self.gate.wait()
        return "slow"

    @extension("x-plain/stubborn")
    async def stubborn(self, params: Any, call: Call) -> Any:
        try:
            await self.gate.wait()
        except asyncio.CancelledError:
            await asyncio.sleep(0)
        return "stubborn"

    @extension("x-plain/threaded")
    def threaded(self, params: Any, call: Call) -> Any:
        call.cancelled.block(0.001)
        return "threaded"

    @extension("x-plain/raises")
    async def raises(self, params: Any, call: Call) -> Any:
        await asyncio.sleep(0)
        raise GeneratorExit


@given(steps=STEPS, shutdown=st.booleans())
def test_each_id_is_answered_exactly_once_whatever_is_cancelled_when(steps: list[Any], shutdown: bool) -> None:
    """modelcontextprotocol/python-sdk#3188 (C04)."""
    asyncio.run(_run_steps(steps, shutdown=shutdown))


async def _run_steps(steps: list[Any], *, shutdown: bool) -> None:
    frames: list[bytes] = []
    made: list[Mixed] = []

    class Watched(Mixed):
        def __init__(self, session: Session) -> None:
            super().__init__(session)
            made.append(self)

    worker = Dispatcher(Watched, frames.append)

    def send(**message: Any) -> None:
        worker.receive(codec.encode({"jsonrpc": "2.0", **message}) + b"\n")

    hello = {"protocolVersions": [1], "host": {"name": "h", "version": "1"}, "storeId": "s", "stateDir": "/"}
    send(id="hello", method="initialize", params=hello)
    send(method="initialized")
    (provider,) = made
    asked = ["hello"]
    for step, argument in steps:
        if step == "call":
            asked.append(f"{argument}-{len(asked)}")
            send(id=asked[-1], method=f"x-plain/{argument}", params={})
        elif step == "cancel":
            send(method="cancel", params={"id": asked[argument % len(asked)]})
        elif step == "turn":
            for _ in range(argument):
                await asyncio.sleep(0)
        elif step == "release":
            provider.gate.set()
        else:
            provider.ready.set()
    provider.gate.set()
    provider.ready.set()
    if shutdown:
        asked.append("shutdown")
        send(id="shutdown", method="shutdown", params={"drainMs": 60_000})
    else:
        worker.finish("end of input")
    assert await worker.ended == 0
    messages = [codec.read_as(dict[str, Any], line) for line in b"".join(frames).splitlines()]
    answered = [message["id"] for message in messages if "method" not in message]
    assert sorted(answered) == sorted(asked)
    if shutdown:
        assert answered[-1] == "shutdown"
