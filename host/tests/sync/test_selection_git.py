"""The dialect is git's: what is left out of a tree is what git itself does not see in it."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from host.tests.sync.conftest import MEMORY
from sandport.sync.entries import DIRECTORY_END, DirectoryEntry, FileEntry
from sandport.sync.ledger import Ledger
from sandport.sync.scan import Scanner
from sandport.sync.selection import Selection, Verdict

# What names and patterns are made of: few enough that they meet.
LETTERS = [b"a", b"b", b"A", b".", b"-", b"]", b"[", b"!", b"#", b" ", b"\\", b"\xc3\xa9", b"\xff", b"*", b"\r", b"^"]
CLASSES = [
    b"[ab]", b"[!a]", b"[^b]", b"[a-b]", b"[]a]", b"[!]a]", b"[\\]a]", b"[a-]", b"[-a]", b"[", b"[a", b"[]",
    b"[[:alpha:]]", b"[[:punct:][:space:]]", b"[![:upper:]]", b"[[:nonsense:]]", b"[[:]", b"[[:a]", b"[a-\\b]",
    b"[\xff]", b"[b-a]", b"[a/b]",
]  # fmt: skip
PIECES = [b"a", b"b", *LETTERS[:4], b"*", b"*", b"?", b"\\", *CLASSES]


names = (
    st.lists(st.sampled_from(LETTERS), min_size=1, max_size=3)
    .map(b"".join)
    .filter(lambda name: name not in (b".", b".."))
)
simple_names = st.sampled_from([b"a", b"b", b"ab", b"a.b", b"aa", b"b.a"])
# Stars that do not stand alone between slashes are left out in twos: git's documents and its versions disagree there.
parts = st.one_of(
    simple_names,
    st.lists(st.sampled_from(PIECES), min_size=1, max_size=3).map(b"".join).filter(lambda part: b"**" not in part),
    st.just(b"**"),
)
patterns = st.builds(
    lambda bang, slash, middle, end, blank: bang + slash + b"/".join(middle) + end + blank,
    st.sampled_from([b"", b"", b"", b"!"]),
    st.sampled_from([b"", b"", b"/"]),
    st.lists(parts, min_size=1, max_size=3),
    st.sampled_from([b"", b"", b"/", b"/**", b"//"]),
    st.sampled_from([b"", b"", b"", b" ", b"\\ ", b"  ", b"\r", b"\t"]),
)
ignore_files = st.lists(patterns, max_size=6).map(b"\n".join)
trees = st.lists(
    st.tuples(st.lists(st.one_of(simple_names, names), min_size=1, max_size=4).map(tuple), st.booleans()), max_size=12
)


@pytest.fixture(scope="module")
def repository() -> Iterator[Path]:
    place = Path(tempfile.mkdtemp(prefix="selection-", dir=MEMORY))
    git(place, "init", "--quiet")
    yield place
    shutil.rmtree(place)


def git(place: Path, *arguments: str | bytes) -> bytes:
    """Git without this machine's settings."""
    env = {
        "PATH": os.environ["PATH"],
        "HOME": "/nonexistent",
        "GIT_CONFIG_NOSYSTEM": "1",
        "GIT_CONFIG_GLOBAL": "/dev/null",
    }
    done = subprocess.run(["git", "-C", place, *arguments], env=env, capture_output=True, check=True)
    return done.stdout


def seen_by_git(place: Path, *exclude: bytes) -> set[bytes]:
    """Every file that it would offer to add."""
    options = [b"--exclude=" + pattern for pattern in exclude]
    listed = git(place, "ls-files", "--others", "--exclude-standard", "-z", *options)
    return set(listed.split(b"\0")) - {b""}


def kept(place: Path, *, exclude: list[bytes], above: bool = False) -> set[bytes]:
    """Every file that a scan yields, but git's own."""
    patterns = [os.fsdecode(pattern) for pattern in exclude]
    selection = Selection.build(patterns, gitignore=True, above=above)
    root_fd = os.open(place, os.O_RDONLY | os.O_DIRECTORY)
    found, names, ledger = set(), [], Ledger()
    try:
        for entry in Scanner(root_fd, ledger, poll=lambda: None, selection=selection).entries():
            if isinstance(entry, DirectoryEntry):
                names.append(entry.name)
            elif entry is DIRECTORY_END:
                names.pop()
            else:
                assert isinstance(entry, FileEntry)
                found.add(b"/".join((*names, entry.name)))
        assert selection is not None
        assert not any(selection.matches(path, is_directory=False) for path in found), "by path as in the visit"
        for path in ledger.result().excluded_paths:
            is_directory = os.path.isdir(os.path.join(os.fsencode(place), path))
            assert selection.judge(path, is_directory=is_directory) is Verdict.EXCLUDED
    finally:
        os.close(root_fd)
    return {path for path in found if not path.startswith(b".git/")}


def fill(place: Path, tree: list[tuple[tuple[bytes, ...], bool]], ignored: dict[tuple[bytes, ...], bytes]) -> None:
    """Make files and folders as far as they go together, and ignore files in the folders there are."""
    top = os.fsencode(place)
    for path, is_folder in tree:
        *above, last = path
        try:
            os.makedirs(os.path.join(top, *above), exist_ok=True)
            if is_folder:
                os.mkdir(os.path.join(top, *path))
                last = b"f"
                above = list(path)
            with open(os.path.join(top, *above, last), "xb"):
                pass
        except (FileExistsError, NotADirectoryError):
            continue  # another path of the same tree has it as something else
    for where, content in ignored.items():
        folder = os.path.join(top, *where)
        if os.path.isdir(folder):
            with open(os.path.join(folder, b".gitignore"), "wb") as file:
                file.write(content)


def empty(place: Path) -> None:
    for name in os.listdir(place):
        if name != ".git":
            path = place / name
            shutil.rmtree(path) if path.is_dir() else path.unlink()


cases = st.tuples(
    trees, ignore_files, st.dictionaries(st.lists(simple_names, max_size=2).map(tuple), ignore_files, max_size=2)
)


@settings(max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(cases=st.lists(cases, min_size=8, max_size=8), outer=ignore_files, info=ignore_files, exclude=ignore_files)
def test_a_scan_leaves_out_what_git_ignores(
    repository: Path,
    cases: list[tuple[list[tuple[tuple[bytes, ...], bool]], bytes, dict[tuple[bytes, ...], bytes]]],
    outer: bytes,
    info: bytes,
    exclude: bytes,
) -> None:
    empty(repository)
    for number, (tree, own, nested) in enumerate(cases):
        where = repository / f"case{number}"
        where.mkdir()
        fill(where, tree, {**nested, (): own})
    (repository / ".gitignore").write_bytes(outer)
    (repository / ".git/info/exclude").write_bytes(info)
    assert kept(repository, exclude=[]) == seen_by_git(repository)
    wanted = [pattern for pattern in exclude.split(b"\n") if is_pattern(pattern)]
    assert kept(repository, exclude=wanted) == seen_by_git(repository, *wanted)
    for number in range(2):
        # Seen from below, the folders above count too; one that is named is copied even if they leave it out.
        source = repository / f"case{number}"
        (repository / ".gitignore").write_bytes(outer + b"\n!/case*/")
        (repository / ".git/info/exclude").write_bytes(b"")
        assert kept(source, exclude=[], above=True) == seen_by_git(source)


def is_pattern(pattern: bytes) -> bool:
    """Whether it is one that a caller may give: git takes those that can match nothing, and says nothing."""
    try:
        Selection.build([os.fsdecode(pattern)])
    except ValueError:
        return False
    return True
