"""Where in the trees of cgroups a sandbox's may be made, and for a person why it may not.

As high as we may create, so that nobody who ends us stumbles over it, but never outside a limit that was set on us: at
or below the deepest cgroup above us (or our own) that has one. Our own cgroup is not changed, nor is any process moved
but those that are added.

Version 2 takes two things more. A controller is in a cgroup only if the one above hands it down
(`cgroup.subtree_control`), and a cgroup that holds processes cannot hand down any: so a place is one without processes
of its own, and since we do not move ourselves into a leaf, somebody must have started us in one.

Of the standard library only what starts fast, as in every module that `init` and `keeper` import.
"""

from __future__ import annotations

import os

from sandport_provider_local.cgroup_files import is_v2, members_of, read_number, read_words
from sandport_provider_local.hierarchies import CONTROLLERS, PROC, ROOT, Hierarchies, Hierarchy, find_hierarchies

TYPE_CHECKING = False  # That of `typing` costs more to import than all the rest.
if TYPE_CHECKING:
    from collections.abc import Iterable

_UNLIMITED_BYTES = 2**62
"""What version 1 shows for no limit is near 2**63, by the page's size."""


class CgroupUnavailable(Exception):
    """A limit cannot be had here; the text says to a person what is missing and what to do."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


def why_not(controllers: Iterable[str] = CONTROLLERS, *, root: str = ROOT, proc: str = PROC) -> str | None:
    """Why these limits cannot be had here, for a person; None where they can. Nothing is created."""
    try:
        find_places(find_hierarchies(root=root, proc=proc), list(controllers))
    except CgroupUnavailable as unavailable:
        return unavailable.reason
    return None


def find_places(found: Hierarchies, wanted: list[str]) -> list[tuple[Hierarchy, str, list[str]]]:
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
        first = read_words(os.path.join(directory, file))[:1]
        if first and first != ["max"]:
            return True
    memory = read_number(directory, "memory.limit_in_bytes")
    quota = read_number(directory, "cpu.cfs_quota_us")
    processes = read_number(directory, "pids.max") if not is_v2(directory) else None
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
    kind = " ".join(read_words(os.path.join(directory, "cgroup.type")))
    if kind not in ("", "domain"):
        return f"{directory} is of the kind {kind!r}, which cannot hold processes with limits of their own"
    closed = not_handed_down(directory, wanted)
    is_top = not os.path.exists(os.path.join(directory, "cgroup.type"))
    if closed and not is_top and members_of(directory):
        return (
            f"{directory} holds processes itself, and so the kernel lets it hand no controller down"
            f"{' (and it has a limit, which a sandbox beside it would escape)' if _has_limit(directory) else ''}. "
            "Start the host in a cgroup below it: a systemd unit takes `Delegate=yes` and `DelegateSubgroup=host` "
            "(systemd 254 or newer); a container first moves its processes (`mkdir "
            f"{directory}/host`, then each number in its cgroup.procs into host/cgroup.procs)"
        )
    missing = [name for name in closed if name not in read_words(os.path.join(directory, "cgroup.controllers"))]
    if missing:
        return (
            f"the controller {', '.join(missing)} is not handed down to {directory}. As root: `systemctl edit "
            "user@.service` (or the unit's own name) with `[Service]` and `Delegate=cpu memory pids`, then start it "
            "anew"
        )
    return None


def not_handed_down(directory: str, controllers: list[str]) -> list[str]:
    """Those that the cgroup does not hand down yet."""
    open_ = read_words(os.path.join(directory, "cgroup.subtree_control"))
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
