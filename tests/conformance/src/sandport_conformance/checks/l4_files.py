"""L4: files come into a sandbox and out of it as they are: content, names, modes, links, times (group `sync`)."""

from __future__ import annotations

import hashlib

from sandport_conformance.archives import Entry, Tree, archive, directory, expect_tree, file, link
from sandport_conformance.declaration import check
from sandport_conformance.lab import Lab
from sandport_conformance.outcomes import expect

from .files import SYNC, fetch, look, noise, plant, run, send, send_tree

_MANY = 10_000
_MANY_IN_ONE = 500


def _in(lab: Lab, entries: list[Entry], *aspects: str) -> None:
    """Send a tree, and hold what commands see to it."""
    path = f"kit/in-{'-'.join(aspects)}-{hashlib.sha256(archive(entries)).hexdigest()[:8]}"
    sent = send_tree(lab, lab.sandbox, entries, path)
    expect_tree(look(lab, lab.sandbox, path), sent, *aspects, what="what came with syncIn")
    run(lab, lab.sandbox, "remove_tree", path=path)


def _out(lab: Lab, entries: list[Entry], *aspects: str) -> Tree:
    """Plant a tree with a command, and hold what is sent to it."""
    path = f"kit/out-{'-'.join(aspects)}-{hashlib.sha256(archive(entries)).hexdigest()[:8]}"
    planted = plant(lab, lab.sandbox, entries, path)
    got = fetch(lab, lab.sandbox, path)
    expect_tree(got, planted, *aspects, what="what syncOut sent")
    run(lab, lab.sandbox, "remove_tree", path=path)
    return got


# ------------------------------------------------------------------ content


def _contents(lab: Lab) -> list[Entry]:
    """Files of every kind of content; one is larger than a frame may be."""
    return [
        file(b"empty"),
        file(b"one", b"\0"),
        file(b"all-bytes", bytes(range(256))),
        file(b"a-block", noise(512)),
        file(b"more-than-a-block", noise(513)),
        file(b"lines", b"\r\n\n\r\x1a" * 1_000),
        file(b"zeros", bytes(5_000)),
        file(b"large", noise(100_003) * (lab.facts.limits["frameBytes"] // 100_003 + 1)),
    ]


@check(
    "SYNC-1",
    part="in",
    needs=SYNC,
    why="A byte that changes on the way is a bug that is looked for everywhere else.",
    broken="takes files for text, or gathers one in a frame",
    fix="Write what the archive has, piece by piece, as it comes.",
)
def content_comes_in_byte_for_byte(lab: Lab) -> None:
    """Files with any bytes, with none, and larger than a frame arrive byte for byte."""
    _in(lab, _contents(lab), "data")


@check(
    "SYNC-1",
    part="out",
    needs=SYNC,
    why="A result that differs from what the run wrote is no result.",
    broken="takes files for text, or loses the last piece of one",
    fix="Send what the file has, piece by piece, as it is read.",
)
def content_comes_out_byte_for_byte(lab: Lab) -> None:
    """Files with any bytes, with none, larger than a frame and with two names are sent byte for byte."""
    sandbox, path = lab.sandbox, "kit/contents-out"
    small = [entry for entry in _contents(lab) if len(entry.data) < 10_000]
    planted = plant(lab, sandbox, small, path)
    size = lab.facts.limits["frameBytes"] + 1_001
    run(lab, sandbox, "make_file", name=f"{path}/large", bytes=size)
    run(lab, sandbox, "hard_link", name=f"{path}/all-bytes", other=f"{path}/another-name")
    line = b"0123456789\n"
    planted[b"large"] = file(b"large", (line * (size // len(line) + 1))[:size])
    planted[b"another-name"] = file(b"another-name", planted[b"all-bytes"].data)
    expect_tree(fetch(lab, sandbox, path), planted, "data", what="what syncOut sent")
    run(lab, sandbox, "remove_tree", path=path)


@check(
    "SYNC-1",
    part="many",
    needs=SYNC,
    why="A tree with its dependencies has ten thousand files, and is what is moved every day.",
    broken="keeps a descriptor open for each file, or stops at a thousand",
    fix="Close each file before the next; list directories to their end; read on while you write, and answer pings.",
)
def ten_thousand_files_come_and_go(lab: Lab) -> None:
    """Ten thousand small files come in and out again, each with its own content."""
    folders = [directory(b"%03d" % number) for number in range(_MANY // _MANY_IN_ONE)]
    entries = [
        *folders,
        *(file(b"%03d/%d" % (number // _MANY_IN_ONE, number), b"file %d\n" % number) for number in range(_MANY)),
    ]
    sent = send_tree(lab, lab.sandbox, entries, "kit/many")
    expect_tree(fetch(lab, lab.sandbox, "kit/many"), sent, "data", what="what came in and out again")
    run(lab, lab.sandbox, "remove_tree", path="kit/many")


# ------------------------------------------------------------------ names


def _names() -> list[Entry]:
    """Files whose names are all that a name can be."""
    every_byte = bytes(byte for byte in range(1, 256) if byte != ord("/"))
    odd = [
        every_byte,
        b"n" * 255,
        b"-rf",
        b"--help",
        b" before",
        b"after ",
        b"a line\nand another",
        b"\n",
        b"\xff\xfe is no UTF-8",
        "ü 日本 😀".encode(),
        b"u\xcc\x88",
        b"back\\slash",
        b"*?[a]$HOME`e`\"'",
        b"...",
        b".hidden",
        b"~",
        b"CON",
        b"a:b",
        b"@list",
        b"f" * 100,
        b"f" * 101,
    ]
    deep = b"/".join([b"d" * 60] * 20)
    parents = [directory(deep[: 61 * depth - 1]) for depth in range(1, 21)]
    strange = directory(b"-C \n\xff")
    return [
        *(file(name, name) for name in odd),
        *parents,
        file(deep + b"/file", b"deep"),
        strange,
        file(strange.path + b"/file", b"in a directory with a strange name"),
    ]


@check(
    "SYNC-2",
    part="in",
    needs=SYNC,
    why="Trees of other people have names that nobody would choose, and a test suite has them on purpose.",
    broken="decodes names, passes them to a shell, or cuts long ones",
    fix="Take names as bytes from the archive to the system call.",
)
def any_name_comes_in(lab: Lab) -> None:
    """Names of any bytes, of 255 bytes, deep below, with dashes, blanks and line feeds arrive as they are."""
    _in(lab, _names(), "data")


@check(
    "SYNC-2",
    part="out",
    needs=SYNC,
    why="One odd name among the results must not cost the others, or come home as another one.",
    broken="lists names line by line, or decodes them",
    fix="Take names as bytes from the directory to the archive; use a record for long ones.",
)
def any_name_comes_out(lab: Lab) -> None:
    """Names of any bytes, of 255 bytes, deep below, with dashes, blanks and line feeds are sent as they are."""
    _out(lab, _names(), "data")


# ------------------------------------------------------------------ modes


def _modes() -> list[Entry]:
    """Files and directories with many modes, all of which let their owner read."""
    files = [file(b"file-%o" % mode, b"x", mode=mode) for mode in (0o400, 0o444, 0o600, 0o640, 0o664, 0o666, 0o755)]
    wide = [file(b"file-777", b"x", mode=0o777), file(b"file-500", b"x", mode=0o500)]
    folders = [directory(b"directory-%o" % mode, mode=mode) for mode in (0o700, 0o750, 0o775, 0o777)]
    closed = [directory(b"closed", mode=0o555), directory(b"closed/below", mode=0o500)]
    return [*files, *wide, *folders, *closed, file(b"closed/file", b"x"), file(b"closed/below/file", b"x", mode=0o444)]


@check(
    "SYNC-3",
    part="in",
    needs=SYNC,
    why="A script that cannot be run fails the run; a key that everybody can read is found by its program.",
    broken="lets the umask, or a default, decide about modes; or cannot fill a directory that is closed to writing",
    fix="Set each mode after the content, without the umask, and those of directories last.",
)
def modes_come_in(lab: Lab) -> None:
    """The permission bits of files and directories arrive, also those of a directory that nobody may write to."""
    _in(lab, _modes(), "mode", "data")


@check(
    "SYNC-3",
    part="out",
    needs=SYNC,
    why="A script that a run has made should still be one at home.",
    broken="sends a mode of its own for everything",
    fix="Send the permission bits of each.",
)
def modes_come_out(lab: Lab) -> None:
    """The permission bits of files and directories are sent."""
    _out(lab, _modes(), "mode")


# ------------------------------------------------------------------ links


def _links() -> list[Entry]:
    """Links of every kind, with something for them to lead to."""
    return [
        directory(b"folder"),
        file(b"folder/file", b"in the folder"),
        link(b"to-a-file", b"folder/file"),
        link(b"to-a-folder", b"folder"),
        link(b"dangling", b"no/such/thing"),
        link(b"absolute", b"/etc/hostname"),
        link(b"out", b"../../../../../.."),
        link(b"to-itself", b"to-itself"),
        link(b"folder/up", b"../to-a-folder"),
        link(b"strange", b"-a \n\xff"),
        link(b"long", b"../" * 50 + b"x" * 200),
        link(b"dots", b"./folder//./file"),
    ]


@check(
    "SYNC-4",
    part="in",
    needs=SYNC,
    why="A package manager's tree is full of links; followed, it is ten times as large and in Git as a change.",
    broken="puts a copy in the place of a link, leaves out what dangles, or tidies up where a link leads",
    fix="Make the link that the archive says, byte for byte, and look at nothing.",
    source="NVIDIA/OpenShell#1425, NVIDIA/OpenShell#2309, fullsend#1079",
)
def links_come_in_as_links(lab: Lab) -> None:
    """Links arrive as links, with their targets byte for byte: dangling, absolute, to directories, to themselves."""
    _in(lab, _links(), "target", "data")


@check(
    "SYNC-4",
    part="out",
    needs=SYNC,
    why="Who follows a link of a sandbox sends what is behind it, twice, or for ever.",
    broken="follows links where it packs",
    fix="Read the link, and send it as one.",
    source="NVIDIA/NemoClaw#2317, NemoClaw#2317, NemoClaw#2268",
)
def links_come_out_as_links(lab: Lab) -> None:
    """Links are sent as links, with their targets byte for byte: dangling, absolute, to directories, to themselves."""
    _out(lab, _links(), "target", "data")


# ------------------------------------------------------------------ times, and what is empty


def _times() -> list[Entry]:
    """Files and directories of many times, with content that comes after the directory's own entry."""
    return [
        directory(b"folder", mtime_s=1_000_000_000),
        directory(b"folder/below", mtime_s=1_100_000_000),
        file(b"folder/below/file", b"x", mtime_s=1_200_000_001),
        file(b"folder/file", b"x", mtime_s=1),
        file(b"new", b"x", mtime_s=2_000_000_000),
        file(b"exact", b"x", mtime_s=1_300_000_000.75),
    ]


@check(
    "SYNC-5",
    part="in",
    needs=SYNC,
    why="A build tool looks at times: with new ones it builds all, with wrong ones nothing.",
    broken="leaves the time of the unpacking, or changes a directory's by what it puts into it afterwards",
    fix="Set times after contents, and those of directories last.",
)
def times_come_in(lab: Lab) -> None:
    """The times of files and of directories arrive, to the second."""
    _in(lab, _times(), "mtime_s")


@check(
    "SYNC-5",
    part="out",
    needs=SYNC,
    why="By its time the host sees what a run has changed.",
    broken="sends the time of the packing",
    fix="Send the time of each file.",
    source="skypilot-org/skypilot#2303",
)
def times_come_out(lab: Lab) -> None:
    """The times of files and of directories are sent, to the second."""
    _out(lab, _times(), "mtime_s")


def _hollow() -> list[Entry]:
    """Directories with nothing in them."""
    return [directory(b"empty"), directory(b"a"), directory(b"a/b"), directory(b"a/b/c")]


@check(
    "SYNC-6",
    needs=SYNC,
    why="A program that writes into `logs/` does not make it.",
    broken="moves files, and directories only as the way to them",
    fix="Make, and send, each directory as an entry of its own.",
)
def empty_directories_come_and_go(lab: Lab) -> None:
    """Empty directories arrive, and are sent; a tree of nothing is an archive too."""
    _in(lab, _hollow())
    _out(lab, _hollow())
    send(lab, lab.sandbox, archive([]), "kit/nothing")
    got = fetch(lab, lab.sandbox, "kit/nothing")
    expect(got == {}, f"an empty archive came out again as {list(got)[:3]!r}")
