"""L4: a working directory on this machine (`localRoot`): the host copies there, and commands work with it."""

from __future__ import annotations

import os
import shutil
import stat
import tempfile
from collections.abc import Iterable
from pathlib import Path

from sandport_conformance.archives import Entry, Tree, directory, expect_tree, file, link, tree
from sandport_conformance.declaration import Needs, check
from sandport_conformance.lab import Lab
from sandport_conformance.outcomes import Failed, NotApplicable, expect
from sandport_conformance.sandbox import Sandbox

from .files import look, plant, run, some_tree
from .leases import path_of

_TAR = Needs(commands=("pack", "unpack"))


def _root(sandbox: Sandbox) -> Path:
    """The `localRoot` of a lease."""
    root = path_of(sandbox.lease.get("localRoot"))
    if root is None:
        raise NotApplicable("the lease has no localRoot")
    expect(root.is_absolute(), f"localRoot is {str(root)!r}, and must be an absolute path")
    return root


def _write(root: Path, entries: Iterable[Entry]) -> Tree:
    """Write a tree as a host does, and give it to whom the directory belongs; the tree that is there then."""
    written = tree(entries)
    status = root.lstat()
    top = os.fsencode(root)
    for entry in written.values():
        place = os.path.join(top, entry.path)
        if entry.kind == "directory":
            os.mkdir(place)
        elif entry.kind == "link":
            os.symlink(entry.target, place)
        else:
            Path(os.fsdecode(place)).write_bytes(entry.data)
        if os.geteuid() == 0:
            os.lchown(place, status.st_uid, status.st_gid)
    for entry in reversed(written.values()):
        if entry.kind != "link":
            os.chmod(os.path.join(top, entry.path), entry.mode)
            os.utime(os.path.join(top, entry.path), (entry.mtime_s, entry.mtime_s))
    return written


def _read(top: bytes, prefix: bytes = b"") -> Tree:
    """The tree below a directory of this machine, links not followed."""
    found: Tree = {}
    for name in os.listdir(os.path.join(top, prefix)):
        path = os.path.join(prefix, name)
        place = os.path.join(top, path)
        status = os.lstat(place)
        mode = stat.S_IMODE(status.st_mode)
        if stat.S_ISLNK(status.st_mode):
            found[path] = link(path, os.readlink(place))
        elif stat.S_ISDIR(status.st_mode):
            found[path] = directory(path, mode=mode, mtime_s=status.st_mtime)
            found |= _read(top, path)
        else:
            found[path] = file(path, Path(os.fsdecode(place)).read_bytes(), mode=mode, mtime_s=status.st_mtime)
    return found


def _strange() -> list[Entry]:
    """A tree with what a copy between machines likes to lose."""
    return [
        *some_tree(),
        directory(b"empty", mode=0o700),
        directory(b"closed", mode=0o555),
        file(b"closed/file", b"x", mode=0o444),
        file(b"secret", b"x", mode=0o600),
        file(b"-a line\nand \xff bytes ", b"x"),
        file(b"n" * 255, b"x"),
        link(b"dangling", b"no/such/thing"),
        link(b"absolute", b"/etc/hostname"),
        link(b"to-a-directory", b"source"),
    ]


@check(
    "SYNC-29",
    needs=_TAR,
    why="The host copies the sources straight into this directory; the build works with them, and in them.",
    broken="shows commands a copy, or files that they may not change",
    fix="Let the working directory be that directory, and `localRoot` belong to the user that commands run as.",
)
def commands_work_with_what_the_host_writes(lab: Lab) -> None:
    """What the host writes below `localRoot` is there for commands as it is, and they can change and remove it."""
    sandbox = lab.sandbox
    root = _root(sandbox)
    try:
        (root / "kit-host").mkdir()
        if os.geteuid() == 0:
            os.chown(root / "kit-host", root.lstat().st_uid, root.lstat().st_gid)
        written = _write(root / "kit-host", _strange())
    except OSError as error:
        raise Failed(f"the host cannot write below localRoot {root}: {error}") from error
    seen = look(lab, sandbox, "kit-host")
    expect_tree(seen, written, "data", "mode", "target", "mtime_s", what="what commands see of what the host wrote")
    run(lab, sandbox, "append", name="kit-host/secret", text=" and more")
    run(lab, sandbox, "write_file", name="kit-host/empty/new", text="by a command")
    changed = _read(os.fsencode(root / "kit-host"))
    expect(changed[b"secret"].data == b"x and more", f"after a command has appended: {changed[b'secret'].data!r:.60}")
    expect(b"empty/new" in changed, "a file that a command wrote into a directory of the host's is not there")
    run(lab, sandbox, "remove_tree", path="kit-host")
    expect(not os.path.lexists(root / "kit-host"), "a command has removed a tree, and the host still sees it")


@check(
    "SYNC-30",
    needs=_TAR,
    why="The host copies the results straight out of this directory.",
    broken="shows the host what was there at some time, or files that it may not read",
    fix="Let the working directory be that directory, on a file system of this machine.",
)
def the_host_works_with_what_commands_write(lab: Lab) -> None:
    """What commands write is below `localRoot` as it is as soon as they have ended, and the host can remove it."""
    sandbox = lab.sandbox
    root = _root(sandbox)
    planted = plant(lab, sandbox, _strange(), "kit-command")
    try:
        seen = _read(os.fsencode(root / "kit-command"))
        expect_tree(
            seen, planted, "data", "mode", "target", "mtime_s", what="what the host sees of what commands wrote"
        )
        run(lab, sandbox, "write_file", name="kit-command/README", text="another")
        again = (root / "kit-command/README").read_bytes()
        expect(again == b"another", f"a command has replaced a file, and the host sees {again!r:.60}")
        (root / "kit-command/closed").chmod(0o755)
        shutil.rmtree(root / "kit-command")
    except OSError as error:
        raise Failed(f"the host cannot work with what commands wrote below localRoot {root}: {error}") from error
    gone = sandbox.execute(lab.command("read_file", name="kit-command/README")).get("exitCode") != 0
    expect(gone, "the host has removed a tree, and a command still reads a file of it")


@check(
    "SYNC-31",
    why="What a host wrote for one run must not stay on the machine after it, least of all its secrets.",
    broken="removes what it has made itself, or stops at a directory that is closed to writing",
    fix="Remove the whole tree by descriptors, opening what is closed, following nothing.",
)
def nothing_of_the_host_stays_below_local_root(lab: Lab) -> None:
    """After `destroyLease` nothing of `localRoot` is left, whatever the host wrote, and all that links in it led to."""
    sandbox = lab.new_sandbox()
    root = _root(sandbox)
    beside = Path(tempfile.mkdtemp(prefix="kit-beside-"))
    lab.remove_later(beside)
    (beside / "file").write_bytes(b"untouched")
    deep = b"/".join([b"d" * 60] * 20)
    parents = [directory(deep[: 61 * depth - 1]) for depth in range(1, 21)]
    way_out = [link(b"out", os.fsencode(beside)), link(b"out-file", os.fsencode(beside / "file"))]
    _write(root, [*_strange(), *parents, file(deep + b"/file", b"x"), *way_out])
    sandbox.destroy()
    expect(not os.path.lexists(root), f"after destroyLease localRoot {root} is there")
    left = sorted(path.name for path in beside.iterdir())
    expect(left == ["file"], f"destroyLease has followed a link: of a directory outside {left} is left")
    expect((beside / "file").read_bytes() == b"untouched", "destroyLease has written to a file outside")
