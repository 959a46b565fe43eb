"""The archives that the kit writes are what others read, and what it reads it holds to being whole."""

import io
import os
import subprocess
import tarfile
from pathlib import Path

import pytest

from sandport_conformance import archives
from sandport_conformance.archives import archive, directory, expect_tree, file, link, plain_archive, read, sparse, tree
from sandport_conformance.outcomes import Failed
from sandport_conformance.tar_blocks import BLOCK, END, extended, header, padded

TREE = [
    directory(b"folder", mode=0o700, mtime_s=1_000_000_000),
    file(b"folder/file", bytes(range(256)) * 5, mode=0o600, mtime_s=1_111_111_111.25),
    file(b"n" * 255, b"a long name"),
    file(b"d" * 60 + b"/" + b"e" * 60, b"a long way"),
    file(b"\xff\n ", b"a strange name"),
    link(b"link", b"no/such/thing"),
    link(b"long-link", b"x/" * 200),
]
WITH_PARENT = [directory(b"d" * 60), *TREE]


@pytest.mark.parametrize("write", [archive, plain_archive])
def test_what_is_written_is_read_again(write: object) -> None:
    assert callable(write)
    got = read(write(TREE), "it")
    expect_tree(got, tree(TREE), "data", "mode", "target", "mtime_s", "owner", what="it")


@pytest.mark.parametrize("write", [archive, plain_archive])
def test_the_machines_own_tar_unpacks_what_is_written(write: object, tmp_path: Path) -> None:
    assert callable(write)
    subprocess.run(["tar", "-xopf", "-"], cwd=tmp_path, input=write(WITH_PARENT), check=True)
    assert (tmp_path / "folder/file").stat().st_mtime == pytest.approx(1_111_111_111, abs=0.5)
    assert (tmp_path / "folder").stat().st_mtime == 1_000_000_000
    assert os.readlink(os.fsencode(tmp_path / "long-link")) == b"x/" * 200
    packed = subprocess.run(["tar", "-cf", "-", "."], cwd=tmp_path, check=True, capture_output=True).stdout
    expect_tree(read(packed, "it"), tree(WITH_PARENT), "data", "mode", "target", what="it")


def test_a_sparse_member_is_read_by_tar_and_by_tarfile(tmp_path: Path) -> None:
    data = sparse(b"sparse", {4096: b"x" * BLOCK, 100_352: b"end"}, 200_000) + END
    content = (bytes(4096) + b"x" * BLOCK).ljust(100_352, b"\0") + b"end".ljust(200_000 - 100_352, b"\0")
    assert read(data, "it")[b"sparse"].data == content
    subprocess.run(["tar", "-xf", "-"], cwd=tmp_path, input=data, check=True)
    assert (tmp_path / "sparse").read_bytes() == content


@pytest.mark.parametrize("form", [tarfile.USTAR_FORMAT, tarfile.PAX_FORMAT, tarfile.GNU_FORMAT])
def test_every_form_that_a_worker_may_send_is_read(form: int) -> None:
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w", format=form) as opened:
        info = tarfile.TarInfo("./folder/file")
        info.size, info.mode, info.mtime = 3, 0o640, 1_000_000_000
        opened.addfile(info, io.BytesIO(b"abc"))
        other = tarfile.TarInfo("./folder/other")
        other.type, other.linkname = tarfile.LNKTYPE, "./folder/file"
        opened.addfile(other)
        fifo = tarfile.TarInfo("fifo")
        fifo.type = tarfile.FIFOTYPE
        opened.addfile(fifo)
    got = read(made.getvalue(), "it")
    assert (got[b"folder/file"].data, got[b"folder/file"].mode) == (b"abc", 0o640)
    assert got[b"folder/other"].data == b"abc"
    assert got[b"fifo"].kind == "other"


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (archive(TREE)[: -len(END)], "no end mark"),
        (archive(TREE)[:-BLOCK], "no end mark"),
        (archive(TREE)[:2_750], "unexpected end of data"),
        (b"", "no archive"),
        (b"noise" * 1_000, "no archive"),
        (archive([file(b"../up", b"x")]), "leads out"),
        (archive([file(b"/etc/passwd", b"x")]), "leads out"),
        (archive([file(b"a", b"x")])[: -len(END)] + b"rubbish".ljust(BLOCK, b"\0") + END, "no end mark"),
    ],
    ids=["no end mark", "half an end mark", "cut", "nothing", "noise", "up", "absolute", "damaged"],
)
def test_what_is_not_whole_fails(data: bytes, reason: str) -> None:
    with pytest.raises(Failed, match=reason):
        read(data, "it")


def test_an_empty_archive_is_a_tree_of_nothing() -> None:
    assert read(END, "it") == {}


def test_records_override_the_header() -> None:
    data = extended({b"path": b"right", b"size": b"4"}) + header(b"wrong", type_=b"0", size=0) + padded(b"four") + END
    assert read(data, "it")[b"right"].data == b"four"


@pytest.mark.parametrize(
    ("got", "reason"),
    [
        ([], "is missing"),
        ([file(b"a", b"x", mode=0o600), file(b"b")], "was in no archive"),
        ([file(b"a", b"y", mode=0o600)], "data of b'a'"),
        ([file(b"a", b"x", mode=0o644)], "mode of b'a' is 644, not 600"),
        ([link(b"a", b"x")], "kind of b'a' is 'link'"),
        ([file(b"a", b"x", mode=0o600, mtime_s=5)], "mtime_s of b'a' is 5"),
    ],
)
def test_a_difference_between_trees_is_named(got: list[archives.Entry], reason: str) -> None:
    with pytest.raises(Failed, match=reason):
        expect_tree(tree(got), tree([file(b"a", b"x", mode=0o600)]), "data", "mode", "mtime_s", what="it")
