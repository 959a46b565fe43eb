"""Whatever way files go, the same comes of it: trees, options, results, errors."""

import asyncio
import itertools
import os
import shutil
import stat
from collections.abc import Coroutine, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import Phase, example, given, settings
from hypothesis import strategies as st

from host.tests.sync.trees import Directory, File, Link, Node, look, make, make_socket, scratch_below
from sandport.sandbox import Sandbox
from sandport.sync import SyncProgress, SyncResult
from sandport.sync.errors import PathOutsideRootError, TargetBusyError, UnsafeTargetError
from tests.integration.stage import eventually
from tests.integration.sync_stage import (
    TRICKY,
    WAYS,
    Ways,
    allocated,
    assert_no_scratch,
    different,
    every_way,
    few_names,
    inside,
    open_ends,
    seen_below,
    trees,
)


@pytest.fixture(scope="module")
def ways(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ways]:
    """Sandboxes by every way, for the whole of a module."""
    with every_way(tmp_path_factory.mktemp("ways")) as opened:
        yield opened


NO_SHRINKING = (Phase.explicit, Phase.reuse, Phase.generate)
"""Each example is some twenty programs: what fails is small enough, and shrinking it would take minutes."""

EVERY_BYTE = bytes(byte for byte in range(1, 256) if byte != ord("/"))

RICH = Directory(
    {
        b"file": File(b"content", 0o640),
        EVERY_BYTE[:127]: File(b"low", 0o755),
        EVERY_BYTE[127:]: Directory({b"\xff\n": File(b"deep")}, 0o711),
        b"sparse": File(b"end", hole_before=3 << 20),
        b"empty": Directory({}, 0o1777),
        b"shut": Directory({b"in": File(b"", 0o444), b"sub": Directory({}, 0o500)}, 0o555),
        b"dangling": Link(b"nowhere"),
        b"absolute": Link(b"/etc/passwd"),
        b".hidden": File(),
        **{name: File(name) for name in TRICKY},
    },
    0o750,
)

DEEP = Directory({b"d" * 100: Directory({b"d" * 250: Directory({b"f": File(b"at the bottom")})})})
for _ in range(9):
    DEEP = Directory({b"d" * 200: DEEP})


async def across(sandbox: Sandbox, source: Path, name: str, out: Path) -> tuple[SyncResult, SyncResult]:
    """In, and out again."""
    return await sandbox.sync_in(source, name), await sandbox.sync_out(name, out)


@given(tree=trees())
@example(tree=RICH)
@example(tree=DEEP)
@example(tree=Directory({}))
@settings(max_examples=8, phases=NO_SHRINKING)
def test_a_tree_survives_in_and_out(ways: Ways, tree: Directory) -> None:
    folder = ways.fresh()
    source = folder / "source"
    make(source, tree)
    there = look(source)

    async def go(way: str) -> tuple[SyncResult, SyncResult]:
        return await across(ways.sandboxes[way], source, folder.name, folder / way)

    async def go_all() -> list[tuple[SyncResult, SyncResult]]:
        return await asyncio.gather(*map(go, WAYS))

    for way, (came, went) in zip(WAYS, ways.run(go_all()), strict=True):
        sandbox = ways.sandboxes[way]
        assert different(there, look(inside(sandbox, folder.name))) == {}, way
        refused = {tuple(notice.path.split(b"/")) for notice in went.refused}
        kept = {at: what for at, what in there.items() if at not in refused}
        assert different(kept, look(folder / way)) == {}, way
        assert came == ways.run(ways.sandboxes["local"].sync_in(source, folder.name, dry_run=True)), way
        assert (went.files, went.directories, went.links + len(refused)) == (came.files, came.directories, came.links)
        for at, what in there.items():
            size = os.stat(os.path.join(os.fsencode(source), *at)).st_size if what[0] == "file" else 0
            if size > 1 << 20:
                for copy in (inside(sandbox, folder.name), os.fsencode(folder / way)):
                    assert allocated(os.path.join(copy, *at)) < size // 2, way
        assert_no_scratch(sandbox)


# ------------------------------------------------------------------ options

OPTIONS: list[dict[str, Any]] = [
    {},
    {"delete": True},
    {"replace": True},
    {"exclude": ["a", "*.x"]},
    {"exclude": ["b"], "delete": True},
    {"gitignore": True},
    {"follow_symlinks": True},
    {"dry_run": True},
    {"dry_run": True, "delete": True},
]


PRUNED = Directory(
    {
        b"known": Directory({b"x": File(), b"y": Directory({})}),
        b"unknown": Directory({b"b": File(), b"x": File()}, 0o700, 3),
        b"gone": Directory({b"x": Link(b"x")}),
    }
)
"""Directories that lose something to a mirror, and keep or take a time that does not tell of it."""


def outcome(result: SyncResult | BaseException) -> object:
    """What must be the same: counts and paths, or the kind of error."""
    if isinstance(result, TargetBusyError | PathOutsideRootError):
        return "something is in the way"  # which one of several is met first is nobody's promise
    if isinstance(result, BaseException):
        return type(result)
    lists = ("skipped", "refused", "changed", "deleted_paths", "excluded_paths")
    ordered = {name: tuple(sorted(getattr(result, name), key=repr)) for name in lists}
    return msgspec.structs.replace(result, **ordered)


@given(before=trees(few_names, depth=2), tree=trees(few_names, depth=2), options=st.sampled_from(OPTIONS))
@example(before=RICH, tree=RICH, options={"delete": True})
@example(before=Directory({b"a": File()}), tree=Directory({b"a": Directory({})}), options={})
@example(before=Directory({b"a": Directory({})}), tree=Directory({b"a": File()}), options={"delete": True})
@example(before=Directory({b"a": Link(b"b"), b"b": Directory({})}), tree=Directory({b"a": Directory({})}), options={})
@example(before=PRUNED, tree=Directory({b"known": Directory({}, 0o700, 5)}), options={"exclude": ["b"], "delete": True})
@settings(max_examples=15, phases=NO_SHRINKING)
def test_an_option_means_the_same_by_every_way(
    ways: Ways, before: Directory, tree: Directory, options: dict[str, Any]
) -> None:
    folder = ways.fresh()
    source = folder / "source"
    make(source, tree)
    for way in WAYS:
        make(inside(ways.sandboxes[way], folder.name), before)

    async def go_all() -> list[SyncResult | BaseException]:
        calls = (ways.sandboxes[way].sync_in(source, folder.name, **options) for way in WAYS)
        return await asyncio.gather(*calls, return_exceptions=True)

    results = dict(zip(WAYS, ways.run(go_all()), strict=True))
    oracle = results["local"]
    for way in WAYS:
        sandbox = ways.sandboxes[way]
        assert outcome(results[way]) == outcome(oracle), way
        assert_no_scratch(sandbox)
        if not isinstance(oracle, BaseException):
            local = seen_below(inside(ways.sandboxes["local"], folder.name))
            assert different(local, seen_below(inside(sandbox, folder.name))) == {}, way
        elif way != "local":
            # Over there nothing is begun that cannot be ended.
            make(folder / way, before)
            assert different(seen_below(folder / way), seen_below(inside(sandbox, folder.name))) == {}, way


OUT_OPTIONS: list[dict[str, Any]] = [
    {},
    {"delete": True},
    {"exclude": ["a"], "delete": True},
    {"gitignore": True},
    {"dry_run": True, "delete": True},
    {"max_entries": 3},
    {"max_bytes": 400},
]


@given(before=trees(few_names, depth=2), tree=trees(few_names, depth=2), options=st.sampled_from(OUT_OPTIONS))
@example(before=Directory({}), tree=Directory({b"%d" % i: File() for i in range(3)}), options={"max_entries": 3})
@example(before=Directory({}), tree=Directory({b"%d" % i: File() for i in range(4)}), options={"max_entries": 3})
@settings(max_examples=12, phases=NO_SHRINKING)
def test_an_option_means_the_same_on_the_way_out(
    ways: Ways, before: Directory, tree: Directory, options: dict[str, Any]
) -> None:
    folder = ways.fresh()
    for way in WAYS:
        make(inside(ways.sandboxes[way], folder.name), tree)
        make(folder / way, before)

    async def go_all() -> list[SyncResult | BaseException]:
        calls = (ways.sandboxes[way].sync_out(folder.name, folder / way, **options) for way in WAYS)
        return await asyncio.gather(*calls, return_exceptions=True)

    results = dict(zip(WAYS, ways.run(go_all()), strict=True))
    oracle = results["local"]
    for way in WAYS:
        result = results[way]
        assert outcome(result) == outcome(oracle), (way, result, oracle)
        if not isinstance(result, BaseException):
            assert different(seen_below(folder / "local"), seen_below(folder / way)) == {}, way
        assert [name for name in os.listdir(folder / way) if name.startswith(".sandport-")] == []


# ------------------------------------------------------------------ single files, errors, progress


@pytest.mark.parametrize("way", WAYS)
def test_a_file_goes_where_it_is_said(ways: Ways, way: str) -> None:
    sandbox, folder = ways.sandboxes[way], ways.fresh()
    source, top = folder / "-name\n", folder.name
    source.write_bytes(b"content")
    os.utime(source, ns=(0, 1_234_567_890_123_456_789))
    os.mkdir(inside(sandbox, top))
    os.symlink("elsewhere", inside(sandbox, f"{top}/link"))

    async def go() -> None:
        for remote, found in (
            (f"{top}/new/deep/er", "new/deep/er"),
            (f"{top}/inside/", "inside/-name\n"),
            (top, "-name\n"),
            (f"{top}/link", "link"),
            (f"{top}/new/deep/er", "new/deep/er"),
        ):
            result = await sandbox.sync_in(source, remote, mode=0o604)
            assert (result.files, result.directories, result.total_bytes) == (1, 0, 7)
            status = os.lstat(inside(sandbox, f"{top}/{found}"))
            assert (stat.S_IMODE(status.st_mode), status.st_mtime_ns) == (0o604, 1_234_567_890_123_456_789)
        for local, found in (("out", "out"), ("there/", "there/er"), ("", "er")):
            result = await sandbox.sync_out(f"{top}/new/deep/er", f"{folder}/{local}", mode=0o600)
            status = os.lstat(folder / found)
            assert (stat.S_IMODE(status.st_mode), status.st_mtime_ns) == (0o600, 1_234_567_890_123_456_789)
            assert (folder / found).read_bytes() == b"content"

    ways.run(go())
    assert_no_scratch(sandbox)


@pytest.mark.parametrize("way", WAYS)
def test_an_error_says_what_is_wrong(ways: Ways, way: str) -> None:
    """91, docker/docker-py#2564: reading a path that is not there hung; 93, airflow#71676, deer-flow#4811: reads had no
    bound."""
    sandbox, folder = ways.sandboxes[way], ways.fresh()
    top = folder.name
    make(folder / "tree", Directory({b"a": File()}))
    make(inside(sandbox, top), Directory({b"dir": Directory({}), b"file": File(b"12345"), b"out": Link(b"/etc")}))
    os.mkfifo(inside(sandbox, f"{top}/pipe"))

    async def kinds() -> list[str]:
        calls = (
            sandbox.sync_out(f"{top}/nothing", folder / "x"),
            sandbox.sync_out(f"{top}/file/nothing", folder / "x"),
            sandbox.sync_out(f"{top}/out/passwd", folder / "x"),
            sandbox.sync_out("../..", folder / "x"),
            sandbox.sync_out(f"{top}/pipe", folder / "x"),
            sandbox.sync_out(f"{top}/file", folder / "x", max_bytes=4),
            sandbox.sync_out(top, folder / "x", mode=0o600),
            sandbox.sync_in(folder / "tree", f"{top}/file"),
            sandbox.sync_in(folder / "tree", f"{top}/out/x"),
            sandbox.sync_in(folder / "tree", f"{top}/out"),
            sandbox.sync_in(folder / "tree/a", f"{top}/file/x"),
            sandbox.sync_in(folder / "tree/a", f"{top}/.sandport-x"),
            sandbox.sync_in(folder / "tree/a", f"{top}/../x"),
            sandbox.sync_in(folder / "nothing", top),
            sandbox.sync_in(folder / "tree", top, mode=0o600),
            sandbox.sync_in(folder / "tree", top, replace=True, delete=True),
            sandbox.sync_in(folder / "tree", top, exclude=["/"]),
            sandbox.sync_in(folder / "tree", "/etc/x"),
            sandbox.read_bytes(f"{top}/nothing"),
            sandbox.read_bytes(f"{top}/dir"),
            sandbox.read_bytes(f"{top}/pipe"),
            sandbox.read_bytes(f"{top}/file", max_bytes=4),
            sandbox.read_bytes(f"{top}/out/passwd"),
            sandbox.write_bytes(f"{top}/dir", b""),
            sandbox.write_bytes(f"{top}/file/x", b""),
            sandbox.write_bytes(f"{top}/new/", b""),
            sandbox.write_bytes(f"{top}/out/x", b""),
        )
        found = []
        for call in calls:
            with pytest.raises(Exception, match=r"\S") as caught:
                await call
            found.append(type(caught.value).__name__)
        return found

    assert ways.run(kinds()) == [
        "SourceMissingError",
        "SourceMissingError",
        "PathOutsideRootError",
        "PathOutsideRootError",
        "SyncError",
        "TooLargeError",
        "UsageError",
        "TargetBusyError",
        "PathOutsideRootError",
        "PathOutsideRootError",
        "TargetBusyError",
        "SyncError",
        "PathOutsideRootError",
        "SourceMissingError",
        "UsageError",
        "UsageError",
        "UsageError",
        "PathOutsideRoot",
        "SourceMissingError",
        "SyncError",
        "SyncError",
        "TooLargeError",
        "PathOutsideRootError",
        "TargetBusyError",
        "TargetBusyError",
        "TargetBusyError",
        "PathOutsideRootError",
    ]
    assert sorted(os.listdir(folder)) == ["tree"]
    assert_no_scratch(sandbox)


@pytest.mark.parametrize(
    ("way", "size"),
    [*((way, size) for way in WAYS for size in (0, 3 << 20)), ("command", 13 << 20), ("chunks", 13 << 20)],
)
def test_bytes_come_back_as_they_were_written(ways: Ways, way: str, size: int) -> None:
    sandbox, name = ways.sandboxes[way], f"{ways.fresh().name}/new\udcff/file"
    data = os.urandom(size)
    ways.run(sandbox.write_bytes(name, b"before", mode=0o666))
    ways.run(sandbox.write_bytes(name, data, mode=0o640))
    assert ways.run(sandbox.read_bytes(name)) == data
    assert stat.S_IMODE(os.stat(inside(sandbox, name)).st_mode) == 0o640
    assert_no_scratch(sandbox)


@pytest.mark.parametrize("way", WAYS)
def test_progress_ends_with_what_was_moved(ways: Ways, way: str) -> None:
    sandbox, folder = ways.sandboxes[way], ways.fresh()
    make(folder / "tree", Directory({b"%d" % i: File(bytes(100_000)) for i in range(30)}))
    seen: list[SyncProgress] = []

    ways.run(sandbox.sync_in(folder / "tree", folder.name, on_progress=seen.append))
    assert seen[0].files_total == 30
    assert seen[-1] == SyncProgress(files_done=30, files_total=30, bytes_done=3_000_000, bytes_total=3_000_000)
    seen.clear()
    ways.run(sandbox.sync_out(folder.name, folder / "out", on_progress=seen.append))
    assert seen[-1] == SyncProgress(files_done=30, files_total=30, bytes_done=3_000_000, bytes_total=3_000_000)
    assert all(one.bytes_done <= two.bytes_done or two is seen[-1] for one, two in itertools.pairwise(seen))


@pytest.mark.parametrize("way", WAYS)
def test_what_has_no_bytes_is_skipped_and_told(ways: Ways, way: str) -> None:
    sandbox, folder = ways.sandboxes[way], ways.fresh()
    place = Path(os.fsdecode(inside(sandbox, folder.name)))
    for tree in (folder / "tree", place):
        make(tree, Directory({b"file": File()}))
        os.mkfifo(tree / "a pipe")
        make_socket(tree / "socket\n")
    came = ways.run(sandbox.sync_in(folder / "tree", f"{folder.name}-in"))
    went = ways.run(sandbox.sync_out(folder.name, folder / "out"))
    assert sorted(notice.path for notice in came.skipped) == [b"a pipe", b"socket\n"]
    assert os.listdir(folder / "out") == ["file"]
    # What the worker's own program leaves out it tells in words.
    assert (went.skipped_count + went.changed_count, went.files) == (2, 1)


@pytest.mark.parametrize("way", WAYS)
def test_what_is_no_file_on_this_machine_keeps_its_name(ways: Ways, way: str) -> None:
    """`sync_out(name, "/dev/null")` as root would leave a file there, for every program to write into."""
    sandbox, folder = ways.sandboxes[way], ways.fresh()
    place = Path(os.fsdecode(inside(sandbox, folder.name)))
    make(place, Directory({b"f": File(b"new"), b"g": File(b"new")}))
    out = folder / "out"
    make(out, Directory({b"g": File(b"old")}))
    os.mkfifo(out / "f")
    (folder / "link").symlink_to("out/f")
    for dry_run in (True, False):
        for source, target in ((f"{folder.name}/f", out / "f"), (f"{folder.name}/f", folder / "link")):
            for delete in (False, True):
                with pytest.raises(TargetBusyError, match="FIFO"):
                    ways.run(sandbox.sync_out(source, target, dry_run=dry_run, delete=delete))
        with pytest.raises(TargetBusyError, match="FIFO"):
            ways.run(sandbox.sync_out(folder.name, out, dry_run=dry_run))
    assert stat.S_ISFIFO((out / "f").lstat().st_mode)
    assert (folder / "link").is_symlink()
    assert scratch_below(folder) == set()
    # A mirror is asked to make the target what the source is.
    assert ways.run(sandbox.sync_out(folder.name, out, delete=True)).whole
    assert (out / "f").read_bytes() == b"new"


# ------------------------------------------------------------------ cancels

TURNS = (0, 1, 10, 100, 1_000, 4_000, 16_000)
"""Of the loop, until the cancel comes: before anything, and at some places in the middle."""


@pytest.mark.parametrize("way", WAYS)
def test_a_cancel_at_any_moment_leaves_all_or_nothing(ways: Ways, way: str) -> None:
    sandbox, folder = ways.sandboxes[way], ways.fresh()
    content: dict[bytes, Node] = {b"%d" % i: File(os.urandom(1 << 20)) for i in range(8)}
    make(folder / "source", Directory({**content, b"d": Directory({b"f": File(b"f")})}))
    there = look(folder / "source")
    make(inside(sandbox, folder.name), Directory(content))
    os.mkdir(inside(sandbox, f"{folder.name}-in"))

    async def cut(doing: Coroutine[object, object, object], turns: int) -> bool:
        moving = asyncio.ensure_future(doing)
        for _ in range(turns):
            if moving.done():
                break
            await asyncio.sleep(0)
        moving.cancel()
        await asyncio.wait((moving,))
        return moving.cancelled()

    async def go() -> None:
        await sandbox.read_bytes(f"{folder.name}/0")
        before = open_ends()
        for turns in TURNS:
            target = f"{folder.name}-in/{turns}"
            if not await cut(sandbox.sync_in(folder / "source", target), turns):
                assert different(there, look(inside(sandbox, target))) == {}
            elif way != "local" and os.listdir(inside(sandbox, f"{folder.name}-in")) == [str(turns).encode()]:
                assert different(there, look(inside(sandbox, target))).keys() <= {()}
            shutil.rmtree(inside(sandbox, target), ignore_errors=True)
            assert scratch_in(inside(sandbox, f"{folder.name}-in")) == []
            await cut(sandbox.sync_out(folder.name, folder / f"out-{turns}"), turns)
            assert scratch_in(os.fsencode(folder)) == []
            assert not await cut(sandbox.sync_out(folder.name, folder / "again"), 10**9)
            await eventually(lambda: open_ends() <= before)

    ways.run(go())
    assert_no_scratch(sandbox)


def scratch_in(folder: bytes) -> list[bytes]:
    """Names of ours, at any depth."""
    return [name for _, there, files in os.walk(folder) for name in there + files if name.startswith(b".sandport-")]


@pytest.mark.parametrize("way", WAYS)
def test_the_state_of_the_host_is_not_emptied_by_a_mirror(ways: Ways, way: str) -> None:
    home, name = ways.folder / "home", ways.fresh().name

    async def out(target: Path) -> None:
        sandbox = ways.sandboxes[way]
        await sandbox.execute(["mkdir", "-p", name])
        await sandbox.sync_out(name, target, delete=True, dry_run=True)

    for target in (home, home.parent):
        with pytest.raises(UnsafeTargetError, match="Sandport keeps its state there"):
            ways.run(out(target))


@pytest.mark.parametrize("way", WAYS)
def test_what_was_copied_in_is_not_emptied_by_a_mirror_on_the_way_out(ways: Ways, way: str) -> None:
    folder = ways.fresh()
    source = folder / "source"
    make(source, Directory({b"mine": File(b"mine"), b"kept": File(b"kept")}))
    there = look(source)

    async def there_and_back(target: Path) -> None:
        sandbox = ways.sandboxes[way]
        await sandbox.sync_in(source, folder.name, exclude=["mine"])
        await sandbox.sync_out(folder.name, target, delete=True)

    for target in (source, folder):
        with pytest.raises(UnsafeTargetError):
            ways.run(there_and_back(target))
        assert look(source) == there
    ways.run(there_and_back(folder / "elsewhere"))
