"""Trees of files as the kit knows them: lists of entries, and tar archives of them.

Archives are written block by block (`tar_blocks`), so that every byte of one is known and can be wrong on purpose. They
are read with the standard library's `tarfile`, which knows all the forms that a worker may send.
"""

from __future__ import annotations

import io
import tarfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Literal

from .outcomes import Failed
from .tar_blocks import END, LONGEST_NAME_BYTES, SOME_TIME_S, STRANGE_OWNER, extended, header, padded

Kind = Literal["file", "directory", "link", "other"]

_TYPES: Mapping[str, bytes] = {"file": b"0", "link": b"2", "directory": b"5"}
_SPARSE_NAME = b"GNUSparseFile.0/"


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One thing of a tree.

    Attributes:
        path: Its name below the tree's top, without `./` and without a slash at its end.
        kind: What it is; `other` is a device, a FIFO or what else an archive can name.
        mode: Its permission bits.
        mtime_s: When it was changed.
        data: The content of a file.
        target: What a link says.
        owner: The number of the user that an archive names.
    """

    path: bytes
    kind: Kind = "file"
    mode: int = 0o644
    mtime_s: float = SOME_TIME_S
    data: bytes = b""
    target: bytes = b""
    owner: int = STRANGE_OWNER


Tree = dict[bytes, Entry]
"""Entries by their paths; the top itself is not among them."""


def file(path: bytes, data: bytes = b"", *, mode: int = 0o644, mtime_s: float = SOME_TIME_S) -> Entry:
    """A file."""
    return Entry(path=path, data=data, mode=mode, mtime_s=mtime_s)


def directory(path: bytes, *, mode: int = 0o755, mtime_s: float = SOME_TIME_S) -> Entry:
    """A directory."""
    return Entry(path=path, kind="directory", mode=mode, mtime_s=mtime_s)


def link(path: bytes, target: bytes) -> Entry:
    """A symbolic link."""
    return Entry(path=path, kind="link", mode=0o777, target=target)


def tree(entries: Iterable[Entry]) -> Tree:
    """Entries by their paths."""
    return {entry.path: entry for entry in entries}


# ------------------------------------------------------------------ writing


def archive(entries: Iterable[Entry]) -> bytes:
    """A whole archive, as a host sends it."""
    return b"".join(map(member, entries)) + END


def plain_archive(entries: Iterable[Entry]) -> bytes:
    """A whole archive that every tar can read: long names as GNU tar has them, whole seconds.

    Directories stand in it twice, for a simple tar sets modes and times where it reads them: open ones before what is
    in them, and as they should be at the end.
    """
    found = list(entries)
    folders = [entry for entry in found if entry.kind == "directory"]
    first = (replace(entry, mode=0o755) if entry.kind == "directory" else entry for entry in found)
    return b"".join(map(_plain_member, (*first, *reversed(folders)))) + END


def member(entry: Entry) -> bytes:
    """One entry of an archive: a record of what does not fit into its header, the header, the content."""
    name = entry.path + b"/" if entry.kind == "directory" else entry.path
    records: dict[bytes, bytes] = {}
    if len(name) > LONGEST_NAME_BYTES:
        records[b"path"] = name
    if len(entry.target) > LONGEST_NAME_BYTES:
        records[b"linkpath"] = entry.target
    if entry.mtime_s != int(entry.mtime_s):
        records[b"mtime"] = f"{entry.mtime_s:.9f}".encode()
    return extended(records) + _header_of(entry, name) + padded(entry.data)


def _plain_member(entry: Entry) -> bytes:
    name = entry.path + b"/" if entry.kind == "directory" else entry.path
    before = b""
    for type_, text in ((b"K", entry.target), (b"L", name)):
        if len(text) > LONGEST_NAME_BYTES:
            before += header(b"././@LongLink", type_=type_, size=len(text) + 1) + padded(text + b"\0")
    return before + _header_of(entry, name) + padded(entry.data)


def _header_of(entry: Entry, name: bytes) -> bytes:
    return header(
        name,
        type_=_TYPES[entry.kind],
        size=len(entry.data),
        mode=entry.mode,
        mtime_s=int(entry.mtime_s),
        target=entry.target,
        owner=entry.owner,
    )


def sparse(path: bytes, pieces: Mapping[int, bytes], size: int) -> bytes:
    """A sparse file as GNU tar's version 1.0 has it: a map of what there is, then what there is.

    Args:
        path: Its name.
        pieces: What there is, by where it begins; whole blocks, but for the last of all.
        size: How long the whole is.
    """
    found = sorted(pieces.items())
    if not found or found[-1][0] + len(found[-1][1]) < size:
        found.append((size, b""))  # where the last hole ends
    numbers = [len(found), *(number for begin, data in found for number in (begin, len(data)))]
    stored = padded(b"".join(b"%d\n" % number for number in numbers)) + b"".join(data for _, data in found)
    records = {
        b"GNU.sparse.major": b"1",
        b"GNU.sparse.minor": b"0",
        b"GNU.sparse.name": path,
        b"GNU.sparse.realsize": b"%d" % size,
    }
    return extended(records) + header(_SPARSE_NAME + path, type_=b"0", size=len(stored)) + padded(stored)


# ------------------------------------------------------------------ reading


def read(data: bytes, what: str) -> Tree:
    """The tree in an archive, which must be whole.

    Args:
        data: The archive, in any of the forms that a worker may send.
        what: Names it in a failure.

    Raises:
        Failed: It is none, ends without its end mark, or has a name that leads out of its top.
    """
    found: Tree = {}
    try:
        with tarfile.open(fileobj=io.BytesIO(data), mode="r:", encoding="utf-8", errors="surrogateescape") as opened:
            for info in opened:
                entry = _entry(opened, info, found, what)
                if entry.path:
                    found[entry.path] = entry
            ended_at = opened.offset
    except (tarfile.TarError, OSError, ValueError) as error:
        if data[: len(END)] == END:
            return {}
        raise Failed(f"{what} is no archive: {error}; it has {len(data)} bytes") from error
    if data[ended_at : ended_at + len(END)] != END:
        raise Failed(f"{what} has no end mark: after its last member comes {data[ended_at : ended_at + 40]!r}")
    return found


def _entry(opened: tarfile.TarFile, info: tarfile.TarInfo, found: Tree, what: str) -> Entry:
    name = info.name.encode("utf-8", "surrogateescape")
    path = b"/".join(part for part in name.split(b"/") if part not in (b"", b"."))
    if name.startswith(b"/") or b".." in path.split(b"/"):
        raise Failed(f"{what} has a member {name!r:.200}, which leads out of its top")
    kind: Kind = "other"
    data = target = b""
    if info.isreg():
        content = opened.extractfile(info)
        assert content is not None  # it is a file
        kind, data = "file", content.read()
        if len(data) != info.size:
            raise Failed(f"{what} has {len(data)} bytes of {path!r:.200}, which should be {info.size} long")
    elif info.isdir():
        kind = "directory"
    elif info.issym():
        kind, target = "link", info.linkname.encode("utf-8", "surrogateescape")
    elif info.islnk():
        first = info.linkname.encode("utf-8", "surrogateescape").removeprefix(b"./")
        if first not in found:
            raise Failed(f"{what} has {path!r:.200} as another name of {first!r:.200}, which did not come before it")
        kind, data = "file", found[first].data
    return Entry(
        path=path,
        kind=kind,
        mode=info.mode & 0o7777,
        mtime_s=float(info.mtime),
        data=data,
        target=target,
        owner=info.uid,
    )


# ------------------------------------------------------------------ comparing


def expect_tree(got: Tree, wanted: Tree, *aspects: str, what: str) -> None:
    """Hold a tree to another one.

    Args:
        got: What is there.
        wanted: What should be.
        *aspects: Attributes of the entries that must be the same, beside names and kinds. Modes are not asked of links,
            and times of directories and files only, to the second.
        what: Names the tree in the failure.

    Raises:
        Failed: Something is missing, too much or another.
    """
    for path in wanted.keys() - got.keys():
        raise Failed(f"{what}: {path!r:.300} is missing; it has {_names(got)}")
    for path in got.keys() - wanted.keys():
        raise Failed(f"{what}: {path!r:.300} is there and was in no archive")
    for path, entry in wanted.items():
        for aspect in ("kind", *aspects):
            said, should = _aspect(got[path], aspect), _aspect(entry, aspect)
            if said != should:
                raise Failed(
                    f"{what}: {aspect} of {path!r:.300} is {_shown(said, aspect)}, not {_shown(should, aspect)}"
                )


def _aspect(entry: Entry, aspect: str) -> object:
    if entry.kind == "link" and aspect in ("mode", "mtime_s"):
        return None
    value = getattr(entry, aspect)
    return int(value) if aspect == "mtime_s" else value


def _shown(value: object, aspect: str = "") -> str:
    if aspect == "mode":
        return f"{value:o}"
    if isinstance(value, bytes):
        return f"{value[:60]!r} ({len(value)} bytes)"
    return repr(value)


def _names(found: Tree) -> str:
    return f"{len(found)} names: {', '.join(f'{path!r:.60}' for path in list(found)[:5])}"
