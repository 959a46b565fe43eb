"""The texts that the far side runs, in the shells that it may have: dash, bash and BusyBox's, as root and as a user."""

from __future__ import annotations

import io
import os
import shutil
import stat
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from host.tests.sync.trees import Directory, File, Link, Seen, look, make
from sandport.sync.copy import Bounds
from sandport.sync.meter import Meter
from sandport.sync.pack import pack_file, pack_tree
from sandport.sync.tar_format import Dialect
from sandport.sync.tar_write import TarWriter
from sandport.transfer import script
from sandport.transfer.tree_archive import TREE, TreeArchive

SCRATCH = b".sandport-0123456789abcdef"
TOOLS = ("tar", "mv", "mkdir", "rm", "chmod", "cat", "wc", "find", "xargs", "rmdir", "readlink")
NOBODY = 65534

EVERY_BYTE = bytes(byte for byte in range(1, 256) if byte != ord("/"))

RICH = Directory(
    {
        b"file": File(b"content", 0o640),
        EVERY_BYTE[:127]: File(b"low", 0o757),
        EVERY_BYTE[127:]: Directory({b"\xff\n": File(b"deep")}, 0o711),
        b"-rf": File(b"x", 0o600),
        b"*": Directory({b"[x]": File()}),
        b"shut": Directory({b"in": File(b"", 0o444), b"sub": Directory({}, 0o500)}, 0o555),
        b"link": Link(b"/nowhere"),
        b"..x": File(),
        b".hidden": Directory({}, 0o1777),
    },
    0o750,
)


class Shell:
    """One of the shells, with tools of its own kind."""

    def __init__(self, name: str, folder: Path) -> None:
        self.dialect = Dialect.PAX
        self.program = shutil.which(name) or ""
        self.path = os.environ["PATH"]
        if name == "busybox":
            self.dialect = Dialect.PLAIN
            for tool in ("sh", *TOOLS):
                (folder / tool).symlink_to(self.program)
            self.program, self.path = str(folder / "sh"), str(folder)

    def run(self, text: str, where: Path, stdin: bytes = b"", *, user: int | None = None) -> tuple[int, bytes, bytes]:
        """Exit code, stdout, stderr."""
        done = subprocess.run(
            [self.program, "-c", text],
            cwd=where,
            input=stdin,
            env={"PATH": self.path},
            capture_output=True,
            check=False,
            user=user,
            group=user,
            extra_groups=[] if user is not None else None,
        )
        return done.returncode, done.stdout, done.stderr

    def seen(self, path: Path | bytes) -> Seen:
        """What this shell's tar can keep of a tree."""
        seen = look(path)
        if self.dialect is Dialect.PAX:
            return seen
        return {
            at: ("link", what[1]) if what[0] == "link" else (*what[:2], int(str(what[2])) // 10**9, *what[3:])
            for at, what in seen.items()
        }

    def packed(self, path: Path) -> bytes:
        """The archive of a file or a tree."""
        out = io.BytesIO()
        meter = Meter(None, None)
        fd = os.open(path, os.O_RDONLY)
        try:
            if path.is_dir():
                with TreeArchive(out, dialect=self.dialect, inner=self.dialect) as archive:
                    pack_tree(fd, archive, prefix=TREE, with_top=True, meter=meter, bounds=Bounds())
            else:
                writer = TarWriter(out, dialect=self.dialect)
                pack_file(fd, b"f", writer, mode=None, meter=meter, path=b"")
        finally:
            os.close(fd)
        return out.getvalue()


@pytest.fixture(params=["dash", "bash", "busybox"])
def shell(request: pytest.FixtureRequest) -> Iterator[Shell]:
    """Each shell that this machine has."""
    if shutil.which(request.param) is None:
        pytest.skip(f"no {request.param} on this machine")
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o755)
        yield Shell(request.param, Path(folder))


@pytest.fixture
def place() -> Iterator[Path]:
    """A folder that any user may write to."""
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o777)
        yield Path(folder)
        subprocess.run(["chmod", "-R", "u+rwx", folder], check=True)


def put(names: list[bytes], *, replace: bool = False) -> str:
    """The text that takes a tree from its input."""
    return script.place_tree(SCRATCH, names, "", replace=replace, unpack=True)


@pytest.mark.parametrize("user", [None, NOBODY])
def test_a_tree_is_put_in_its_place(shell: Shell, place: Path, tmp_path: Path, user: int | None) -> None:
    if os.geteuid() and user is not None:
        user = None  # it is a user anyway
    make(tmp_path / "source", RICH)
    archive, wanted = shell.packed(tmp_path / "source"), shell.seen(tmp_path / "source")
    top = place / "to"
    for names in ([b"to"], [b"to"], [b"deep", b"er'", b"\xffn\n"], []):
        assert shell.run(put(names), place, archive, user=user) == (0, b"", b""), names
        there = shell.seen(os.path.join(os.fsencode(place), *names))
        assert {at: what for at, what in there.items() if at in wanted and at} == {k: v for k, v in wanted.items() if k}
        assert stat.S_IMODE(top.stat().st_mode) == 0o750
    assert shell.run(put([b"to"], replace=True), place, archive, user=user) == (0, b"", b"")
    assert shell.seen(top) == wanted
    assert not list(place.rglob(".sandport-*"))


def test_what_a_killed_copy_left_goes_after_a_day(shell: Shell, place: Path, tmp_path: Path) -> None:
    make(tmp_path / "source", Directory({b"f": File(b"x")}))
    day_s = 86400
    ages = {".sandport-00000000000000aa": 2 * day_s, ".sandport-00000000000000ab": day_s // 2, ".sandport-x": 2 * day_s}
    ages["aside"] = 2 * day_s
    for name, age_s in ages.items():
        make(place / name, Directory({b"d": Directory({b"f": File(b"x")}), b".sandport-00000000000000aa": File()}))
        os.utime(place / name, (time.time() - age_s,) * 2)
    code, _, stderr = shell.run(put([b"new"]), place, shell.packed(tmp_path / "source"))
    assert (code, stderr) == (0, b"")
    assert set(os.listdir(place)) == {*ages, "new"} - {".sandport-00000000000000aa"}
    assert (place / "aside" / ".sandport-00000000000000aa").exists()


def test_what_the_target_has_beside_stays(shell: Shell, place: Path, tmp_path: Path) -> None:
    make(tmp_path / "source", Directory({b"a": Directory({b"new": File(b"n")}, 0o711), b"b": File(b"b")}))
    make(place / "to", Directory({b"a": Directory({b"old": File(b"o")}, 0o700), b"b": Link(b"a"), b"c": File()}, 0o701))
    assert shell.run(put([b"to"]), place, shell.packed(tmp_path / "source"))[0] == 0
    assert {name.name for name in (place / "to/a").iterdir()} == {"new", "old"}
    assert stat.S_IMODE((place / "to/a").stat().st_mode) == 0o711
    assert stat.S_IMODE((place / "to").stat().st_mode) == 0o701
    assert ((place / "to/b").read_bytes(), (place / "to/b").is_symlink(), (place / "to/c").exists()) == (
        b"b",
        False,
        True,
    )


@pytest.mark.parametrize(
    ("there", "kind", "path"),
    [
        (Directory({b"a": Directory({b"b": Directory({})})}), b"busy", b"to/a/b"),
        (Directory({b"a": File()}), b"busy", b"to/a"),
        (Directory({b"a": Link(b"c"), b"c": Directory({})}), b"outside", b"to/a"),
        (Directory({b"c": File(), b"a": Directory({b"b": Directory({})})}), b"busy", b"to/a/b"),
    ],
)
def test_what_is_in_the_way_is_named_before_anything_is_moved(
    shell: Shell, place: Path, tmp_path: Path, there: Directory, kind: bytes, path: bytes
) -> None:
    make(tmp_path / "source", Directory({b"a": Directory({b"b": File()}), b"c": File(b"new"), b"0": File()}))
    make(place / "to", there)
    before = look(place / "to")
    code, out, said = shell.run(put([b"to"]), place, shell.packed(tmp_path / "source"))
    assert (code, out) == (90, b"")
    assert said == b"\nsandport " + SCRATCH + b" " + kind + b" " + path + b"\n"
    after = look(place / "to")
    assert {at: what for at, what in before.items() if at} == {at: what for at, what in after.items() if at}


@pytest.mark.parametrize("keep", [0, 512, 5000, -1500])
def test_a_cut_archive_puts_nothing_in_its_place(shell: Shell, place: Path, tmp_path: Path, keep: int) -> None:
    make(tmp_path / "source", RICH)
    archive = shell.packed(tmp_path / "source")
    code, _, said = shell.run(put([b"to"]), place, archive[:keep])
    assert code == 90
    assert said.splitlines()[-1].split()[2] in (b"cut", b"tar")
    assert os.listdir(place) == []


def test_a_signal_ends_it_and_its_scratch(shell: Shell, place: Path, tmp_path: Path) -> None:
    make(tmp_path / "source", RICH)
    running = subprocess.Popen(
        [shell.program, "-c", put([b"to"])],
        cwd=place,
        stdin=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={"PATH": shell.path},
        process_group=0,
    )
    assert running.stdin is not None
    running.stdin.write(shell.packed(tmp_path / "source")[:2000])
    running.stdin.flush()
    while not (place / os.fsdecode(SCRATCH)).exists():
        assert running.poll() is None
    os.killpg(running.pid, 15)
    _, said = running.communicate()
    assert (running.returncode, said.splitlines()[-1].split()[2]) in ((90, b"stopped"), (90, b"tar"))
    assert os.listdir(place) == []


def test_a_source_is_found_through_links_that_stay_below(shell: Shell, place: Path) -> None:
    make(
        place / "to",
        Directory(
            {
                b"file": File(b"content"),
                b"up": Link(b"../to"),
                b"out": Link(b"../../etc"),
                b"absolute": Link(b"/etc"),
                b"nothing": Link(b"nowhere"),
                b"line\n": Link(b"\xff\n"),
                b"\xff\n": Directory({b"x": File()}),
                b"round": Link(b"round"),
            }
        ),
    )
    top = os.fsencode(os.path.realpath(place))

    def find(path: bytes) -> tuple[int, bytes]:
        code, out, said = shell.run(script.find_source(SCRATCH, path), place)
        return code, out if not code else said.split()[2]

    assert find(b"to") == (0, b"d\n" + top + b"/to")
    assert find(b"to/up/up/file") == (0, b"f 4\nfile" + top + b"/to/file")
    assert find(b"to/line\n") == (0, b"d\n" + top + b"/to/\xff\n")
    assert find(b"to/line\n/x/.") == (0, b"f 1\nx" + top + b"/to/\xff\n/x")
    assert find(b".") == (0, b"d\n" + top)
    assert find(b"to/../to/") == (0, b"d\n" + top + b"/to")
    assert find(b"..") == find(b"to/out") == find(b"to/absolute") == find(b"to/../../x") == (90, b"outside")
    assert find(b"to/nothing") == find(b"to/file/x") == find(b"to/file/..") == find(b"to/no") == (90, b"missing")
    assert find(b"to/round") == (90, b"loop")


def test_a_file_never_stands_there_wider_than_it_may(shell: Shell, place: Path) -> None:
    (place / "there").write_bytes(b"before")
    (place / "there").chmod(0o666)
    text = script.write_file(SCRATCH, [b"new", b"secret"], mode=0o600, size_bytes=6)
    running = subprocess.Popen([shell.program, "-c", text], cwd=place, stdin=subprocess.PIPE, env={"PATH": shell.path})
    assert running.stdin is not None
    running.stdin.write(b"secret")
    running.stdin.flush()
    staged = place / "new" / os.fsdecode(SCRATCH)
    while not (staged / "f").exists() or not (staged / "f").stat().st_size:
        assert running.poll() is None
    assert stat.S_IMODE(staged.stat().st_mode) == 0o700
    assert stat.S_IMODE((staged / "f").stat().st_mode) == 0o600
    running.communicate()
    assert stat.S_IMODE((place / "new/secret").stat().st_mode) == 0o600
    text = script.write_file(SCRATCH, [b"there"], mode=0o640, size_bytes=5)
    code, _, said = shell.run(text, place, b"afte")
    assert (code, said.split()[2], (place / "there").read_bytes()) == (90, b"cut", b"before")
    assert shell.run(text, place, b"after") == (0, b"", b"")
    assert ((place / "there").read_bytes(), (place / "there").stat().st_mode & 0o777) == (b"after", 0o640)


WORDS = st.lists(st.binary(max_size=40).map(lambda word: word.replace(b"\0", b"0")), min_size=1, max_size=20)


@given(words=WORDS)
@example(words=[EVERY_BYTE, b"'", b"\n", b"\n\n", b"x", b"\xff\n", b"", b"-n", b"\\", b"$(exit 1)", b"`", b"%s"])
@settings(max_examples=30)
def test_any_bytes_are_a_word(words: list[bytes]) -> None:
    program = shutil.which("dash") or "sh"
    text = script._positional(words) + "printf '%s\\0' \"$@\"\n"
    done = subprocess.run([program, "-c", text], capture_output=True, check=True)
    assert done.stdout == b"".join(word + b"\0" for word in words)


def test_a_clean_up_finds_a_scratch_wherever_it_is(shell: Shell, place: Path) -> None:
    for where in ("", "a", "a/b", "a/b/c"):
        folder = place / where / os.fsdecode(SCRATCH)
        make_shut(folder)
    assert shell.run(script.clean_up(SCRATCH, [b"a", b"b", b"c", b"d"]), place)[0] == 0
    assert not list(place.rglob(".sandport-*"))
    assert (place / "a/b/c").is_dir()


def make_shut(folder: Path) -> None:
    """A scratch that is not easily removed."""
    (folder / "t" / "in").mkdir(parents=True)
    (folder / "t" / "in" / "file").write_bytes(b"")
    (folder / "t" / "in").chmod(0o500)
    (folder / "t").chmod(0o000)


def test_a_directory_that_is_shut_for_its_owner_is_filled_and_stays_shut(
    shell: Shell, place: Path, tmp_path: Path
) -> None:
    make(tmp_path / "source", Directory({b"a": Directory({b"new": File()}, 0o500)}))
    make(place / "to", Directory({b"a": Directory({b"old": File()}, 0o500)}, 0o555))
    user = None
    if os.geteuid() == 0:
        user = NOBODY
        subprocess.run(["chown", "-R", f"{NOBODY}:{NOBODY}", place / "to"], check=True)
    assert shell.run(put([b"to"]), place, shell.packed(tmp_path / "source"), user=user) == (0, b"", b"")
    assert {name.name for name in (place / "to/a").iterdir()} == {"new", "old"}
    modes = [stat.S_IMODE((place / name).stat().st_mode) for name in ("to", "to/a")]
    assert modes == [0o555, 0o500]
