"""The cgroup of one sandbox, of either version of the kernel's: made with its limits, ended, found again, removed.

It is a directory `sandport/NAME` in each tree that is needed, NAME being the sandbox's id. Nothing but that name is
needed to find it again: whoever made it may be dead, and anybody who may do so can end and remove it. `hierarchies`
says which trees there are, `cgroup_places` where in them it is put, `cgroup_limits` what is written to it.

With version 2 `sandport` hands controllers down too, which keeps systemd from taking one back as long as a sandbox is
there.

Of the standard library only what starts fast, as in every module that `init` and `keeper` import.
"""

from __future__ import annotations

import errno
import os
import signal
import time

from sandport_provider_local.cgroup_files import (
    members_of,
    parse_count,
    read_text,
    read_text_or_none,
    read_words,
    walk,
    write_if_there,
    write_text,
)
from sandport_provider_local.cgroup_limits import settings_of
from sandport_provider_local.cgroup_places import CgroupUnavailable, find_places, not_handed_down
from sandport_provider_local.hierarchies import PARENT, PROC, ROOT, find_hierarchies, parents_in

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

_NOT_NAMES = frozenset({"tasks", "notify_on_release", "release_agent"})
"""The kernel's files in a cgroup that have no dot in their name."""


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
        wanted = settings_of(memory_bytes, pids, cpus)
        made: list[str] = []
        try:
            for tree, place, controllers in find_places(find_hierarchies(root=root, proc=proc), list(wanted)):
                leaf = _make(tree.version, place, name, controllers)
                made.append(leaf)
                for controller in controllers:
                    for setting in wanted[controller][tree.version]:
                        setting.apply(leaf)
        except BaseException:  # whatever it is, what is made so far is known here only
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
            for path in dict.fromkeys(os.path.join(parent, name) for parent in parents_in(tree, name))
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
                write_text(
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
        return sorted({pid for path in self.paths for directory in walk(path) for pid in members_of(directory)})

    def oom_kills(self) -> int:
        """How often the kernel has killed a process in it for want of memory; it only grows. 0 without a memory limit.

        Raises:
            FileNotFoundError: It was removed.
        """
        if self._counter is None:
            return 0
        top, file = os.path.split(self._counter)
        if file == "memory.events":  # This counts what is below, version 1's does not.
            return parse_count(read_text(self._counter), "oom_kill")
        below = [os.path.join(path, file) for path in walk(top) if path != top]
        return parse_count(read_text(self._counter), "oom_kill") + sum(
            parse_count(read_text_or_none(path) or "", "oom_kill") for path in below
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
                if not write_if_there(os.path.join(path, "cgroup.kill"), "1"):
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
        stops = [write_if_there(os.path.join(path, "pids.max"), "0") for path in self.paths]
        by_number = [path for path in self.paths if not os.path.exists(os.path.join(path, "cgroup.kill"))]
        stops += [write_if_there(os.path.join(path, "cgroup.freeze"), "1") for path in by_number]
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


def read_counter(fd: int) -> int:
    """What `Cgroup.open_counter` counts now.

    Raises:
        OSError: ENODEV: the cgroup was removed.
    """
    return parse_count(os.pread(fd, 4096, 0).decode("ascii", "replace"), "oom_kill")


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
            _hand_down(place, not_handed_down(place, controllers))
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
            kind = " ".join(read_words(os.path.join(leaf, "cgroup.type")))
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
                write_text(
                    os.path.join(directory, "cgroup.subtree_control"), " ".join("+" + name for name in controllers)
                )
            return
        except OSError as error:
            # A process that was just moved out is counted for a moment still (containers/crun#758).
            if error.errno != errno.EBUSY or last or members_of(directory):
                raise
        time.sleep(PAUSE_S)


def _removed(path: str) -> bool:
    """Try to remove a cgroup and all below it; False while processes are in it."""
    for directory in reversed(list(walk(path))):
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
    for directory in walk(path):
        descriptors = {}
        try:
            for pid in members_of(directory):
                # Zero is a process out of our PID namespace, and to kill() it is our own group.
                if pid > 0:
                    fd = _descriptor_of(pid)
                    if fd is not None:
                        descriptors[pid] = fd
            # Looked at again once they are held: what is in it now under a number is what is held, or has ended.
            for pid in members_of(directory):
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
