"""Whatever ends a command without a result, its error has what was received until then.

SWE-agent/SWE-ReX#29, inspect_ai#4108 (2, 3): partial output was thrown away.
"""

import asyncio
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest

from sandport import Host, Sandbox
from sandport.errors import SandportError, UsageError
from sandport.sandbox import INLINE_STDIN_BYTES
from sandport_protocol.errors import CONDITIONS, Kept, Partial
from sandport_protocol.v1 import StreamName
from tests.integration.stage import QUICK, ROOT, Records, alive, configuration, eventually

pytestmark = pytest.mark.anyio

WORKER = '''
"""Sends live output, then ends the command as its argument says."""

import json, os
from tests.integration.workers.speaker import LATER, Refused, Speaker


def execute(message):
    how, partial = json.loads(message["params"]["argv"][0])
    speaker.output(message["id"], "stdout", 0, b"partial\\n")
    speaker.output(message["id"], "stderr", 0, b"err\\n")
    if how == "dies":
        os._exit(3)
    if how == "hangs":
        return LATER
    if how == "skips":
        speaker.output(message["id"], "stdout", 100, b"x")
        return LATER
    if how == "lies":
        return {"ended": "exited", "exitCode": 0, "stdout": {"totalBytes": 8}, "stderr": {"totalBytes": 4}}
    if how == "babbles":
        return {"ended": 3}
    said = {} if partial is None else {"partial": partial}
    raise Refused(how, "it did not work", dispatched="yes", retryAfterMs=1, **said)


speaker = Speaker()
speaker.handlers["execute"] = execute
speaker.handlers["cancel"] = lambda message: speaker.refuse(message["params"]["id"], -32026, "cancelled")
speaker.serve()
'''
RECEIVED = Partial(stdout=Kept(total_bytes=8, data=b"partial\n"), stderr=Kept(total_bytes=4, data=b"err\n"))
TOLD: tuple[dict[str, Any] | None, ...] = (
    None,
    {},
    {"stdout": {"totalBytes": 8}, "stderr": {"totalBytes": 4}},
    {"stdout": {"totalBytes": 8, "droppedBytes": 8}, "stderr": {"totalBytes": 4, "droppedBytes": 4}},
)
"""What workers say of output that they sent live: nothing, or its count."""
ENDS: tuple[int | str, ...] = (*(one.code for one in CONDITIONS), "dies", "hangs", "skips", "lies", "babbles")


async def ended(sandbox: Sandbox, how: int | str, told: dict[str, Any] | None, **options: Any) -> SandportError:
    with pytest.raises(SandportError) as raised:
        await sandbox.execute([msgspec.json.encode([how, told]).decode()], **options)
    return raised.value


async def test_every_error_of_a_command_has_the_output_that_was_received(tmp_path: Path) -> None:
    """A worker that counts what it sent live took the place of what the host had."""
    (tmp_path / "worker.py").write_text(WORKER)
    command = ("env", f"PYTHONPATH={ROOT}", sys.executable, "-S", str(tmp_path / "worker.py"))
    timing = msgspec.structs.replace(QUICK, command_margin_s=0.05)
    heard: list[tuple[StreamName, bytes]] = []
    ways: tuple[dict[str, Any], ...] = (
        {},
        {"on_output": lambda stream, data: heard.append((stream, data))},
        {"spill_to": tmp_path / "spill"},
    )
    wrong = []
    async with Host.open(
        configuration({"scripted": command}, timing=timing), home=tmp_path / "home", log=Records().log
    ) as host:
        for how in ENDS:
            tolds = TOLD if isinstance(how, int) else (None,)
            for told in tolds:
                for way in ways:
                    heard.clear()
                    async with host.lease("scripted") as sandbox:
                        bound_s = 0.05 if how == "hangs" else None
                        error = await ended(sandbox, how, told, timeout_s=bound_s, **way)
                    if error.partial != RECEIVED:
                        wrong.append(f"{how} {told} {list(way)}: {error!r} {error.partial}")
                    if "on_output" in way and heard != [("stdout", b"partial\n"), ("stderr", b"err\n")]:
                        wrong.append(f"{how} {told}: heard {heard}")
    assert wrong == []
    assert (tmp_path / "spill" / "stdout").read_bytes() == b"partial\n"


async def test_what_a_worker_knows_of_more_is_counted_as_dropped(tmp_path: Path) -> None:
    (tmp_path / "worker.py").write_text(WORKER)
    command = ("env", f"PYTHONPATH={ROOT}", sys.executable, "-S", str(tmp_path / "worker.py"))
    async with (
        Host.open(configuration({"scripted": command}), home=tmp_path / "home", log=Records().log) as host,
        host.lease("scripted") as sandbox,
    ):
        for told in ({"stdout": {"totalBytes": 20}}, {"stdout": {"totalBytes": 20, "data": "AAAA"}}):
            partial = (await ended(sandbox, -32010, told)).partial
            assert partial is not None
            assert partial.stdout == Kept(total_bytes=20, data=b"partial\n", dropped_bytes=12)
            assert partial.stderr == Kept(total_bytes=4, data=b"err\n")


@pytest.mark.parametrize("environment", ["local", "fake"])
async def test_a_sandbox_that_is_ended_under_a_command_leaves_its_output(tmp_path: Path, environment: str) -> None:
    began = asyncio.Event()
    pieces: dict[StreamName, bytes] = {"stdout": b"", "stderr": b""}

    def hear(stream: StreamName, data: bytes) -> None:
        pieces[stream] += data
        if pieces == {"stdout": b"partial\n", "stderr": b"err\n"}:
            began.set()

    script = ["sh", "-c", "echo partial; echo err >&2; sleep 600"]
    async with Host.open(home=tmp_path / "home", log=Records().log) as host:
        for stdin in (b"", b"x" * (INLINE_STDIN_BYTES + 1)):
            began.clear()
            pieces |= {"stdout": b"", "stderr": b""}
            async with host.lease(environment, config={"isolation": "none"} if environment == "local" else {}) as box:
                running = asyncio.ensure_future(box.execute(script, stdin=stdin, on_output=hear))
                await began.wait()
                assert await box.destroy()
                with pytest.raises(SandportError) as raised:
                    await running
            assert not isinstance(raised.value, UsageError)
            assert raised.value.partial == RECEIVED, raised.value


async def test_what_a_consumer_raises_is_raised_as_it_is_and_the_command_is_killed(tmp_path: Path) -> None:
    class Mine(Exception):
        pass

    def refuse(_: StreamName, __: bytes) -> None:
        raise mine

    async def refuse_later(_: StreamName, __: bytes) -> None:
        await asyncio.sleep(0)
        raise mine

    mark = tmp_path / "pid"
    script = ["sh", "-c", f"echo $$ > {mark}; echo begun; exec sleep 600"]
    async with (
        Host.open(home=tmp_path / "home", log=Records().log) as host,
        host.lease("local", config={"isolation": "none"}) as sandbox,
    ):
        for consumer in (refuse, refuse_later):
            for stdin in (b"", b"x" * (INLINE_STDIN_BYTES + 1)):
                mine = Mine("mine")
                with pytest.raises(Mine) as raised:
                    await sandbox.execute(script, stdin=stdin, on_output=consumer)
                assert raised.value is mine
                pid = int(mark.read_text())
                await eventually(lambda pid=pid: not alive(pid))  # type: ignore[misc]
