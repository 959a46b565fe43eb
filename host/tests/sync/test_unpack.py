"""Archives from a sandbox on their way into a directory of this machine: what arrives, and how it is told."""

from __future__ import annotations

import io
import os
import stat
import subprocess
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from host.tests.sync.archives import (
    END,
    act_on,
    hard,
    header,
    member,
    pack_bytes,
    padded,
    pax,
    place_in_memory,
    reasons,
    run,
    unpack_bytes,
    without_top,
)
from host.tests.sync.test_faithful import trees, without_times_of_directories
from host.tests.sync.trees import Directory, File, Link, Node, leads_outside, look, make, names_below, scratch_below
from sandport.sync import (
    PathOutsideRootError,
    SourceMissingError,
    SyncCancelledError,
    SyncError,
    TargetBusyError,
    TooLargeError,
    copy_out,
)
from sandport.sync.copy import Account, Bounds, LinkRule
from sandport.sync.meter import Meter
from sandport.sync.mirror import KnownPaths, Mirror
from sandport.sync.rehearsal import RehearsalTree
from sandport.sync.result import SyncProgress
from sandport.sync.selection import Selection
from sandport.sync.spool import Spool
from sandport.sync.tar_format import ArchiveBrokenError, ArchiveTruncatedError, Dialect
from sandport.sync.target import TargetTree
from sandport.sync.unpack import inspect, unpack, unpack_file

INSIDE = Bounds(LinkRule.INSIDE, 1 << 30, 100_000)
ANY = Bounds(LinkRule.ANY, 1 << 30, 100_000)


@pytest.fixture
def target(tmp_path: Path) -> Path:
    (tmp_path / "target").mkdir()
    return tmp_path / "target"


# What arrives


@settings(max_examples=40, deadline=None)
@given(trees(3), st.sampled_from([[], ["*a*"], ["[!a-z]*"], ["*", "!*/"]]))
@example(Directory({}), [])
@example(Directory({b"a": Link(b"up/../../.."), b"up": Link(b".")}), [])
@example(Directory({b"a": File(b"", hole_before=300_000), b"b": Link(b"b//.")}, 0o700), ["a"])
def test_a_tree_through_an_archive_is_what_the_direct_way_makes_of_it(tree: Directory, exclude: list[str]) -> None:
    """Same tree, same counts, same notices, whichever way a tree comes."""
    with place_in_memory() as base:
        make(base / "sandbox", Directory({b"work": tree}))
        root_fd = os.open(base / "sandbox", os.O_RDONLY)
        try:
            direct = copy_out(root_fd, b"work", base / "direct", selection=Selection.build(exclude))
        finally:
            os.close(root_fd)
        archive, _ = pack_bytes(base / "sandbox/work")
        (base / "archived").mkdir()
        result = unpack_bytes(
            archive, base / "archived", bounds=INSIDE, selection=Selection.build(exclude), top=b"work"
        )
        assert look(base / "archived/work") == look(base / "direct")
        for field in ("files", "directories", "links", "total_bytes", "excluded"):
            assert getattr(result, field) == getattr(direct, field), field
        for field in ("skipped", "refused", "changed", "excluded_paths"):
            assert set(getattr(result, field)) == set(getattr(direct, field)), field
        assert scratch_below(base) == set()
        back = look(base / "archived")
        assert [at for at, what in back.items() if what[0] == "link" and leads_outside(back, (b"work", *at[1:]))] == []


@pytest.mark.parametrize("form", ["gnu", "posix", "ustar"])
@settings(max_examples=12, deadline=None)
@given(trees(3))
@example(Directory({b"h": File(b"z" * 9000, hole_before=300_000), b"e": Directory({}, 0o1777)}))
def test_a_tree_that_gnu_tar_packed_arrives(form: str, tree: Directory) -> None:
    with place_in_memory() as base:
        make(base / "source", tree)
        sparse = [] if form == "ustar" else ["-S"]
        packed = subprocess.run(
            ["tar", "-c", f"--format={form}", *sparse, "-C", base / "source", "."], capture_output=True, check=False
        )
        if packed.returncode:
            # What ustar has no room for.
            assert form == "ustar", packed.stderr
            return
        (base / "back").mkdir()
        result = unpack_bytes(packed.stdout, base / "back", bounds=ANY, top=b"top")
        expected = look(base / "source")
        if form != "posix":
            expected = {at: (*w[:2], int(str(w[2])) // 10**9 * 10**9, *w[3:]) for at, w in expected.items()}
        assert look(base / "back/top") == expected
        assert (result.skipped, result.refused) == ((), ())


@settings(max_examples=25, deadline=None)
@given(trees(2), trees(2))
def test_an_archive_overlays_what_is_there_or_says_what_is_in_the_way(first: Directory, second: Directory) -> None:
    with place_in_memory() as base:
        make(base / "target", Directory({b"work": first}))
        make(base / "added", second)
        before, added = look(base / "target/work"), look(base / "added")
        archive, _ = pack_bytes(base / "added")
        clash = any(at in before and (before[at][0] == "directory") != (added[at][0] == "directory") for at in added)
        if clash:
            with pytest.raises((TargetBusyError, PathOutsideRootError)):
                unpack_bytes(archive, base / "target", bounds=ANY, top=b"work")
        else:
            unpack_bytes(archive, base / "target", bounds=ANY, top=b"work")
            expected = without_times_of_directories({**before, **added, (): before[()]})
            assert without_times_of_directories(look(base / "target/work")) == expected
        assert scratch_below(base) == set()


@pytest.mark.parametrize("dialect", Dialect)
def test_a_tree_deeper_than_any_path_may_be_arrives(deep_place: Path, dialect: Dialect) -> None:
    (deep_place / "source").mkdir()
    fd = os.open(deep_place / "source", os.O_RDONLY)
    for level in range(300):
        name = b"%d" % level + b"d" * 200
        os.mkdir(name, dir_fd=fd)
        below = os.open(name, os.O_RDONLY, dir_fd=fd)
        os.close(fd)
        fd = below
    os.close(os.open(b"bottom", os.O_WRONLY | os.O_CREAT, dir_fd=fd))
    os.close(fd)
    archive, packed = pack_bytes(deep_place / "source", dialect)
    (deep_place / "target").mkdir()
    result = unpack_bytes(archive, deep_place / "target")
    assert (result.files, result.directories) == (packed.files, packed.directories) == (1, 300)
    assert names_of(deep_place / "target") == names_of(deep_place / "source")


def names_of(path: Path) -> bytes:
    return run("find", path, "-printf", "%P\\0")


def test_directories_in_any_order_get_their_modes_and_times(
    tmp_path: Path, as_user: Callable[[Callable[[Path], None]], None]
) -> None:
    directories_in_any_order(tmp_path)
    as_user(directories_in_any_order)


def directories_in_any_order(base: Path) -> None:
    tree = Directory(
        {
            b"a": Directory({b"f": File(b"1"), b"b": Directory({b"g": File(b"2")}, 0o500)}, 0o555),
            b"a-b": File(b"between, if sorted"),
            b"c": Directory({}, 0o1777),
        }
    )
    make(base / "source", tree)
    expected = without_top(look(base / "source"))
    orders = {
        "contents first": ["a/b/g", "a/b/", "a/f", "a/", "a-b", "c/"],
        "directories first": ["a/", "a/b/", "c/", "a-b", "a/b/g", "a/f"],
        "directories last": ["a/b/g", "a/f", "a-b", "c/", "a/b/", "a/"],
        "sorted as text": ["a/", "a-b", "a/b/", "a/b/g", "a/f", "c/"],
        "twice": ["a/", "a/b/", "a/b/g", "a/f", "a-b", "c/", "a/b/", "a/", "a/f", "a/b/g"],
    }
    for number, (name, order) in enumerate(orders.items()):
        archive = run("tar", "-c", "--format=posix", "--no-recursion", "-C", base / "source", *order)
        place = base / f"target{number}"
        place.mkdir()
        unpack_bytes(archive, place)
        assert without_top(look(place)) == expected, name
        subprocess.run(["chmod", "-R", "u+rwX", place], check=True)
    subprocess.run(["chmod", "-R", "u+rwX", base / "source"], check=True)


def test_directories_without_a_member_are_made_and_counted(target: Path) -> None:
    (target / "there").mkdir(0o711)
    result = unpack_bytes(member(b"there/new/f", b"1") + member(b"there/g", b"2") + END, target)
    assert names_below(target) == {b"there", b"there/new", b"there/new/f", b"there/g"}
    assert stat.S_IMODE((target / "there").stat().st_mode) == 0o711
    assert (result.files, result.directories) == (2, 1)


def test_the_top_takes_the_archives_mode_only_if_it_is_new(target: Path) -> None:
    archive = header(b"./", b"5", mode=0o750, mtime=12345) + member(b"./f") + END
    unpack_bytes(archive, target, top=b"new")
    unpack_bytes(archive, target)
    assert stat.S_IMODE((target / "new").stat().st_mode) == 0o750
    assert (target / "new").stat().st_mtime == 12345
    assert stat.S_IMODE(target.stat().st_mode) == 0o755


def test_modes_lose_what_must_not_travel(target: Path) -> None:
    archive = header(b"d", b"5", mode=0o7755) + member(b"d/f", mode=0o6755) + member(b"d/s", mode=0o1644) + END
    unpack_bytes(archive, target)
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in (target / "d", target / "d/f", target / "d/s")}
    assert modes == {"d": 0o1755, "f": 0o755, "s": 0o644}


@pytest.mark.parametrize("mtime", [b"0", b"-1.5", b"-99999999999", b"99999999999", b"%d" % ((1 << 63) - 1)])
def test_times_from_the_ends_of_the_world_do_no_harm(target: Path, mtime: bytes) -> None:
    archive = b"".join(
        [
            pax((b"mtime", mtime)) + header(b"d", b"5"),
            pax((b"mtime", mtime)) + member(b"d/f"),
            pax((b"mtime", mtime)) + header(b"l", b"2", target=b"d"),
            END,
        ]
    )
    unpack_bytes(archive, target)
    assert names_below(target) == {b"d", b"d/f", b"l"}
    if -(1 << 31) < float(mtime) < 1 << 33:
        assert {(target / name).lstat().st_mtime for name in ("d", "d/f", "l")} == {float(mtime)}


def test_a_name_in_the_place_of_a_directory_is_replaced_where_the_target_mirrors(target: Path) -> None:
    archive = b"".join([member(b"x/deep/f"), member(b"x", b"now a file"), header(b"z", b"2", target=b"x"), END])
    make(target / "t", Directory({b"z": Directory({b"old": File(b"")}), b"gone": File(b""), b"kept": File(b"")}))
    fd = os.open(target, os.O_RDONLY)
    try:
        with Spool.beside(fd, max_bytes=None) as spool:
            spool.write(archive)
            account = Account(KnownPaths())
            meter = Meter(None, None)
            mirror = Mirror(
                removed=account.delete, poll=meter.poll, selection=Selection.build(["kept"]), source_fd=None
            )
            result = unpack(
                spool.fd,
                TargetTree(fd, label=b"t", mirror=mirror),
                b"t",
                inspection=inspect(spool.fd, bounds=INSIDE, poll=meter.poll),
                meter=meter,
                bounds=INSIDE,
                account=account,
                mirror=mirror,
            )
    finally:
        os.close(fd)
    assert names_below(target / "t") == {b"x", b"z", b"kept"}
    assert (target / "t/x").read_bytes() == b"now a file"
    assert {b"z", b"z/old", b"gone"} <= set(result.deleted_paths)


def test_a_rehearsal_counts_the_same_and_writes_nothing(tmp_path: Path, target: Path) -> None:
    tree: dict[bytes, Node] = {
        b"f": File(b"1"),
        b"d": Directory({b"l": Link(b"../f"), b"out": Link(b"/"), b"g": File(b"22")}),
    }
    make(tmp_path / "source", Directory(tree))
    archive, _ = pack_bytes(tmp_path / "source")
    archive = archive[: -len(END)] + hard(b"h", b"f") + END
    results = []
    fd = os.open(target, os.O_RDONLY)
    try:
        with Spool.beside(fd, max_bytes=None) as spool:
            spool.write(archive)
            meter = Meter(None, None)
            inspection = inspect(spool.fd, bounds=INSIDE, poll=meter.poll)
            for make_tree in (RehearsalTree, TargetTree):
                tree_there: RehearsalTree | TargetTree = make_tree(fd, label=b"t")
                results.append(
                    unpack(
                        spool.fd,
                        tree_there,
                        b"t",
                        inspection=inspection,
                        meter=meter,
                        bounds=INSIDE,
                        account=Account(),
                    )
                )
                assert names_below(target) == set() or make_tree is TargetTree
    finally:
        os.close(fd)
    assert results[0] == results[1]
    assert results[0].files == inspection.files == 3


# Selection, progress, and an end in between


def test_ignore_files_of_the_archive_count_before_their_own_member_comes(target: Path) -> None:
    archive = b"".join(
        [
            member(b"./a.log") + member(b"./sub/b.log") + member(b"./sub/kept") + member(b"./build/x/y"),
            member(b"./.gitignore", b"*.log\nbuild/\n") + member(b"./sub/.gitignore", b"!b.log\n"),
            member(b"./other/.gitignore", b"x" * (200 << 10)) + END,
        ]
    )
    result = unpack_bytes(archive, target, selection=Selection.build(gitignore=True))
    assert names_below(target) == {
        *(b".gitignore", b"sub", b"sub/.gitignore", b"sub/b.log", b"sub/kept", b"other", b"other/.gitignore")
    }
    assert result.files == 5
    assert reasons(result.skipped) == {b"other/.gitignore": "its patterns do not count: it is longer than 128 KiB"}


def test_what_is_excluded_counts_for_no_ceiling_of_bytes(target: Path) -> None:
    archive = member(b"big/f", b"x" * 5000) + member(b"small", b"y") + END
    result = unpack_bytes(archive, target, bounds=Bounds(LinkRule.ANY, 10, 10), selection=Selection.build(["big"]))
    assert names_below(target) == {b"small"}
    assert result.total_bytes == 1


def test_the_caller_can_stop_at_any_member_and_piece(target: Path) -> None:
    archive = member(b"d/a", b"x" * 600) + member(b"d/b", b"y" * 200_000) + member(b"d/c") + END

    def stop(spool: Spool, fd: int) -> None:
        inspection = inspect(spool.fd, bounds=ANY, poll=lambda: None)
        for asked in range(20):
            answers = [False] * asked
            meter = Meter(lambda left=answers: not left or left.pop(), None)  # type: ignore[misc]
            try:
                unpack(
                    spool.fd,
                    TargetTree(fd, label=b"t"),
                    b"t",
                    inspection=inspection,
                    meter=meter,
                    bounds=ANY,
                    account=Account(),
                )
            except SyncCancelledError:
                assert scratch_below(target) == set()
                for name, size in (("a", 600), ("b", 200_000), ("c", 0)):
                    path = target / "t/d" / name
                    assert not path.exists() or path.stat().st_size == size
            else:
                assert asked > 5
                return
        pytest.fail("it never came to its end")

    act_on(archive, target, stop)

    def never() -> None:
        raise SyncCancelledError("stop")

    def stop_inspection(spool: Spool, _: int) -> None:
        with pytest.raises(SyncCancelledError):
            inspect(spool.fd, bounds=ANY, poll=never)

    act_on(archive, target, stop_inspection)


def test_progress_is_told_from_what_was_inspected(target: Path) -> None:
    told: list[SyncProgress] = []
    archive = member(b"a", b"x" * 600) + member(b"b", b"y" * 200_000) + hard(b"c", b"b") + END

    def follow(spool: Spool, fd: int) -> None:
        unpack(
            spool.fd,
            TargetTree(fd, label=b"t"),
            None,
            inspection=inspect(spool.fd, bounds=ANY, poll=lambda: None),
            meter=Meter(None, told.append),
            bounds=ANY,
            account=Account(),
        )

    act_on(archive, target, follow)
    assert (told[0].files_done, told[0].files_total, told[0].bytes_total) == (0, 3, 400_600)
    assert (told[-1].files_done, told[-1].bytes_done) == (3, 400_600)


# One file


def unpack_one(archive: bytes, target: Path, *, mode: int | None = None, max_bytes: int | None = None) -> int:
    results = []

    def write(spool: Spool, fd: int) -> None:
        results.append(
            unpack_file(
                spool.fd,
                TargetTree(fd, label=b"t"),
                b"there",
                path=b"wanted",
                mode=mode,
                meter=Meter(None, None),
                account=Account(),
                max_bytes=max_bytes,
            )
        )

    act_on(archive, target, write)
    return results[0].total_bytes


def test_one_file_arrives_under_the_name_that_is_asked_for(target: Path) -> None:
    (target / "there").write_bytes(b"old")
    assert unpack_one(member(b"any/name", b"text", mode=0o4640, mtime=5) + END, target) == 4
    status = (target / "there").stat()
    assert ((target / "there").read_bytes(), stat.S_IMODE(status.st_mode), status.st_mtime) == (b"text", 0o640, 5)
    assert unpack_one(member(b"x", b"y" * 100_000) + END, target, mode=0o600) == 100_000
    assert stat.S_IMODE((target / "there").stat().st_mode) == 0o600


@pytest.mark.parametrize(
    ("archive", "error", "match"),
    [
        (END, SourceMissingError, "holds nothing"),
        (header(b"d", b"5") + END, SyncError, "is a directory"),
        (header(b"l", b"2", target=b"x") + END, SyncError, "is a symbolic link"),
        (member(b"a") + member(b"b") + END, ArchiveBrokenError, "more than this one file"),
        (member(b"a", b"x" * 100) + END, TooLargeError, "more than 99 bytes"),
        (member(b"a", b"x"), ArchiveTruncatedError, "without its end mark"),
    ],
)
def test_what_is_not_exactly_one_file_leaves_the_target_as_it_was(
    target: Path, archive: bytes, error: type[SyncError], match: str
) -> None:
    with pytest.raises(error, match=match):
        unpack_one(archive, target, max_bytes=99)
    assert names_below(target) == set()


# Python's own writer, for a last independent opinion


def test_an_archive_of_pythons_arrives(tmp_path: Path, target: Path) -> None:
    nodes: dict[bytes, Node] = {b"f": File(b"x" * 5000), b"d": Directory({b"l": Link(b"../f")}, 0o500)}
    make(tmp_path / "source", Directory(nodes))
    sink = io.BytesIO()
    with tarfile.open(fileobj=sink, mode="w", format=tarfile.PAX_FORMAT) as writer:
        writer.add(tmp_path / "source", ".")
    unpack_bytes(sink.getvalue(), target)
    found, sent = (without_top(look(path)) for path in (target, tmp_path / "source"))
    # It writes times as floating-point numbers.
    assert {at: (what[0], what[1]) for at, what in found.items()} == {at: (w[0], w[1]) for at, w in sent.items()}
    assert (target / "f").read_bytes() == b"x" * 5000
    assert padded(b"") == b""
