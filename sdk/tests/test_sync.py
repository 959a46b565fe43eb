"""Moving files through the SDK: a provider of two lines, real sockets, the machine's tar."""

import asyncio
import io
import os
import socket
import stat
import subprocess
import tarfile
from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

import pytest

from sandport_sdk.testing import ArchiveSocket, HostInMemory, Request, new_id
from sandport_sdk.v1 import Call, errors, sync, types
from sdk.tests.plain import Plain

pytestmark = pytest.mark.anyio

SANDBOX = new_id()


class Boxed(Plain, abstract=True):
    """One sandbox: a directory, whose programs are found in `path` first."""

    root: ClassVar[Path]
    path: ClassVar[Path | None] = None
    before: ClassVar[str] = ""

    async def sync_in(self, params: types.SyncInParams, call: Call) -> types.SyncInResult:
        return await sync.unpack(params, self._run(sync.tar_in(params.path)))

    async def sync_out(self, params: types.SyncOutParams, call: Call) -> types.SyncOutResult:
        return await sync.pack(params, self._run(sync.tar_out(params.path)))

    def _run(self, argv: Sequence[bytes]) -> sync.Start:
        found_in = os.environ["PATH"] if self.path is None else f"{self.path}:{os.environ['PATH']}"
        script = f'{self.before}exec "$@"'
        return sync.program(["sh", "-c", script, "sh", *argv], cwd=self.root, env={"PATH": found_in})


def boxed(root: Path, *, tar: str = "", before: str = "") -> type[Boxed]:
    """A provider whose sandbox is a directory; `tar` is a script that stands in for the program of that name."""
    root.mkdir()
    os.mkfifo(root.parent / "pid")
    path = None
    if tar:
        path = root.parent / "bin"
        path.mkdir()
        (path / "tar").write_text(f"#!/bin/sh\n{tar}\n")
        (path / "tar").chmod(0o755)
    return type("Made", (Boxed,), {"root": root, "path": path, "before": before})


def archive_of(tree: Path) -> bytes:
    command = ["tar", "-C", str(tree), "--format=posix", "--sparse", "-cf", "-", "."]
    return subprocess.run(command, capture_output=True, check=True).stdout


def unpacked(archive: bytes, to: Path) -> Path:
    to.mkdir()
    subprocess.run(["tar", "-C", str(to), "-xpf", "-"], input=archive, check=True)
    return to


def an_archive(content: bytes = b"x" * 100_000) -> bytes:
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w") as archive:
        member = tarfile.TarInfo("file")
        member.size = len(content)
        archive.addfile(member, io.BytesIO(content))
    return made.getvalue()


Facts = tuple[object, ...]


def described(tree: Path) -> dict[bytes, Facts]:
    """Everything below a directory: kind, mode, time, and content or target."""
    found: dict[bytes, Facts] = {}
    for folder, folders, files in os.walk(os.fsencode(tree)):
        for name in (*folders, *files):
            path = os.path.join(folder, name)
            info = os.lstat(path)
            content: bytes | None = None
            if stat.S_ISLNK(info.st_mode):
                content = os.readlink(path)
            elif stat.S_ISREG(info.st_mode):
                content = Path(os.fsdecode(path)).read_bytes()
            found[os.path.relpath(path, os.fsencode(tree))] = (info.st_mode, info.st_mtime_ns, content)
    return found


def a_tree(root: Path) -> Path:
    root.mkdir()
    (root / "deep" / ("d" * 255)).mkdir(parents=True)
    for name in (b"-rf", b"new\nline", b"\xff\xfe", b"n" * 255, b"deep/" + b"d" * 255 + b"/" + b"f" * 200, b" *"):
        path = Path(os.fsdecode(os.path.join(os.fsencode(root), name)))
        path.write_bytes(name * 1000)
        path.chmod(0o640)
    (root / "empty file").touch()
    (root / "empty").mkdir(mode=0o750)
    (root / "all bytes").write_bytes(bytes(range(256)) * 4096)
    (root / "run").write_text("#!/bin/sh\n")
    (root / "run").chmod(0o4755)
    os.symlink("/nowhere/at/all", root / "dangling")
    os.symlink("deep", root / "link")
    os.symlink(b"t" * 250, os.fsencode(root / "long link"))
    with (root / "sparse").open("wb") as file:
        file.write(b"begin")
        file.truncate(3 * 1024 * 1024)
    for number, path in enumerate(sorted(root.rglob("*"), reverse=True)):
        os.utime(path, ns=(1, 1_600_000_000_123_456_789 + number), follow_symlinks=False)
    return root


async def refused(request: Request) -> errors.WireError:
    with pytest.raises(errors.WireError) as raised:
        await request.result()
    return raised.value


def begin(host: HostInMemory, method: str, bulk: ArchiveSocket, path: str = ".") -> Request:
    return host.start(method, {"sandboxId": SANDBOX, "socket": bulk.path, "path": path})


# ------------------------------------------------------------------ what arrives


async def test_a_tree_arrives_as_it_left_and_comes_back_so(tmp_path: Path) -> None:
    tree = a_tree(tmp_path / "tree")
    async with HostInMemory(boxed(tmp_path / "box")) as host:
        archive = archive_of(tree)
        assert (await host.sync_in(SANDBOX, "a/b", archive)).notes == ()
        assert described(tmp_path / "box" / "a/b") == described(tree)
        result, back = await host.sync_out(SANDBOX, "a/b")
        assert result.notes == ()
    assert described(unpacked(back, tmp_path / "back")) == described(tree)


async def test_what_is_there_is_overlaid_and_links_are_replaced_not_followed(tmp_path: Path) -> None:
    elsewhere, tree = tmp_path / "elsewhere", tmp_path / "tree"
    for folder in (elsewhere, tree / "folder", tree / "kept"):
        folder.mkdir(parents=True)
    (elsewhere / "file").write_text("untouched")
    (tree / "folder" / "file").write_text("new")
    (tree / "file").write_text("new")
    async with HostInMemory(boxed(tmp_path / "box")) as host:
        box = tmp_path / "box"
        (box / "kept").mkdir()
        (box / "kept" / "stays").write_text("here")
        os.symlink(elsewhere, box / "folder")
        os.symlink(elsewhere / "file", box / "file")
        await host.sync_in(SANDBOX, ".", archive_of(tree))
    assert (elsewhere / "file").read_text() == "untouched"
    assert not (box / "folder").is_symlink()
    assert [(box / name).read_text() for name in ("folder/file", "file", "kept/stays")] == ["new", "new", "here"]


@pytest.mark.parametrize("path", ["-", "-rf", "-C", "a b/$(x)", "new\nline\n", "*"])
async def test_a_path_is_never_taken_for_anything_else(tmp_path: Path, path: str) -> None:
    async with HostInMemory(boxed(tmp_path / "box")) as host:
        await host.sync_in(SANDBOX, path, an_archive(b"content"))
        assert (tmp_path / "box" / path / "file").read_bytes() == b"content"
        for asked in (path, f"{path}/file", str(tmp_path / "box" / path / "file"), f"{path}/"):
            _, back = await host.sync_out(SANDBOX, asked)
            with tarfile.open(fileobj=io.BytesIO(back)) as read:
                assert [member.name for member in read if member.isfile()] == ["./file"]


async def test_a_link_is_one_member_and_not_what_it_leads_to(tmp_path: Path) -> None:
    async with HostInMemory(boxed(tmp_path / "box")) as host:
        os.symlink("/etc", tmp_path / "box" / "link")
        _, back = await host.sync_out(SANDBOX, "link")
        with tarfile.open(fileobj=io.BytesIO(back)) as read:
            (member,) = read
    assert (member.name, member.issym(), member.linkname) == ("./link", True, "/etc")


async def test_what_follows_the_end_mark_is_read_and_counted(tmp_path: Path) -> None:
    padded = an_archive() + os.urandom(3 * 1024 * 1024)
    async with HostInMemory(boxed(tmp_path / "box")) as host:
        assert (await host.sync_in(SANDBOX, ".", padded)).bytes == len(padded)


async def test_other_calls_are_answered_while_a_stream_runs(tmp_path: Path) -> None:
    async with HostInMemory(boxed(tmp_path / "box")) as host, ArchiveSocket() as bulk:
        request = begin(host, "syncIn", bulk)
        archive = an_archive(bytes(8 * 1024 * 1024))
        await bulk.send(archive[:-1024], end=False)
        await host.call("probe")
        assert not request.ended
        await bulk.send(archive[-1024:])
        assert (await request.result()).bytes == len(archive)


# ------------------------------------------------------------------ what fails


async def test_a_socket_that_is_not_there_is_unavailable_and_nothing_was_done(tmp_path: Path) -> None:
    async with HostInMemory(boxed(tmp_path / "box")) as host:
        for method in ("syncIn", "syncOut"):
            params = {"sandboxId": SANDBOX, "socket": str(tmp_path / "no"), "path": "made"}
            error = await refused(host.start(method, params))
            assert (error.condition, error.dispatched) == ("Unavailable", "no")
            assert error.detail == errors.Detail(field="socket")
    assert list((tmp_path / "box").iterdir()) == []


@pytest.mark.parametrize("keep", [0, 700, 100_352, 100_352 + 512 + 512])
async def test_a_stream_that_ends_before_its_mark_is_an_error(tmp_path: Path, keep: int) -> None:
    """At 100,864 bytes a member has just ended, and with zeros: tar itself would be content with that."""
    async with HostInMemory(boxed(tmp_path / "box")) as host, ArchiveSocket() as bulk:
        request = begin(host, "syncIn", bulk)
        await bulk.send(an_archive(bytes(100_000))[:keep])
        error = await refused(request)
    assert (error.condition, error.dispatched) == ("ProtocolViolation", "unknown")
    assert error.detail == errors.Detail(reason="cut")


async def test_noise_is_no_archive(tmp_path: Path) -> None:
    async with HostInMemory(boxed(tmp_path / "box")) as host, ArchiveSocket() as bulk:
        request = begin(host, "syncIn", bulk)
        await bulk.send(b"\xee" * 4_000_000)
        error = await refused(request)
    assert (error.condition, error.detail) == ("ProtocolViolation", errors.Detail(reason="malformed"))


async def test_a_path_that_is_not_there_or_in_the_way_is_named(tmp_path: Path) -> None:
    async with HostInMemory(boxed(tmp_path / "box")) as host:
        (tmp_path / "box" / "file").touch()
        for method, path, condition, reason in (
            ("syncOut", "no", "PathNotFound", None),
            ("syncOut", "file/no", "PathNotFound", None),
            ("syncIn", "file", "PathRefused", "kind"),
            ("syncIn", "file/below", "PathRefused", "kind"),
        ):
            async with ArchiveSocket() as bulk:
                error = await refused(begin(host, method, bulk, path))
            assert (error.condition, error.dispatched) == (condition, "no")
            assert error.detail == errors.Detail(path=path, reason=reason)


async def test_a_directory_that_is_full_of_things_is_not_replaced_by_a_file(tmp_path: Path) -> None:
    async with HostInMemory(boxed(tmp_path / "box")) as host:
        (tmp_path / "box" / "file" / "full").mkdir(parents=True)
        with pytest.raises(errors.PathRefused) as raised:
            await host.sync_in(SANDBOX, ".", an_archive())
    assert (raised.value.dispatched, raised.value.detail) == ("unknown", errors.Detail(path=".", reason="kind"))


TAKES_ALL = "cat > /dev/null"
SAYS_GNU = 'if [ "$1" = --version ]; then echo "tar (GNU tar) 1.34"; exit; fi'


@pytest.mark.parametrize(
    ("said", "status", "condition", "reason"),
    [
        ("tar: ./f: Wrote only 2048 of 10240 bytes\ntar: ./f: Cannot write: No space left on device", 2,
         "QuotaExceeded", "noSpace"),
        ("tar: ./f: Cannot open: Disk quota exceeded", 2, "QuotaExceeded", "noSpace"),
        ("tar: ./f: Cannot open: Read-only file system", 2, "PathRefused", "readOnly"),
        ("tar: ./f: Cannot open: Permission denied", 2, "PathRefused", "permission"),
        ("f: Can't create 'f': Permission denied\nbsdtar: Error exit delayed from previous errors.", 1,
         "PathRefused", "permission"),
        ("tar: ../f: Member name contains '..'", 2, "PathOutsideRoot", None),
        ("tar: something new", 2, "Internal", None),
        ("", 3, "Internal", None),
    ],
)  # fmt: skip
async def test_what_tar_says_is_told_as_a_condition(
    tmp_path: Path, said: str, status: int, condition: str, reason: str | None
) -> None:
    """What GNU tar 1.34 and bsdtar 3.6 say, word for word; the files that make them say it need a disk of one's own."""
    tar = f"{SAYS_GNU}\n{TAKES_ALL}\ncat >&2 <<'END'\n{said}\nEND\nexit {status}"
    async with HostInMemory(boxed(tmp_path / "box", tar=tar)) as host:
        with pytest.raises(errors.WireError) as raised:
            await host.sync_in(SANDBOX, ".", an_archive())
    error = raised.value
    assert (error.condition, error.dispatched, error.retry) == (condition, "unknown", "never")
    assert (error.detail.reason if error.detail else None) == reason
    assert (said.splitlines() or ["it ended with 3"])[0] in str(error)


async def test_a_tar_that_skips_long_names_is_not_used(tmp_path: Path) -> None:
    tar = 'echo "tar (busybox) 1.35.0"'
    async with HostInMemory(boxed(tmp_path / "box", tar=tar)) as host:
        for method in ("syncIn", "syncOut"):
            async with ArchiveSocket() as bulk:
                error = await refused(begin(host, method, bulk, "made"))
            assert (error.condition, error.dispatched) == ("CommandNotFound", "no")
            assert error.detail == errors.Detail(path="tar")
            assert "GNU tar or bsdtar" in str(error)
    assert list((tmp_path / "box").iterdir()) == []


async def test_a_program_that_is_not_there_or_cannot_be_run_is_named(tmp_path: Path) -> None:
    (tmp_path / "no-program").write_text("nothing")
    for name, condition in (("nowhere", "CommandNotFound"), ("no-program", "CommandNotExecutable")):
        with pytest.raises(errors.WireError) as raised:
            await sync.program([str(tmp_path / name)])(0, 1, 2)
        assert (raised.value.condition, raised.value.dispatched) == (condition, "no")


async def test_what_tar_left_out_or_saw_change_is_a_note_of_the_result(tmp_path: Path) -> None:
    said = "tar: ./log: file changed as we read it\ntar: Exiting with failure status due to previous errors"
    archive = tmp_path / "archive"
    archive.write_bytes(an_archive())
    tar = f"{SAYS_GNU}\ncat {archive}\necho '{said}' >&2\nexit 1"
    async with HostInMemory(boxed(tmp_path / "box", tar=tar)) as host:
        result, back = await host.sync_out(SANDBOX, ".")
    assert result.notes == ("tar: ./log: file changed as we read it",)
    assert back == an_archive()


async def test_a_file_that_cannot_be_read_to_its_end_fails_the_whole(tmp_path: Path) -> None:
    archive = tmp_path / "archive"
    archive.write_bytes(an_archive())
    said = "tar: ./file: Warning: Read error at byte 0, while reading 512 bytes: Input/output error"
    tar = f"{SAYS_GNU}\ncat {archive}\necho '{said}' >&2"
    async with HostInMemory(boxed(tmp_path / "box", tar=tar)) as host:
        with pytest.raises(errors.Internal, match="Input/output error"):
            await host.sync_out(SANDBOX, ".")


async def test_an_archive_that_lost_its_tail_on_the_way_out_is_no_result(tmp_path: Path) -> None:
    """kubernetes/kubectl#1361: the stream of an exec ended with the program, and its last megabytes never came."""
    archive = tmp_path / "archive"
    archive.write_bytes(an_archive()[:50_000])
    async with HostInMemory(boxed(tmp_path / "box", tar=f"{SAYS_GNU}\ncat {archive}")) as host:
        with pytest.raises(errors.Unavailable, match="end mark is missing") as raised:
            await host.sync_out(SANDBOX, ".")
    assert raised.value.dispatched == "unknown"


async def test_a_program_that_floods_its_log_is_not_held_up(tmp_path: Path) -> None:
    tar = f"{SAYS_GNU}\n{TAKES_ALL}\nhead -c 2000000 /dev/zero | tr '\\0' x >&2"
    async with HostInMemory(boxed(tmp_path / "box", tar=tar)) as host:
        result = await host.sync_in(SANDBOX, ".", an_archive())
        assert sum(map(len, result.notes)) <= 16 * 1024


# ------------------------------------------------------------------ what ends early


@pytest.mark.parametrize("method", ["syncIn", "syncOut"])
async def test_a_cancel_ends_the_program_before_it_is_answered(tmp_path: Path, method: str) -> None:
    made = boxed(tmp_path / "box", tar=f"{SAYS_GNU}\nexec sleep 600", before="echo $$ > ../pid; ")
    async with HostInMemory(made) as host, ArchiveSocket() as bulk:
        request = begin(host, method, bulk)
        await bulk.connected()
        pid = await pid_in(tmp_path / "pid")
        assert is_there(pid)
        request.cancel()
        error = await refused(request)
        assert (error.condition, error.dispatched) == ("Cancelled", "unknown")
        assert not is_there(pid), "it has ended, and was waited for"
        assert await bulk.receive() == b"", "the stream broke off"


@pytest.mark.parametrize("method", ["syncIn", "syncOut"])
async def test_the_death_of_the_program_is_told_though_the_host_says_nothing(tmp_path: Path, method: str) -> None:
    made = boxed(tmp_path / "box", tar=f"{SAYS_GNU}\nexec sleep 600", before="echo $$ > ../pid; ")
    async with HostInMemory(made) as host, ArchiveSocket() as bulk:
        request = begin(host, method, bulk)
        os.kill(await pid_in(tmp_path / "pid"), 9)
        error = await refused(request)
    assert (error.condition, error.dispatched) == ("Unavailable", "unknown")
    assert "signal 9" in str(error)


async def test_a_host_that_breaks_off_ends_the_packing(tmp_path: Path) -> None:
    made = boxed(tmp_path / "box", tar=f"{SAYS_GNU}\nexec cat /dev/zero", before="echo $$ > ../pid; ")
    async with HostInMemory(made) as host, ArchiveSocket() as bulk:
        request = begin(host, "syncOut", bulk)
        pid = await pid_in(tmp_path / "pid")
        await bulk.connected()
        bulk.close()
        error = await refused(request)
        assert not is_there(pid)
    assert (error.condition, error.detail) == ("Unavailable", errors.Detail(reason="broken"))


async def test_no_descriptor_is_left_open_whatever_happens(tmp_path: Path) -> None:
    def open_now() -> int:
        return len(os.listdir("/proc/self/fd"))

    async with HostInMemory(boxed(tmp_path / "box")) as host:
        await host.sync_in(SANDBOX, ".", an_archive())
        before = open_now()
        await host.sync_in(SANDBOX, ".", an_archive())
        await host.sync_out(SANDBOX, ".")
        for keep in (0, 2000):
            async with ArchiveSocket() as bulk:
                request = begin(host, "syncIn", bulk)
                await bulk.send(an_archive()[:keep])
                await refused(request)
        async with ArchiveSocket() as bulk:
            request = begin(host, "syncIn", bulk)
            await bulk.connected()
            request.cancel()
            await refused(request)
        assert open_now() <= before


async def pid_in(pipe: Path) -> int:
    """What a program has written about itself into a FIFO, once it has."""
    return int(await asyncio.to_thread(pipe.read_text))


def is_there(pid: int) -> bool:
    return os.path.exists(f"/proc/{pid}")


async def test_the_socket_of_the_test_host_is_the_hosts_alone() -> None:
    async with ArchiveSocket() as bulk:
        folder = Path(bulk.path).parent
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
        assert len(bulk.path.encode()) <= 107
        with socket.socket(socket.AF_UNIX) as client:
            client.connect(bulk.path)
            assert await bulk.send(b"x") == 1
    assert not folder.exists()
