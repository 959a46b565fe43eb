"""What a selection leaves out of a visit, what it does with ignore files that are an enemy's, and how links are
followed.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from host.tests.sync.trees import Directory, File, Link, make
from sandport.sync.entries import DIRECTORY_END, DirectoryEntry, Entry, FileEntry, LinkEntry
from sandport.sync.ledger import Ledger
from sandport.sync.result import SyncResult
from sandport.sync.scan import Scanner, measure
from sandport.sync.selection import IGNORE_FILE_BYTES, Selection, Verdict


def scanned(
    place: Path | bytes, selection: Selection | None = None, *, follow_symlinks: bool = False
) -> tuple[dict[bytes, Entry | bytes], SyncResult]:
    """Every path with its entry, of a file with what it holds; and what was noted."""
    ledger = Ledger()
    root_fd = os.open(place, os.O_RDONLY | os.O_DIRECTORY)
    found: dict[bytes, Entry | bytes] = {}
    names: list[bytes] = []
    try:
        scanner = Scanner(root_fd, ledger, poll=_go_on, selection=selection, follow_symlinks=follow_symlinks)
        for entry in scanner.entries():
            if isinstance(entry, DirectoryEntry):
                names.append(entry.name)
                found[b"/".join(names)] = entry
            elif entry is DIRECTORY_END:
                names.pop()
            elif isinstance(entry, FileEntry):
                found[b"/".join((*names, entry.name))] = os.read(scanner.descriptor, 100)
            elif isinstance(entry, LinkEntry):
                found[b"/".join((*names, entry.name))] = entry
        totals = measure(root_fd, poll=_go_on, selection=selection, follow_symlinks=follow_symlinks)
        denied = sum("permission" in notice.reason for notice in ledger.result().skipped)
        assert totals.files == denied + sum(isinstance(what, bytes) for what in found.values()), "as it is copied"
    finally:
        os.close(root_fd)
    return found, ledger.result()


def _go_on() -> None:
    return None


def chosen(*exclude: str, gitignore: bool = False) -> Selection | None:
    return Selection.build(exclude, gitignore=gitignore)


def test_without_a_wish_there_is_no_selection() -> None:
    assert Selection.build([]) is None


def test_a_directory_that_is_left_out_is_not_entered_and_counts_once(
    as_user: Callable[[Callable[[Path], None]], None],
) -> None:
    """NVIDIA/OpenShell#2920: what is not wanted must not be able to stop the rest."""

    def look(base: Path) -> None:
        make(base / "s", Directory({b"shut": Directory({b"f": File()}, 0o000), b"f": File(b"x"), b"g.log": File()}))
        found, result = scanned(base / "s", chosen("shut/", "*.log"))
        assert found == {b"f": b"x"}
        assert (result.excluded, set(result.excluded_paths)) == (2, {b"shut", b"g.log"})
        assert result.skipped == ()

    as_user(look)


def test_names_of_any_bytes_are_matched_as_bytes(tmp_path: Path) -> None:
    make(tmp_path / "s", Directory({b"\xff.o": File(), b"\xc3\xa9": File(), b"new\nline": File(), b"e": File()}))
    found, _ = scanned(tmp_path / "s", chosen("\udcff.*", "?", "new?line"))
    assert set(found) == {b"\xc3\xa9"}, "a question mark is one byte, as for git"


def test_a_later_pattern_takes_back_but_not_below_what_is_left_out(tmp_path: Path) -> None:
    below = Directory({b"a.log": File(), b"keep.log": File()})
    make(tmp_path / "s", Directory({b"logs": below, b"build": below, b".gitignore": File(b"*.log\nbuild/\n")}))
    found, _ = scanned(tmp_path / "s", chosen("!keep.log", gitignore=True))
    assert set(found) == {b".gitignore", b"logs", b"logs/keep.log"}


@pytest.mark.parametrize(
    ("patterns", "left_out"),
    [
        (["*.log", "!k*.log"], {b"a.log"}),
        (["!k*.log", "*.log"], {b"a.log", b"keep.log"}),
        (["*.log", "!k*", "keep.*"], {b"a.log", b"keep.log"}),
        (["a.log", "!*.log", "/k*"], {b"keep.log"}),
        (["/**", "!a.log"], {b"keep.log"}),
    ],
)
def test_the_last_pattern_that_speaks_of_a_name_decides(
    tmp_path: Path, patterns: list[str], left_out: set[bytes]
) -> None:
    make(tmp_path / "s", Directory({b"a.log": File(), b"keep.log": File()}))
    _, result = scanned(tmp_path / "s", chosen(*patterns))
    assert set(result.excluded_paths) == left_out


def test_a_file_further_down_comes_before_one_above_it_also_where_the_caller_s_patterns_are_far_away(
    tmp_path: Path,
) -> None:
    below = Directory({b".gitignore": File(b"!k.o\n"), b"k.o": File(), b"x.o": File()})
    make(tmp_path / "s", Directory({b"sub": below, b".gitignore": File(b"*.o\n")}))
    found, _ = scanned(tmp_path / "s", chosen("/elsewhere/y", gitignore=True))
    assert set(found) == {b".gitignore", b"sub", b"sub/.gitignore", b"sub/k.o"}


def test_git_s_own_folder_is_copied_unless_it_is_left_out(tmp_path: Path) -> None:
    make(tmp_path / "s", Directory({b".git": Directory({b"HEAD": File()}), b"f": File()}))
    assert set(scanned(tmp_path / "s", chosen(gitignore=True))[0]) == {b".git", b".git/HEAD", b"f"}
    assert set(scanned(tmp_path / "s", chosen(".git"))[0]) == {b"f"}


@pytest.mark.parametrize("pattern", ["", "/", "!", "a\\", "[a", "a//b", "a\0b", "./build", "../x", "."])
def test_a_pattern_that_can_match_nothing_is_refused(pattern: str) -> None:
    with pytest.raises(ValueError, match="exclude"):
        Selection.build([pattern])


def test_ignore_files_that_cannot_be_read_are_reported_and_the_rest_counts(
    as_user: Callable[[Callable[[Path], None]], None],
) -> None:
    def look(base: Path) -> None:
        nested = {
            b"shut": Directory({b".gitignore": File(b"*", 0o000), b"x": File()}),
            b"long": Directory({b".gitignore": File(b"*" * (IGNORE_FILE_BYTES + 1)), b"x": File()}),
            b"link": Directory({b".gitignore": Link(b"../all"), b"x": File()}),
            b"folder": Directory({b".gitignore": Directory({}), b"x": File()}),
        }
        make(base / "s", Directory({**nested, b"all": File(b"*"), b".gitignore": File(b"*.o"), b"f.o": File()}))
        os.mkfifo(base / "s/.gitignore.fifo")
        found, result = scanned(base / "s", chosen(gitignore=True))
        assert {path for path in found if path.endswith(b"x")} == {name + b"/x" for name in nested}
        assert b"f.o" not in found
        reasons = {notice.path: notice.reason for notice in result.skipped if b"do not count" in notice.reason.encode()}
        assert set(reasons) == {name + b"/.gitignore" for name in (b"shut", b"long", b"link")}
        assert "128 KiB" in reasons[b"long/.gitignore"]
        assert "symbolic link" in reasons[b"link/.gitignore"]

    as_user(look)


def test_a_fifo_in_place_of_an_ignore_file_holds_up_nothing(tmp_path: Path) -> None:
    make(tmp_path / "s", Directory({b"f": File()}))
    os.mkfifo(tmp_path / "s/.gitignore")
    assert set(scanned(tmp_path / "s", chosen(gitignore=True))[0]) == {b"f"}


def test_patterns_made_to_take_for_ever_do_not(tmp_path: Path) -> None:
    """A translation to backtracking expressions takes minutes for five stars, and nobody can interrupt it."""
    make(tmp_path / "s", Directory({b"a" * 255: File(), b"d" * 200: Directory({b"a" * 255: File()})}))
    stars = b"*a" * 100 + b"b"
    lines = [stars, b"**/" * 100 + stars, b"[a-z]*" * 100 + b"!", b"/" + b"?*" * 120 + b"/*" * 50]
    (tmp_path / "s/.gitignore").write_bytes(b"\n".join(lines))
    assert len(scanned(tmp_path / "s", chosen(gitignore=True))[0]) == 4


def test_too_many_ignore_files_above_a_name_are_reported(deep_place: Path) -> None:
    place = deep_place / "s"
    place.mkdir()
    for number in range(70):
        (place / ".gitignore").write_bytes(b"f%d\n" % number)
        place /= "d"
        place.mkdir()
    for number in (5, 69):
        (place / f"f{number}").touch()
    found, result = scanned(deep_place / "s", chosen(gitignore=True))
    assert {os.path.basename(path) for path in found if b"/f" in path} == {b"f69"}
    assert result.skipped_count == 6
    assert "too many patterns or ignore files" in result.skipped[0].reason


def test_a_file_of_nothing_but_patterns_does_not_count(tmp_path: Path) -> None:
    """Compiled, they take a hundred times the memory of the file."""
    make(tmp_path / "s", Directory({b".gitignore": File(b"?*\n" * 9_000), b"f": File()}))
    found, result = scanned(tmp_path / "s", chosen(gitignore=True))
    assert b"f" in found
    assert "too many patterns" in result.skipped[0].reason


def test_patterns_follow_a_tree_of_thousands_of_levels(deep_place: Path) -> None:
    make(deep_place / "s", Directory({b".gitignore": File(b"/d/**/deep\nd/d/x\n*.log\n")}))
    fd = os.open(deep_place / "s", os.O_RDONLY)
    for _ in range(2_500):
        os.mkdir("d", dir_fd=fd)
        below = os.open("d", os.O_RDONLY, dir_fd=fd)
        os.close(fd)
        fd = below
    os.close(os.open("a.log", os.O_CREAT | os.O_WRONLY, dir_fd=fd))
    os.close(fd)
    found, result = scanned(deep_place / "s", chosen(gitignore=True))
    assert (len(found), result.excluded) == (2_501, 1)


def test_members_of_an_archive_are_judged_by_the_ignore_files_among_them() -> None:
    selection = Selection.build(["*.tmp"], gitignore=True)
    assert selection is not None
    assert selection.wants(b"a/.gitignore")
    assert selection.wants(b".git/info/exclude")
    assert not selection.wants(b"a/.git/info/exclude")
    assert selection.learn(b"a/.gitignore", b"/b/\n!c.log\n")
    assert selection.learn(b".gitignore", b"*.log\n")
    assert selection.learn(b".git/info/exclude", b"secret\n")
    expected = {
        b"./x.log": Verdict.EXCLUDED,
        b"a/c.log": Verdict.KEPT,
        b"a/b/f": Verdict.BELOW,
        b"c/b/f": Verdict.KEPT,
        b"secret": Verdict.EXCLUDED,
        b"a/x.tmp/f": Verdict.BELOW,
        b".": Verdict.KEPT,
    }
    for _ in range(2):
        assert {path: selection.judge(path, is_directory=False) for path in expected} == expected
        expected = dict(reversed(expected.items()))
    assert selection.judge(b"a/b", is_directory=True) is Verdict.EXCLUDED
    assert selection.matches(b"a/b/f", is_directory=False)


# Links that are followed


def test_links_that_are_followed_bring_what_they_lead_to(tmp_path: Path) -> None:
    make(tmp_path / "outside", Directory({b"f": File(b"far"), b"d": Directory({b"g": File(b"deep")})}))
    links = {b"file": Link(b"../outside/f"), b"folder": Link(b"../outside"), b"near": Link(b"own")}
    make(tmp_path / "s", Directory({**links, b"own": File(b"own")}))
    found, result = scanned(tmp_path / "s", follow_symlinks=True)
    files = {path: what for path, what in found.items() if isinstance(what, bytes)}
    assert files == {
        b"file": b"far",
        b"near": b"own",
        b"own": b"own",
        b"folder/f": b"far",
        b"folder/d/g": b"deep",
    }
    assert result.skipped == ()
    found, _ = scanned(tmp_path / "s", chosen("folder/"), follow_symlinks=True)
    assert set(found) == {b"file", b"near", b"own"}, "a link to a folder counts as the folder that it becomes"
    found, _ = scanned(tmp_path / "s", chosen("folder/"))
    assert b"folder" in found, "a link that stays one is no folder"


def test_links_to_nothing_stay_links_and_are_reported(tmp_path: Path) -> None:
    links = {b"gone": b"nowhere", b"under": b"f/x", b"self": b"self", b"ping": b"pong", b"pong": b"ping"}
    make(tmp_path / "s", Directory({**{name: Link(target) for name, target in links.items()}, b"f": File()}))
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "s/special").symlink_to("../fifo")
    found, result = scanned(tmp_path / "s", follow_symlinks=True)
    assert {path for path, what in found.items() if isinstance(what, LinkEntry)} == set(links)
    reasons = {notice.path: notice.reason for notice in result.skipped}
    assert set(reasons) == {*links, b"special"}
    assert "kept as a link" in reasons[b"gone"]
    assert "circle" in reasons[b"ping"]
    assert "FIFO" in reasons[b"special"]


def test_a_circle_of_directories_is_reported_and_entered_once(tmp_path: Path) -> None:
    make(tmp_path / "s", Directory({b"d": Directory({b"up": Link(b".."), b"here": Link(b"."), b"f": File()})}))
    make(tmp_path / "t", Directory({b"back": Link(b"../s")}))
    (tmp_path / "s/d/far").symlink_to("../../t")
    found, result = scanned(tmp_path / "s", follow_symlinks=True)
    assert set(found) == {b"d", b"d/f", b"d/far"}
    assert {notice.path for notice in result.skipped} == {b"d/up", b"d/here", b"d/far/back"}
    assert all("leads back" in notice.reason for notice in result.skipped)


def test_the_way_back_up_is_found_through_followed_links(deep_place: Path) -> None:
    """Forty levels are more than stay open, and the parent of what a link leads to is not where the walk came from."""
    (deep_place / "s").mkdir()
    place = deep_place / "s"
    for number in range(40):
        away = deep_place / f"away{number}"
        away.mkdir()
        (place / "link").symlink_to(away)
        (place / "zz").mkdir()
        (place / "zz/f").touch()
        place = away
    found, result = scanned(deep_place / "s", follow_symlinks=True)
    assert sum(path.endswith(b"zz/f") for path in found) == 40
    assert result.changed == ()


def test_a_listing_whose_files_cannot_be_looked_at_stops_no_count(
    as_user: Callable[[Callable[[Path], None]], None],
) -> None:
    """NVIDIA/OpenShell#2920: outwards the tree is counted first, and a folder that may not be searched broke that."""

    def look(base: Path) -> None:
        make(base / "s", Directory({b"listed": Directory({b"f": File()}, 0o444), b"g": File(b"x")}))
        root_fd = os.open(base / "s", os.O_RDONLY)
        assert measure(root_fd, poll=_go_on, max_bytes=10).files == 1
        os.close(root_fd)

    as_user(look)
