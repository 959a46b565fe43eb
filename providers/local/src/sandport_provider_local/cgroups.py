"""Limits on memory, number of processes and CPU of one sandbox, by the kernel's cgroups of either version.

A sandbox's cgroup is a directory `sandport/NAME` in each hierarchy that is needed, NAME being the sandbox's id. Nothing
but that name is needed to find it again: whoever made it may be dead, and anybody who may do so can end and remove it.

Where it is put: as high in the tree as we may create, so that nobody who ends us stumbles over it, but never outside a
limit that was set on us: at or below the deepest cgroup above us (or our own) that has one. Our own cgroup is not
changed, nor is any process moved but those that are added.

Version 2 takes two things more. A controller is in a cgroup only if the one above hands it down
(`cgroup.subtree_control`), and a cgroup that holds processes cannot hand down any: so a place is one without processes
of its own, and since we do not move ourselves into a leaf, somebody must have started us in one. `sandport` hands down
too, which keeps systemd from taking a controller back as long as a sandbox is there.

What the limits mean:
- memory: what the sandbox has in RAM, its tmpfs and page cache included. Nothing is swapped out past it: version 1
  limits both together (`memsw`; a kernel without that accounting gets a swappiness of 0), version 2 allows no swap.
  `memory.oom.group` stays 0: the kernel kills the greediest process and not the whole sandbox, whose init would be in
  it, so that a command ends as `outOfMemory` and the sandbox goes on.
- pids: processes and threads together; at the limit fork fails with EAGAIN.
- cpus: CPU time per time, in a period of a tenth of a second.

Why so long: it is one file, and of the standard library it uses only what starts fast: a keeper that has nothing of
ours on its module path loads it by its path.
"""

from __future__ import annotations

import errno
import math
import os
import signal
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

ROOT = "/sys/fs/cgroup"
PROC = "/proc"
PARENT = "sandport"
"""The directory that holds the sandboxes' own; there while there is one."""
CONTROLLERS = ("memory", "pids", "cpu")
MIN_MEMORY_BYTES = 1024 * 1024
"""Under that not even a process can start, and the kernel's counters are in pages."""
MIN_CPUS = 0.01
"""The kernel takes no quota below a millisecond."""
PERIOD_US = 100_000
KILL_S = 5.0
REMOVE_S = 2.0
PAUSE_S = 0.001
"""Between two looks at what drains; doubled each time up to `LONGEST_PAUSE_S`."""
LONGEST_PAUSE_S = 0.05
STOP_PASSES = 50
"""Looks for what a process forked while it was being stopped; only where no limit of processes can end the forking."""
BUSY_TRIES = 100
"""Tries to hand down a controller from a cgroup that is empty and does not know it yet; `PAUSE_S` between them."""
MADE_AGAIN = 100
"""Tries to make a directory whose parent somebody else removes at the same moment because it was empty."""

_UNLIMITED_BYTES = 2**62
"""What version 1 shows for no limit is near 2**63, by the page's size."""
_MOST_BYTES = 2**63 - 65536
_MOST_PIDS = 4 * 1024 * 1024
_NOT_NAMES = frozenset({"tasks", "notify_on_release", "release_agent"})
"""The kernel's files in a cgroup that have no dot in their name."""


class CgroupUnavailable(Exception):
    """A limit cannot be had here; the text says to a person what is missing and what to do."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


# ------------------------------------------------------------------ which hierarchies there are


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
        return controller in _words(os.path.join(self.mount, "cgroup.controllers"))


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
    own = parse_own(_text(os.path.join(proc, "self/cgroup")))
    v1: dict[str, Hierarchy] = {}
    v2: Hierarchy | None = None
    for mount in parse_mounts(_text(os.path.join(proc, "self/mountinfo"))):
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


# ------------------------------------------------------------------ where we may create


def why_not(controllers: Iterable[str] = CONTROLLERS, *, root: str = ROOT, proc: str = PROC) -> str | None:
    """Why these limits cannot be had here, for a person; None where they can. Nothing is created."""
    try:
        _plan(find_hierarchies(root=root, proc=proc), list(controllers))
    except CgroupUnavailable as unavailable:
        return unavailable.reason
    return None


def _plan(found: Hierarchies, wanted: list[str]) -> list[tuple[Hierarchy, str, list[str]]]:
    """For each tree that is needed: where the new cgroup is put, and what is limited in it."""
    needed: dict[Hierarchy, list[str]] = {}
    for controller in wanted:
        tree = found.of(controller)
        if tree is None:
            raise CgroupUnavailable(_no_controller(found, controller))
        needed.setdefault(tree, []).append(controller)
    plan = [(tree, _place(tree, names), names) for tree, names in needed.items()]
    helper = found.of("pids") if "pids" not in wanted else None
    if helper is not None and helper.version == 1 and helper not in needed:
        # Not asked for, but it is what makes a kill sure where no `cgroup.kill` is: with no room for one more process
        # nothing can fork away from it. Where it cannot be had, the kill stops processes first.
        try:
            plan.append((helper, _place(helper, []), []))
        except CgroupUnavailable:
            helper = None
    if not plan:
        if found.v2 is None:
            raise CgroupUnavailable(_no_controller(found, "pids"))
        plan.append((found.v2, _place(found.v2, []), []))
    return plan


def _no_controller(found: Hierarchies, controller: str) -> str:
    if found.mode == "none":
        return (
            f"no limit of {controller}: no cgroups are mounted at {ROOT}. "
            f"Mount them (`mount -t cgroup2 none {ROOT}`), in a container with its runtime's option for it"
        )
    remedy = "boot with `cgroup_enable=memory cgroup_memory=1`" if controller == "memory" else "use one that has it"
    return (
        f"no limit of {controller}: no tree of cgroups below {ROOT} has that controller (mode {found.mode}). Either "
        f"the kernel is without it ({remedy}), or it is in a tree of version 1 that is not mounted here"
    )


def _place(tree: Hierarchy, wanted: list[str]) -> str:
    """The highest directory that we may create in without leaving a limit that is on us."""
    what = ", ".join(wanted) or "processes"
    if tree.read_only:
        raise CgroupUnavailable(
            f"no limit of {what}: {tree.mount} is mounted read-only, as containers have it. "
            "Start the container with its cgroups writable (Docker and podman: `--privileged`, or `--cgroupns=private` "
            f"with {ROOT} mounted read-write)"
        )
    if not tree.chain:
        raise CgroupUnavailable(
            f"no limit of {what}: this process is in a cgroup that cannot be seen below {tree.mount}. "
            "Start the host in the cgroup namespace that these cgroups were mounted in"
        )
    limited = [index for index, directory in enumerate(tree.chain) if _has_limit(directory)]
    usable = tree.chain[limited[-1] if limited else 0 :]
    reasons = []
    for directory in usable:
        reason = _hindrance(tree.version, directory, wanted)
        if reason is None:
            return directory
        if reason:
            reasons.append(reason)
    # The highest that is ours to write says most; below it the same is missing, and more.
    raise CgroupUnavailable(f"no limit of {what}: " + (reasons[0] if reasons else _no_rights(tree)))


def _has_limit(directory: str) -> bool:
    """Whether this cgroup limits what is in it.

    Its number of processes counts in version 1 alone: there it costs nothing to stay inside, and version 2's is
    systemd's default for every service and not a decision.
    """
    for file in ("memory.max", "cpu.max"):
        first = _words(os.path.join(directory, file))[:1]
        if first and first != ["max"]:
            return True
    memory = _number(directory, "memory.limit_in_bytes")
    quota = _number(directory, "cpu.cfs_quota_us")
    processes = _number(directory, "pids.max") if not _is_v2(directory) else None
    return (memory is not None and memory < _UNLIMITED_BYTES) or (quota or -1) > 0 or processes is not None


def _hindrance(version: int, directory: str, wanted: list[str]) -> str | None:
    """Why nothing can be created in a cgroup; None where it can, the empty text where it is not ours to write."""
    if not os.access(directory, os.W_OK | os.X_OK, effective_ids=True):
        return ""
    if version == 1:
        return None
    # Processes may be moved only by who may write to what is above both their old and their new place.
    if not os.access(os.path.join(directory, "cgroup.procs"), os.W_OK, effective_ids=True):
        return ""
    kind = " ".join(_words(os.path.join(directory, "cgroup.type")))
    if kind not in ("", "domain"):
        return f"{directory} is of the kind {kind!r}, which cannot hold processes with limits of their own"
    closed = _closed(directory, wanted)
    is_top = not os.path.exists(os.path.join(directory, "cgroup.type"))
    if closed and not is_top and _members(directory):
        return (
            f"{directory} holds processes itself, and so the kernel lets it hand no controller down"
            f"{' (and it has a limit, which a sandbox beside it would escape)' if _has_limit(directory) else ''}. "
            "Start the host in a cgroup below it: a systemd unit takes `Delegate=yes` and `DelegateSubgroup=host` "
            "(systemd 254 or newer); a container first moves its processes (`mkdir "
            f"{directory}/host`, then each number in its cgroup.procs into host/cgroup.procs)"
        )
    missing = [name for name in closed if name not in _words(os.path.join(directory, "cgroup.controllers"))]
    if missing:
        return (
            f"the controller {', '.join(missing)} is not handed down to {directory}. As root: `systemctl edit "
            "user@.service` (or the unit's own name) with `[Service]` and `Delegate=cpu memory pids`, then start it "
            "anew"
        )
    return None


def _closed(directory: str, controllers: list[str]) -> list[str]:
    """Those that the cgroup does not hand down yet."""
    open_ = _words(os.path.join(directory, "cgroup.subtree_control"))
    return [name for name in controllers if name not in open_]


def _no_rights(tree: Hierarchy) -> str:
    if tree.version == 1:
        return (
            f"only root may create cgroups in {tree.chain[-1]}. Run the host as root, or have root make a cgroup that "
            "belongs to this user and start the host in it"
        )
    return (
        f"{tree.chain[-1]} and what is above it belong to root. Start the host in the part of the tree that systemd "
        "hands to the user: `systemd-run --user --scope COMMAND`"
    )


# ------------------------------------------------------------------ one sandbox's cgroup


class Cgroup:
    """The cgroup of one sandbox, in as many trees as it needs."""

    __slots__ = ("name", "paths", "_counter")

    def __init__(self, name: str, paths: list[str]) -> None:
        """For `create` and `open`."""
        self.name = name
        self.paths = tuple(paths)
        """Its directories: one with version 2, up to three with version 1."""
        counters = [os.path.join(path, file) for file in ("memory.events", "memory.oom_control") for path in paths]
        self._counter = next((path for path in counters if os.path.exists(path)), None)

    @classmethod
    def create(
        cls,
        name: str,
        *,
        memory_bytes: int | None = None,
        pids: int | None = None,
        cpus: float | None = None,
        root: str = ROOT,
        proc: str = PROC,
    ) -> Cgroup:
        """Make the cgroup with its limits, empty; takes less than a millisecond. All of it is there, or nothing.

        Args:
            name: The sandbox's id: letters, digits, `_` and `-`.
            memory_bytes: At least `MIN_MEMORY_BYTES`; None: not limited.
            pids: Processes and threads; None: not limited.
            cpus: CPUs' worth of time, at least `MIN_CPUS`; 0.5 is half of one. None: not limited.
            root: What stands for /sys/fs/cgroup.
            proc: What stands for /proc.

        Raises:
            CgroupUnavailable: A limit that was asked for cannot be had; nothing was made.
            FileExistsError: There is one of this name, or a part of one: `discard` it.
            ValueError: A limit or the name makes no sense.
        """
        _check_name(name)
        wanted = _settings(memory_bytes, pids, cpus)
        made: list[str] = []
        try:
            for tree, place, controllers in _plan(find_hierarchies(root=root, proc=proc), list(wanted)):
                leaf = _make(tree.version, place, name, controllers)
                made.append(leaf)
                for controller in controllers:
                    for setting in wanted[controller][tree.version]:
                        setting.apply(leaf)
        except BaseException:
            cls(name, made).remove()
            raise
        return cls(name, made)

    @classmethod
    def open(cls, name: str, *, root: str = ROOT, proc: str = PROC) -> Cgroup:
        """Find a sandbox's cgroup by its name, whoever made it and however much of it is left.

        Raises:
            FileNotFoundError: There is none.
            ValueError: The name is none.
        """
        _check_name(name)
        paths = [
            path
            for tree in find_hierarchies(root=root, proc=proc).all()
            for path in dict.fromkeys(os.path.join(parent, name) for parent in _parents(tree, name))
        ]
        if not paths:
            raise FileNotFoundError(errno.ENOENT, "no cgroup of this name", name)
        return cls(name, paths)

    @classmethod
    def discard(cls, name: str, *, root: str = ROOT, proc: str = PROC) -> bool:
        """Kill what is in a cgroup and remove it; False where there is none. Repeat: the same.

        Raises:
            OSError: Something in it does not end.
        """
        try:
            cgroup = cls.open(name, root=root, proc=proc)
        except FileNotFoundError:
            return False
        cgroup.kill()
        cgroup.remove()
        return True

    def add(self, pid: int) -> None:
        """Move a process in; 0 is this one. What it forks afterwards is in too, what it had forked before is not.

        The kernel takes some 10 ms for it; but with version 1 a tenth of one for this process, while it has one thread.

        Raises:
            ProcessLookupError: There is no such process.
            CgroupUnavailable: It may not be moved from where it is.
        """
        # To move a process the kernel waits until no processor is amid a fork. A thread that moves itself it need not
        # wait for, and a process of one thread is that thread.
        is_one_thread = pid == 0 and len(os.listdir("/proc/self/task")) == 1
        for path in self.paths:
            tasks = os.path.join(path, "tasks")
            try:
                _write(
                    tasks if is_one_thread and os.path.exists(tasks) else os.path.join(path, "cgroup.procs"), str(pid)
                )
            except ProcessLookupError:
                raise
            except OSError as error:
                raise CgroupUnavailable(
                    f"process {pid} cannot be moved into {path}: {error.strerror}. It must belong to this user and run "
                    "in the same part of the tree"
                ) from error

    def members(self) -> list[int]:
        """Processes that are in it or below it now; 0 for one that is not in our PID namespace."""
        return sorted({pid for path in self.paths for directory in _tree(path) for pid in _members(directory)})

    def oom_kills(self) -> int:
        """How often the kernel has killed a process in it for want of memory; it only grows. 0 without a memory limit.

        Raises:
            FileNotFoundError: It was removed.
        """
        if self._counter is None:
            return 0
        top, file = os.path.split(self._counter)
        if file == "memory.events":  # This counts what is below, version 1's does not.
            return parse_count(_text(self._counter), "oom_kill")
        below = [os.path.join(path, file) for path in _tree(top) if path != top]
        return parse_count(_text(self._counter), "oom_kill") + sum(
            parse_count(_text_or_none(path) or "", "oom_kill") for path in below
        )

    def open_counter(self) -> int | None:
        """A descriptor for `read_counter`, which goes on counting where the tree is not to be seen; close it."""
        return None if self._counter is None else os.open(self._counter, os.O_RDONLY | os.O_CLOEXEC)

    def kill(self, *, timeout_s: float = KILL_S) -> list[int]:
        """Kill everything in it; blocks until that is gone, mostly some milliseconds. Add nothing to it afterwards.

        Returns:
            The processes that are still there after `timeout_s`; empty when all are gone.

        Raises:
            ValueError: This process is in it.
            OSError: A process of somebody else's is in it.
        """
        left = self.members()
        if os.getpid() in left:
            raise ValueError(f"this process is itself in the cgroup {self.name}")
        deadline = time.monotonic() + timeout_s
        pause_s = PAUSE_S
        no_more = self._allow_no_more()
        while left:
            for path in self.paths:
                if not _write_if_there(os.path.join(path, "cgroup.kill"), "1"):
                    _kill_each(path, stop_first=not no_more)
            left = self.members()
            if not left or time.monotonic() > deadline:
                break
            time.sleep(pause_s)
            pause_s = min(2 * pause_s, LONGEST_PAUSE_S)
            left = self.members()
        return left

    def _allow_no_more(self) -> bool:
        """Let nothing in it fork: a kill by numbers then ends. Version 2 stops what is in it instead."""
        stops = [_write_if_there(os.path.join(path, "pids.max"), "0") for path in self.paths]
        by_number = [path for path in self.paths if not os.path.exists(os.path.join(path, "cgroup.kill"))]
        stops += [_write_if_there(os.path.join(path, "cgroup.freeze"), "1") for path in by_number]
        return any(stops)

    def remove(self, *, timeout_s: float = REMOVE_S) -> None:
        """Remove it with what was made below it, once what was in it is gone. Repeat: missing is fine.

        Raises:
            OSError: EBUSY: there are processes in it still after `timeout_s`; EACCES: it belongs to somebody else.
        """
        deadline = time.monotonic() + timeout_s
        for path in self.paths:
            pause_s = PAUSE_S
            while not _removed(path):
                if time.monotonic() > deadline:
                    raise OSError(errno.EBUSY, f"processes are still in it: {self.members()}", path)
                time.sleep(pause_s)
                pause_s = min(2 * pause_s, LONGEST_PAUSE_S)
            _remove_if_empty(os.path.dirname(path))


def leftovers(prefix: str = "", *, root: str = ROOT, proc: str = PROC) -> list[str]:
    """The names of all sandboxes' cgroups that begin so, in order: also those of other hosts and users."""
    trees = find_hierarchies(root=root, proc=proc).all()
    parents = [parent for tree in trees for parent in _parents(tree)]
    names = {os.path.basename(path) for parent in parents for path in _directories(parent)}
    return sorted(name for name in names if name.startswith(prefix))


def read_counter(fd: int) -> int:
    """What `Cgroup.open_counter` counts now.

    Raises:
        OSError: ENODEV: the cgroup was removed.
    """
    return parse_count(os.pread(fd, 4096, 0).decode("ascii", "replace"), "oom_kill")


def parse_count(text: str, key: str) -> int:
    """The number behind a key in one of the kernel's lists; 0 where it has no such line (an old kernel's)."""
    for line in text.split("\n"):
        words = line.split()
        if len(words) == 2 and words[0] == key and _is_number(words[1]):
            return int(words[1])
    return 0


# ------------------------------------------------------------------ making and removing


class Setting:
    """One file of a cgroup and what is written to it."""

    __slots__ = ("file", "value", "instead")

    def __init__(self, file: str, value: int | str, *, instead: Setting | None = None, optional: bool = False) -> None:
        self.file = file
        self.value = str(value)
        self.instead = (instead,) if instead is not None else () if optional else None
        """What is done where the kernel has no such file; None: then the limit cannot be had."""

    def apply(self, directory: str) -> None:
        """Write it.

        Raises:
            CgroupUnavailable: The kernel has no such file, or does not take the value.
        """
        try:
            _write(os.path.join(directory, self.file), self.value)
        except FileNotFoundError as error:
            if self.instead is None:
                raise CgroupUnavailable(f"this kernel was built without {self.file}") from error
            for setting in self.instead:
                setting.apply(directory)
        except OSError as error:
            raise CgroupUnavailable(
                f"{self.file} of {directory} does not take {self.value}: {error.strerror}. "
                "A cgroup above it may allow less"
            ) from error


def _settings(memory_bytes: int | None, pids: int | None, cpus: float | None) -> dict[str, dict[int, list[Setting]]]:
    """What is written for the limits, by controller and version, in this order."""
    wanted: dict[str, dict[int, list[Setting]]] = {}
    if memory_bytes is not None:
        if memory_bytes < MIN_MEMORY_BYTES:
            raise ValueError(f"memory_bytes must be at least {MIN_MEMORY_BYTES}, not {memory_bytes}")
        most = min(memory_bytes, _MOST_BYTES)
        no_swap = Setting("memory.swappiness", 0, optional=True)
        wanted["memory"] = {
            1: [Setting("memory.limit_in_bytes", most), Setting("memory.memsw.limit_in_bytes", most, instead=no_swap)],
            2: [Setting("memory.max", most), Setting("memory.swap.max", 0, optional=True)],
        }
    if pids is not None:
        if pids < 1:
            raise ValueError(f"pids must be at least 1, not {pids}")
        setting = Setting("pids.max", min(pids, _MOST_PIDS))
        wanted["pids"] = {1: [setting], 2: [setting]}
    if cpus is not None:
        if not math.isfinite(cpus) or cpus < MIN_CPUS:
            raise ValueError(f"cpus must be at least {MIN_CPUS}, not {cpus}")
        # More than the kernel has CPUs for is the same as no limit, and beyond its range an error.
        quota_us = round(min(cpus, 4096) * PERIOD_US)
        wanted["cpu"] = {
            1: [Setting("cpu.cfs_period_us", PERIOD_US), Setting("cpu.cfs_quota_us", quota_us)],
            2: [Setting("cpu.max", f"{quota_us} {PERIOD_US}")],
        }
    return wanted


def _check_name(name: str) -> None:
    plain = name.isascii() and name.replace("_", "a").replace("-", "a").isalnum()
    if not plain or len(name) > 200 or name in _NOT_NAMES:
        raise ValueError(f"not the name of a sandbox: {name!r}")


def _make(version: int, place: str, name: str, controllers: list[str]) -> str:
    """Make `sandport/NAME` in a place, with these controllers in it."""
    parent = os.path.join(place, PARENT)
    leaf = os.path.join(parent, name)
    try:
        if version == 2:
            _hand_down(place, _closed(place, controllers))
        _make_leaf(parent, leaf)
    except FileExistsError:
        raise
    except OSError as error:
        _remove_if_empty(parent)
        raise CgroupUnavailable(f"no cgroup can be made in {place}: {error.strerror}") from error
    if version == 2:
        try:
            # Only now that something is in it can nobody remove it, for another to make it anew without controllers.
            # Written also where they seem to be there: they show before the files do, and a write waits for both.
            _hand_down(parent, controllers)
            kind = " ".join(_words(os.path.join(leaf, "cgroup.type")))
            if kind not in ("", "domain"):
                raise CgroupUnavailable(f"no cgroup can be made in {place}: it would be of the kind {kind!r}")
        except BaseException as error:
            Cgroup(name, [leaf]).remove()
            if isinstance(error, OSError):
                raise CgroupUnavailable(f"no cgroup can be made in {place}: {error.strerror}") from error
            raise
    return leaf


def _make_leaf(parent: str, leaf: str) -> None:
    for _ in range(MADE_AGAIN):
        _make_directory(parent)
        try:
            os.mkdir(leaf, 0o755)
        except OSError as error:
            if error.errno not in (errno.ENOENT, errno.ENODEV):
                raise
            continue  # Who removed the last sandbox has just removed the parent with it.
        return
    raise OSError(errno.EAGAIN, "its parent is removed again and again", parent)


def _make_directory(parent: str) -> None:
    try:
        os.mkdir(parent, 0o755)
    except FileExistsError:
        return  # As it mostly is: other sandboxes are in it.


def _hand_down(directory: str, controllers: list[str]) -> None:
    """Let what is below a cgroup have these controllers."""
    for last in [*[False] * BUSY_TRIES, True]:
        try:
            if controllers:
                _write(os.path.join(directory, "cgroup.subtree_control"), " ".join("+" + name for name in controllers))
            return
        except OSError as error:
            # A process that was just moved out is counted for a moment still (containers/crun#758).
            if error.errno != errno.EBUSY or last or _members(directory):
                raise
        time.sleep(PAUSE_S)


def _removed(path: str) -> bool:
    """Try to remove a cgroup and all below it; False while processes are in it."""
    for directory in reversed(list(_tree(path))):
        try:
            os.rmdir(directory)
        except FileNotFoundError:
            continue
        except OSError as error:
            if error.errno not in (errno.EBUSY, errno.ENOTEMPTY):
                raise
            return False
    return True


def _remove_if_empty(directory: str) -> None:
    try:
        os.rmdir(directory)
    except OSError as error:
        # Another sandbox is in it, or has removed it as its last; one of another user's is not ours to remove.
        if error.errno not in (errno.EBUSY, errno.ENOTEMPTY, errno.ENOENT, errno.EACCES, errno.EPERM):
            raise


def _kill_each(path: str, *, stop_first: bool) -> None:
    """Kill by number what is in a cgroup and below it."""
    if stop_first:
        known: set[int] = set()
        for _ in range(STOP_PASSES):
            there = _signal_members(path, signal.SIGSTOP)
            if there <= known:
                break
            known |= there
    _signal_members(path, signal.SIGKILL)


def _signal_members(path: str, number: int) -> set[int]:
    """Signal what is in it; returns whom. A number that went to a process elsewhere meanwhile is not hit."""
    signalled = set()
    for directory in _tree(path):
        descriptors = {}
        try:
            for pid in _members(directory):
                # Zero is a process out of our PID namespace, and to kill() it is our own group.
                if pid > 0:
                    fd = _descriptor_of(pid)
                    if fd is not None:
                        descriptors[pid] = fd
            # Looked at again once they are held: what is in it now under a number is what is held, or has ended.
            for pid in _members(directory):
                if pid in descriptors:
                    signalled.add(pid)
                    _signal(descriptors[pid], number)
        finally:
            for fd in descriptors.values():
                os.close(fd)
    return signalled


def _descriptor_of(pid: int) -> int | None:
    try:
        return os.pidfd_open(pid)
    except ProcessLookupError:
        return None
    except OSError as error:
        if error.errno in (errno.EMFILE, errno.EINVAL):  # No room for more: the next pass has. Or a thread's number.
            return None
        raise


def _signal(fd: int, number: int) -> None:
    try:
        signal.pidfd_send_signal(fd, number)
    except ProcessLookupError:
        return  # It has ended.


# ------------------------------------------------------------------ looking at the tree


def _parents(tree: Hierarchy, name: str | None = None) -> list[str]:
    """The `sandport` directories of a tree, or those with this name in them; first where we would put one ourselves."""
    near = [os.path.join(directory, PARENT) for directory in tree.chain]
    if name is not None:
        held = [parent for parent in near if os.path.isdir(os.path.join(parent, name))]
        if held:
            return held
    found = [path for path in _tree(tree.mount, stop_at=PARENT) if os.path.basename(path) == PARENT]
    return [parent for parent in found if name is None or os.path.isdir(os.path.join(parent, name))]


def _tree(top: str, *, stop_at: str | None = None) -> Iterator[str]:
    """A directory and all below it, each before what is in it."""
    waiting = [top]
    while waiting:
        directory = waiting.pop()
        yield directory
        if stop_at is None or os.path.basename(directory) != stop_at:
            waiting += _directories(directory)


def _directories(directory: str) -> list[str]:
    try:
        with os.scandir(directory) as entries:
            return [entry.path for entry in entries if entry.is_dir(follow_symlinks=False)]
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.ENOTDIR, errno.ENODEV, errno.EACCES):  # Removed meanwhile, or not ours.
            return []
        raise


def _members(directory: str) -> list[int]:
    text = _text_or_none(os.path.join(directory, "cgroup.procs")) or ""
    return [int(word) for word in text.split() if _is_number(word)]


def _is_v2(directory: str) -> bool:
    return os.path.exists(os.path.join(directory, "cgroup.controllers"))


def _number(directory: str, file: str) -> int | None:
    word = (_text_or_none(os.path.join(directory, file)) or "").strip()
    return int(word) if _is_number(word.removeprefix("-")) else None


def _is_number(word: str) -> bool:
    return word.isascii() and word.isdigit() and len(word) <= 20


def _words(path: str) -> list[str]:
    return (_text_or_none(path) or "").split()


def _text_or_none(path: str) -> str | None:
    try:
        return _text(path)
    except OSError as error:
        # The cgroup was removed, has no such file, or is of a kind whose processes cannot be listed.
        if error.errno in (errno.ENOENT, errno.ENOTDIR, errno.ENODEV, errno.EACCES, errno.EOPNOTSUPP):
            return None
        raise


def _text(path: str) -> str:
    with open(path, encoding="utf-8", errors="surrogateescape", newline="") as file:
        return file.read()


def _write(path: str, text: str) -> None:
    """Write to a file of the kernel's, in one piece and without making one."""
    fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(fd, text.encode())
    finally:
        os.close(fd)


def _write_if_there(path: str, text: str) -> bool:
    try:
        _write(path, text)
    except OSError as error:
        if error.errno not in (errno.ENOENT, errno.ENODEV):
            raise
        return False
    return True
