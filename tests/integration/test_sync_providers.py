"""Real providers, by every way that they have; and cancels in the middle, after which nothing is left anywhere."""

import asyncio
import contextlib
import os
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from host.tests.sync.trees import Directory, File, Link, look, make
from sandport.configuration import Configuration, EnvironmentSettings, HostSettings
from sandport.files import Way
from sandport.host import Host
from sandport.sandbox import Sandbox
from tests.integration.stage import PATIENCE_S, QUICK, Records, eventually, mentioning
from tests.integration.sync_stage import TRICKY, different, going, open_ends

pytestmark = pytest.mark.anyio

TREE = Directory(
    {
        b"file": File(b"content", 0o640),
        b"sparse": File(b"end", hole_before=1 << 20),
        b"big": File(os.urandom(3 << 20)),
        b"shut": Directory({b"in": File(b"", 0o444), b"sub": Directory({}, 0o500)}, 0o555),
        b"link": Link(b"file"),
        b"\xff\n": Directory({b"\xfe": File(b"deep", 0o606)}, 0o711),
        **{name: File(name) for name in TRICKY},
    },
    0o750,
)

LEASES: dict[str, tuple[str, dict[str, Any], Way]] = {
    "fake, direct": ("fake", {"local_root": True}, Way.LOCAL),
    "fake, with a socket": ("fake", {}, Way.SOCKET),
    "fake, with commands alone": ("fake", {"sync": False}, Way.COMMAND),
    "local, not isolated": ("local", {"isolation": "none"}, Way.LOCAL),
    "local, isolated where that can be had": ("local", {}, Way.LOCAL),
}
"""A provider, its config, and the best way that it has."""


@contextlib.asynccontextmanager
async def opened(folder: Path, environment: str) -> AsyncIterator[Host]:
    """A host with one environment."""
    provider, config, _ = LEASES[environment]
    settings = Configuration(
        host=HostSettings(timing=QUICK), environments={"env": EnvironmentSettings(provider=provider, config=config)}
    )
    records = Records()
    async with Host.open(settings, home=folder / "home", log=records.log) as host:
        yield host
    assert records.texts("error", "critical") == []


@pytest.mark.parametrize("environment", LEASES)
async def test_a_tree_goes_in_and_comes_back(tmp_path: Path, environment: str) -> None:
    make(tmp_path / "source", TREE)
    wanted = look(tmp_path / "source")
    provider, _, best = LEASES[environment]
    async with opened(tmp_path, environment) as host, host.lease("env") as sandbox:
        assert await sandbox._files._chosen() is best
        ways = [None, "command", "chunks"] if provider == "local" else [None]
        for count, way in enumerate(ways):
            if way is not None:
                going(sandbox, way)
            await sandbox.sync_in(tmp_path / "source", f"in/{count}")
            looked = "cat file && cat -- -rf && find . -print0 | tr -dc '\\0' | wc -c"
            outcome = await sandbox.execute(shell=f"cd in/{count} && {looked}")
            assert outcome.stdout.decode() == f"content-rf{len(wanted)}\n"
            await sandbox.execute(["mkdir", f"in/{count}/extra"])
            result = await sandbox.sync_in(tmp_path / "source", f"in/{count}", delete=True)
            assert (result.deleted, result.deleted_paths) == (1, (b"extra",))
            await sandbox.sync_out(f"in/{count}", tmp_path / f"out-{count}")
            back = look(tmp_path / f"out-{count}")
            assert {at for at in different(wanted, back) if at} == set()
            await sandbox.write_bytes(f"in/{count}/written", b"bytes", mode=0o600)
            assert await sandbox.read_bytes(f"in/{count}/written") == b"bytes"
        outcome = await sandbox.execute(shell="find . -name '.sandport-*'")
        assert outcome.stdout.decode() == ""


# ------------------------------------------------------------------ cancels

GATE = """#!/bin/sh
case $* in *{when}*) echo >"$PASSED"; exec sleep 600;; esac
exec {real} "$@"
"""

MOMENTS = {
    "the probe": ("in", "tar", "--version"),
    "the unpacking": ("in", "tar", "-f - -C"),
    "the renames": ("in", "mv", "/t"),
    "the directories' modes": ("in", "tar", "/d"),
    "the listing": ("mirror", "find", "-type d"),
    "the deletion": ("mirror", "xargs", "rmdir"),
    "the archive": ("out", "tar", "-cf"),
    "the writing of a file": ("write", "chmod", "0644"),
    "the reading of a file": ("read", "cat", "./"),
}
"""What is done, and the program that stops for ever when it is called so."""


@pytest.mark.parametrize(
    ("environment", "moment"),
    [*(("fake, with commands alone", moment) for moment in MOMENTS), ("fake, with a socket", "the renames")],
)
async def test_a_cancel_in_the_middle_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moment: str, environment: str
) -> None:
    doing, program, when = MOMENTS[moment]
    make(tmp_path / "source", TREE)
    tools = tmp_path / "tools"
    tools.mkdir()
    passed = tmp_path / "passed"
    real = next(path for folder in ("/usr/bin", "/bin") if os.access(path := f"{folder}/{program}", os.X_OK))
    (tools / program).write_text(GATE.replace("{when}", f'"{when}"').replace("{real}", real))
    (tools / program).chmod(0o755)
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    env = {"PATH": f"{tools}:/usr/bin:/bin", "PASSED": str(passed)}
    async with asyncio.timeout(PATIENCE_S), opened(tmp_path, environment) as host:
        async with host.lease("env", env=env) as sandbox:
            root = Path(os.fsdecode(sandbox.working_directory))
            make(root / "tree", Directory({b"mine": Directory({b"file": File(b"mine")})}))
            before = look(root)
            ends = open_ends()
            moving = asyncio.ensure_future(started(sandbox, doing, tmp_path))
            while not passed.exists():
                assert not moving.done(), moving.result()
                await asyncio.sleep(0.005)
            moving.cancel()
            with pytest.raises(asyncio.CancelledError):
                await moving
            if moment not in ("the directories' modes", "the deletion"):
                # What had been put in its place until then stays; before that nothing has changed.
                assert {at for at in different(before, look(root)) if at not in ((), (b"tree",))} == set()
            assert [name for name in os.listdir(root) if name.startswith(".sandport-")] == []
            assert [name for name in os.listdir(root / "tree") if name.startswith(".sandport-")] == []
            await eventually(lambda: open_ends() <= ends)
            await eventually(lambda: mentioning(str(passed)) == {})
        assert os.listdir(tmp_path / "temporary") == []
        assert not (tmp_path / "out").exists()


async def started(sandbox: Sandbox, doing: str, folder: Path) -> None:
    """What is to be cancelled."""
    if doing == "in":
        await sandbox.sync_in(folder / "source", "new")
    elif doing == "mirror":
        await sandbox.sync_in(folder / "source", "tree", delete=True)
    elif doing == "out":
        await sandbox.sync_out("tree", folder / "out")
    elif doing == "write":
        await sandbox.write_bytes("tree/new", b"bytes")
    else:
        await sandbox.read_bytes("tree/mine/file")
