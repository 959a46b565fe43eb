"""Archives of an enemy: nothing is written or read outside, nothing past a ceiling, and memory stays flat."""

from __future__ import annotations

import itertools
import os
import stat
import subprocess
import sys
from contextlib import suppress
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
    pax,
    place_in_memory,
    reasons,
    run,
    unpack_bytes,
    without_top,
)
from host.tests.sync.trees import (
    Directory,
    File,
    Link,
    content_of,
    leads_outside,
    look,
    make,
    names_below,
    scratch_below,
)
from sandport.sync import (
    PathOutsideRootError,
    SyncError,
    TargetBusyError,
    TooLargeError,
)
from sandport.sync.copy import Account, Bounds, LinkRule
from sandport.sync.meter import Meter
from sandport.sync.result import SyncResult
from sandport.sync.selection import Selection
from sandport.sync.spool import Spool
from sandport.sync.tar_format import ArchiveBrokenError, ArchiveTruncatedError
from sandport.sync.target import TargetTree
from sandport.sync.unpack import inspect, unpack

MIB = 1 << 20

INSIDE = Bounds(LinkRule.INSIDE, 1 << 30, 100_000)
ANY = Bounds(LinkRule.ANY, 1 << 30, 100_000)


@pytest.fixture
def target(tmp_path: Path) -> Path:
    (tmp_path / "target").mkdir()
    return tmp_path / "target"


# Hard links


def test_hard_links_arrive_as_files_of_their_own(target: Path) -> None:
    sparse = pax((b"GNU.sparse.map", b"5,1"), (b"GNU.sparse.size", b"9"), (b"path", b"s")) + member(b"s", b"x")
    archive = b"".join(
        [
            member(b"d/f", b"text", mode=0o640, mtime=5),
            hard(b"./copy", b"d//f"),
            hard(b"chain", b"copy"),
            member(b"big", b"b" * 200_000) + hard(b"e/big", b"big"),
            sparse + hard(b"s2", b"s"),
            header(b"l", b"2", target=b"d/f") + hard(b"d/l", b"l"),
            header(b"d/up", b"2", target=b"../big") + hard(b"up", b"d/up"),
            END,
        ]
    )
    result = unpack_bytes(archive, target)
    for name, content in [("copy", b"text"), ("chain", b"text"), ("e/big", b"b" * 200_000), ("s2", b"\0" * 5 + b"x")]:
        found = (target / name).read_bytes()
        assert found == content.ljust(9, b"\0") if name == "s2" else found == content
        assert (target / name).stat().st_nlink == 1
    assert stat.S_IMODE((target / "chain").stat().st_mode) == 0o640
    assert (target / "chain").stat().st_mtime == 5
    assert os.readlink(target / "d/l") == "d/f"
    # The same text that stays inside from one directory leads out from another.
    assert set(reasons(result.refused)) == {b"up"}
    assert (result.files, result.links) == (7, 3)
    assert result.total_bytes == 3 * 4 + 2 * 200_000 + 2 * 9


def test_gnu_tars_hard_links_arrive(tmp_path: Path, target: Path) -> None:
    make(tmp_path / "source", Directory({b"a": File(b"text"), b"d": Directory({b"l": Link(b"../a")})}))
    os.link(tmp_path / "source/a", tmp_path / "source/d/b")
    os.link(tmp_path / "source/d/l", tmp_path / "source/d/m", follow_symlinks=False)
    archive = run("tar", "-c", "--format=posix", "-C", tmp_path / "source", ".")
    assert archive.count(b"text") == 1
    unpack_bytes(archive, target)
    assert without_top(look(target)) == without_top(look(tmp_path / "source"))


def test_a_hard_link_to_what_the_archive_does_not_hold_is_refused(tmp_path: Path, target: Path) -> None:
    """A hard link is the classic way to read, or to write, a file outside; here the target is not even asked."""
    (tmp_path / "secret").write_bytes(b"precious")
    (target / "there").write_bytes(b"mine")
    (target / "way").symlink_to(tmp_path)
    targets = [
        *(b"../secret", os.fsencode(tmp_path / "secret"), b"there", b"way/secret", b"later", b"d", b"", b"itself"),
        *(b"inside/secret", b"nul\0"),
    ]
    archive = header(b"d", b"5") + header(b"inside", b"2", target=b".")
    for number, to in enumerate(targets):
        if b"\0" in to:
            archive += pax((b"linkpath", to))
        archive += hard(b"h%d" % number if to != b"itself" else b"itself", to[:100])
    archive += member(b"later", b"x") + END
    result = unpack_bytes(archive, target)
    assert len(result.refused) == result.refused_count == len(targets)
    assert names_below(target) == {b"there", b"way", b"d", b"inside", b"later"}
    assert (tmp_path / "secret").stat().st_nlink == (target / "there").stat().st_nlink == 1


def test_a_hard_link_to_what_is_left_out_arrives_all_the_same(target: Path) -> None:
    """The direct way copies each name for itself, so which of them was packed first must make no difference."""
    archive = b"".join(
        [
            member(b"out/a", b"text") + hard(b"b", b"out/a"),
            hard(b"out/c", b"out/a") + hard(b"d", b"out/c"),
            header(b"l", b"2", target=b"../x") + header(b"out/m", b"2", target=b"b") + hard(b"n", b"out/m"),
            hard(b"out/..", b"out/a") + hard(b"e", b"out/.."),
            END,
        ]
    )
    result = unpack_bytes(archive, target, selection=Selection.build(["out"]))
    assert names_below(target) == {b"b", b"d", b"n"}
    assert (target / "d").read_bytes() == b"text"
    assert set(reasons(result.refused)) == {b"l", b"e", b"out/.."}


def test_hard_links_count_in_full_before_anything_is_written(target: Path) -> None:
    archive = member(b"f", b"x" * 100_000) + b"".join(hard(b"h%d" % n, b"f") for n in range(50)) + END
    with pytest.raises(TooLargeError, match="more than 1,000,000 bytes"):
        unpack_bytes(archive, target, bounds=Bounds(LinkRule.INSIDE, 1_000_000, 1000))
    assert names_below(target) == set()


def test_an_archive_of_too_many_members_to_remember_arrives_all_the_same(
    target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    archive = b"".join([*(member(b"f%d" % n, b"%d" % n) for n in range(50)), hard(b"g", b"f7"), END])
    results = []
    for room in (1 << 20, 5000):
        monkeypatch.setattr("sandport.sync.unpack._KEPT_BYTES", room)
        results.append(unpack_bytes(archive, target, top=b"%d" % room))
    assert results[0] == results[1]
    assert [{at: w[3] for at, w in look(target / str(room)).items() if at} for room in (1 << 20, 5000)] == [
        {**{(b"f%d" % n,): b"%d" % n for n in range(50)}, (b"g",): b"7"}
    ] * 2


def test_many_links_to_one_endless_header_end(target: Path) -> None:
    """A link of half a KiB must not make the reader go through a MiB again and again."""
    long = b"./" * ((1 << 19) - 10)
    archive = pax((b"path", long[:-1] + b"/f")) + member(b"f") + b"".join(hard(b"h%d" % n, b"f") for n in range(200))
    with pytest.raises(TooLargeError, match="more hard links than can be followed"):
        unpack_bytes(archive + END, target)
    assert names_below(target) == set()


# What an enemy achieves


HOSTILE_PATHS = [
    b"/abs",
    b"//abs",
    b"../up",
    b"a/../../up",
    b"a/..",
    b"..",
    b"d/../f",
    b"",
    b".",
    b"./",
    b"nul\0x",
    b"n" * 256,
]
HOSTILE_PATHS += [b"d/" + b"n" * 256, b"n" * 300 + b"/f"]


@pytest.mark.parametrize("kind", [b"0", b"1", b"2", b"5"])
def test_names_that_lead_out_or_nowhere_are_refused_and_the_rest_arrives(
    tmp_path: Path, target: Path, kind: bytes
) -> None:
    (tmp_path / "up").write_bytes(b"precious")
    archive = member(b"first", b"1")
    for path in HOSTILE_PATHS:
        # An empty record means none, so the field of the header is empty too.
        archive += pax((b"path", path)) + header(b"", kind, target=b"first")
    result = unpack_bytes(archive + member(b"last", b"2") + END, target, top=b"top")
    # The top of the tree may be spelt as a directory; what ends in a slash is one.
    tops = {b"0": {b"./"}, b"5": {b"", b".", b"./"}}.get(kind, set())
    refused = set(HOSTILE_PATHS) - tops
    assert set(reasons(result.refused)) == refused
    assert names_below(target) == {b"top", b"top/first", b"top/last"}
    assert (tmp_path / "up").read_bytes() == b"precious"
    assert not Path("/abs").exists()


def test_links_that_lead_out_are_refused_unless_any_may_come(target: Path) -> None:
    """NemoClaw#2317, NemoClaw#2268: absolute links inside a sandbox aborted the backup."""
    links = {
        b"absolute": b"/etc/passwd",
        b"above": b"../x",
        b"mixed": b"sub/../../x",
        b"d/far": b"../../x",
        b"d/near": b"../x",
        b"fine": b"d",
    }
    archive = b"".join(header(name, b"2", target=to) for name, to in links.items())
    archive += header(b"none", b"2") + pax((b"linkpath", b"nul\0")) + header(b"nul", b"2", target=b"x")
    archive += pax((b"linkpath", b"x" * 5000)) + header(b"long", b"2", target=b"x") + END
    result = unpack_bytes(archive, target)
    assert set(reasons(result.refused)) == {b"absolute", b"above", b"mixed", b"d/far", b"none", b"nul", b"long"}
    assert names_below(target) == {b"d", b"d/near", b"fine"}
    result = unpack_bytes(archive, target, bounds=ANY)
    assert set(reasons(result.refused)) == {b"none", b"nul", b"long"}


def test_devices_fifos_and_what_nobody_knows_are_skipped(target: Path) -> None:
    archive = b"".join(header(b"m" + kind, kind) for kind in (b"3", b"4", b"6", b"V", b"Z")) + member(b"f") + END
    result = unpack_bytes(archive, target)
    assert reasons(result.skipped) == {
        b"m3": "it is a device, which has no bytes to copy",
        b"m4": "it is a device, which has no bytes to copy",
        b"m6": "it is a FIFO, which has no bytes to copy",
        b"mV": "it is a member of an unknown type, which has no bytes to copy",
        b"mZ": "it is a member of an unknown type, which has no bytes to copy",
    }
    assert names_below(target) == {b"f"}


def test_reserved_names_are_skipped_once_with_all_below_them(target: Path) -> None:
    archive = b"".join(
        [
            header(b".sandport-0", b"5") + member(b".sandport-0/f") + member(b".sandport-0/g/h"),
            member(b"d/.sandport-1") + member(b"d/sandport-2") + END,
        ]
    )
    result = unpack_bytes(archive, target)
    assert list(reasons(result.skipped)) == [b".sandport-0", b"d/.sandport-1"]
    assert names_below(target) == {b"d", b"d/sandport-2"}


def test_nothing_is_written_through_a_link_of_the_archives_own(tmp_path: Path, target: Path) -> None:
    """bytedance/deer-flow#5578: a link first, then a file through it."""
    outside = tmp_path / "outside"
    make(outside, Directory({b"f": File(b"precious")}))
    before = look(outside)
    for to in (os.fsencode(outside), b"../outside", b"."):
        for rest in (
            member(b"way/f", b"x"),
            header(b"way", b"5", mode=0o777) + member(b"way/f", b"x"),
            header(b"way/d", b"5"),
            header(b"way/l", b"2", target=b"f"),
            member(b"g") + hard(b"way/f", b"g"),
        ):
            with pytest.raises(PathOutsideRootError, match="symbolic link"):
                unpack_bytes(header(b"way", b"2", target=to) + rest + END, target, bounds=ANY)
            assert look(outside) == before
            assert names_below(target) <= {b"way", b"g"}
            (target / "way").unlink()
    # A file takes a link's name; what the link leads to is not written to.
    unpack_bytes(header(b"f", b"2", target=b"../outside/f") + member(b"f", b"x") + END, target, bounds=ANY)
    assert (target / "f").read_bytes() == b"x"
    assert look(outside) == before


def test_nothing_is_written_through_a_link_that_is_there(tmp_path: Path, target: Path) -> None:
    make(tmp_path / "outside", Directory({b"f": File(b"precious")}))
    before = look(tmp_path / "outside")
    (target / "way").symlink_to(tmp_path / "outside")
    (target / "f").symlink_to(tmp_path / "outside/f")
    with pytest.raises(PathOutsideRootError):
        unpack_bytes(member(b"way/f", b"x") + END, target)
    unpack_bytes(member(b"f", b"x") + END, target)
    assert look(tmp_path / "outside") == before
    assert (target / "f").read_bytes() == b"x"


steps = st.lists(st.sampled_from([b"a", b"b", b"..", b".", b""]), min_size=1, max_size=4).map(b"/".join)
hostile_members = st.lists(
    st.tuples(st.sampled_from([b"0", b"0", b"1", b"2", b"2", b"5", b"6"]), steps, steps, st.integers(0, 0o7777)),
    min_size=1,
    max_size=12,
)


@settings(max_examples=150, deadline=None)
@given(hostile_members, st.booleans())
@example([(b"2", b"a", b"b", 0), (b"5", b"b", b"", 0), (b"0", b"a/f", b"", 0o644)], False)
@example([(b"2", b"a/a", b"..", 0), (b"2", b"a/b", b"a/..", 0), (b"1", b"b", b"a/b", 0)], True)
def test_whatever_members_come_together_nothing_outside_is_touched(
    members: list[tuple[bytes, bytes, bytes, int]], fresh: bool
) -> None:
    archive = b"".join(
        header(path, kind, target=to, mode=mode) if kind != b"0" else member(path, b"from %d" % number, mode=mode)
        for number, (kind, path, to, mode) in enumerate(members)
    )
    with place_in_memory() as base:
        make(base / "above", Directory({b"a": File(b"precious"), b"b": Directory({b"a": File(b"precious")})}))
        place = base / "above/target"
        make(place, Directory({b"a": Directory({b"a": File(b"old")})} if not fresh else {}))
        before = look(base / "above")
        result: SyncResult | None = None
        # An error says that one name was two things; what was whole by then stays.
        with suppress(TargetBusyError, PathOutsideRootError):
            result = unpack_bytes(archive + END, place, top=b"top" if fresh else None)
        after = look(base / "above")
        beside = {at: what for at, what in after.items() if at[:1] != (b"target",)}
        assert beside == {at: what for at, what in before.items() if at[:1] != (b"target",)}
        top = (b"target", b"top") if fresh else (b"target",)
        below = {at[len(top) :]: what for at, what in after.items() if at[: len(top)] == top}
        assert [at for at, what in below.items() if what[0] == "link" and leads_outside(below, at)] == []
        assert scratch_below(base) == set()
        assert b"precious" not in b"".join(content_of(what) for what in below.values())
        if result is not None:
            kinds = [what[0] for at, what in below.items() if at]
            assert kinds.count("link") <= result.links
            assert kinds.count("file") <= result.files + 1
            taken = result.files + result.links + result.directories + result.refused_count + result.skipped_count
            assert taken >= len([kind for kind, path, *_ in members if kind != b"5" and not path.endswith(b"/")])


MEMBERS = {
    "file": member(b"x", b"file"),
    "link": header(b"x", b"2", target=b"y"),
    "directory": header(b"x", b"5", mode=0o700),
    "hard link": hard(b"x", b"y"),
}
"""Under one name; a directory's twin may keep what it holds."""

SEEN = {"file": ("file", b"file"), "link": ("link", b"y"), "directory": ("directory",), "hard link": ("file", b"other")}


@pytest.mark.parametrize(("first", "second"), list(itertools.product(MEMBERS, repeat=2)))
@pytest.mark.parametrize("fresh", [True, False])
def test_of_two_members_with_one_name_the_last_one_stays(target: Path, first: str, second: str, fresh: bool) -> None:
    archive = member(b"y", b"other") + MEMBERS[first] + MEMBERS[second] + END
    top = b"top" if fresh else None
    place = target / "top" if fresh else target
    if (first == "directory") == (second == "directory"):
        unpack_bytes(archive, target, top=top)
        left = SEEN[second]
    else:
        # As with what is there already: neither takes the other's place unless a mirror is asked for.
        with pytest.raises((TargetBusyError, PathOutsideRootError)):
            unpack_bytes(archive, target, top=top)
        left = SEEN[first]
    seen = look(place)[b"x",]
    assert (seen[0], *([seen[-1]] if seen[0] == "file" else [seen[1]] if seen[0] == "link" else [])) == left
    assert scratch_below(target) == set()


# Ceilings


def test_an_archive_that_is_not_the_one_that_was_inspected_writes_no_more_than_that(target: Path) -> None:
    def write(spool: Spool, fd: int) -> None:
        inspection = inspect(spool.fd, bounds=ANY, poll=lambda: None)
        other = pax((b"mtime", b"1"), kind=b"g") + member(b"f", b"x" * 601) + END
        os.pwrite(spool.fd, other, 0)
        with pytest.raises(ArchiveBrokenError, match="more than was found"):
            unpack(
                spool.fd,
                TargetTree(fd, label=b"t"),
                None,
                inspection=inspection,
                meter=Meter(None, None),
                bounds=ANY,
                account=Account(),
            )
        assert names_below(target) == set()

    act_on(pax((b"mtime", b"1"), kind=b"g") + member(b"f", b"x" * 600) + END, target, write)


def test_records_for_all_members_change_no_size_and_no_path(target: Path) -> None:
    """Else a hard link, whose original is read once more, could find another one than was counted."""
    common = pax((b"size", b"0"), (b"path", b"p"), (b"mtime", b"7"), kind=b"g")
    archive = common + member(b"f", b"x" * 600) + hard(b"g", b"f") + END
    result = unpack_bytes(archive, target)
    assert {path.name: (path.stat().st_size, path.stat().st_mtime) for path in target.iterdir()} == {
        "f": (600, 7),
        "g": (600, 7),
    }
    assert result.total_bytes == 1200


def refused_whole(archive: bytes, target: Path, bounds: Bounds, error: type[SyncError], match: str) -> None:
    with pytest.raises(error, match=match):
        unpack_bytes(archive, target, bounds=bounds)
    assert names_below(target) == set()


def test_past_a_ceiling_nothing_is_written(target: Path) -> None:
    files = b"".join(member(b"f%d" % n, b"x" * 600) for n in range(10))
    refused_whole(files + END, target, Bounds(LinkRule.ANY, 5999, 100), TooLargeError, "more than 5,999 bytes")
    refused_whole(files + END, target, Bounds(LinkRule.ANY, 6000, 9), TooLargeError, "more than 9 entries")
    unpack_bytes(files + END, target, bounds=Bounds(LinkRule.ANY, 6000, 10))
    assert len(names_below(target)) == 10


def test_what_is_cut_off_or_broken_leaves_the_target_as_it_was(target: Path) -> None:
    whole = member(b"d/f", b"x" * 600) + member(b"g") + END
    for length in range(0, len(whole), 512):
        refused_whole(whole[:length], target, ANY, ArchiveTruncatedError, "without its end mark")
    refused_whole(member(b"f") + b"x" * 512 + END, target, ANY, ArchiveBrokenError, "at byte 512")


def test_a_sparse_bomb_is_refused_before_it_is_made(target: Path) -> None:
    for size in (b"%d" % (8 << 30), b"%d" % ((1 << 63) - 1)):
        records = pax((b"GNU.sparse.map", b"0,1"), (b"GNU.sparse.size", size), (b"path", b"f"))
        refused_whole(records + member(b"f", b"x") + END, target, INSIDE, TooLargeError, "more than 1,073,741,824")
        twice = member(b"a") + records + member(b"f", b"x") + hard(b"g", b"f") + END
        refused_whole(twice, target, INSIDE, TooLargeError, "more than 1,073,741,824 bytes")


def test_one_name_of_many_levels_counts_for_each_of_them(target: Path) -> None:
    deep = pax((b"path", b"d/" * 2000 + b"f")) + member(b"f") + END
    refused_whole(deep, target, Bounds(LinkRule.ANY, None, 1500), TooLargeError, "more than 1,500 entries")
    deeper = pax((b"path", b"d/" * 9000 + b"f")) + member(b"f") + END
    refused_whole(deeper, target, Bounds(), TooLargeError, "more than 8,192 directories deep")
    back_and_forth = b"".join(member(path) for path in (b"a/b/c/f", b"x") * 20) + END
    refused_whole(back_and_forth, target, Bounds(LinkRule.ANY, None, 60), TooLargeError, "more than 60 entries")


def test_notices_stay_few_and_are_counted_in_full(target: Path) -> None:
    archive = b"".join(header(b"/bad%d" % n) for n in range(12_000)) + END
    result = unpack_bytes(archive, target)
    assert (result.refused_count, len(result.refused)) == (12_000, 10_000)


MEASURE = """
import os, sys
from pathlib import Path
from host.tests.sync.archives import END, header, pax
from sandport.sync.copy import Account, Bounds, LinkRule
from sandport.sync.meter import Meter
from sandport.sync.spool import Spool
from sandport.sync.target import TargetTree
from sandport.sync.unpack import inspect, unpack

def peak():
    status = Path("/proc/self/status").read_text()
    return int(status.split("VmHWM:")[1].split()[0]) << 10

before = peak()
fd = os.open(sys.argv[1], os.O_RDONLY)
kinds = [header(b"f"), header(b"f%d"), header(b"/refused"), header(b"l", b"2", target=b"f"), header(b"d", b"5")]
with Spool.beside(fd, max_bytes=None) as spool:
    for kind in kinds:
        for _ in range(100):
            spool.write(kind * (int(sys.argv[2]) // 500))
    spool.write(END)
    bounds = Bounds(LinkRule.INSIDE, 1 << 30, 1_000_000)
    found = inspect(spool.fd, bounds=bounds, poll=lambda: None)
    assert found.entries == int(sys.argv[2]), found
    print(peak() - before)
"""


@pytest.mark.slow
def test_hundreds_of_thousands_of_entries_cost_no_memory(tmp_path: Path) -> None:
    """A list of them would take more than twice as much."""
    done = subprocess.run(
        [sys.executable, "-c", MEASURE, tmp_path, "250000"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) < 20 * MIB
