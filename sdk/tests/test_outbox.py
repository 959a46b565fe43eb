"""Frames go out in the order in which they were sent, however they are gathered."""

import asyncio

from hypothesis import given
from hypothesis import strategies as st

from sandport_sdk.outbox import Outbox

SIZES = st.sampled_from([1, 30, 40_000, 70_000])
STEPS = st.lists(st.tuples(st.sampled_from(["send", "gather", "turn"]), SIZES), max_size=30)


@given(steps=STEPS)
def test_frames_keep_their_order(steps: list[tuple[str, int]]) -> None:
    """microsoft/vscode-languageserver-node#634 (F22)."""
    written: list[bytes] = []

    async def run() -> list[bytes]:
        outbox = Outbox(asyncio.get_running_loop(), written.append)
        sent: list[bytes] = []
        for number, (step, size) in enumerate(steps):
            if step == "turn":
                await asyncio.sleep(0)
                assert b"".join(written) == b"".join(sent)  # nothing stays behind for longer than a turn
                continue
            frame = b"%d:" % number + b"x" * size + b"\n"
            sent.append(frame)
            if step == "send":
                outbox.send(frame)
                assert b"".join(written) == b"".join(sent)  # nor behind a frame that is sent at once
            else:
                outbox.gather(frame)
        await asyncio.sleep(0)
        return sent

    assert b"".join(asyncio.run(run())) == b"".join(written)


def test_small_frames_of_one_turn_are_one_write() -> None:
    written: list[bytes] = []

    async def run() -> None:
        outbox = Outbox(asyncio.get_running_loop(), written.append)
        for number in range(100):
            outbox.gather(b"%d\n" % number)
        assert written == []
        await asyncio.sleep(0)

    asyncio.run(run())
    assert len(written) == 1
