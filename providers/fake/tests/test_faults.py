"""Orders that an honest worker can carry out: each happens where, for whom and as often as it says."""

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from providers.fake.tests.leases import Leases
from sandport_provider_fake.config import POINTS
from sandport_provider_fake.faults import comes_up
from sandport_provider_fake.testing import Fake
from sandport_sdk.testing import new_id
from sandport_sdk.v1 import errors, types

pytestmark = pytest.mark.anyio

METHODS: dict[str, tuple[str, dict[str, Any]]] = {
    "validate": ("validateConfig", {}),
    "probe": ("probe", {}),
    "acquire": ("acquireLease", {"sandboxId": "", "ttlMs": 60_000}),
    "attach": ("attachLease", {"sandboxId": "ours", "handle": "fake/1/ours"}),
    "list": ("listLeases", {}),
    "destroy": ("destroyLease", {"sandboxId": ""}),
    "execute": ("execute", {"sandboxId": "ours", "argv": ["true"]}),
    "start": ("startProcess", {"sandboxId": "ours", "argv": ["true"], "processId": "new"}),
    "write": ("writeProcess", {"sandboxId": "ours", "processId": "cat", "data": ""}),
    "signal": ("signalProcess", {"sandboxId": "ours", "processId": "cat", "signal": 18}),
    "wait": ("waitProcess", {"sandboxId": "ours", "processId": "cat"}),
    "sync-in": ("syncIn", {"sandboxId": "ours"}),
    "sync-out": ("syncOut", {"sandboxId": "ours"}),
}
"""Each method by the name that its points begin with, and a call that would succeed."""


def params_of(name: str, ours: str) -> dict[str, Any]:
    params = {}
    for member, value in METHODS[name][1].items():
        params[member] = new_id() if value == "" and member == "sandboxId" else value
        if isinstance(value, str):
            params[member] = str(params[member]).replace("ours", ours)
    return params


async def ask(host: Leases, name: str, params: dict[str, Any]) -> None:
    """Make the call, and move an archive where it is about one."""
    if name == "sync-in":
        await host.sync_in(params["sandboxId"], ".", bytes(1024))
    elif name == "sync-out":
        await host.sync_out(params["sandboxId"], ".")
    else:
        await host.call(METHODS[name][0], params)


@pytest.mark.parametrize("point", [point for point in POINTS if "." in point and not point.startswith("call.")])
async def test_an_error_on_order_happens_once_at_every_point(fake: Fake, point: str) -> None:
    name, _, stage = point.partition(".")
    order = {"condition": "AuthenticationFailed", "message": "not you", "retry": "later", "retry_after_ms": 250}
    async with Leases(fake) as host:
        ours = await host.acquire()
        await host.call("startProcess", {"sandboxId": ours, "argv": ["cat"], "processId": "cat", "stdin": True})
        fake.order(point, "error", **order)
        method, params = METHODS[name][0], params_of(name, ours)
        if name == "destroy":
            params["sandboxId"] = await host.acquire()
        if name == "wait":
            await host.call("writeProcess", {"sandboxId": ours, "processId": "cat", "end": True})
        with pytest.raises(errors.AuthenticationFailed, match="not you") as raised:
            await ask(host, name, params)
        assert (raised.value.retry, raised.value.retry_after_s) == ("later", 0.25)
        assert raised.value.dispatched == ("no" if stage == "before" else "unknown")
        assert [line["method"] for line in fake.journal("fault")] == [method]
        if name == "destroy":
            assert await host.destroy(params["sandboxId"]) == ("gone" if stage == "before-answer" else "destroyed")
        elif name == "acquire" and stage != "before":
            assert params["sandboxId"] in [one.sandbox_id for one in fake.sandboxes()]
        elif name == "start" and stage != "before":
            with pytest.raises(errors.InvalidParams):  # it runs
                await host.call(method, params)
        else:
            await ask(host, name, params)
        for record in fake.sandboxes():
            await host.destroy(record.sandbox_id)


async def test_an_order_counts_over_all_workers_and_outlives_them(fake: Fake) -> None:
    fake.order("list.before", "quota", times=3, after=1)
    outcomes = []
    for _ in range(3):
        async with Leases(fake) as host:
            for _ in range(2):
                try:
                    await host.listed()
                    outcomes.append("listed")
                except errors.QuotaExceeded:
                    outcomes.append("refused")
    assert outcomes == ["listed", "refused", "refused", "refused", "listed", "listed"]


async def test_an_order_of_an_environment_holds_for_its_calls_alone(fake: Fake) -> None:
    order = {"point": "execute.before", "action": "error", "condition": "SandboxLost", "times": 0}
    async with Leases(fake, faults=[order]) as host:
        theirs = await host.acquire()
        other = await host.acquire(config={})
        for _ in range(2):
            with pytest.raises(errors.SandboxLost):
                await host.execute(theirs, "true")
            assert (await host.execute(other, "true")).exit_code == 0
        await host.destroy(theirs)
        await host.destroy(other)


async def test_an_order_can_be_for_one_sandbox_or_one_method_alone(fake: Fake) -> None:
    async with Leases(fake) as host:
        one, other = await host.acquire(), await host.acquire()
        fake.order("call.before", "quota", times=0, only={"sandbox_id": one, "method": "execute"})
        await host.execute(other, "true")
        await host.attach(one)
        with pytest.raises(errors.QuotaExceeded):
            await host.execute(one, "true")
        fake.clear()
        await host.execute(one, "true")
        await host.destroy(one)
        await host.destroy(other)


@given(seed=st.integers(), key=st.text(max_size=8), probability=st.floats(0, 1))
def test_a_probability_follows_from_the_seed_and_comes_near_what_it_says(
    seed: int, key: str, probability: float
) -> None:
    drawn = [comes_up(probability, f"{seed}:{key}:{number}") for number in range(200)]
    assert drawn == [comes_up(probability, f"{seed}:{key}:{number}") for number in range(200)]
    # Seven standard deviations: the chance that a sound one is outside is one in 10^11.
    assert abs(sum(drawn) - 200 * probability) <= 50


async def test_what_a_seed_decides_is_the_same_at_every_vendor(tmp_path_factory: pytest.TempPathFactory) -> None:
    seen = []
    for _ in range(2):
        fake = Fake(tmp_path_factory.mktemp("home") / "home")
        fake.seed(11)
        fake.order("list.before", "quota", times=0, probability=0.5, id="coin")
        async with Leases(fake) as host:
            for _ in range(20):
                try:
                    seen.append(len(await host.listed()))
                except errors.QuotaExceeded:
                    seen.append(-1)
    assert seen[:20] == seen[20:]
    assert set(seen) == {0, -1}


async def test_a_lost_answer_leaves_what_was_made(fake: Fake) -> None:
    fake.order("acquire.before-answer", "lose-answer")
    async with Leases(fake) as host:
        sandbox_id = new_id()
        asked = host.ask(sandbox_id)
        await fake.seen("created", sandboxId=sandbox_id)
        await host.listed()
        assert not asked.ended
        asked.cancel()
        with pytest.raises(errors.Cancelled) as raised:
            await asked.result()
        assert raised.value.dispatched == "unknown"
        assert await host.listed() == [sandbox_id]
        assert await host.destroy(sandbox_id) == "destroyed"


async def test_a_late_answer_waits_for_the_vendors_clock(fake: Fake) -> None:
    fake.clock.stand_still()
    fake.order("list.before-answer", "late", by_s=30, clock="vendor")
    async with Leases(fake) as host:
        asked = host.start("listLeases", {})
        await fake.seen("fault")
        fake.clock.advance(29)
        await host.call("probe", {})
        assert not asked.ended
        fake.clock.advance(1)
        await asked.result()


async def test_a_sandbox_that_was_half_created_can_only_be_ended(fake: Fake) -> None:
    fake.order("acquire.after-record", "half-create")
    async with Leases(fake) as host:
        sandbox_id = new_id()
        with pytest.raises(errors.Unavailable) as raised:
            await host.acquire(sandbox_id)
        assert raised.value.dispatched == "unknown"
        assert [(one.sandbox_id, one.state) for one in fake.sandboxes()] == [(sandbox_id, "creating")]
        assert not fake.files(sandbox_id).exists()
        assert await host.listed() == [sandbox_id]
        assert (await host.attach(sandbox_id)).state == "unreachable"
        with pytest.raises(errors.NotAttached):
            await host.execute(sandbox_id, "true")
        assert await host.destroy(sandbox_id) == "destroyed"
        assert await host.destroy(sandbox_id) == "gone"


@pytest.mark.parametrize("point", ["acquire.before", "acquire.after-record", "acquire.before-answer"])
async def test_a_hidden_sandbox_is_there_and_no_list_shows_it(fake: Fake, point: str) -> None:
    fake.clock.stand_still()
    fake.order(point, "hide", for_s=20)
    async with Leases(fake) as host:
        sandbox_id = await host.acquire()
        fake.clock.advance(19)
        assert await host.listed() == []
        assert await host.listed(sandboxId=sandbox_id) == []
        assert (await host.attach(sandbox_id)).state == "attached"
        assert (await host.execute(sandbox_id, "true")).exit_code == 0
        fake.clock.advance(1)
        assert await host.listed() == [sandbox_id]
        await host.destroy(sandbox_id)


async def test_a_create_that_appears_later_is_not_found_before(fake: Fake) -> None:
    fake.clock.stand_still()
    fake.order("acquire.after-record", "hide", for_s=5, scope="everything")
    fake.order("acquire.before-answer", "error", condition="Unavailable")
    async with Leases(fake) as host:
        sandbox_id = new_id()
        with pytest.raises(errors.Unavailable):
            await host.acquire(sandbox_id)
        assert await host.destroy(sandbox_id) == "gone"
        assert (await host.attach(sandbox_id)).state == "gone"
        assert len(fake.sandboxes()) == 1
        fake.clock.advance(5)
        assert await host.listed() == [sandbox_id]
        assert await host.destroy(sandbox_id) == "destroyed"


async def test_a_stale_list_shows_what_is_gone(fake: Fake) -> None:
    fake.clock.stand_still()
    fake.order("destroy.before", "stale-list", for_s=15)
    async with Leases(fake) as host:
        sandbox_id = await host.acquire()
        assert await host.destroy(sandbox_id) == "destroyed"
        assert fake.left() == []
        fake.clock.advance(14)
        assert await host.listed() == [sandbox_id]
        assert await host.destroy(sandbox_id) == "gone"
        assert (await host.attach(sandbox_id)).state == "gone"
        fake.clock.advance(1)
        assert await host.listed() == []


async def test_a_vendor_that_is_down_refuses_everything_until_it_is_up(fake: Fake) -> None:
    fake.clock.stand_still()
    async with Leases(fake) as host:
        sandbox_id = await host.acquire()
        fake.order("probe.before", "down", for_s=40)
        with pytest.raises(errors.Unavailable):
            await host.call("probe", {})
        fake.clock.advance(39)
        for method, params in (
            ("acquireLease", {"sandboxId": new_id(), "ttlMs": 60_000}),
            ("listLeases", {}),
            ("execute", {"sandboxId": sandbox_id, "argv": ["true"]}),
            ("destroyLease", {"sandboxId": sandbox_id}),
        ):
            with pytest.raises(errors.Unavailable) as raised:
                await host.call(method, params)
            assert (raised.value.dispatched, raised.value.retry_after_s) == ("no", 1.0)
        fake.clock.advance(1)
        assert (await host.execute(sandbox_id, "true")).exit_code == 0
        assert await host.destroy(sandbox_id) == "destroyed"


@pytest.mark.parametrize("live", [True, False])
@pytest.mark.parametrize("point", ["execute.before", "execute.started"])
async def test_output_that_was_cut_is_told_as_ordered(fake: Fake, point: str, *, live: bool) -> None:
    text = "printf 0123456789; printf ab >&2"
    async with Leases(fake) as host:
        sandbox_id = await host.acquire()

        fake.order(point, "truncate", keep_bytes=4)
        request = host.run(sandbox_id, text, live=live)
        with pytest.raises(errors.Unavailable) as raised:
            await request.result()
        assert raised.value.dispatched == "yes"
        partial = raised.value.partial
        assert (request.stdout if live else partial and partial.stdout.data) == b"0123"

        fake.order(point, "truncate", keep_bytes=4, tell="dropped")
        request = host.run(sandbox_id, text, live=live)
        dropped: types.ExecuteResult = await request.result()
        stdout, stderr = dropped.stdout, dropped.stderr
        assert (dropped.exit_code, stdout.end, stderr.end, stderr.total_bytes) == (0, "heldOpen", "seen", 2)
        assert stdout.dropped_bytes == 6
        assert stdout.total_bytes == (4 if live else 10)
        assert (request.stdout if live else stdout.data) == b"0123"

        fake.order(point, "truncate", keep_bytes=4, tell="lie")
        request = host.run(sandbox_id, text, live=live)
        lie: types.ExecuteResult = await request.result()
        assert (lie.stdout.total_bytes, lie.stdout.dropped_bytes) == (10, 0)
        assert (request.stdout if live else lie.stdout.data) == b"0123"

        whole = await host.execute(sandbox_id, text)
        assert (whole.stdout.data, whole.stderr.data) == (b"0123456789", b"ab")
        await host.destroy(sandbox_id)


async def test_the_output_of_a_process_can_be_cut_too(fake: Fake) -> None:
    fake.order("start.before", "truncate", keep_bytes=3, tell="dropped")
    async with Leases(fake) as host:
        sandbox_id = await host.acquire()
        await host.call("startProcess", {"sandboxId": sandbox_id, "processId": "p", "argv": ["echo", "hello"]})
        request = host.start("waitProcess", {"sandboxId": sandbox_id, "processId": "p"})
        result: types.WaitProcessResult = await request.result()
        assert (request.stdout, result.stdout.total_bytes, result.stdout.dropped_bytes) == (b"hel", 3, 3)
        await host.destroy(sandbox_id)


async def test_a_skewed_clock_is_in_the_answers_and_not_in_the_vendor(fake: Fake) -> None:
    fake.clock.stand_still()
    now_ms = round(fake.clock.now_s * 1000)
    for point in ("acquire.before-answer", "attach.before-answer", "list.before-answer"):
        fake.order(point, "skew", by_s=-3600)
    async with Leases(fake) as host:
        sandbox_id = new_id()
        lease: types.LeaseResult = await host.ask(sandbox_id).result()
        attached = await host.attach(sandbox_id)
        assert attached.lease is not None
        skewed: types.ListLeasesResult = await host.call("listLeases", {})
        right: types.ListLeasesResult = await host.call("listLeases", {})
        wrong_ms = now_ms + 60_000 - 3_600_000
        assert lease.expires_at_ms == attached.lease.expires_at_ms == skewed.leases[0].expires_at_ms == wrong_ms
        assert skewed.leases[0].created_at_ms == now_ms - 3_600_000
        assert (right.leases[0].created_at_ms, right.leases[0].expires_at_ms) == (now_ms, now_ms + 60_000)
        await host.destroy(sandbox_id)


async def test_a_destroy_that_broke_off_is_finished_by_a_repeat(fake: Fake) -> None:
    fake.order("destroy.half", "error", condition="Unavailable")
    async with Leases(fake) as host:
        sandbox_id = await host.acquire()
        with pytest.raises(errors.Unavailable):
            await host.destroy(sandbox_id)
        assert [one.state for one in fake.sandboxes()] == ["ending"]
        assert await host.listed() == [sandbox_id]
        assert (await host.attach(sandbox_id)).state == "unreachable"
        with pytest.raises(errors.LeaseNotFound):
            await host.execute(sandbox_id, "true")
        assert await host.destroy(sandbox_id) == "destroyed"


async def test_orders_are_given_listed_and_cleared_over_the_wire(fake: Fake) -> None:
    order = {"point": "list.before", "action": "throttle", "retry_after_ms": 5}
    async with Leases(fake) as host:
        assert await host.extension("faults") == {"faults": []}
        assert await host.extension("faults", set=[order]) == {"faults": [order]}
        with pytest.raises(errors.RateLimited):
            await host.listed()
        with pytest.raises(errors.ConfigInvalid) as raised:
            await host.extension("faults", set=[{**order, "point": "nowhere"}])
        assert raised.value.detail is not None
        assert raised.value.detail.field == "config.faults[1].point"
        assert await host.extension("faults", clear=True) == {"faults": []}
        await host.listed()
        with pytest.raises(errors.InvalidParams):
            await host.extension("faults", sett=[order])


async def test_a_file_of_orders_that_does_not_fit_is_told_in_every_answer(fake: Fake) -> None:
    wrong = '{"faults": [{"point": "list.before", "action": "crash", "x": 1}]}'
    async with Leases(fake) as host:
        (fake.state_dir / "faults.json").write_text(wrong)
        with pytest.raises(errors.ConfigInvalid, match=r"faults\.json: config\.faults\[0\]\.x"):
            await host.listed()
    with pytest.raises(errors.ConfigInvalid):  # and no worker starts with it
        async with Leases(fake):
            pass


async def test_a_wrong_order_is_refused_where_it_is_given(fake: Fake) -> None:
    with pytest.raises(errors.ConfigInvalid, match="cannot happen at"):
        fake.order("list.before", "skew", by_s=1)
    with pytest.raises(errors.ConfigInvalid, match="by_s"):
        fake.order("list.before", "late")


def test_a_point_that_there_is_not_is_told_with_the_one_that_was_meant(tmp_path: Path) -> None:
    with pytest.raises(errors.ConfigInvalid, match=r"'aquire\.befor'; did you mean 'acquire\.before'\?"):
        Fake(tmp_path / "home").order("aquire.befor", "crash")
