"""Orders that take the worker, or its wire, with them; and that whatever becomes of it, the next one clears it up."""

import asyncio
import contextlib
import os
import signal
from typing import Any

import pytest

from providers.fake.tests.leases import Leases
from providers.fake.tests.worker import Ended, Worker
from sandport_provider_fake.config import POINTS
from sandport_provider_fake.testing import Fake
from sandport_sdk.testing import new_id


def live_through(worker: Worker, sandbox_id: str) -> None:
    """Pass every point in the order of a sandbox's life."""
    worker.greet()
    worker.call("validateConfig")
    worker.call("probe")
    worker.call("acquireLease", sandboxId=sandbox_id, ttlMs=600_000)
    worker.attach(sandbox_id)
    worker.listed()
    named = {"sandboxId": sandbox_id, "processId": "cat"}
    worker.call("startProcess", argv=["cat"], stdin=True, **named)
    worker.call("writeProcess", data="aGkK", **named)
    worker.call("signalProcess", signal=signal.SIGCONT, **named)
    worker.call("writeProcess", end=True, **named)
    worker.call("waitProcess", **named)
    worker.call("execute", sandboxId=sandbox_id, shell="echo once >>runs", live=True)
    worker.move("syncIn", sandbox_id, bytes(1024))
    worker.move("syncOut", sandbox_id)
    worker.destroy(sandbox_id)
    worker.close()


def test_a_life_passes_every_point_and_leaves_nothing(fake: Fake) -> None:
    for point in POINTS:
        fake.order(point, "late", by_s=0, times=0)
    with Worker(fake, greet=False) as worker:
        live_through(worker, new_id())
        assert worker.process.returncode == 0
    passed = {line["point"] for line in fake.journal("fault")}
    assert passed == set(POINTS)


@pytest.mark.slow
@pytest.mark.parametrize("point", POINTS)
def test_a_worker_may_be_killed_at_every_point_and_the_next_one_ends_what_it_left(fake: Fake, point: str) -> None:
    fake.order(point, "crash")
    sandbox_id = new_id()
    with Worker(fake, greet=False) as worker:
        with contextlib.suppress(Ended):
            live_through(worker, sandbox_id)
        assert worker.process.wait() == -signal.SIGKILL
    assert len(fake.journal("fault", action="crash")) == 1

    async def clear_up() -> None:
        async with Leases(fake) as second:
            known = {one.sandbox_id for one in fake.sandboxes()}
            assert set(await second.listed()) == known <= {sandbox_id}
            if known:
                attached = await second.attach(sandbox_id)
                (record,) = fake.sandboxes()
                assert attached.state == ("attached" if record.state == "ready" else "unreachable")
                runs = fake.files(sandbox_id) / "runs"
                assert not runs.exists() or runs.read_text() == "once\n"
            assert await second.destroy(sandbox_id) == ("destroyed" if known else "gone")

    asyncio.run(clear_up())


@pytest.mark.parametrize("point", ["hello", "ready", "list.before", "acquire.after-files", "execute.started", "close"])
def test_a_worker_exits_with_the_code_that_was_ordered(fake: Fake, point: str) -> None:
    fake.order(point, "exit", code=33)
    sandbox_id = new_id()
    with Worker(fake, greet=False) as worker:
        with contextlib.suppress(Ended):
            live_through(worker, sandbox_id)
        assert worker.process.wait() == 33

    async def clear_up() -> None:
        async with Leases(fake) as second:
            await second.destroy(sandbox_id)

    asyncio.run(clear_up())


def test_a_hello_can_be_refused_once(fake: Fake) -> None:
    fake.order("hello", "error", condition="AuthenticationFailed", message="wrong key")
    with Worker(fake, greet=False) as worker:
        hello = {"protocolVersions": [1], "host": {"name": "t", "version": "1"}, "storeId": "store"}
        refused = worker.error("initialize", stateDir=os.fspath(fake.state_dir), **hello)
        assert refused["condition"] == "AuthenticationFailed"
        assert worker.greet()["provider"]["name"] == "fake"


def test_a_provider_can_fail_to_be_ready(fake: Fake) -> None:
    fake.order("ready", "error", condition="QuotaExceeded", message="no room")
    with Worker(fake) as worker:
        said = worker.read()
        assert (said["method"], said["params"]["condition"]) == ("failed", "QuotaExceeded")
        assert worker.process.wait() != 0


def test_a_provider_that_is_never_ready_answers_pings(fake: Fake) -> None:
    fake.order("ready", "hang")
    with Worker(fake) as worker:
        waiting = worker.begin("listLeases")
        assert worker.call("ping") == {"open": [waiting]}


def test_a_call_that_hangs_takes_no_notice_of_a_cancel(fake: Fake) -> None:
    fake.order("list.before-answer", "hang")
    with Worker(fake) as worker:
        hanging = worker.begin("listLeases")
        wait_for_fault(fake)
        worker.send({"jsonrpc": "2.0", "method": "cancel", "params": {"id": hanging}})
        assert worker.listed() == []
        assert worker.call("ping") == {"open": [hanging]}


def wait_for_fault(fake: Fake) -> None:
    asyncio.run(fake.seen("fault"))


def test_a_frozen_worker_goes_on_when_it_is_let(fake: Fake) -> None:
    fake.order("probe.before", "freeze")
    with Worker(fake) as worker:
        asked = worker.begin("probe")
        _, status = os.waitpid(worker.process.pid, os.WUNTRACED)
        assert os.WIFSTOPPED(status)
        worker.process.send_signal(signal.SIGCONT)
        assert "result" in worker.answer(asked)


def test_a_line_of_garbage_and_a_print_stand_where_they_were_ordered(fake: Fake) -> None:
    fake.order("list.before", "garbage-line", text="Segmentation fault")
    fake.order("list.before", "print", text="not for the wire")
    fake.order("hello", "garbage-line", text="Welcome to the vendor!")
    with Worker(fake) as worker:
        worker.listed()
        texts = [line for line in worker.lines if isinstance(line, str)]
        assert texts == ["Welcome to the vendor!", "Segmentation fault"]
        assert worker.lines.index("Welcome to the vendor!") == 0
        worker.kill()
        assert worker.process.stderr is not None
        assert b"not for the wire" in worker.process.stderr.read()


def answers(worker: Worker, number: int) -> list[dict[str, Any]]:
    return [line for line in worker.lines if isinstance(line, dict) and line.get("id") == number]


@pytest.mark.parametrize("name", ["acquire", "execute", "list", "validate"])
def test_a_duplicate_answer_says_the_same(fake: Fake, name: str) -> None:
    fake.order(f"{name}.before-answer", "duplicate-answer")
    with Worker(fake) as worker:
        sandbox_id = new_id() if name == "acquire" else worker.acquire()
        calls: dict[str, tuple[str, dict[str, Any]]] = {
            "acquire": ("acquireLease", {"sandboxId": sandbox_id, "ttlMs": 60_000}),
            "execute": ("execute", {"sandboxId": sandbox_id, "argv": ["printf", r"\377"]}),
            "list": ("listLeases", {}),
            "validate": ("validateConfig", {"config": {"seed": 3}}),
        }
        method, params = calls[name]
        number = worker.begin(method, **params)
        first = worker.answer(number)
        second = worker.answer(number)
        # Members that have their default may be left out in the one and not in the other.
        assert covers(second["result"], first["result"])
        assert len(answers(worker, number)) == 2
        worker.listed()
        assert len(answers(worker, number)) == 2
        assert worker.destroy(sandbox_id) == "destroyed"


def covers(more: Any, less: Any) -> bool:
    if isinstance(less, dict):
        return isinstance(more, dict) and all(name in more and covers(more[name], less[name]) for name in less)
    if isinstance(less, list):
        return len(more) == len(less) and all(covers(one, other) for one, other in zip(more, less, strict=True))
    return bool(more == less)


def test_the_end_of_its_input_ends_a_worker_that_hangs_in_a_call(fake: Fake) -> None:
    fake.order("probe.before", "hang")
    with Worker(fake) as worker:
        worker.begin("probe")
        wait_for_fault(fake)
        assert worker.close() == 0
