"""Where a copy goes, and what it says when that is not possible."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from host.tests.sync.conftest import Sandbox
from host.tests.sync.trees import Directory, File, Link, Node, look, make, names_below
from sandport.sync import (
    HostPath,
    PathOutsideRootError,
    SourceMissingError,
    SyncError,
    TargetBusyError,
    copy_in,
    copy_out,
)


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.lstat().st_mode)


@pytest.mark.parametrize(
    ("destination", "arrives_at"),
    [
        (b"new.txt", "new.txt"),
        (b"a/b/new.txt", "a/b/new.txt"),
        (b"./a//b/./new.txt", "a/b/new.txt"),
        (b"fresh/", "fresh/file.txt"),
        (b"there", "there/file.txt"),
        (b"there/", "there/file.txt"),
        (b".", "file.txt"),
        (b"", "file.txt"),
    ],
)
def test_a_file_goes_to_the_name_or_into_the_directory(
    sandbox: Sandbox, tmp_path: Path, destination: bytes, arrives_at: str
) -> None:
    (tmp_path / "file.txt").write_bytes(b"text")
    (sandbox.path / "there").mkdir()
    copy_in(tmp_path / "file.txt", sandbox.fd, destination)
    assert (sandbox.path / arrives_at).read_bytes() == b"text"


@pytest.mark.parametrize(
    ("target", "arrives_at"),
    [
        ("new.txt", "new.txt"),
        ("a/b/new.txt", "a/b/new.txt"),
        ("fresh/", "fresh/file.txt"),
        ("there", "there/file.txt"),
        ("there/", "there/file.txt"),
        ("link", "there/file.txt"),
        (".", "file.txt"),
    ],
)
def test_a_file_comes_out_to_the_name_or_into_the_directory(
    sandbox: Sandbox, tmp_path: Path, target: str, arrives_at: str
) -> None:
    (sandbox.path / "file.txt").write_bytes(b"text")
    (tmp_path / "there").mkdir()
    (tmp_path / "link").symlink_to("there")
    copy_out(sandbox.fd, b"file.txt", os.path.join(tmp_path, target))
    assert (tmp_path / arrives_at).read_bytes() == b"text"


def test_paths_may_be_text_bytes_or_path_objects(sandbox: Sandbox, tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(b"1")
    sources: list[HostPath] = [tmp_path / "f", str(tmp_path / "f"), os.fsencode(tmp_path / "f")]
    for number, source in enumerate(sources):
        copy_in(source, sandbox.fd, b"f%d" % number)
    targets: list[HostPath] = [tmp_path / "b0", str(tmp_path / "b1"), os.fsencode(tmp_path / "b2")]
    for number, target in enumerate(targets):
        copy_out(sandbox.fd, b"f%d" % number, target)
    assert [(tmp_path / f"b{number}").read_bytes() for number in range(3)] == [b"1", b"1", b"1"]


def test_a_link_that_the_user_names_is_followed_at_the_top_only(sandbox: Sandbox, tmp_path: Path) -> None:
    make(tmp_path / "tree", Directory({b"f": File(b"text"), b"l": Link(b"f")}))
    (tmp_path / "to-tree").symlink_to("tree")
    (tmp_path / "to-file").symlink_to("tree/f")
    copy_in(tmp_path / "to-tree", sandbox.fd, b"tree")
    copy_in(tmp_path / "to-file", sandbox.fd, b"into/")
    assert look(sandbox.path / "tree") == look(tmp_path / "tree")
    assert (sandbox.path / "into/to-file").read_bytes() == b"text"
    assert not (sandbox.path / "into/to-file").is_symlink()


def test_the_working_directory_itself_can_be_the_place(sandbox: Sandbox, tmp_path: Path) -> None:
    make(tmp_path / "tree", Directory({b"d": Directory({b"f": File(b"text")})}))
    copy_in(tmp_path / "tree", sandbox.fd, b".")
    assert names_below(sandbox.path) == {b"d", b"d/f"}
    copy_out(sandbox.fd, b".", tmp_path / "back")
    assert names_below(tmp_path / "back") == {b"d", b"d/f"}


def test_a_directory_that_is_there_keeps_its_mode_its_time_is_the_systems_and_nothing_is_deleted(
    sandbox: Sandbox, tmp_path: Path
) -> None:
    make(tmp_path / "mine", Directory({b"kept": File(b"mine"), b"sub": Directory({b"kept": File(b"mine")})}, 0o750))
    make(sandbox.path / "out", Directory({b"new": File(b"new"), b"sub": Directory({b"new": File(b"new")})}, 0o777))
    copy_out(sandbox.fd, b"out", tmp_path / "mine")
    assert names_below(tmp_path / "mine") == {b"kept", b"new", b"sub", b"sub/kept", b"sub/new"}
    assert mode_of(tmp_path / "mine") == 0o750
    assert mode_of(tmp_path / "mine/sub") == 0o755


def test_a_link_in_a_files_place_is_replaced_and_never_written_through(sandbox: Sandbox, tmp_path: Path) -> None:
    """bytedance/deer-flow#5578, bytedance/deer-flow#2623: a planted link led an upload onto the host."""
    (tmp_path / "outside").write_bytes(b"precious")
    make(sandbox.path / "out", Directory({b"report": File(b"new")}))
    make(tmp_path / "target", Directory({b"report": Link(os.fsencode(tmp_path / "outside"))}))
    copy_out(sandbox.fd, b"out", tmp_path / "target")
    (sandbox.path / "planted").symlink_to(tmp_path / "outside")
    (tmp_path / "single").write_bytes(b"single")
    copy_in(tmp_path / "single", sandbox.fd, b"planted")
    assert (tmp_path / "outside").read_bytes() == b"precious"
    assert (tmp_path / "target/report").read_bytes() == b"new"
    assert not (tmp_path / "target/report").is_symlink()
    assert (sandbox.path / "planted").read_bytes() == b"single"


def test_a_link_to_a_directory_in_the_way_is_refused_on_both_sides(sandbox: Sandbox, tmp_path: Path) -> None:
    (tmp_path / "outside").mkdir()
    make(tmp_path / "source", Directory({b"sub": Directory({b"f": File(b"text")})}))
    (sandbox.path / "work").mkdir()
    (sandbox.path / "work/sub").symlink_to(tmp_path / "outside")
    with pytest.raises(PathOutsideRootError, match="symbolic link") as caught:
        copy_in(tmp_path / "source", sandbox.fd, b"work")
    assert caught.value.path == b"work/sub"
    for destination in (b"work/sub", b"work/sub/below", b"work/sub/below/"):
        with pytest.raises(PathOutsideRootError, match="symbolic link"):
            copy_in(tmp_path / "source", sandbox.fd, destination)
    make(sandbox.path / "out", Directory({b"sub": Directory({b"f": File(b"text")})}))
    make(tmp_path / "target", Directory({b"sub": Link(b"../outside")}))
    with pytest.raises(PathOutsideRootError, match="symbolic link") as caught:
        copy_out(sandbox.fd, b"out", tmp_path / "target")
    assert caught.value.path == os.fsencode(tmp_path / "target/sub")
    assert list((tmp_path / "outside").iterdir()) == []


def test_the_root_of_the_target_may_be_a_link_that_the_user_gave(sandbox: Sandbox, tmp_path: Path) -> None:
    make(sandbox.path / "out", Directory({b"f": File(b"text")}))
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    copy_out(sandbox.fd, b"out", tmp_path / "link")
    assert (tmp_path / "real/f").read_bytes() == b"text"
    assert (tmp_path / "link").is_symlink()


@pytest.mark.parametrize("source", [b"../outside", b"a/../../outside", b"/etc", b"..", b"up/outside", b"abs/passwd"])
def test_a_source_that_leads_out_of_the_sandbox_is_refused(sandbox: Sandbox, tmp_path: Path, source: bytes) -> None:
    (tmp_path / "outside").write_bytes(b"precious")
    make(sandbox.path / "a", Directory({}))
    (sandbox.path / "up").symlink_to("..")
    (sandbox.path / "abs").symlink_to("/etc")
    with pytest.raises(PathOutsideRootError):
        copy_out(sandbox.fd, source, tmp_path / "back")
    assert not (tmp_path / "back").exists()


@pytest.mark.parametrize("source", [b"latest", b"loop/latest", b"d/../latest", b"d/up/latest", b"x/latest"])
def test_links_in_a_source_are_resolved_as_long_as_they_stay_inside(
    sandbox: Sandbox, tmp_path: Path, source: bytes
) -> None:
    make(sandbox.path / "runs", Directory({b"7": Directory({b"report": File(b"text")})}))
    (sandbox.path / "latest").symlink_to("runs/./7")
    (sandbox.path / "loop").symlink_to("runs/../runs/..")
    make(sandbox.path / "d", Directory({b"up": Link(b"../x"), b"e": Directory({})}))
    (sandbox.path / "x").symlink_to("d/e/../..")
    copy_out(sandbox.fd, source, tmp_path / "back")
    assert (tmp_path / "back/report").read_bytes() == b"text"


def test_links_that_go_round_in_a_circle_end_in_an_error(sandbox: Sandbox, tmp_path: Path) -> None:
    (sandbox.path / "a").symlink_to("b")
    (sandbox.path / "b").symlink_to("a")
    with pytest.raises(SyncError, match="too many links"):
        copy_out(sandbox.fd, b"a", tmp_path / "back")
    make(tmp_path / "tree", Directory({b"a": Link(b"b"), b"b": Link(b"a"), b"c": Link(b".")}))
    assert copy_in(tmp_path / "tree", sandbox.fd, b"tree").links == 3


@pytest.mark.parametrize("destination", [b"/etc/x", b"../x", b"a/../../x", b"a/.."])
def test_a_destination_that_leads_out_is_refused(sandbox: Sandbox, tmp_path: Path, destination: bytes) -> None:
    (tmp_path / "f").write_bytes(b"")
    with pytest.raises(PathOutsideRootError):
        copy_in(tmp_path / "f", sandbox.fd, destination)


def test_a_missing_source_is_named(sandbox: Sandbox, tmp_path: Path) -> None:
    """docker/docker-py#2564: a missing path hung."""
    (tmp_path / "dangling").symlink_to("nowhere")
    (sandbox.path / "file").write_bytes(b"")
    with pytest.raises(SourceMissingError, match="missing' does not exist"):
        copy_in(tmp_path / "missing", sandbox.fd, b"x")
    with pytest.raises(SourceMissingError, match="link to something that does not exist"):
        copy_in(tmp_path / "dangling", sandbox.fd, b"x")
    for missing in (b"missing", b"missing/below", b"file/below"):
        with pytest.raises(SourceMissingError) as caught:
            copy_out(sandbox.fd, missing, tmp_path / "back")
        assert caught.value.path == missing
    assert not (tmp_path / "back").exists()


@pytest.mark.parametrize("node", [File(b"text"), Link(b"text")])
def test_a_directory_where_a_file_should_go_is_named_and_kept(
    sandbox: Sandbox, tmp_path: Path, node: File | Link
) -> None:
    make(tmp_path / "source", Directory({b"x": node}))
    make(sandbox.path / "work", Directory({b"x": Directory({b"kept": File()})}))
    with pytest.raises(TargetBusyError) as caught:
        copy_in(tmp_path / "source", sandbox.fd, b"work")
    assert caught.value.path == b"work/x"
    assert names_below(sandbox.path) == {b"work", b"work/x", b"work/x/kept"}


def test_a_file_where_a_directory_should_go_is_named_and_kept(sandbox: Sandbox, tmp_path: Path) -> None:
    make(sandbox.path / "out", Directory({b"x": Directory({b"f": File(b"text")})}))
    make(tmp_path / "target", Directory({b"x": File(b"kept")}))
    with pytest.raises(TargetBusyError) as caught:
        copy_out(sandbox.fd, b"out", tmp_path / "target")
    assert caught.value.path == os.fsencode(tmp_path / "target/x")
    for target in (tmp_path / "target/x", tmp_path / "target/x/y"):
        with pytest.raises(TargetBusyError):
            copy_out(sandbox.fd, b"out", target)
    (tmp_path / "single").write_bytes(b"")
    (sandbox.path / "file").write_bytes(b"kept")
    with pytest.raises(TargetBusyError):
        copy_in(tmp_path / "single", sandbox.fd, b"file/below")
    assert (tmp_path / "target/x").read_bytes() == b"kept"


def test_a_file_may_ask_for_a_mode(sandbox: Sandbox, tmp_path: Path) -> None:
    (tmp_path / "key").write_bytes(b"secret")
    os.chmod(tmp_path / "key", 0o644)
    copy_in(tmp_path / "key", sandbox.fd, b"key", mode=0o400)
    assert mode_of(sandbox.path / "key") == 0o400
    copy_out(sandbox.fd, b"key", tmp_path / "back", mode=0o755)
    assert mode_of(tmp_path / "back") == 0o755


@pytest.mark.parametrize("mode", [755, 644, 0o4755, -1])
def test_a_mode_written_in_decimal_is_refused_with_a_hint(sandbox: Sandbox, tmp_path: Path, mode: int) -> None:
    """crewAI#5756, and OpenSandbox's mode field: 755 was taken as decimal."""
    (tmp_path / "f").write_bytes(b"")
    with pytest.raises(ValueError, match="octal"):
        copy_in(tmp_path / "f", sandbox.fd, b"f", mode=mode)
    with pytest.raises(ValueError, match="octal"):
        copy_out(sandbox.fd, b"f", tmp_path / "back", mode=mode)


def test_a_mode_for_a_whole_tree_is_refused(sandbox: Sandbox, tmp_path: Path) -> None:
    make(tmp_path / "tree", Directory({}))
    with pytest.raises(ValueError, match="single file"):
        copy_in(tmp_path / "tree", sandbox.fd, b"tree", mode=0o600)
    with pytest.raises(ValueError, match="single file"):
        copy_out(sandbox.fd, b".", tmp_path / "back", mode=0o600)


@pytest.mark.parametrize("size", [10, 3 << 20])
@pytest.mark.parametrize("exists", [False, True])
def test_the_target_is_at_no_instant_wider_than_asked(
    sandbox: Sandbox, tmp_path: Path, size: int, exists: bool
) -> None:
    (tmp_path / "key").write_bytes(b"k" * size)
    if exists:
        (sandbox.path / "key").write_bytes(b"old")
        os.chmod(sandbox.path / "key", 0o600)
    widest: list[int] = []

    def look_at_modes() -> bool:
        widest.extend(mode_of(path) for path in sandbox.path.iterdir())
        return False

    copy_in(tmp_path / "key", sandbox.fd, b"key", mode=0o400, cancelled=look_at_modes)
    assert widest, "nothing was staged when the modes were looked at"
    assert all(mode & ~0o600 == 0 for mode in widest)
    assert mode_of(sandbox.path / "key") == 0o400


def test_a_directory_that_others_may_enter_is_narrowed_before_it_is_filled(sandbox: Sandbox, tmp_path: Path) -> None:
    make(tmp_path / "source", Directory({b"private": Directory({b"f": File(b"x" * 100_000)}, 0o700)}))
    make(sandbox.path / "work", Directory({b"private": Directory({}, 0o755)}))
    while_filled = set()

    def look_at_mode() -> bool:
        if any(name.name.startswith(".sandport-") for name in (sandbox.path / "work/private").iterdir()):
            while_filled.add(mode_of(sandbox.path / "work/private"))
        return False

    copy_in(tmp_path / "source", sandbox.fd, b"work", cancelled=look_at_mode)
    assert while_filled == {0o700}


def test_the_place_of_the_target_is_not_touched_when_it_can_be_written_as_it_is(
    sandbox: Sandbox,
) -> None:
    (sandbox.path / "f").write_bytes(b"x" * 100_000)
    os.chmod(sandbox.path, 0o500)
    may_write_anyway = os.access(sandbox.path, os.W_OK)
    modes = set()

    def look_at_mode() -> bool:
        modes.add(mode_of(sandbox.path))
        return False

    copy_out(sandbox.fd, b"f", sandbox.path / "copy", cancelled=look_at_mode)
    assert modes == ({0o500} if may_write_anyway else {0o500, 0o700})
    assert mode_of(sandbox.path) == 0o500
    os.chmod(sandbox.path, 0o700)


def test_a_directory_that_did_not_exist_is_closed_to_others_until_it_is_complete(
    sandbox: Sandbox, tmp_path: Path
) -> None:
    make(tmp_path / "source", Directory({b"d": Directory({b"f": File(b"x" * 100_000)}, 0o777)}, 0o777))
    while_filled = set()

    def look_at_modes() -> bool:
        for staged in sandbox.path.glob(".sandport-*"):
            while_filled.add(mode_of(staged))
        return False

    copy_in(tmp_path / "source", sandbox.fd, b"work", cancelled=look_at_modes)
    assert while_filled == {0o700}
    assert mode_of(sandbox.path / "work") == mode_of(sandbox.path / "work/d") == 0o777


def test_directories_shut_for_their_owner_are_filled_again_and_again(
    as_user: Callable[[Callable[[Path], None]], None],
) -> None:
    def copy(base: Path) -> None:
        assert os.geteuid() != 0
        shut: dict[bytes, Node] = {
            b"%03o" % mode: Directory({b"f": File(b"1")}, mode) for mode in (0o555, 0o500, 0o700)
        }
        make(base / "source", Directory(shut, 0o555))
        (base / "sandbox").mkdir()
        root_fd = os.open(base / "sandbox", os.O_RDONLY)
        for destination in (b"work", b"work", b"."):
            result = copy_in(base / "source", root_fd, destination)
            assert (result.files, result.skipped) == (3, ())
        assert mode_of(base / "sandbox/work") == 0o555
        assert [mode_of(base / "sandbox/work" / os.fsdecode(name)) for name in shut] == [0o555, 0o500, 0o700]
        # A target that its owner cannot even list is opened for him, and takes the source's mode.
        os.chmod(base / "sandbox/work", 0o755)
        os.chmod(base / "sandbox/work/700", 0o000)
        copy_in(base / "source", root_fd, b"work")
        assert mode_of(base / "sandbox/work/700") == 0o700
        # The top of a copy keeps its own mode, though it cannot be written into.
        (base / "shut").mkdir()
        os.chmod(base / "shut", 0o500)
        copy_out(root_fd, b"work/700", base / "shut")
        assert mode_of(base / "shut") == 0o500

    as_user(copy)


def test_new_directories_belong_to_the_group_that_the_target_is_shared_by(sandbox: Sandbox, tmp_path: Path) -> None:
    os.chmod(sandbox.path, 0o2755)
    make(tmp_path / "source", Directory({b"d": Directory({b"f": File()}, 0o750)}))
    for _ in range(2):
        copy_in(tmp_path / "source", sandbox.fd, b"work")
        assert [mode_of(sandbox.path / name) for name in ("work", "work/d")] == [0o2755, 0o2750]


def test_source_and_target_may_not_be_the_same_directory(sandbox: Sandbox) -> None:
    make(sandbox.path / "work", Directory({b"f": File(b"text")}))
    with pytest.raises(SyncError, match="same directory"):
        copy_in(sandbox.path / "work", sandbox.fd, b"work")
    with pytest.raises(SyncError, match="same directory"):
        copy_out(sandbox.fd, b"work", sandbox.path / "work")


@pytest.mark.parametrize("exists", [False, True])
def test_a_target_inside_the_source_is_not_copied_into_itself(sandbox: Sandbox, tmp_path: Path, exists: bool) -> None:
    (tmp_path / "f").write_bytes(b"text")
    if exists:
        (sandbox.path / "work").mkdir()
    result = copy_in(tmp_path, sandbox.fd, b"work")
    assert names_below(sandbox.path / "work") == {b"f", b"sandbox"}
    assert [notice.reason for notice in result.skipped] == (
        ["it is the target of this copy"] if exists else ["it is what a copy has staged there, or one that was killed"]
    )


def test_reserved_names_are_skipped_and_reported(sandbox: Sandbox, tmp_path: Path) -> None:
    make(
        tmp_path / "source", Directory({b".sandport-x": File(), b".sandport-": Directory({b"f": File()}), b"f": File()})
    )
    result = copy_in(tmp_path / "source", sandbox.fd, b"work")
    assert names_below(sandbox.path / "work") == {b"f"}
    assert {notice.path for notice in result.skipped} == {b".sandport-x", b".sandport-"}
    with pytest.raises(SyncError, match="reserved"):
        copy_in(tmp_path / "source/.sandport-x", sandbox.fd, b".")


def test_messages_show_strange_names_safely(sandbox: Sandbox, tmp_path: Path) -> None:
    with pytest.raises(SourceMissingError) as caught:
        copy_out(sandbox.fd, b"a\x1b[31m\n\xff" + b"/x" * 50_000, tmp_path / "back")
    message = str(caught.value)
    assert message.isprintable()
    assert len(message) < 1_000
    with pytest.raises(SyncError, match="NUL"):
        copy_out(sandbox.fd, b"a\0b", tmp_path / "back")
    with pytest.raises(SyncError, match="NUL"):
        copy_in(tmp_path, sandbox.fd, b"a\0b")


def test_a_source_that_is_not_there_is_told_with_nothing_done(tmp_path: Path) -> None:
    root_fd = os.open(tmp_path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        with pytest.raises(SourceMissingError) as here:
            copy_in(tmp_path / "gone", root_fd, b".")
        with pytest.raises(SourceMissingError) as there:
            copy_out(root_fd, b"gone", tmp_path / "target")
    finally:
        os.close(root_fd)
    assert (here.value.dispatched, there.value.dispatched) == ("no", "no")
    assert list(tmp_path.iterdir()) == []
