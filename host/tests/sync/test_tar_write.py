"""The archives that are written: what other programs and our own reader make of them, and what becomes of bad luck."""

from __future__ import annotations

import io
import os
import shutil
import socket
import tarfile
import tempfile
import threading
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from host.tests.sync.archives import pack_bytes, place_in_memory, read_all, run, to_seconds
from host.tests.sync.test_faithful import names, trees
from host.tests.sync.trees import Directory, File, Link, look, make, once
from sandport.sync.copy import Account, Bounds
from sandport.sync.errors import SyncCancelledError, SyncError
from sandport.sync.meter import Meter
from sandport.sync.mirror import KnownPaths
from sandport.sync.pack import pack_file, pack_tree
from sandport.sync.result import SyncProgress
from sandport.sync.selection import Selection
from sandport.sync.tar_format import LONGEST_PATH_BYTES, Dialect, Kind
from sandport.sync.tar_write import DescriptorSink, TarWriter

needs_busybox = pytest.mark.skipif(shutil.which("busybox") is None, reason="busybox is not installed")

MIB = 1 << 20

ODD = Directory(
    {
        b"-rf": File(b"dash"),
        b"\n": File(b"newline", 0o600),
        b"\xff\xfe": File(b"no text"),
        "ünï".encode(): File(b"text", 0o755),
        b"n" * 255: File(b"long"),
        b"d" * 200: Directory({b"e" * 200: Directory({b"f" * 200: File(b"deep")}, 0o700)}),
        b"empty": Directory({}, 0o1777),
        b"link": Link(b"t" * 300),
        b"dangling": Link(b"/no/where"),
        b"up": Link(b"../" * 40 + b"\xff"),
        b"hole": File(b"after", hole_before=3 * MIB),
        b"only": File(b"", hole_before=2 * MIB),
        b"100": File(b"x" * 512, mtime_ns=1),
        b"old": File(b"y" * 513, mtime_ns=0),
        b"x" * 100: Link(b"y" * 100),
    }
)


@settings(max_examples=30, deadline=None)
@given(trees(3))
@example(ODD)
@example(Directory({}))
def test_gnu_tar_unpacks_what_was_packed_to_the_nanosecond(tree: Directory) -> None:
    with place_in_memory() as base:
        make(base / "source", tree)
        archive, result = pack_bytes(base / "source")
        (base / "back").mkdir()
        run("tar", "-xp", "--no-same-owner", "-C", base / "back", stdin=archive)
        assert look(base / "back") == look(base / "source")
        assert (result.skipped, result.refused, result.changed) == ((), (), ())


@settings(max_examples=15, deadline=None)
@given(trees(2))
@example(ODD)
def test_gnu_tar_unpacks_the_plain_dialect_to_the_second(tree: Directory) -> None:
    with place_in_memory() as base:
        make(base / "source", tree)
        archive, _ = pack_bytes(base / "source", Dialect.PLAIN)
        (base / "back").mkdir()
        run("tar", "-xp", "--no-same-owner", "-C", base / "back", stdin=archive)
        assert look(base / "back") == to_seconds_back(base / "source")


def to_seconds_back(path: Path) -> dict[tuple[bytes, ...], tuple[object, ...]]:
    return {at: (*what[:2], what[2] * 10**9, *what[3:]) for at, what in to_seconds(look(path)).items()}  # type: ignore[operator]


@needs_busybox
@settings(max_examples=15, deadline=None)
@given(trees(2))
@example(ODD)
def test_busybox_unpacks_the_plain_dialect(tree: Directory) -> None:
    with place_in_memory() as base:
        make(base / "source", tree)
        archive, _ = pack_bytes(base / "source", Dialect.PLAIN)
        (base / "back").mkdir()
        run("busybox", "tar", "-xop", "-C", base / "back", stdin=archive)
        found, sent = look(base / "back"), to_seconds(look(base / "source"))
        assert found.keys() == sent.keys()
        for at, what in to_seconds(found).items():
            # busybox sets no times of links, and those of directories before it fills them.
            same = what == sent[at] if what[0] == "file" else what[:2] == sent[at][:2]
            assert same, (at, what, sent[at])


@pytest.mark.parametrize("dialect", Dialect)
def test_python_reads_what_was_packed(tmp_path: Path, dialect: Dialect) -> None:
    make(tmp_path / "source", ODD)
    archive, _ = pack_bytes(tmp_path / "source", dialect, with_top=False)
    sent = look(tmp_path / "source")
    with tarfile.open(fileobj=io.BytesIO(archive), encoding="utf-8") as reader:
        found = {tuple(os.fsencode(info.name).split(b"/")): info for info in reader}
        assert found.keys() == {at for at in sent if at}
        for at, info in found.items():
            what = sent[at]
            if what[0] == "file":
                content = reader.extractfile(info)
                assert content is not None
                assert (info.mode, content.read()) == (what[1], what[3])
            elif what[0] == "link":
                assert os.fsencode(info.linkname) == what[1]
            else:
                assert (info.isdir(), info.mode) == (True, what[1])


times = st.integers(-(10**18), 10**19) | st.integers(-(2**62) * 10**9, 2**62 * 10**9)
paths = st.lists(names, min_size=1, max_size=12).map(b"/".join)
targets = st.binary(min_size=1, max_size=300).map(lambda raw: raw.replace(b"\0", b"0"))


@settings(max_examples=150, deadline=None)
@given(st.sampled_from(Dialect), paths, st.integers(0, 0o7777), times, targets, st.binary(max_size=2000))
def test_what_the_writer_is_told_the_reader_tells(
    dialect: Dialect, path: bytes, mode: int, mtime_ns: int, target: bytes, content: bytes
) -> None:
    sink = io.BytesIO()
    writer = TarWriter(sink, dialect=dialect)
    with tempfile.TemporaryFile() as file:
        file.write(content)
        file.seek(0)
        writer.directory(path, mode, mtime_ns)
        writer.link(path, target, mtime_ns)
        assert writer.file(path, mode, len(content), mtime_ns, file.fileno()) == len(content)
    writer.end()
    kept_ns = mtime_ns if dialect is Dialect.PAX else mtime_ns // 10**9 * 10**9
    directory, link, whole = read_all(sink.getvalue())
    assert (directory.path.rstrip(b"/"), directory.kind, directory.mode) == (path.rstrip(b"/"), Kind.DIRECTORY, mode)
    assert (link.path, link.kind, link.link_target) == (path, Kind.LINK, target)
    assert (whole.path, whole.kind, whole.mode, whole.size_bytes) == (path, Kind.FILE, mode, len(content))
    assert {member.mtime_ns for member in (directory, link, whole)} == {kept_ns}
    assert sink.getvalue()[whole.data_offset :].startswith(content)
    assert len(sink.getvalue()) % 512 == 0


def test_sparse_files_stay_small_and_keep_their_length(tmp_path: Path) -> None:
    """E2B#1301: a 3 GiB sparse file must not cost its size."""
    source = tmp_path / "source"
    source.mkdir()
    sizes = {"end": 20 << 30, "data": 12 << 30, "none": 9 << 30, "tail": 5 * MIB}
    for name, size in sizes.items():
        with (source / name).open("wb") as file:
            file.truncate(size)
            if name == "end":
                file.seek(-4, os.SEEK_END)
                file.write(b"last")
            elif name == "data":
                file.seek(1 << 30)
                file.write(b"middle")
            elif name == "tail":
                file.write(b"first")
    archive, _ = pack_bytes(source)
    assert len(archive) < MIB
    assert {member.path: member.size_bytes for member in read_all(archive) if member.kind is Kind.FILE} == {
        name.encode(): size for name, size in sizes.items()
    }
    (tmp_path / "back").mkdir()
    run("tar", "-x", "-C", tmp_path / "back", stdin=archive)
    for name, size in sizes.items():
        status = (tmp_path / "back" / name).stat()
        assert (status.st_size, status.st_blocks < 100) == (size, True)
    with (tmp_path / "back/end").open("rb") as file:
        file.seek(-5, os.SEEK_END)
        assert file.read() == b"\0last"


def test_more_pieces_than_are_told_apart_arrive_with_the_last_holes_as_zeros(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sandport.sync.tar_write._MOST_EXTENTS", 3)
    (tmp_path / "source").mkdir()
    with (tmp_path / "source/f").open("wb") as file:
        for n in range(8):
            file.seek(n * MIB)
            file.write(os.urandom(5000))
    archive, _ = pack_bytes(tmp_path / "source")
    extents = read_all(archive)[-1].extents
    assert extents is not None
    assert len(extents) == 4
    (tmp_path / "back").mkdir()
    run("tar", "-x", "-C", tmp_path / "back", stdin=archive)
    assert (tmp_path / "back/f").read_bytes() == (tmp_path / "source/f").read_bytes()


@pytest.mark.parametrize("dialect", Dialect)
def test_numbers_past_the_octal_field_are_written_so_that_others_read_them(
    dialect: Dialect, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The ceiling comes down, because a file of more than 8 GiB without holes would be no test for every day.
    monkeypatch.setattr("sandport.sync.tar_write._LARGEST_OCTAL", 1000)
    sink = io.BytesIO()
    writer = TarWriter(sink, dialect=dialect)
    content = os.urandom(100_000)
    with tempfile.TemporaryFile() as file:
        file.write(content)
        file.seek(0)
        writer.file(b"big", 0o644, len(content), 1_600_000_000 * 10**9, file.fileno())
        writer.directory(b"old", 0o755, -5 * 10**9)
    writer.end()
    with tarfile.open(fileobj=io.BytesIO(sink.getvalue())) as reader:
        big, old = reader.getmembers()
        extracted = reader.extractfile(big)
        assert extracted is not None
        assert (big.size, big.mtime, extracted.read()) == (len(content), 1_600_000_000, content)
        assert old.mtime == -5
    run("tar", "-t", stdin=sink.getvalue())
    assert [(member.size_bytes, member.mtime_ns // 10**9) for member in read_all(sink.getvalue())] == [
        (len(content), 1_600_000_000),
        (0, -5),
    ]


@pytest.mark.parametrize("dialect", Dialect)
@pytest.mark.parametrize("size", [0, 1, 511, 512, 70_000, 3 * MIB + 7])
def test_a_file_that_shrank_is_filled_up_and_one_that_grew_is_cut(dialect: Dialect, size: int) -> None:
    """harbor's tar helper: a log that is appended to failed the whole upload."""
    for real in (max(size - 600, 0), size // 2, size + 5):
        content = os.urandom(real)
        sink = io.BytesIO()
        writer = TarWriter(sink, dialect=dialect)
        with tempfile.TemporaryFile() as file:
            file.write(content)
            file.seek(0)
            given = writer.file(b"f", 0o644, size, 10**18, file.fileno())
        writer.end()
        if size:
            assert given == min(real, size)
        else:
            assert bool(given) == bool(real), "a file that should be empty and is not shows"
        (member,) = read_all(sink.getvalue())
        assert member.size_bytes == size
        if member.extents is None:
            stored = sink.getvalue()[member.data_offset :][:size]
            assert stored == content[:size].ljust(size, b"\0")


@pytest.mark.parametrize("size", [10, MIB + 10, 4 * MIB])
def test_a_file_that_changes_while_it_is_packed_is_reported(tmp_path: Path, size: int) -> None:
    make(tmp_path / "source", Directory({b"log": File(os.urandom(3 * MIB))}))
    log = tmp_path / "source/log"
    before = log.read_bytes()
    fd = os.open(tmp_path / "source", os.O_RDONLY)
    sink = io.BytesIO()
    try:
        change = once(lambda: os.truncate(log, size))
        # The first question is asked before the file is opened, the second one after its first piece.
        asked: list[None] = []

        def cancelled() -> bool:
            asked.append(None)
            return len(asked) > 1 and change()

        result = pack_tree(fd, TarWriter(sink, dialect=Dialect.PAX), meter=Meter(cancelled, None), bounds=Bounds())
    finally:
        os.close(fd)
    assert [notice.path for notice in result.changed][:1] == [b"log"]
    (member,) = read_all(sink.getvalue())
    kept = min(max(size, MIB), 3 * MIB)
    assert sink.getvalue()[member.data_offset :][: member.size_bytes] == before[:kept].ljust(3 * MIB, b"\0")


@pytest.mark.parametrize("waits", [True, False])
@pytest.mark.parametrize("kind", ["pipe", "socket"])
def test_a_descriptor_gets_the_same_archive_as_a_buffer(tmp_path: Path, kind: str, waits: bool) -> None:
    tree = {b"big": File(os.urandom(3 * MIB)), b"hole": File(os.urandom(MIB), hole_before=MIB), b"small": File(b"s")}
    make(tmp_path / "source", Directory({**tree, **{b"%d" % n: File(os.urandom(60_000)) for n in range(20)}}))
    expected, _ = pack_bytes(tmp_path / "source")
    ends = socket.socketpair() if kind == "socket" else None
    reader, writer = (ends[0].detach(), ends[1].detach()) if ends else os.pipe()
    received = bytearray()

    def receive() -> None:
        while piece := os.read(reader, 1 << 16):
            received.extend(piece)

    taking = threading.Thread(target=receive)
    taking.start()
    fd = os.open(tmp_path / "source", os.O_RDONLY)
    try:
        os.set_blocking(writer, waits)
        archive = TarWriter(DescriptorSink(writer), dialect=Dialect.PAX)
        pack_tree(fd, archive, with_top=True, meter=Meter(None, None), bounds=Bounds())
    finally:
        os.close(writer)
        taking.join()
        os.close(reader)
        os.close(fd)
    assert archive.bytes_written == len(received)
    assert bytes(received) == expected


def test_a_sink_that_is_gone_says_so(tmp_path: Path) -> None:
    make(tmp_path / "source", Directory({b"big": File(os.urandom(3 * MIB))}))
    reader, writer = os.pipe()
    os.close(reader)
    fd = os.open(tmp_path / "source", os.O_RDONLY)
    try:
        with pytest.raises(BrokenPipeError):
            pack_tree(
                fd, TarWriter(DescriptorSink(writer), dialect=Dialect.PAX), meter=Meter(None, None), bounds=Bounds()
            )
    finally:
        os.close(writer)
        os.close(fd)


def test_packing_stops_when_the_caller_wants_it_between_pieces_too(tmp_path: Path) -> None:
    make(tmp_path / "source", Directory({b"big": File(os.urandom(3 * MIB))}))
    fd = os.open(tmp_path / "source", os.O_RDONLY)
    try:
        for asked in range(1, 4):
            answers = [False] * asked
            sink = io.BytesIO()
            meter = Meter(lambda left=answers: not left or left.pop(), None)  # type: ignore[misc]
            with pytest.raises(SyncCancelledError):
                pack_tree(fd, TarWriter(sink, dialect=Dialect.PAX), meter=meter, bounds=Bounds())
            assert len(sink.getvalue()) <= asked * MIB + 4096
    finally:
        os.close(fd)


def test_one_file_is_packed_under_the_name_and_with_the_mode_that_are_asked_for(tmp_path: Path) -> None:
    (tmp_path / "secret").write_bytes(b"text")
    fd = os.open(tmp_path / "secret", os.O_RDONLY)
    sink = io.BytesIO()
    try:
        result = pack_file(
            fd,
            b"other",
            TarWriter(sink, dialect=Dialect.PAX),
            mode=0o600,
            meter=Meter(None, None),
            path=b"secret",
        )
    finally:
        os.close(fd)
    (member,) = read_all(sink.getvalue())
    assert (member.path, member.mode, member.size_bytes) == (b"other", 0o600, 4)
    assert (result.files, result.total_bytes) == (1, 4)


def test_members_can_be_below_a_prefix(tmp_path: Path) -> None:
    make(tmp_path / "source", Directory({b"d": Directory({b"f": File(b"")})}, 0o711))
    fd = os.open(tmp_path / "source", os.O_RDONLY)
    sink = io.BytesIO()
    try:
        pack_tree(
            fd,
            TarWriter(sink, dialect=Dialect.PAX),
            prefix=b"t/",
            with_top=True,
            meter=Meter(None, None),
            bounds=Bounds(),
        )
    finally:
        os.close(fd)
    assert [(member.path, member.mode) for member in read_all(sink.getvalue())] == [
        (b"t/", 0o711),
        (b"t/d/", 0o755),
        (b"t/d/f", 0o644),
    ]


def test_what_is_left_out_and_what_links_lead_to_are_packed_as_they_are_copied(tmp_path: Path) -> None:
    below = Directory({b"f": File(b"1"), b"f.log": File(b"2"), b"l": Link(b"../real")})
    make(tmp_path / "source", Directory({b"d": below, b"real": File(b"3"), b"out": Directory({b"f": File(b"4")})}))
    account = Account(KnownPaths())
    fd = os.open(tmp_path / "source", os.O_RDONLY)
    sink = io.BytesIO()
    told: list[SyncProgress] = []
    try:
        result = pack_tree(
            fd,
            TarWriter(sink, dialect=Dialect.PAX),
            meter=Meter(None, told.append),
            bounds=Bounds(),
            account=account,
            selection=Selection.build(["*.log", "out/"]),
            follow_symlinks=True,
        )
    finally:
        os.close(fd)
    assert {(one.path, one.kind, one.size_bytes) for one in read_all(sink.getvalue())} == {
        (b"d/", Kind.DIRECTORY, 0),
        (b"d/f", Kind.FILE, 1),
        (b"d/l", Kind.FILE, 1),
        (b"real", Kind.FILE, 1),
    }
    assert set(result.excluded_paths) == {b"d/f.log", b"out"}
    assert (account.files, told[0].files_total, told[-1].files_done) == (3, 3, 3)


def test_a_path_that_no_archive_may_hold_is_refused() -> None:
    for dialect in Dialect:
        writer = TarWriter(io.BytesIO(), dialect=dialect)
        with pytest.raises(SyncError, match="longer than"):
            writer.directory(b"a/" * LONGEST_PATH_BYTES, 0o755, 0)
        with pytest.raises(SyncError, match="longer than"):
            writer.link(b"a", b"a/" * LONGEST_PATH_BYTES, 0)
