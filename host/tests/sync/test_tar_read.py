"""The reader of archives: the forms that it takes, and what it says of those that are cut off, broken or hostile."""

from __future__ import annotations

import io
import os
import tarfile
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from host.tests.sync.archives import END, header, member, pack_bytes, padded, pax, read_all, record, run
from host.tests.sync.trees import Directory, File, Link, make
from sandport.sync.errors import SyncError
from sandport.sync.tar_format import (
    LARGEST,
    LONGEST_PATH_BYTES,
    LONGEST_RECORDS_BYTES,
    MOST_EXTENTS,
    MOST_HEADERS,
    ArchiveBrokenError,
    ArchiveError,
    ArchiveTruncatedError,
    Dialect,
    Kind,
    Member,
)
from sandport.sync.tar_read import TarReader
from sandport.sync.tar_records import read_number

MIB = 1 << 20


def read_file(archive: bytes) -> list[Member]:
    """As the archive in a file is read, with jumps over data."""
    with tempfile.TemporaryFile() as file:
        file.write(archive)
        file.flush()
        return list(TarReader.of_file(file.fileno()).members())


def described(members: list[Member]) -> list[tuple[object, ...]]:
    return [
        (*[getattr(one, field) for field in one.__struct_fields__ if field != "extents"], list(one.extents or ()))
        for one in members
    ]


def data_of(archive: bytes, one: Member) -> bytes:
    stored = archive[one.data_offset :][: one.stored_bytes]
    if one.extents is None:
        return stored
    whole = bytearray(one.size_bytes)
    for offset, size in one.extents:
        whole[offset : offset + size] = stored[:size]
        stored = stored[size:]
    return bytes(whole)


# Forms


@pytest.mark.parametrize("form", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_what_python_writes_is_read(form: int) -> None:
    sink = io.BytesIO()
    long = "d/" * 40 + "f" * 90
    with tarfile.open(fileobj=sink, mode="w", format=form, encoding="utf-8") as writer:
        for name, kind, content, target in [
            ("plain", tarfile.REGTYPE, b"text", ""),
            (long, tarfile.REGTYPE, b"x" * 1000, ""),
            ("dir", tarfile.DIRTYPE, b"", ""),
            ("link", tarfile.SYMTYPE, b"", "t" * 90),
            ("hard", tarfile.LNKTYPE, b"", "plain"),
            ("fifo", tarfile.FIFOTYPE, b"", ""),
            ("device", tarfile.CHRTYPE, b"", ""),
        ]:
            info = tarfile.TarInfo(name)
            info.type, info.linkname, info.size, info.mtime, info.mode = kind, target, len(content), 12345, 0o640
            writer.addfile(info, io.BytesIO(content))
    archive = sink.getvalue()
    found = read_all(archive)
    assert [(one.path.rstrip(b"/").decode(), one.kind, one.link_target.decode()) for one in found] == [
        ("plain", Kind.FILE, ""),
        (long, Kind.FILE, ""),
        ("dir", Kind.DIRECTORY, ""),
        ("link", Kind.LINK, "t" * 90),
        ("hard", Kind.HARD_LINK, "plain"),
        ("fifo", Kind.FIFO, ""),
        ("device", Kind.DEVICE, ""),
    ]
    assert {(one.mode, one.mtime_ns) for one in found} == {(0o640, 12345 * 10**9)}
    assert [data_of(archive, one) for one in found[:2]] == [b"text", b"x" * 1000]


GNU_FORMS = [
    ["--format=v7"],
    ["--format=ustar"],
    ["--format=oldgnu", "-S"],
    ["--format=gnu", "-S"],
    ["--format=posix"],
    ["--format=posix", "-S", "--sparse-version=0.0"],
    ["--format=posix", "-S", "--sparse-version=0.1"],
    ["--format=posix", "-S", "--sparse-version=1.0"],
]


@pytest.mark.parametrize("form", GNU_FORMS, ids=" ".join)
def test_every_form_that_gnu_tar_writes_is_read(tmp_path: Path, form: list[str]) -> None:
    many_holes = b"".join(os.urandom(4096) + bytes(4096) for _ in range(60))
    contents = {
        b"plain": b"text",
        b"empty": b"",
        b"holes": bytes(MIB) + b"x" * 5000 + bytes(2 * MIB),
        b"only-a-hole": bytes(MIB),
        b"many": many_holes + bytes(MIB),
    }
    place = tmp_path / "source"
    make(place, Directory({b"d": Directory({b"e": File(b"e")}), b"l": Link(b"plain")}))
    for name, content in contents.items():
        with (place / os.fsdecode(name)).open("wb") as file:
            for at in range(0, len(content), 4096):
                if any(content[at : at + 4096]):
                    file.seek(at)
                    file.write(content[at : at + 4096])
            file.truncate(len(content))
    archive = run("tar", "-c", *form, "-C", place, ".")
    found = read_all(archive)
    by_path = {one.path.removeprefix(b"./").rstrip(b"/"): one for one in found}
    assert by_path.keys() == {b"", b"d", b"d/e", b"l", *contents}
    assert {name: data_of(archive, by_path[name]) for name in contents} == contents
    if "-S" in form:
        assert by_path[b"many"].extents is not None
        assert len(archive) < MIB
    assert (by_path[b"l"].kind, by_path[b"l"].link_target) == (Kind.LINK, b"plain")
    assert by_path[b"d"].kind is Kind.DIRECTORY
    assert described(read_file(archive)) == described(found)


def test_the_oldest_form_tells_a_directory_by_the_slash_at_the_end_of_its_name() -> None:
    old = {"magic": b"", "kind": b"\0"}
    archive = header(b"d/", **old) + header(b"d/f", **old, size=1) + padded(b"x") + END
    assert [(one.path, one.kind) for one in read_all(archive)] == [(b"d/", Kind.DIRECTORY), (b"d/f", Kind.FILE)]


def test_a_prefix_counts_in_ustar_and_not_in_gnus_form() -> None:
    archive = header(b"f", prefix=b"a/b") + header(b"f", prefix=b"a/b", magic=b"ustar  \0") + END
    assert [one.path for one in read_all(archive)] == [b"a/b/f", b"f"]


def test_long_names_come_before_their_member_and_records_win_over_them() -> None:
    path, target = b"p" * 300, b"t" * 300
    long = header(b"././@LongLink", b"L", size=301) + padded(path + b"\0")
    long_target = header(b"././@LongLink", b"K", size=301) + padded(target + b"\0")
    archive = long + long_target + header(b"short", b"2", target=b"short")
    archive += long + pax((b"path", b"records"), (b"linkpath", b"win")) + header(b"x", b"2", target=b"y")
    archive += header(b"after", b"2", target=b"all") + END
    assert [(one.path, one.link_target) for one in read_all(archive)] == [
        (path, target),
        (b"records", b"win"),
        (b"after", b"all"),
    ]


def test_records_for_all_members_hold_until_others_come_and_those_for_one_win() -> None:
    archive = pax((b"mtime", b"1"), (b"comment", b"of git"), kind=b"g") + member(b"a")
    archive += pax((b"mtime", b"2.5"), (b"unknown", b"\n\n=")) + member(b"b") + member(b"c")
    archive += pax((b"mtime", b"3"), kind=b"g") + member(b"d") + pax((b"mtime", b"")) + member(b"e", mtime=9) + END
    assert [one.mtime_ns for one in read_all(archive)] == [n * 10**8 for n in (10, 25, 10, 30, 90)]


def test_an_archive_of_nothing_but_a_record_for_all_is_whole() -> None:
    """What git makes of an empty tree."""
    assert read_all(pax((b"comment", b"0" * 40), kind=b"g") + END) == []
    assert read_all(pax((b"mtime", b"5"), kind=b"g") * 2 + END) == []


@pytest.mark.parametrize(
    ("text", "mtime_ns"),
    [
        (b"0", 0),
        (b"1600000000.123456789", 1_600_000_000_123_456_789),
        (b"1600000000.1234567891234", 1_600_000_000_123_456_789),
        (b"1.5", 1_500_000_000),
        (b"1.", 1_000_000_000),
        (b"-1.5", -1_500_000_000),
        (b"-0.000000001", -1),
        (b"%d" % LARGEST, LARGEST * 10**9),
    ],
)
def test_times_of_records(text: bytes, mtime_ns: int) -> None:
    (one,) = read_all(pax((b"mtime", text)) + member(b"f") + END)
    assert one.mtime_ns == mtime_ns


@given(st.integers(-(2**63) + 1, 2**63 - 1))
@example(LARGEST)
@example(-LARGEST)
@example(-1)
@example(0)
def test_numbers_of_gnus_form(number: int) -> None:
    field = (number & (1 << 96) - 1 | 1 << 95).to_bytes(12, "big")
    assert read_number(field) == number
    if -(1 << 61) < number < 1 << 61:
        assert read_number((number & (1 << 64) - 1 | 1 << 63).to_bytes(8, "big")) == number


@given(st.binary(min_size=12, max_size=12))
@example(b"0000_000000\0")
@example(b"-0000000001\0")
@example(b"0o000000001\0")
@example(b"+0000000001\0")
@example(b"00000000008\0")
def test_a_field_is_an_octal_number_or_of_gnus_form_or_none(field: bytes) -> None:
    digits = field.removeprefix(b"\0").lstrip(b" ").split(b" ")[0].split(b"\0")[0]
    try:
        number = read_number(field)
    except ValueError:
        assert digits.strip(b"01234567") or field[0] & 0x80
        return
    assert -LARGEST <= number <= LARGEST
    if not field[0] & 0x80:
        assert not digits.strip(b"01234567")
        assert number == int(digits or b"0", 8)


@pytest.mark.parametrize("field", [b"644 ", b" 644\0", b"0000644", b"644\0 \xffjunk", b"      644"])
def test_old_ways_to_fill_a_field(field: bytes) -> None:
    assert read_number(field) == 0o644


def test_a_checksum_of_signed_bytes_is_taken_too() -> None:
    block = bytearray(header(b"n\xff\xfe"))
    signed = sum(b - 256 if b > 127 else b for b in block[:148] + block[156:]) + 256
    block[148:156] = b"%06o\0 " % signed
    assert read_all(bytes(block) + END)[0].path == b"n\xff\xfe"


def test_sizes_of_members_without_data_mean_nothing() -> None:
    """Some writers put a link target's size there; nothing follows the header."""
    archive = b"".join(header(b"m", kind, size=5000, target=b"t") for kind in (b"1", b"2", b"3", b"4", b"5", b"6"))
    assert [one.size_bytes for one in read_all(archive + member(b"f", b"x") + END)] == [0] * 6 + [1]


def test_members_of_unknown_types_are_told_of_and_their_data_passed_over() -> None:
    archive = header(b"label", b"V") + member(b"acl", b"x" * 600, kind=b"A") + member(b"f", b"y") + END
    assert [(one.path, one.kind) for one in read_all(archive)] == [
        (b"label", Kind.OTHER),
        (b"acl", Kind.OTHER),
        (b"f", Kind.FILE),
    ]


def test_what_comes_after_the_end_mark_is_nobodys_business() -> None:
    reader = TarReader(io.BytesIO(member(b"f") + END + b"junk" * 1000).read)
    assert [one.path for one in reader.members()] == [b"f"]
    assert reader.complete


@settings(max_examples=30, deadline=None)
@given(st.lists(st.integers(1, 700), min_size=1), st.data())
def test_the_pieces_in_which_an_archive_comes_make_no_difference(sizes: list[int], data: st.DataObject) -> None:
    archive = small_archive()
    sent = io.BytesIO(archive)
    turn = iter(range(1 << 30))
    reader = TarReader(lambda size: sent.read(min(size, sizes[next(turn) % len(sizes)])))
    found, contents = [], []
    for one in reader.members():
        found.append(one)
        taken = [reader.read(data.draw(st.integers(0, 900))) for _ in range(2)]
        contents.append(b"".join(taken))
        assert archive[one.data_offset :][: one.stored_bytes].startswith(contents[-1])
    assert described(found) == described(read_file(archive))


def small_archive() -> bytes:
    """One of everything, in a few blocks."""
    return b"".join(
        [
            header(b"./", b"5", mode=0o755),
            pax((b"mtime", b"1600000000.123456789"), (b"path", b"n\xff" * 70)),
            member(b"f", b"x" * 600),
            header(b"././@LongLink", b"K", size=131) + padded(b"t" * 130 + b"\0") + header(b"l", b"2", target=b"t"),
            pax(
                (b"GNU.sparse.major", b"1"),
                (b"GNU.sparse.minor", b"0"),
                (b"GNU.sparse.name", b"s"),
                (b"GNU.sparse.realsize", b"5000"),
            ),
            member(b"s", padded(b"2\n1000\n10\n5000\n0\n") + b"0123456789"),
            old_sparse(b"o", [(0, 512), (1024, 100)], 2000, b"d" * 612),
            pax((b"GNU.sparse.map", b"0,1,9,1"), (b"GNU.sparse.size", b"10"), (b"GNU.sparse.name", b"m")),
            member(b"m", b"ab"),
            header(b"h", b"1", target=b"f"),
            END,
        ]
    )


def old_sparse(name: bytes, extents: list[tuple[int, int]], real: int, data: bytes) -> bytes:
    entries = [b"%011o\0%011o\0" % extent for extent in extents]
    first, more = entries[:4], entries[4:]
    rest = bytes(41) + b"".join(first).ljust(96, b"\0") + bytes([bool(more)]) + b"%011o\0" % real
    blocks = b""
    while more:
        block, more = more[:21], more[21:]
        blocks += (b"".join(block).ljust(504, b"\0") + bytes([bool(more)])).ljust(512, b"\0")
    return header(name, b"S", size=len(data), magic=b"ustar  \0", rest=rest) + blocks + padded(data)


def test_a_small_archive_of_all_forms_is_what_the_cuts_below_start_from() -> None:
    archive = small_archive()
    found = read_all(archive)
    assert [one.path for one in found] == [b"./", b"n\xff" * 70, b"l", b"s", b"o", b"m", b"h"]
    assert data_of(archive, found[3]) == bytes(1000) + b"0123456789" + bytes(3990)
    assert data_of(archive, found[4]) == b"d" * 512 + bytes(512) + b"d" * 100 + bytes(876)
    assert data_of(archive, found[5]) == b"a" + bytes(8) + b"b"


# Cut off and broken


def test_an_archive_that_is_cut_off_at_any_byte_is_never_taken_for_a_whole_one() -> None:
    """docker/docker-py and others read a broken stream as a short archive."""
    short = pax((b"mtime", b"1.5")) + member(b"f", b"x" * 600) + header(b"d", b"5") + END
    long = small_archive()
    with tempfile.TemporaryFile() as file:
        for archive, step in ((short, 1), (long, 512)):
            file.write(archive)
            file.flush()
            for length in range(len(archive) - step, -1, -step):
                with pytest.raises(ArchiveTruncatedError, match="without its end mark") as caught:
                    read_all(archive[:length])
                assert caught.value.offset == length
                os.ftruncate(file.fileno(), length)
                with pytest.raises(ArchiveTruncatedError) as again:
                    list(TarReader.of_file(file.fileno()).members())
                assert again.value.offset == length
            file.seek(0)


def broken(archive: bytes) -> ArchiveBrokenError:
    with pytest.raises(ArchiveBrokenError) as caught:
        read_all(archive)
    with pytest.raises(ArchiveBrokenError) as again:
        read_file(archive)
    assert (str(caught.value), caught.value.offset) == (str(again.value), again.value.offset)
    return caught.value


def bare_records(body: bytes) -> bytes:
    return header(b"pax", b"x", size=len(body)) + padded(body) + member(b"f") + END


def sparse_1_0(layout: bytes, *, real: bytes = b"5000", data: bytes = b"") -> bytes:
    records = pax(
        (b"GNU.sparse.major", b"1"), (b"GNU.sparse.minor", b"0"), (b"GNU.sparse.realsize", real), (b"path", b"s")
    )
    return records + member(b"s", padded(layout) + data) + END


BROKEN = {
    "a checksum that is none": header(checksum=b"xxxxxx\0 ") + END,
    "a wrong checksum": header(checksum=b"000001\0 ") + END,
    "text": b"this is no archive " * 100,
    "a lone block of zeros": member(b"f") + bytes(512) + member(b"g") + END,
    "records before nothing": pax((b"path", b"p")) + END,
    "records before records for all": pax((b"path", b"p")) + pax((b"mtime", b"1"), kind=b"g") + END,
    "a long name before nothing": header(b"././@LongLink", b"L", size=2) + padded(b"n") + END,
    "a negative size": header(size=b"\xff" * 12) + END,
    "a size that is no number": header(size=b"99999999999\0") + END,
    "a size with an underscore": header(size=b"0000_000001\0") + END,
    "a size past all sizes": header(size=b"\x80" + b"\x7f" * 11) + END,
    "a time past all times": header(mtime=b"\x80" + b"\x7f" * 11) + END,
    "a mode that is no number": header(mode=b"rwxr-xr\0") + END,
    "records that are too long": header(b"pax", b"x", size=LONGEST_RECORDS_BYTES + 1) + END,
    "a name that is too long": header(b"././@LongLink", b"L", size=LONGEST_PATH_BYTES + 2) + END,
    "a path that is too long": pax((b"path", b"p" * (LONGEST_PATH_BYTES + 1))) + member(b"f") + END,
    "a target that is too long": pax((b"linkpath", b"p" * (LONGEST_PATH_BYTES + 1))) + header(b"f", b"2") + END,
    "a name of negative length": header(b"././@LongLink", b"L", size=b"\xff" * 12) + END,
    "headers without end": pax((b"path", b"p")) * (MOST_HEADERS + 1) + member(b"f") + END,
    "another volume's rest": header(b"f", b"M") + END,
    "a record without a length": bare_records(b"path=x\n"),
    "a record of length zero": bare_records(b"0 path=x\n"),
    "a record that is too short": bare_records(b"5 path=x\n"),
    "a record past the end": bare_records(b"99 path=x\n"),
    "a record of a huge length": bare_records(b"9" * 19 + b" path=x\n"),
    "a record of a length with a sign": bare_records(b"+9 path=x\n"),
    "a record without a value": bare_records(b"9 path_x\n"),
    "a record without an end": bare_records(b"9 path=xx"),
    "zeros after the records": bare_records(record(b"path", b"x") + b"\0" * 3),
    "a size of records that is none": pax((b"size", b"1x")) + member(b"f") + END,
    "a negative size of records": pax((b"size", b"-1")) + member(b"f") + END,
    "a size of records past all sizes": pax((b"size", b"%d" % (LARGEST + 1))) + member(b"f") + END,
    "a time of records that is none": pax((b"mtime", b"1e9")) + member(b"f") + END,
    "a time of records past all times": pax((b"mtime", b"%d" % (LARGEST + 1))) + member(b"f") + END,
    "a fraction that is none": pax((b"mtime", b"1.x")) + member(b"f") + END,
    "an unknown sparse form": pax((b"GNU.sparse.major", b"2"), (b"GNU.sparse.minor", b"0")) + member(b"f") + END,
    "a sparse map that is no map": sparse_1_0(b"text\n"),
    "a sparse map of too many pieces": sparse_1_0(b"%d\n" % (MOST_EXTENTS + 1)),
    "a sparse map without numbers": sparse_1_0(b"x" * 2000),
    "a sparse map that is cut off": sparse_1_0(b"5\n0\n1\n"),
    "pieces that overlap": sparse_1_0(b"2\n0\n10\n5\n10\n", data=b"d" * 20),
    "pieces that go back": sparse_1_0(b"2\n10\n10\n0\n10\n", data=b"d" * 20),
    "a piece past the end": sparse_1_0(b"1\n4999\n2\n", data=b"dd"),
    "a piece past all sizes": sparse_1_0(b"1\n%d\n1\n" % LARGEST, real=b"%d" % LARGEST, data=b"d"),
    "more data than the map says": sparse_1_0(b"1\n0\n1\n", data=b"dd"),
    "less data than the map says": sparse_1_0(b"1\n0\n3\n", data=b"dd"),
    "a sparse file without a size": pax((b"GNU.sparse.map", b"0,1")) + member(b"f", b"x") + END,
    "a map of records that is none": pax((b"GNU.sparse.map", b"0,1,"), (b"GNU.sparse.size", b"5"), (b"x", b"y"))
    + member(b"f", b"xx")
    + END,
    "a map with a size before its offset": pax((b"GNU.sparse.size", b"5"), (b"GNU.sparse.numbytes", b"1"))
    + member(b"f", b"x")
    + END,
    "an old map that goes back": old_sparse(b"f", [(512, 10), (0, 10)], 5000, b"d" * 20) + END,
    "an old map that goes on without pieces": old_sparse(b"f", [(0, 0)] * 5, 9, b"")[:512] + bytes(504) + b"\1" * 8,
    "an old map past the end": old_sparse(b"f", [(512, 10)], 500, b"d" * 10) + END,
}


@pytest.mark.parametrize("archive", BROKEN.values(), ids=BROKEN.keys())
def test_what_the_format_does_not_allow_is_told_with_its_place(archive: bytes) -> None:
    error = broken(archive)
    assert 0 <= error.offset < len(archive)
    assert f"at byte {error.offset:,}" in str(error)


def test_an_endless_old_map_ends_at_the_ceiling(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sandport.sync.tar_records.MOST_EXTENTS", 1000)
    block = (b"00000000000\0" * 42).ljust(504, b"\0") + b"\1" + bytes(7)

    def blocks() -> Iterator[bytes]:
        yield old_sparse(b"f", [(0, 0)] * 5, 1 << 40, b"")[:512]
        while True:
            yield block

    given_blocks = blocks()
    with pytest.raises(ArchiveBrokenError, match="more than 1,000 pieces"):
        list(TarReader(lambda _: next(given_blocks)).members())


def test_a_read_that_fails_is_the_callers_own_error() -> None:
    def read(_: int) -> bytes:
        raise ConnectionResetError

    with pytest.raises(ConnectionResetError):
        list(TarReader(read).members())


def tree_archive(tmp: Path, dialect: Dialect) -> bytes:
    below = Directory({b"l": Link(b"../a"), b"\xff" * 120: File(b"y")})
    make(tmp / "source", Directory({b"a": File(b"x" * 700), b"d": below, b"hole": File(b"z", hole_before=100_000)}))
    return pack_bytes(tmp / "source", dialect)[0]


@pytest.fixture(scope="module")
def seeds(tmp_path_factory: pytest.TempPathFactory) -> list[bytes]:
    packed = [tree_archive(tmp_path_factory.mktemp(dialect.value), dialect) for dialect in Dialect]
    return [small_archive(), *packed]


def fix_checksums(archive: bytearray) -> None:
    """Make every block that is not data by mistake a header whose checksum is right, so that more of it is read."""
    for at in range(0, len(archive) - 511, 512):
        block = archive[at : at + 512]
        if block[257:262] == b"ustar":
            archive[at + 148 : at + 156] = b"%06o\0 " % (sum(block[:148]) + 256 + sum(block[156:]))


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_an_archive_with_random_changes_is_read_or_refused_and_never_anything_else(
    seeds: list[bytes], data: st.DataObject
) -> None:
    archive = bytearray(data.draw(st.sampled_from(seeds)))
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(archive) - 1))
        act = data.draw(st.sampled_from(["set", "field", "cut", "repeat"]))
        if act == "set":
            archive[at] = data.draw(st.integers(0, 255))
        elif act == "field":
            block = at // 512 * 512
            field, width = data.draw(st.sampled_from([(0, 100), (100, 8), (124, 12), (136, 12), (156, 1), (157, 100)]))
            archive[block + field : block + field + width] = data.draw(st.binary(min_size=width, max_size=width))
        elif act == "cut":
            del archive[at : at + data.draw(st.sampled_from([1, 100, 512, 1024]))]
        else:
            archive[at:at] = archive[at : at + data.draw(st.sampled_from([1, 100, 512, 1024]))]
        assume(archive)
    if data.draw(st.booleans()):
        fix_checksums(archive)
    outcomes = [outcome_of(read, bytes(archive)) for read in (read_all, read_file)]
    assert outcomes[0] == outcomes[1]


def outcome_of(read: Callable[[bytes], list[Member]], archive: bytes) -> object:
    try:
        found = read(archive)
    except ArchiveError as error:
        return str(error), 0 <= error.offset <= len(archive) or pytest.fail("its offset lies outside")
    for one in found:
        assert 0 <= one.size_bytes <= LARGEST
        assert 0 <= one.stored_bytes <= len(archive)
        assert 0 <= one.offset < one.data_offset <= len(archive)
        assert 0 <= one.mode <= 0o7777
        assert (one.kind is Kind.FILE) or not one.size_bytes
        if one.extents is not None:
            assert sum(one.extents.sizes) == one.stored_bytes
    return described(found)


@settings(max_examples=100, deadline=None)
@given(st.binary(max_size=3000))
def test_any_bytes_are_read_or_refused(raw: bytes) -> None:
    for archive in (raw, header(b"pax", b"x", size=len(raw)) + padded(raw) + member(b"f") + END, padded(raw) + END):
        outcome_of(read_all, archive)


def test_errors_of_archives_are_errors_of_sync_that_say_nothing_was_written() -> None:
    assert issubclass(ArchiveError, SyncError)
    assert broken(b"x" * 512).dispatched == "no"
