"""What users of other sandboxes reported of their files, done with the providers of this machine.

A number is the row of the museum's `P` rooms that a test belongs to (see tests/museum).
"""

import os
import stat
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from host.tests.sync.archives import END, member, pax, unpack_bytes
from sandport.configuration import Configuration, HostSettings
from sandport.errors import UsageError
from sandport.host import Host
from sandport.sandbox import Sandbox
from tests.integration.stage import QUICK, Records
from tests.integration.vendor import Vendor

pytestmark = pytest.mark.anyio

FOREIGN = (
    (b"LIBARCHIVE.creationtime", b"1700000000.5"),
    (b"LIBARCHIVE.xattr.com.apple.quarantine", b"MDA4MTtub25l"),
    (b"LIBARCHIVE.xattr.com.apple.FinderInfo", b"AAAA"),
    (b"SCHILY.xattr.com.apple.provenance", b"\x01\x00=\n\xff"),
    (b"SCHILY.fflags", b"hidden,uappnd"),
    (b"RHT.security.selinux", b"system_u:object_r:tmp_t:s0"),
)
"""What the archivers of macOS and of others add to a member."""


@pytest.fixture
async def host(tmp_path: Path, records: Records) -> AsyncIterator[Host]:
    settings = Configuration(host=HostSettings(timing=QUICK))
    async with Host.open(settings, home=tmp_path / "home", log=records.log) as opened:
        yield opened
    assert records.texts("error", "critical") == []


@pytest.fixture
async def boxes(host: Host) -> AsyncIterator[list[Sandbox]]:
    """A sandbox whose files are in reach, and one whose files go through its worker."""
    async with host.lease("local", config={"isolation": "none"}) as near, host.lease("fake") as far:
        assert near.lease.local_root is not None
        assert far.lease.local_root is None
        yield [near, far]


async def test_a_changed_file_of_the_same_size_with_an_older_time_is_copied(
    boxes: list[Sandbox], tmp_path: Path
) -> None:
    """82, skypilot#2303, deer-flow#4329: size and time said that nothing had changed, and the old bytes stayed."""
    source, back = tmp_path / "source", tmp_path / "back"
    for sandbox in boxes:
        for number, content in enumerate((b"first", b"other", b"third")):
            source.write_bytes(content)
            os.utime(source, (2_000_000_000 - number, 2_000_000_000 - number))
            await sandbox.sync_in(source, "file")
            assert bytes((await sandbox.execute(["cat", "file"])).stdout) == content
            await sandbox.sync_out("file", back)
            assert back.read_bytes() == content
            await sandbox.execute(shell=f"printf chang >file; touch -d @{1_000_000_000 - number} file")
            await sandbox.sync_out("file", back)
            assert back.read_bytes() == b"chang"


async def test_where_a_command_ran_is_never_taken_for_a_place_of_this_side(
    host: Host, boxes: list[Sandbox], tmp_path: Path
) -> None:
    """160, paperclip#5823: a directory of the sandbox was kept as where to work, and the next run packed what this
    machine has under that name."""
    elsewhere, workspace = tmp_path / "elsewhere", tmp_path / "workspace"
    for folder, names in ((elsewhere, ("private", "large")), (workspace, ("mine",))):
        folder.mkdir()
        for name in names:
            (folder / name).write_bytes(name.encode())
    for sandbox in boxes:
        outcome = await sandbox.execute(shell="pwd; echo made >made", cwd=str(elsewhere))
        assert outcome.stdout.decode() == f"{elsewhere}\n"
        (elsewhere / "made").unlink()
        assert (await sandbox.sync_in(workspace, ".")).files == 1
        found = await sandbox.execute(["find", ".", "-type", "f"])
        assert found.stdout.decode() == "./mine\n"
        back = tmp_path / f"back of {sandbox.id}"
        assert (await sandbox.sync_out(".", back)).files == 1
        assert os.listdir(back) == ["mine"]


async def test_what_an_enemy_sends_home_lands_in_its_target_or_nowhere(vendor: Vendor, tmp_path: Path) -> None:
    """76, bytedance/deer-flow#5578, #2623: what came from a sandbox was written through a link, onto the host; here a
    worker sends every such thing at once, and something harmless behind it."""
    vendor.fake.order("sync-out.before", "hostile-archive")
    home, target = tmp_path / "place", tmp_path / "place" / "target"
    home.mkdir()
    before = escaped()
    async with vendor.host() as host, host.lease("env") as sandbox:
        await sandbox.execute(["mkdir", "asked for"])
        result = await sandbox.sync_out("asked for", target)
    assert os.listdir(home) == ["target"]
    assert escaped() == before
    assert (target / "harmless").is_file()
    found = list(target.rglob("*"))
    assert [path for path in found if path.is_symlink() or not (path.is_file() or path.is_dir())] == []
    assert [path for path in found if path.stat().st_mode & (stat.S_ISUID | stat.S_ISGID)] == []
    assert result.refused_count > 0
    assert result.skipped_count > 0


def escaped() -> bool:
    """Whether the absolute name that the fake's archive asks for is there."""
    return os.path.lexists("/tmp/escaped")


async def test_a_mode_that_was_written_in_decimal_is_refused_by_every_call(
    boxes: list[Sandbox], tmp_path: Path
) -> None:
    """81, crewAI#5756: 755 was taken as a decimal number."""
    source = tmp_path / "source"
    source.write_bytes(b"x")
    for sandbox in boxes:
        assert (await sandbox.execute(["touch", "there"])).ok
        for call in (
            sandbox.sync_in(source, "file", mode=755),
            sandbox.write_bytes("file", b"x", mode=755),
            sandbox.sync_out("there", tmp_path / "back", mode=755),
        ):
            with pytest.raises((UsageError, ValueError), match="write it in octal, such as 0o600 or 0o755"):
                await call
        assert (await sandbox.execute(["ls"])).stdout.data == b"there\n"
    assert sorted(os.listdir(tmp_path)) == ["home", "source"]


def test_what_a_foreign_archiver_adds_to_a_member_is_left_out_without_a_word(tmp_path: Path) -> None:
    """86, paperclip#6560, textcortex/claude-code-sandbox#31, openclaw#132480: attributes of macOS broke the unpacking
    on Linux, or filled it with warnings."""
    archive = pax(*FOREIGN, kind=b"g") + pax(*FOREIGN) + member(b"file", b"content")
    archive += pax(*FOREIGN, (b"path", b"named by a record")) + member(b"x", b"more") + END
    result = unpack_bytes(archive, tmp_path)
    assert (result.files, result.total_bytes) == (2, 11)
    assert (result.skipped, result.refused, result.changed) == ((), (), ())
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == {
        "file": b"content",
        "named by a record": b"more",
    }
    attributes = [name for path in tmp_path.iterdir() for name in os.listxattr(path)]
    assert [name for name in attributes if "apple" in name] == []
