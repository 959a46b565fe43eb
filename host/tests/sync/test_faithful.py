"""What arrives is what was sent: bytes, names, modes, times, links, holes, at any depth."""

from __future__ import annotations

import contextlib
import os
import resource
import stat
import struct
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from host.tests.sync.conftest import MEMORY, Sandbox
from host.tests.sync.trees import (
    Directory,
    File,
    Link,
    Node,
    Seen,
    content_of,
    leads_outside,
    look,
    make,
    scratch_below,
)
from sandport.sync import SyncError, copy_in, copy_out

TRICKY = [b"-rf", b" ", b"a b", b"'\"", b"\n", b"\xff\xfe", b"...", b"*", b"$HOME", b"\\", b"\x1b[31m", b"x" * 255]

READABLE = 0 if os.geteuid() == 0 else 0o400
"""What a file needs to be copied at all; what happens without it, another test says."""

names = st.one_of(
    st.sampled_from(TRICKY),
    st.binary(min_size=1, max_size=255).map(lambda raw: raw.replace(b"/", b"|").replace(b"\0", b"0")),
).filter(lambda name: name not in (b".", b"..") and not name.startswith(b".sandport-"))

mtimes = st.integers(min_value=0, max_value=4_000_000_000_999_999_999)

files = st.builds(
    File,
    content=st.binary(max_size=300),
    mode=st.integers(0, 0o777).map(lambda mode: mode | READABLE),
    mtime_ns=mtimes,
    hole_before=st.sampled_from([0, 0, 0, 1, 70_000, 300_000]),
)

link_targets = st.one_of(
    st.lists(st.sampled_from([b"..", b".", b"", b"a", b"a b", b"up", b"-rf"]), min_size=1, max_size=6)
    .map(b"/".join)
    .filter(bool),
    st.sampled_from([b"/", b"/etc/passwd", b"../outside", b"nowhere"]),
    names,
)


def trees(depth: int) -> st.SearchStrategy[Directory]:
    node: st.SearchStrategy[Node] = st.one_of(files, st.builds(Link, link_targets, mtimes))
    if depth:
        node = st.one_of(node, trees(depth - 1))
    return st.builds(
        Directory,
        st.dictionaries(names, node, max_size=5),
        st.integers(0, 0o777).map(lambda mode: mode | 0o700),
        mtimes,
    )


def without_times_of_directories(seen: Seen) -> Seen:
    return {at: what[:2] if what[0] == "directory" else what for at, what in seen.items()}


@settings(max_examples=60, deadline=None)
@given(trees(3))
@example(Directory({}))
@example(Directory({b"a": Link(b"up/../../.."), b"up": Link(b".")}))
@example(Directory({b"a": Link(b"/"), b"b": Link(b"b//.")}))
def test_any_tree_survives_the_way_in_and_out(tree: Directory) -> None:
    """NVIDIA/OpenShell#1425, NVIDIA/OpenShell#2309 and fullsend#1079: links stay links."""
    with tempfile.TemporaryDirectory(dir=MEMORY) as place:
        base = Path(place)
        (base / "sandbox").mkdir()
        make(base / "source", tree)
        sent = look(base / "source")
        root_fd = os.open(base / "sandbox", os.O_RDONLY)
        try:
            inward = copy_in(base / "source", root_fd, b"deep/work")
            assert look(base / "sandbox/deep/work") == sent
            outward = copy_out(root_fd, b"deep/work", base / "back")
        finally:
            os.close(root_fd)
        refused = {tuple(notice.path.split(b"/")) for notice in outward.refused}
        back = look(base / "back")
        # A link that is missing changes nothing else, not even its directory's time.
        assert back == {at: what for at, what in sent.items() if at not in refused}
        assert all(sent[at][0] == "link" for at in refused)
        assert [at for at, what in back.items() if what[0] == "link" and leads_outside(back, at)] == []
        assert scratch_below(base) == set()
        assert (inward.skipped, inward.refused, inward.changed) == ((), (), ())
        kinds = [what[0] for at, what in sent.items() if at]
        assert inward.files == outward.files == kinds.count("file")
        assert inward.directories == outward.directories == kinds.count("directory")
        assert inward.links == outward.links + outward.refused_count == kinds.count("link")
        assert inward.total_bytes == sum(len(content_of(what)) for what in sent.values())


@settings(max_examples=40, deadline=None)
@given(trees(2), trees(2))
def test_a_second_tree_overlays_the_first_or_says_what_is_in_the_way(first: Directory, second: Directory) -> None:
    with tempfile.TemporaryDirectory(dir=MEMORY) as place:
        base = Path(place)
        (base / "sandbox").mkdir()
        make(base / "first", first)
        make(base / "second", second)
        before, added = look(base / "first"), look(base / "second")
        clash = any(at in before and (before[at][0] == "directory") != (added[at][0] == "directory") for at in added)
        root_fd = os.open(base / "sandbox", os.O_RDONLY)
        try:
            copy_in(base / "first", root_fd, b"work")
            if clash:
                with pytest.raises(SyncError):
                    copy_in(base / "second", root_fd, b"work")
            else:
                copy_in(base / "second", root_fd, b"work")
                seen = without_times_of_directories(look(base / "sandbox/work"))
                wanted = without_times_of_directories({**before, **added, (): before[()]})
                assert seen == wanted
        finally:
            os.close(root_fd)
        assert scratch_below(base / "sandbox") == set()


def test_two_thousand_levels_are_copied_with_few_descriptors(
    deep_place: Path, in_child: Callable[[Callable[[], None]], None]
) -> None:
    levels, name = 2_000, b"n" * 200
    (deep_place / "source").mkdir()
    top = fd = os.open(deep_place / "source", os.O_RDONLY)
    for level in range(levels):
        os.mkdir(name, dir_fd=fd)
        below = os.open(name, os.O_RDONLY, dir_fd=fd)
        if level:
            os.close(fd)
        fd = below
    bottom = os.open(b"bottom", os.O_WRONLY | os.O_CREAT, dir_fd=fd)
    os.write(bottom, b"reached")
    os.close(bottom)

    def copy() -> None:
        _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (128, hard))
        root_fd = os.open(deep_place, os.O_RDONLY)
        assert copy_in(deep_place / "source", root_fd, b"work").directories == levels
        assert copy_out(root_fd, b"work", deep_place / "back").directories == levels

    in_child(copy)
    os.close(fd)
    os.close(top)
    fd = os.open(deep_place / "back", os.O_RDONLY)
    for _ in range(levels):
        assert os.listdir(fd) == [os.fsdecode(name)]
        below = os.open(name, os.O_RDONLY, dir_fd=fd)
        os.close(fd)
        fd = below
    with open(os.open(b"bottom", os.O_RDONLY, dir_fd=fd), "rb") as copied:
        assert copied.read() == b"reached"
    os.close(fd)


def test_a_sparse_file_stays_cheap(sandbox: Sandbox, tmp_path: Path) -> None:
    """e2b-dev/E2B#1301, e2b-dev/E2B#1433: a big file must not be held in memory; a hole must not become bytes."""
    size = 3 << 30
    source = tmp_path / "sparse"
    with source.open("wb") as file:
        file.write(b"begin")
        file.seek(1 << 30)
        file.write(b"middle")
        file.truncate(size)
    result = copy_in(source, sandbox.fd, b"sparse")
    copy_out(sandbox.fd, b"sparse", tmp_path / "back")
    assert result.total_bytes == size
    for copied in (sandbox.path / "sparse", tmp_path / "back"):
        status = copied.stat()
        assert status.st_size == size
        assert status.st_blocks * 512 < 1 << 20
        with copied.open("rb") as file:
            assert file.read(6) == b"begin\0"
            file.seek((1 << 30) - 1)
            assert file.read(8) == b"\0middle\0"


def test_a_file_of_many_pieces_arrives_whole(sandbox: Sandbox, tmp_path: Path) -> None:
    """computesdk's text-only file API: binary content passes unharmed."""
    content = os.urandom(20_000_003)
    (tmp_path / "big").write_bytes(content)
    assert copy_in(tmp_path / "big", sandbox.fd, b"big").total_bytes == len(content)
    copy_out(sandbox.fd, b"big", tmp_path / "back")
    assert (tmp_path / "back").read_bytes() == content


def test_names_of_one_file_become_files_of_their_own(sandbox: Sandbox, tmp_path: Path) -> None:
    make(tmp_path / "source", Directory({b"one": File(b"same")}))
    os.link(tmp_path / "source/one", tmp_path / "source/two")
    copy_in(tmp_path / "source", sandbox.fd, b"work")
    one, two = (sandbox.path / "work" / name for name in ("one", "two"))
    assert one.read_bytes() == two.read_bytes() == b"same"
    assert one.stat().st_ino != two.stat().st_ino


def test_setuid_and_setgid_do_not_travel(sandbox: Sandbox, tmp_path: Path) -> None:
    make(tmp_path / "source", Directory({b"tool": File(b"x"), b"common": Directory({})}))
    os.chmod(tmp_path / "source/tool", 0o6755)
    os.chmod(tmp_path / "source/common", 0o3777)
    copy_in(tmp_path / "source", sandbox.fd, b"work")
    assert stat.S_IMODE((sandbox.path / "work/tool").stat().st_mode) == 0o755
    assert stat.S_IMODE((sandbox.path / "work/common").stat().st_mode) == 0o1777


@pytest.mark.parametrize("umask", [0o000, 0o022, 0o077])
@pytest.mark.parametrize("gives", [None, "rwxr-x---"])
def test_modes_travel_whatever_the_umask_and_the_directory_take_from_them(
    sandbox: Sandbox, tmp_path: Path, in_child: Callable[[Callable[[], None]], None], umask: int, gives: str | None
) -> None:
    modes = [mode | READABLE for mode in (0o000, 0o400, 0o600, 0o640, 0o644, 0o664, 0o666, 0o755, 0o777)]
    files: dict[bytes, Node] = {b"%03o-%d" % (mode, number): File(b"x", mode) for mode in modes for number in range(3)}
    make(tmp_path / "source", Directory({b"d": Directory(files, 0o775), **files}, 0o775))
    if gives is not None:
        # An access list for what is made inside, as setfacl -d writes it; where there are none, none takes anything.
        entries = [(0x01, 0o7, -1), (0x04, 0o5, -1), (0x20, 0o0, -1)]
        packed = struct.pack("<I", 2) + b"".join(struct.pack("<HHi", *entry) for entry in entries)
        with contextlib.suppress(OSError):
            os.setxattr(sandbox.path, "system.posix_acl_default", packed)

    def copy() -> None:
        os.umask(umask)
        copy_in(tmp_path / "source", sandbox.fd, b"work")

    in_child(copy)
    assert look(sandbox.path / "work") == look(tmp_path / "source")
