"""Which trees of cgroups this machine has, and where this process is in them.

Of the standard library only what starts fast, as in every module that `init` and `keeper` import.
"""

from __future__ import annotations

import os

from sandport_provider_local.cgroup_files import directories_in, read_text, read_words, walk

ROOT = "/sys/fs/cgroup"
PROC = "/proc"
PARENT = "sandport"
"""The directory that holds the sandboxes' own; there while there is one."""
CONTROLLERS = ("memory", "pids", "cpu")


class Hierarchy:
    """One mounted tree of cgroups, and where we are in it."""

    __slots__ = ("version", "mount", "chain", "read_only")

    def __init__(self, version: int, mount: str, chain: tuple[str, ...], *, read_only: bool) -> None:
        self.version = version
        """1 or 2."""
        self.mount = mount
        self.chain = chain
        """Directories from the mount down to our own cgroup; empty where our own is not to be seen from here."""
        self.read_only = read_only

    def offers(self, controller: str) -> bool:
        """Whether version 2's tree has the controller at all."""
        return controller in read_words(os.path.join(self.mount, "cgroup.controllers"))


class Hierarchies:
    """What `find_hierarchies` found."""

    __slots__ = ("v1", "v2")

    def __init__(self, v1: dict[str, Hierarchy], v2: Hierarchy | None) -> None:
        self.v1 = v1
        """By controller; several share one where they are mounted together."""
        self.v2 = v2

    @property
    def mode(self) -> str:
        """`v1`, `v2`, `hybrid` (both are mounted, whichever has the controllers) or `none`."""
        if self.v1:
            return "v1" if self.v2 is None else "hybrid"
        return "none" if self.v2 is None else "v2"

    def of(self, controller: str) -> Hierarchy | None:
        """The tree that has `memory`, `pids` or `cpu`; a controller is never in two."""
        if controller in self.v1:
            return self.v1[controller]
        return self.v2 if self.v2 is not None and self.v2.offers(controller) else None

    def all(self) -> list[Hierarchy]:
        """Every tree once."""
        trees = list(dict.fromkeys(self.v1.values()))
        return trees if self.v2 is None else [*trees, self.v2]


def find_hierarchies(*, root: str = ROOT, proc: str = PROC) -> Hierarchies:
    """See which trees of cgroups this machine has, and where this process is in them.

    Args:
        root: What stands for /sys/fs/cgroup.
        proc: What stands for /proc.

    Raises:
        OSError: /proc cannot be read.
    """
    own = parse_own(read_text(os.path.join(proc, "self/cgroup")))
    v1: dict[str, Hierarchy] = {}
    v2: Hierarchy | None = None
    for mount in parse_mounts(read_text(os.path.join(proc, "self/mountinfo"))):
        directory = _below_root(mount.point, root)
        if directory is None:
            continue
        if mount.kind == "cgroup2":
            tree = Hierarchy(2, directory, _chain(directory, mount.top, own.get("")), read_only=mount.read_only)
            v2 = tree if v2 is None or (tree.chain and not v2.chain) else v2
            continue
        names = [name for name in CONTROLLERS if name in mount.options]
        if names:
            tree = Hierarchy(1, directory, _chain(directory, mount.top, own.get(names[0])), read_only=mount.read_only)
            for name in names:
                v1[name] = tree if name not in v1 or (tree.chain and not v1[name].chain) else v1[name]
    return Hierarchies(v1, v2)


class Mount:
    """A line of mountinfo that is about cgroups."""

    __slots__ = ("point", "top", "kind", "options", "read_only")

    def __init__(self, point: str, top: str, kind: str, options: frozenset[str], *, read_only: bool) -> None:
        self.point = point
        self.top = top
        """Which cgroup is mounted there, by its path as this process sees it."""
        self.kind = kind
        self.options = options
        self.read_only = read_only


def parse_mounts(text: str) -> list[Mount]:
    """The cgroup mounts that can be reached, in order; a line that is none of mountinfo's is passed over."""
    by_point: dict[str, Mount] = {}
    for line in text.split("\n"):
        fields = line.split(" ")
        if "-" not in fields[6:]:
            continue
        end = fields.index("-", 6)
        if len(fields) < end + 4:
            continue
        point = _unescaped(fields[4])
        kind = fields[end + 1]
        options = frozenset(fields[end + 3].split(","))
        # What is mounted over something else at the same point hides it, of whatever kind it is.
        by_point.pop(point, None)
        if kind in ("cgroup", "cgroup2"):
            read_only = "ro" in fields[5].split(",") or "ro" in options
            by_point[point] = Mount(point, _unescaped(fields[3]), kind, options, read_only=read_only)
    return list(by_point.values())


def parse_own(text: str) -> dict[str, str]:
    """The paths of /proc/self/cgroup by controller; version 2's under the empty name."""
    own: dict[str, str] = {}
    for line in text.split("\n"):
        fields = line.split(":", 2)
        if len(fields) == 3 and fields[2].startswith("/"):
            own.update(dict.fromkeys(fields[1].split(","), fields[2]))
    return own


def _unescaped(field: str) -> str:
    """Mountinfo writes space, tab, newline and backslash as a backslash with three octal digits."""
    first, *rest = field.split("\\")
    parts = [first]
    for part in rest:
        digits = part[:3]
        whole = len(digits) == 3 and all(digit in "01234567" for digit in digits)
        parts.append(chr(int(digits, 8)) + part[3:] if whole else "\\" + part)
    return "".join(parts)


def _below_root(point: str, root: str) -> str | None:
    if point != ROOT and not point.startswith(ROOT + "/"):
        return None
    return None if ".." in point.split("/") else root + point[len(ROOT) :]


def _chain(mount: str, top: str, own: str | None) -> tuple[str, ...]:
    """The directories from the mount to our own cgroup. In a namespace ours may be above or beside what is mounted."""
    if own is None:
        return ()
    if top != "/":
        if own != top and not own.startswith(top + "/"):
            return ()
        own = own[len(top) :]
    names = [name for name in own.split("/") if name]
    if ".." in names:
        return ()
    chain = [mount]
    for name in names:
        below = os.path.join(chain[-1], name)
        if not os.path.isdir(below):  # Version 1 lets a cgroup be removed under us: what is above it is still there.
            break
        chain.append(below)
    return tuple(chain)


def parents_in(tree: Hierarchy, name: str | None = None) -> list[str]:
    """The `sandport` directories of a tree, or those with this name in them; first where we would put one ourselves."""
    near = [os.path.join(directory, PARENT) for directory in tree.chain]
    if name is not None:
        held = [parent for parent in near if os.path.isdir(os.path.join(parent, name))]
        if held:
            return held
    found = [path for path in walk(tree.mount, stop_at=PARENT) if os.path.basename(path) == PARENT]
    return [parent for parent in found if name is None or os.path.isdir(os.path.join(parent, name))]


def leftovers(prefix: str = "", *, root: str = ROOT, proc: str = PROC) -> list[str]:
    """The names of all sandboxes' cgroups that begin so, in order: also those of other hosts and users."""
    trees = find_hierarchies(root=root, proc=proc).all()
    parents = [parent for tree in trees for parent in parents_in(tree)]
    names = {os.path.basename(path) for parent in parents for path in directories_in(parent)}
    return sorted(name for name in names if name.startswith(prefix))
