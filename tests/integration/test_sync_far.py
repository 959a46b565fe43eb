"""The far side's own shell and tools: BusyBox's, some that are missing, some that are an enemy's, and a full disk."""

import asyncio
import contextlib
import os
import shutil
import subprocess
import tarfile
from collections.abc import AsyncIterator, Awaitable, Iterator
from io import BytesIO
from pathlib import Path

import msgspec
import pytest

from host.tests.sync.trees import Directory, File, Link, Seen, look, make
from sandport.host import Host
from sandport.sandbox import Sandbox
from sandport.sync.errors import SpaceExhaustedError, SyncError, TooLargeError
from sandport_protocol.octets import pack
from tests.integration.stage import PATIENCE_S, Records, configuration, worker
from tests.integration.sync_stage import TRICKY, WAYS, assert_no_scratch, different, going, inside

TOOLS = ("sh", "tar", "mv", "mkdir", "rm", "chmod", "cat", "wc", "touch", "readlink", "find", "xargs", "rmdir")

TREE = Directory(
    {
        b"file": File(b"content", 0o640),
        b"sparse": File(b"end", hole_before=1 << 20),
        b"shut": Directory({b"in": File(b"", 0o444), b"sub": Directory({}, 0o500)}, 0o555),
        b"link": Link(b"file"),
        b"\xff\n": Directory({b"\xfe": File(b"deep", 0o606)}, 0o711),
        **{name: File(name) for name in TRICKY},
    },
    0o750,
)


class Stage:
    """A host that leases sandboxes with tools of the test's choice."""

    def __init__(self, runner: asyncio.Runner, host: Host, folder: Path) -> None:
        self._runner = runner
        self._host = host
        self.folder = folder

    def run(self, doing: Awaitable[object]) -> None:
        """Run to the end, which comes soon."""

        async def bounded() -> None:
            async with asyncio.timeout(PATIENCE_S):
                await doing

        self._runner.run(bounded())

    @contextlib.asynccontextmanager
    async def sandbox(self, tools: Path, way: str = "command") -> AsyncIterator[Sandbox]:
        """A sandbox with nothing but these tools."""
        async with self._host.lease("syncs", env={"PATH": str(tools)}) as sandbox:
            sandbox.lease = msgspec.structs.replace(sandbox.lease, shell=pack(os.fsencode(tools / "sh")))
            yield going(sandbox, way)


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    """One for the module."""
    folder = tmp_path_factory.mktemp("far")
    stack = contextlib.AsyncExitStack()

    async def begin() -> Host:
        settings = configuration({"syncs": worker("syncs", "--processes", "--direct")})
        return await stack.enter_async_context(Host.open(settings, home=folder / "home", log=Records().log))

    with asyncio.Runner() as runner:
        try:
            yield Stage(runner, runner.run(begin()), folder)
        finally:
            runner.run(stack.aclose())


def tools_in(folder: Path, *, without: str = "") -> Path:
    """A folder with the machine's own tools, perhaps without one."""
    folder.mkdir()
    for name in TOOLS:
        found = shutil.which(name)
        assert found is not None
        if name != without:
            (folder / name).symlink_to(found)
    return folder


def busybox_in(folder: Path) -> Path:
    """A folder with BusyBox's tools."""
    found = shutil.which("busybox")
    if found is None:
        pytest.skip("no busybox on this machine")
    folder.mkdir()
    for name in TOOLS:
        (folder / name).symlink_to(found)
    return folder


def coarse(seen: Seen) -> Seen:
    """What a tree looks like to who keeps whole seconds, and no times of links."""
    return {
        at: ("link", what[1]) if what[0] == "link" else (*what[:2], int(str(what[2])) // 10**9, *what[3:])
        for at, what in seen.items()
    }


# ------------------------------------------------------------------ BusyBox


@pytest.mark.parametrize("way", ["command", "chunks"])
def test_busybox_is_enough(stage: Stage, tmp_path: Path, way: str) -> None:
    tools = busybox_in(tmp_path / "tools")
    make(tmp_path / "source", TREE)

    async def go() -> None:
        async with stage.sandbox(tools, way) as sandbox:
            wanted = coarse(look(tmp_path / "source"))
            for delete, replace in ((False, False), (False, False), (True, False), (False, True)):
                if delete or replace:
                    os.makedirs(inside(sandbox, b"in/to/extra/\xff\n"), 0o000)
                await sandbox.sync_in(tmp_path / "source", "in/to", delete=delete, replace=replace)
                there = coarse(look(inside(sandbox, "in/to")))
                assert {at for at in different(wanted, there) if at} == set()
            await sandbox.sync_out("in/to", tmp_path / "out")
            assert {at for at in different(wanted, coarse(look(tmp_path / "out"))) if at} == set()
            await sandbox.sync_in(tmp_path / "source" / "file", "one", mode=0o600)
            await sandbox.sync_out("one", tmp_path / "one")
            assert ((tmp_path / "one").read_bytes(), (tmp_path / "one").stat().st_mode & 0o777) == (b"content", 0o600)
            await sandbox.write_bytes("w", b"x")
            assert await sandbox.read_bytes("w") == b"x"
            with pytest.raises(SyncError):
                await sandbox.sync_out("nothing", tmp_path / "nothing")
            assert_no_scratch(sandbox)

    stage.run(go())


# ------------------------------------------------------------------ missing tools


@pytest.mark.parametrize("missing", ["sh", "tar", "mv", "rm", "chmod", "mkdir", "find", "xargs"])
def test_a_missing_tool_is_named(stage: Stage, tmp_path: Path, missing: str) -> None:
    tools = tools_in(tmp_path / "tools", without=missing)
    make(tmp_path / "source", Directory({b"a": File()}))

    async def go() -> None:
        async with stage.sandbox(tools) as sandbox:
            os.makedirs(inside(sandbox, "to/extra"))
            with pytest.raises(SyncError, match=f"no {'shell' if missing == 'sh' else missing}"):
                await sandbox.sync_in(tmp_path / "source", "to", delete=True)
            assert os.listdir(inside(sandbox)) == [b"to"]
            if missing == "tar":
                with pytest.raises(SyncError, match="no tar"):
                    await sandbox.sync_out("to", tmp_path / "out")
                await sandbox.write_bytes("to/file", b"needs no tar")
                assert await sandbox.read_bytes("to/file") == b"needs no tar"

    stage.run(go())


# ------------------------------------------------------------------ an enemy's tools


def archive(*members: tuple[str, bytes, bytes]) -> bytes:
    """An archive of members: a name, a type, and the content or the target."""
    file = BytesIO()
    with tarfile.open(fileobj=file, mode="w", format=tarfile.GNU_FORMAT) as tar:
        for name, kind, content in members:
            info = tarfile.TarInfo(name)
            info.type = kind
            if kind == tarfile.REGTYPE:
                info.size = len(content)
                tar.addfile(info, BytesIO(content))
            else:
                info.linkname = content.decode()
                tar.addfile(info)
    return file.getvalue()


def fake_tar(tools: Path, script: str) -> None:
    """Put a script in tar's place; of its version it says that it is GNU's."""
    (tools / "tar").unlink()
    head = '#!/bin/sh\ncase $* in *--version*) echo "tar (GNU tar) 1.34"; exit 0;; esac\n'
    (tools / "tar").write_text(head + script)
    (tools / "tar").chmod(0o755)


ENEMIES = {
    "nothing": ("exit 0", SyncError),
    "garbage": ("head -c 100000 /dev/urandom", SyncError),
    "a cut stream": ('head -c 1000 "{archive}"', SyncError),
    "no end mark": ('head -c 2560 "{archive}"', SyncError),
    "a whole archive and a failure": ('cat "{archive}"; echo "tar: something else" >&2; exit 2', SyncError),
    "an endless stream": ("exec cat /dev/zero", SyncError),
    "an endless file": (
        'printf "x%099d0000644%09d%09d077777777777%013d" 0 0 0 0 | head -c 148; exec yes',
        SyncError,
    ),
    "endless words": (
        'cat "{archive}"; yes "tar: ./x: file changed as we read it" | head -c 40000000 >&2; exit 1',
        SyncError,
    ),
}


@pytest.mark.parametrize("enemy", ENEMIES)
def test_an_enemys_archive_writes_nothing(stage: Stage, tmp_path: Path, enemy: str) -> None:
    script, kind = ENEMIES[enemy]
    tools = tools_in(tmp_path / "tools")
    for name in ("head", "yes"):
        (tools / name).symlink_to(shutil.which(name) or "")
    whole = tmp_path / "archive"
    whole.write_bytes(archive(("./", tarfile.DIRTYPE, b""), ("./a", tarfile.REGTYPE, b"x" * 1000)))
    fake_tar(tools, script.replace("{archive}", str(whole)))

    async def go() -> None:
        async with stage.sandbox(tools) as sandbox:
            os.mkdir(inside(sandbox, "tree"))
            with pytest.raises(kind):
                await sandbox.sync_out("tree", tmp_path / "new" / "out", max_bytes=1 << 20, max_entries=100)
            assert not (tmp_path / "new").exists()
            assert (await sandbox.execute(["sh", "-c", "exit 0"])).ok

    stage.run(go())


def test_an_endless_stream_is_stopped_at_the_ceiling(stage: Stage, tmp_path: Path) -> None:
    tools = tools_in(tmp_path / "tools")
    fake_tar(tools, "exec cat /dev/zero")

    async def go() -> None:
        async with stage.sandbox(tools) as sandbox:
            os.mkdir(inside(sandbox, "tree"))
            with pytest.raises(TooLargeError):
                await sandbox.sync_out("tree", tmp_path / "out", max_bytes=1 << 20, max_entries=100)

    stage.run(go())


def test_members_that_lead_out_are_refused_and_told(stage: Stage, tmp_path: Path) -> None:
    tools = tools_in(tmp_path / "tools")
    outside = tmp_path / "outside"
    outside.mkdir()
    whole = tmp_path / "archive"
    whole.write_bytes(
        archive(
            ("./", tarfile.DIRTYPE, b""),
            (f"{outside}/absolute", tarfile.REGTYPE, b"evil"),
            ("./../outside/up", tarfile.REGTYPE, b"evil"),
            ("./door", tarfile.SYMTYPE, os.fsencode(outside)),
            ("./door/through", tarfile.REGTYPE, b"evil"),
            ("./hard", tarfile.LNKTYPE, b"/etc/passwd"),
            ("./device", tarfile.CHRTYPE, b""),
            ("./good", tarfile.REGTYPE, b"good"),
        )
    )
    fake_tar(tools, f'cat "{whole}"')

    async def go() -> None:
        async with stage.sandbox(tools) as sandbox:
            os.mkdir(inside(sandbox, "tree"))
            result = await sandbox.sync_out("tree", tmp_path / "out")
            assert (tmp_path / "out" / "good").read_bytes() == b"good"
            assert os.listdir(outside) == []
            assert "hard" not in os.listdir(tmp_path / "out")
            assert result.refused_count >= 4
            assert result.skipped_count >= 1

    stage.run(go())


def test_words_of_tar_become_notices(stage: Stage, tmp_path: Path) -> None:
    tools = tools_in(tmp_path / "tools")
    whole = tmp_path / "archive"
    whole.write_bytes(archive(("./", tarfile.DIRTYPE, b""), ("./a", tarfile.REGTYPE, b"x")))
    fake_tar(
        tools,
        f'cat "{whole}"; echo "tar: ./a: file changed as we read it" >&2\n'
        "printf '%s\\n' 'tar: ./b\\nc: Warning: Cannot open: Permission denied' >&2; exit 1",
    )

    async def go() -> None:
        async with stage.sandbox(tools) as sandbox:
            os.mkdir(inside(sandbox, "tree"))
            result = await sandbox.sync_out("tree", tmp_path / "out")
            assert [notice.path for notice in result.changed] == [b"a"]
            assert [notice.path for notice in result.skipped] == [b"b\nc"]
            assert (tmp_path / "out" / "a").read_bytes() == b"x"

    stage.run(go())


def test_a_tar_that_lies_about_unpacking_is_found_out(stage: Stage, tmp_path: Path) -> None:
    tools = tools_in(tmp_path / "tools")
    fake_tar(tools, "cat >/dev/null; exit 0")
    make(tmp_path / "source", TREE)

    async def go() -> None:
        async with stage.sandbox(tools) as sandbox:
            with pytest.raises(SyncError, match="did not arrive whole"):
                await sandbox.sync_in(tmp_path / "source", "to")
            assert os.listdir(inside(sandbox)) == []

    stage.run(go())


def test_input_that_was_cut_replaces_nothing(stage: Stage, tmp_path: Path) -> None:
    """As when the host dies over it: what came until then must not become the file."""
    tools = tools_in(tmp_path / "tools")
    (tools / "cat").unlink()
    (tools / "cat").write_text("#!/bin/sh\nexec head -c 100000\n")
    (tools / "cat").chmod(0o755)
    (tools / "head").symlink_to(shutil.which("head") or "")

    async def go() -> None:
        for way in ("command", "chunks"):
            async with stage.sandbox(tools, way) as sandbox:
                await sandbox.write_bytes("file", b"before")
                with pytest.raises(SyncError, match="did not arrive whole"):
                    await sandbox.write_bytes("file", bytes(8 << 20))
                assert look(inside(sandbox))[(b"file",)][3] == b"before"
                assert os.listdir(inside(sandbox)) == [b"file"]

    stage.run(go())


# ------------------------------------------------------------------ a full disk


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Path]:
    """A file system of 16 MiB; where it is mounted is told by who uses it."""
    place = tmp_path / "small"
    place.mkdir()
    words = ["mount", "-t", "tmpfs", "-o", "size=16m,mode=0777", "tmpfs", str(place)]
    mounted = subprocess.run(words, capture_output=True, text=True, check=False)
    if mounted.returncode:
        pytest.skip(f"cannot mount a small file system: {mounted.stderr.strip()}")
    yield place
    subprocess.run(["umount", place], check=True)


def bind(what: Path, where: bytes) -> None:
    """Have a directory in another place too."""
    subprocess.run(["mount", "--bind", what, where], check=True)


def unbind(where: bytes) -> None:
    """End that."""
    subprocess.run(["umount", where], check=True)


def test_a_full_disk_on_either_side_is_told_and_nothing_is_left(stage: Stage, tmp_path: Path, small: Path) -> None:
    tools = tools_in(tmp_path / "tools")
    make(tmp_path / "source", Directory({b"%d" % i: File(os.urandom(1 << 20)) for i in range(20)}))

    async def go(way: str) -> None:
        async with stage.sandbox(tools, way) as sandbox:
            small_there = inside(sandbox, "small")
            os.mkdir(small_there)
            bind(small, small_there)
            try:
                with pytest.raises(SpaceExhaustedError):
                    await sandbox.sync_in(tmp_path / "source", "small/new/target")
                assert {*os.listdir(small)} <= {"new"}
                left = os.listdir(small / "new")
                assert [name for name in left if name.startswith(".sandport-")] == []
                assert way == "local" or left == []
                with pytest.raises(SpaceExhaustedError):
                    await sandbox.write_bytes("small/new/file", bytes(20 << 20))
            finally:
                unbind(small_there)
                shutil.rmtree(small / "new")
            await sandbox.sync_in(tmp_path / "source", "tree")
            with pytest.raises(SpaceExhaustedError):
                await sandbox.sync_out("tree", small / "out")
            assert scratch_in(small) == []
            assert way == "local" or os.listdir(small) == []
            shutil.rmtree(small / "out", ignore_errors=True)
            # Staged it fits, twice it does not: what is in place is whole.
            await sandbox.execute(["sh", "-c", "cd tree; for n in 1?; do rm -f $n; done"])
            if way != "local":
                with pytest.raises(SpaceExhaustedError):
                    await sandbox.sync_out("tree", small / "out")
                assert scratch_in(small) == []
                for path in (small / "out").iterdir():
                    assert path.read_bytes() == (tmp_path / "source" / path.name).read_bytes()
                shutil.rmtree(small / "out")

    for way in WAYS:
        stage.run(go(way))


def scratch_in(folder: Path) -> list[str]:
    """Names of ours, at any depth."""
    return [name for _, folders, files in os.walk(folder) for name in folders + files if name.startswith(".sandport-")]


def test_nothing_may_be_written_there(stage: Stage, tmp_path: Path) -> None:
    tools = tools_in(tmp_path / "tools")
    (tools / "mkdir").unlink()
    (tools / "mkdir").write_text('#!/bin/sh\necho "mkdir: cannot create directory: Permission denied" >&2; exit 1\n')
    (tools / "mkdir").chmod(0o755)
    make(tmp_path / "source", TREE)

    async def go() -> None:
        async with stage.sandbox(tools) as sandbox:
            with pytest.raises(SyncError, match=r"give the sandbox's user the right to it; it said: mkdir: cannot"):
                await sandbox.sync_in(tmp_path / "source", "to")

    stage.run(go())
