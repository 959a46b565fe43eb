"""The end of an archive is seen where it is, in every dialect, however the stream is cut; and nowhere before."""

import io
import subprocess
import tarfile
from itertools import pairwise
from pathlib import Path
from typing import Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandport_sdk.archive_end import BLOCK, PAX_BYTES, ArchiveEnd

names = st.text("abcé/ \n-", min_size=1, max_size=300).map(lambda text: "m" + text.strip("/"))
members = st.lists(
    st.tuples(
        names,
        st.sampled_from([tarfile.REGTYPE, tarfile.DIRTYPE, tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE]),
        st.sampled_from([0, 1, BLOCK - 1, BLOCK, BLOCK + 1, 3 * BLOCK]),
        st.sampled_from([b"\0", b"x"]),
        st.floats(0, 2**32, allow_nan=False),
    ),
    max_size=6,
)
Form = Literal[0, 1, 2]
formats: st.SearchStrategy[Form] = st.sampled_from([tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])


def packed(entries: list[tuple[str, bytes, int, bytes, float]], form: Form) -> bytes:
    """An archive without an end mark."""
    body = b""
    for name, kind, size, fill, mtime in entries:
        member = tarfile.TarInfo(name if form != tarfile.USTAR_FORMAT else name[:20])
        member.type, member.mtime = kind, mtime if form == tarfile.PAX_FORMAT else int(mtime)
        member.linkname = "to" if kind in (tarfile.SYMTYPE, tarfile.LNKTYPE) else ""
        content = fill * size if kind == tarfile.REGTYPE else b""
        member.size = len(content)
        body += member.tobuf(form) + content + bytes(-len(content) % BLOCK)
    return body


def seen(*pieces: bytes) -> ArchiveEnd:
    end = ArchiveEnd()
    for piece in pieces:
        end.feed(memoryview(piece))
    return end


@given(members, formats, st.lists(st.integers(0, 20_000), max_size=8), st.integers(0))
def test_the_end_is_seen_where_it_is_however_the_stream_is_cut(
    entries: list[tuple[str, bytes, int, bytes, float]], form: Form, cuts: list[int], place: int
) -> None:
    body = packed(entries, form)
    whole = body + bytes(2 * BLOCK)
    bounds = [0, *sorted(cut for cut in cuts if cut < len(whole)), len(whole)]
    end = seen(*(whole[start:stop] for start, stop in pairwise(bounds)))
    assert (end.is_complete, end.fault) == (True, None)
    assert not seen(whole[: place % len(whole)]).is_complete, "a part of an archive is none, whatever it ends with"
    assert seen(whole, b"\xff" * 3000).fault is None, "what follows the mark is not looked at"


def test_a_file_of_zeros_is_no_end() -> None:
    """A program that looks at the last bytes alone takes a file of zeros, cut behind it, for the whole."""
    body = packed([("zeros", tarfile.REGTYPE, 4 * BLOCK, b"\0", 0)], tarfile.USTAR_FORMAT)
    assert not seen(body).is_complete
    assert not seen(body + bytes(BLOCK)).is_complete
    assert not seen(body + bytes(BLOCK) + body).is_complete, "one block of zeros alone is none either"


def test_a_size_beyond_what_a_header_holds_is_read_from_its_record_and_in_base_256() -> None:
    huge = 9 * 1024**3
    for form in (tarfile.PAX_FORMAT, tarfile.GNU_FORMAT):
        member = tarfile.TarInfo("huge")
        member.size = huge
        end = seen(member.tobuf(form))
        piece = memoryview(bytes(64 * 1024 * 1024))
        for _ in range(huge // len(piece)):
            end.feed(piece)
        assert not end.is_complete, "its content is zeros"
        end.feed(memoryview(bytes(2 * BLOCK)))
        assert end.is_complete


@pytest.mark.parametrize("form", ["gnu", "posix", "oldgnu"])
def test_sparse_files_of_gnu_tar_are_followed(tmp_path: Path, form: str) -> None:
    with (tmp_path / "sparse").open("wb") as file:
        for number in range(60):  # more than the map in a header holds
            file.seek(number * 65_536)
            file.write(b"data")
        file.truncate(60 * 65_536)
    command = ["tar", "-C", str(tmp_path), f"--format={form}", "--sparse", "-cf", "-", "sparse"]
    archive = subprocess.run(command, capture_output=True, check=True).stdout
    assert len(archive) < 1024 * 1024, "it is sparse"
    assert seen(archive).is_complete
    content = archive.rstrip(b"\0")
    assert not seen(content).is_complete
    with tarfile.open(fileobj=io.BytesIO(archive)) as read:
        assert [member.name for member in read] == ["sparse"]


def header(*, size: bytes = b"00000000000\0", kind: bytes = b"0") -> bytes:
    block = bytearray(packed([("name", tarfile.REGTYPE, 0, b"", 0)], tarfile.USTAR_FORMAT))
    block[124:136], block[156:157] = size, kind
    return bytes(block)


@pytest.mark.parametrize(
    "stream",
    [
        b"\xff" * BLOCK,
        header(size=b"not a number"),
        header(size=b"\xff" * 12),
        header(size=b"%011o\0" % (PAX_BYTES + 1), kind=b"x"),
        header(size=b"00000000012\0", kind=b"x") + b"99 size=5\n".ljust(BLOCK, b"\0"),
        header(size=b"00000000012\0", kind=b"x") + b"10 size=x\n".ljust(BLOCK, b"\0"),
        header(size=b"00000000012\0", kind=b"x") + b"xx size=5\n".ljust(BLOCK, b"\0"),
    ],
    ids=["noise", "letters", "negative", "a long record", "a record too long", "no size", "no record"],
)
def test_what_cannot_be_followed_is_a_fault_and_never_complete(stream: bytes) -> None:
    end = seen(stream, bytes(4 * BLOCK))
    if end.fault is None:
        pytest.fail(f"{stream[:40]!r} was followed")
    assert not end.is_complete


@given(st.binary(max_size=3000))
def test_no_bytes_raise_or_are_kept(noise: bytes) -> None:
    end = seen(noise, noise)
    assert len(end._header) < BLOCK
