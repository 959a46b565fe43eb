"""How a host moves files: where its sockets stand, what it sends, and what it believes and writes of what comes."""

from __future__ import annotations

import contextlib
import os
import stat
import tarfile
from collections.abc import Callable
from pathlib import Path

from sandport_conformance.impostors.files import ESCAPED, PRECIOUS, PRECIOUS_DATA
from sandport_conformance.outcomes import Failed, NotApplicable, expect

from .declaration import host_check
from .played import Json, Played
from .stage import Stage

_MAKES = ("/bin/sh", "-c", "mkdir -p made && echo inside >made/a && echo hello")
_SOCKET_BYTES = 107
_OWN_FOLDER = 0o700
_FILES = (b"a", b"..b", b"c..", b"-d", b"sub/deep/er/file", b"sub/" + b"n" * 120, b"sub/open/" + b"m" * 90 + b"/file")
_LINKS = ((b"up", b"../.."), (b"sub/away", b"/etc/hostname"))


def _tree(folder: Path) -> Path:
    """A tree whose names look like ones that lead out, and do not."""
    tree = folder / "tree"
    for name in _FILES:
        path = os.path.join(os.fsencode(tree), name)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        Path(os.fsdecode(path)).write_bytes(name)
    for name, target in _LINKS:
        with contextlib.suppress(FileExistsError):  # a check before this one made it
            os.symlink(target, os.path.join(os.fsencode(tree), name))
    return tree


def _moved(stage: Stage) -> Played:
    """A tree that went into a sandbox, and another that came out of it; played once."""
    for played in stage.all_played:
        ordinary = played.impostor == "files:Watches" and not played.environ
        if ordinary and played.answer is not None and "unsupported" not in played.answer:
            return played
    tree = _tree(stage.folder)
    return stage.play("files:Watches", "--send", str(tree), "--fetch", "{folder}/fetched", argv=_MAKES)


def _sockets(played: Played) -> list[Json]:
    found = played.events("socket")
    if not found:
        raise NotApplicable("the host moved files in another way: neither syncIn nor syncOut came")
    return found


@host_check(
    "SYNC-34",
    why="A socket that others of the machine can reach gives them the files, or takes theirs for the sandbox's.",
    broken="makes its sockets in a folder that others may enter, or in the same one for every call",
)
def sockets_stand_alone(stage: Stage) -> None:
    """Each socket stands alone in a folder of mode 0700, which is another one for each call."""
    played = _moved(stage)
    played.succeeded()
    played.transferred("sent")
    played.transferred("fetched")
    places = []
    for found in _sockets(played):
        what = f"the socket of {found['method']}, {found['path']}"
        expect(found["own"] and found["mode"] == _OWN_FOLDER, f"{what}, is in a folder of mode {found['mode']:04o}")
        expect(not found["beside"], f"{what}, is beside {', '.join(found['beside'][:5])}")
        expect(os.path.isabs(found["path"]), f"{what}, is not absolute")
        places.append(os.path.dirname(found["path"]))
    expect(len(places) == len(set(places)), f"two calls had one folder: {', '.join(places)}")


@host_check(
    "SYNC-34",
    part="length",
    why="The kernel takes no longer name, so the worker cannot come; a deep directory for temporary files is common.",
    broken="names its sockets below $TMPDIR, however long that is",
)
def socket_names_fit(stage: Stage) -> None:
    """With a $TMPDIR of a hundred bytes no socket's path is longer than 107."""
    deep = stage.folder / ("t" * 100)
    deep.mkdir(exist_ok=True)
    options = ("--send", str(_tree(deep)), "--fetch", "{folder}/fetched")
    played = stage.play("files:Watches", *options, argv=_MAKES, environ={"TMPDIR": str(deep)})
    calls = [*played.received("syncIn"), *played.received("syncOut")]
    if not calls:
        _sockets(_moved(stage))  # it may well go another way here, if it has sockets elsewhere
    for call in calls:
        size = len(os.fsencode(str(call.get("socket"))))
        expect(size <= _SOCKET_BYTES, f"the path has {size} bytes: {call.get('socket')}")


@host_check(
    "SYNC-36",
    why="A worker unpacks as it reads: a name that leads out is refused, and what has no directory has no place.",
    broken="sends the names of its own machine, or files without the directories that they are in",
)
def archives_are_in_order(stage: Stage) -> None:
    """What is sent has relative names without `..`, and each directory before what stands in it."""
    played = _moved(stage)
    played.transferred("sent")
    archives = sorted(played.log.parent.glob("sent-*.tar"))
    if not archives:
        raise NotApplicable("the host moved files in another way: no syncIn came")
    seen: set[bytes] = set()
    for path in archives:
        seen |= _names_in_order(path)
    missing = [name for name in _FILES if not any(found == name or found.endswith(b"/" + name) for found in seen)]
    expect(not missing, f"of the tree there is no {missing[:3]} in the archive, which has {sorted(seen)[:10]}")


def _names_in_order(path: Path) -> set[bytes]:
    """The names of an archive, without `./`."""
    directories, seen = {b""}, set()
    try:
        with tarfile.open(path, "r:", encoding="utf-8", errors="surrogateescape") as archive:
            for member in archive:
                for name in [member.name, *([member.linkname] if member.islnk() else [])]:
                    expect(not name.startswith("/"), f"the archive has the absolute name {name!r}")
                    expect(b".." not in _parts(name), f"the archive has the name {name!r}, with '..'")
                parts = _parts(member.name)
                expect(b"/".join(parts[:-1]) in directories, f"{member.name!r} comes before its directory")
                if member.isdir():
                    directories.add(b"/".join(parts))
                seen.add(b"/".join(parts))
    except tarfile.TarError as error:
        raise Failed(f"what was sent is no archive: {error}") from None
    return seen


def _parts(name: str) -> list[bytes]:
    return [part for part in os.fsencode(name).split(b"/") if part not in (b"", b".")]


# ------------------------------------------------------------------ what comes out of a sandbox


def _fetched(stage: Stage, impostor: str) -> Played:
    """What came of an archive that is wrong; the fetch after it must be right."""
    played = stage.play(f"files:{impostor}", "--fetch", "{folder}/fetched", "--again", argv=_MAKES)
    played.succeeded()
    played.succeeded("next")
    if not played.received("syncOut"):
        raise NotApplicable("the host fetched files in another way: no syncOut came")
    return played


_DAMAGED = {
    "few": ("CountsTooFew", "An archive of which the worker counts less than came is an error."),
    "many": ("CountsTooMany", "An archive of which the worker counts more than came is an error."),
    "unended": ("NoEndMark", "An archive without its end mark is an error, also where it was counted right."),
    "cut": ("CutInAFile", "An archive that ends in the middle of a file is an error, also where it was counted right."),
}


def _declare(part: str, impostor: str, title: str) -> Callable[[Stage], None]:
    def run(stage: Stage) -> None:
        played = _fetched(stage, impostor)
        error = played.transfer("fetched").get("error")
        expect(isinstance(error, dict), f"the fetch should have failed: {played.transfer('fetched')}")
        played.one_worker()

    run.__doc__ = title
    why = "A part of a report that is taken for the whole shows tests that passed, and not those that failed."
    return host_check("SYNC-35", part=part, why=why, broken="takes what came for all that there is")(run)


for _part, (_impostor, _title) in _DAMAGED.items():
    _declare(_part, _impostor, _title)


_HOSTILE = {
    "names": ("NamesOutside", "Names that are absolute, or climb, make nothing outside of the target.", ""),
    "links": (
        "LinksOutside",
        "Nothing is written through links that came in the archive.",
        "bytedance/deer-flow#5578, bytedance/deer-flow#2623",
    ),
    "second-names": ("HardLinksOutside", "A second name of a file that is not in the archive reaches nothing.", ""),
}


def _declare_hostile(part: str, impostor: str, title: str, source: str) -> Callable[[Stage], None]:
    def run(stage: Stage) -> None:
        played = _fetched(stage, impostor)
        played.transfer("fetched")
        outside = [found for found in stage.folder.rglob(f"{ESCAPED}*") if not _is_in_a_target(found, stage.folder)]
        for found in outside:
            found.unlink()
        expect(not outside, f"the archive made {', '.join(map(str, outside))}")
        precious = played.log.parent / PRECIOUS
        expect(precious.read_bytes() == PRECIOUS_DATA, "a file beside the target was written through the archive")
        expect(precious.stat().st_nlink == 1, "a file beside the target has a second name in it")

    run.__doc__ = title
    why = "What runs in a sandbox made the archive; it must not reach the machine that takes the result."
    broken = "unpacks what came as it comes"
    return host_check("SYNC-35", part=part, why=why, broken=broken, source=source)(run)


for _part, (_impostor, _title, _source) in _HOSTILE.items():
    _declare_hostile(_part, _impostor, _title, _source)


def _is_in_a_target(path: Path, stage: Path) -> bool:
    """Whether a name stands in what a run has fetched, with real directories all the way."""
    run = path.relative_to(stage).parts[0]
    target = stage / run / "fetched"
    if target not in path.parents:
        return False
    inside = [parent for parent in path.parents if parent.is_relative_to(target)]
    return all(stat.S_ISDIR(parent.lstat().st_mode) for parent in inside)
