"""Archives in and out of the fake's sandboxes, and what can be ordered of them."""

from __future__ import annotations

import io
import os
import socket
import tarfile
from pathlib import Path
from typing import TYPE_CHECKING, get_args

import pytest

from providers.fake.tests.leases import Leases
from providers.fake.tests.worker import Worker
from sandport_provider_fake.config import HostileMember
from sandport_sdk.archive_end import ArchiveEnd
from sandport_sdk.testing import ArchiveSocket, Request, new_id
from sandport_sdk.v1 import errors, types

if TYPE_CHECKING:
    from sandport_provider_fake.testing import Fake

pytestmark = pytest.mark.anyio

CONTENT = os.urandom(300_000)


def archive(**files: bytes) -> bytes:
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size, member.mode, member.mtime = len(content), 0o640, 1_600_000_000.5
            tar.addfile(member, io.BytesIO(content))
    return made.getvalue()


def members(data: bytes) -> dict[str, bytes]:
    with tarfile.open(fileobj=io.BytesIO(data)) as tar:
        return {m.name: (tar.extractfile(m) or io.BytesIO()).read() for m in tar if m.isfile()}


def begin(host: Leases, method: str, sandbox_id: str, bulk: ArchiveSocket) -> Request:
    return host.start(method, {"sandboxId": sandbox_id, "socket": bulk.path, "path": "."})


def is_whole(data: bytes) -> bool:
    end = ArchiveEnd()
    end.feed(memoryview(data))
    return end.is_complete


# ------------------------------------------------------------------ as it should be


async def test_archives_go_in_and_come_out_and_stand_in_the_journal(fake: Fake) -> None:
    async with Leases(fake) as host:
        sandbox_id = await host.acquire()
        sent = archive(file=CONTENT)
        await host.sync_in(sandbox_id, "a/b", sent)
        landed = fake.files(sandbox_id) / "a" / "b" / "file"
        assert landed.read_bytes() == CONTENT
        assert (landed.stat().st_mode & 0o7777, landed.stat().st_mtime) == (0o640, 1_600_000_000.5)
        seen = await host.execute(sandbox_id, "wc -c < a/b/file")
        assert int(seen.stdout.data) == len(CONTENT)
        result, came = await host.sync_out(sandbox_id, "a/b/file")
        assert members(came) == {"./file": CONTENT}
        with pytest.raises(errors.PathNotFound):
            await host.sync_out(sandbox_id, "nowhere")
        await host.destroy(sandbox_id)
    assert [(line["what"], line["path"]) for line in fake.journal() if line["what"].startswith("sync-")] == [
        ("sync-in", "a/b"),
        ("sync-out", "a/b/file"),
        ("sync-out", "nowhere"),
    ]
    assert [(line["ended"], line["bytes"]) for line in fake.journal() if line["what"].startswith("synced-")] == [
        ("whole", len(sent)),
        ("whole", result.bytes),
        ("PathNotFound", None),
    ]


async def test_without_sync_the_lease_says_so_and_nothing_moves(fake: Fake) -> None:
    async with Leases(fake, sync=False) as host, ArchiveSocket() as bulk:
        sandbox_id = new_id()
        lease: types.LeaseResult = await host.ask(sandbox_id).result()
        assert lease.without == ("sync",)
        attached = await host.attach(sandbox_id)
        assert attached.lease is not None
        assert attached.lease.without == ("sync",)
        for method in ("syncIn", "syncOut"):
            with pytest.raises(errors.NotSupported) as raised:
                await begin(host, method, sandbox_id, bulk).result()
            assert raised.value.dispatched == "no"
        assert (await host.attach(sandbox_id, config={})).lease == types.LeaseResult(
            **{name: getattr(lease, name) for name in lease.__struct_fields__} | {"without": ()}
        )
        await host.destroy(sandbox_id)


async def test_a_sandbox_that_is_not_attached_or_has_ended_moves_nothing(fake: Fake) -> None:
    async with Leases(fake) as host, ArchiveSocket() as bulk:
        sandbox_id = await host.acquire()
        await host.destroy(sandbox_id)
        for method in ("syncIn", "syncOut"):
            with pytest.raises(errors.NotAttached):
                await begin(host, method, new_id(), bulk).result()
            with pytest.raises(errors.LeaseNotFound):
                await begin(host, method, sandbox_id, bulk).result()


# ------------------------------------------------------------------ ends in the middle


@pytest.mark.parametrize("method", ["syncIn", "syncOut"])
async def test_a_cancel_ends_the_tar_and_the_sandbox_goes_on(fake: Fake, method: str) -> None:
    async with Leases(fake) as host, ArchiveSocket() as bulk:
        sandbox_id = await host.acquire()
        await host.sync_in(sandbox_id, ".", archive(large=bytes(4_000_000)))
        request = begin(host, method, sandbox_id, bulk)
        await bulk.connected()  # and no byte more, one way or the other
        request.cancel()
        with pytest.raises(errors.Cancelled):
            await request.result()
        seen = await host.execute(sandbox_id, "ls")
        assert seen.stdout.data == b"large\n"
        await host.destroy(sandbox_id)
    assert [line["ended"] for line in fake.journal(f"synced-{method.removeprefix('sync').lower()}")][-1] == (
        "interrupted"
    )


@pytest.mark.parametrize("why", ["destroyed", "expired"])
@pytest.mark.parametrize("method", ["syncIn", "syncOut"])
async def test_the_end_of_the_sandbox_ends_what_moves(fake: Fake, method: str, why: str) -> None:
    fake.clock.stand_still()
    async with Leases(fake) as host, ArchiveSocket() as bulk:
        sandbox_id = await host.acquire()
        await host.sync_in(sandbox_id, ".", archive(large=bytes(4_000_000)))
        request = begin(host, method, sandbox_id, bulk)
        await bulk.connected()
        if method == "syncIn":
            await bulk.send(archive(first=b"1", second=CONTENT)[:100_000], end=False)
            await fake.until((fake.files(sandbox_id) / "first").exists)
        else:
            await fake.until(lambda: any(b"-c" in words for words in running(fake)))
        if why == "destroyed":
            await host.destroy(sandbox_id)
        else:
            fake.clock.advance(60)
        with pytest.raises(errors.SandboxLost):
            await request.result()


def running(fake: Fake) -> list[bytes]:
    """Command lines of the tars that run below this vendor."""
    found = []
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                if os.readlink(folder / "cwd").startswith(str(fake.state_dir)):
                    found.append((folder / "cmdline").read_bytes())
            except OSError:
                continue  # it ended just now, or is another user's
    return [words for words in found if words.startswith(b"tar\0")]


async def test_a_worker_that_dies_takes_the_tar_with_it(fake: Fake) -> None:
    with Worker(fake) as worker:
        sandbox_id = worker.acquire()
        async with ArchiveSocket() as bulk:
            worker.begin("syncIn", sandboxId=sandbox_id, socket=bulk.path, path=".")
            await bulk.send(archive(first=b"1", second=CONTENT)[:100_000], end=False)
            await fake.until((fake.files(sandbox_id) / "first").exists)
            assert running(fake)
            worker.kill()
            await fake.until(lambda: not running(fake))
    with Worker(fake) as later:
        assert later.attach(sandbox_id)["state"] == "attached"
        assert later.destroy(sandbox_id) == "destroyed"


# ------------------------------------------------------------------ on order


async def test_a_stream_that_is_cut_on_order_is_told_as_ordered(fake: Fake) -> None:
    sent = archive(first=CONTENT, second=CONTENT)
    keep_bytes = len(sent) // 2
    async with Leases(fake) as host:
        sandbox_id = await host.acquire()
        root = fake.files(sandbox_id)
        for tell in ("error", "dropped", "lie"):
            fake.order("sync-in.before", "truncate", keep_bytes=keep_bytes, tell=tell)
            async with ArchiveSocket() as bulk:
                request = begin(host, "syncIn", sandbox_id, bulk)
                await bulk.send(sent)
                if tell == "error":
                    with pytest.raises(errors.Unavailable) as raised:
                        await request.result()
                    assert raised.value.dispatched == "unknown"
                else:
                    result = await request.result()
                    assert result.bytes == (keep_bytes if tell == "dropped" else len(sent))
                    assert (root / "first").read_bytes() == CONTENT
            assert not (root / "second").exists() or (root / "second").stat().st_size < len(CONTENT)
        await host.sync_in(sandbox_id, ".", sent)
        for tell in ("error", "dropped", "lie"):
            fake.order("sync-out.before", "truncate", keep_bytes=keep_bytes, tell=tell)
            async with ArchiveSocket() as bulk:
                request = begin(host, "syncOut", sandbox_id, bulk)
                came = await bulk.receive()
                assert (len(came), is_whole(came)) == (keep_bytes, False)
                if tell == "error":
                    with pytest.raises(errors.Unavailable):
                        await request.result()
                else:
                    result = await request.result()
                    assert (result.bytes == keep_bytes) == (tell == "dropped")
                    assert result.bytes >= keep_bytes
        _, came = await host.sync_out(sandbox_id, ".")
        assert members(came) == {"./first": CONTENT, "./second": CONTENT}
        await host.destroy(sandbox_id)


@pytest.mark.parametrize("method", ["syncIn", "syncOut"])
async def test_a_slow_stream_is_slow_and_can_be_cancelled(fake: Fake, method: str) -> None:
    async with Leases(fake) as host, ArchiveSocket() as bulk:
        sandbox_id = await host.acquire()
        fake.order(f"sync-{method.removeprefix('sync').lower()}.before", "slow-stream", bytes_per_s=20)
        request = begin(host, method, sandbox_id, bulk)
        if method == "syncIn":
            await bulk.send(archive(file=b"1"))
        else:
            await bulk.connected()
        await host.execute(sandbox_id, "true")
        assert not request.ended, "at this rate it takes minutes"
        request.cancel()
        with pytest.raises(errors.Cancelled):
            await request.result()
        await host.destroy(sandbox_id)


async def test_a_fast_slow_stream_brings_everything(fake: Fake) -> None:
    async with Leases(fake) as host:
        sandbox_id = await host.acquire()
        for point in ("sync-in.before", "sync-out.before"):
            fake.order(point, "slow-stream", bytes_per_s=6_000_000)
        await host.sync_in(sandbox_id, ".", archive(file=CONTENT))
        _, came = await host.sync_out(sandbox_id, ".")
        assert members(came) == {"./file": CONTENT}
        await host.destroy(sandbox_id)


async def test_a_hostile_archive_is_whole_and_leads_out(fake: Fake) -> None:
    expected: dict[str, tuple[str, bytes, str, int]] = {
        "absolute": ("/tmp/escaped", tarfile.REGTYPE, "", 0o644),
        "dot-dot": ("inside/../../escaped", tarfile.REGTYPE, "", 0o644),
        "link": ("way-out", tarfile.SYMTYPE, "..", 0o644),
        "hard-link": ("password", tarfile.LNKTYPE, "/etc/passwd", 0o644),
        "device": ("null", tarfile.CHRTYPE, "", 0o644),
        "duplicate": ("twice", tarfile.SYMTYPE, "/tmp", 0o644),
        "setuid": ("setuid", tarfile.REGTYPE, "", 0o6777),
    }
    async with Leases(fake) as host:
        sandbox_id = await host.acquire()
        for kind in get_args(HostileMember):
            fake.order("sync-out.before", "hostile-archive", members=[kind])
            _, came = await host.sync_out(sandbox_id, ".")
            with tarfile.open(fileobj=io.BytesIO(came)) as tar:
                *hostile, last = tar.getmembers()
            assert hostile
            assert last.name == "harmless"
            first = hostile[0]
            facts = (first.name, first.type, first.linkname, first.mode)
            assert facts == expected[kind]
        fake.order("sync-out.before", "hostile-archive")
        _, came = await host.sync_out(sandbox_id, ".")
        with tarfile.open(fileobj=io.BytesIO(came)) as tar:
            assert len(tar.getmembers()) > len(get_args(HostileMember))
        await host.destroy(sandbox_id)


async def test_a_socket_that_cannot_be_reached_leaves_the_sandbox_as_it_was(fake: Fake, tmp_path: Path) -> None:
    async with Leases(fake) as host:
        sandbox_id = await host.acquire()
        with socket.socket(socket.AF_UNIX) as bound:
            deaf = str(tmp_path / "deaf")
            bound.bind(deaf)
            params = {"sandboxId": sandbox_id, "socket": deaf, "path": "made"}
            for method in ("syncIn", "syncOut"):
                with pytest.raises(errors.Unavailable) as raised:
                    await host.call(method, params)
                assert raised.value.dispatched == "no"
                assert raised.value.detail == errors.Detail(field="socket")
        assert list(fake.files(sandbox_id).iterdir()) == []
        await host.destroy(sandbox_id)
