"""Record the cgroups of the machine that runs this, as this process sees them, for `test_cgroups_recorded.py`.

    PYTHONPATH=providers/local/src python3 providers/local/tests/recorded/record.py LABEL > LABEL.json

Where a sandbox's cgroup can be made, one is, and the recording holds it, as the kernel
filled it. It is removed again. Files that the module has no use for are left out, and so is what is neither on the way
to this process's own cgroup nor a sandbox's, but for the names of the directories.
"""

import json
import os
import stat
import sys

from sandport_provider_local import cgroup_places, cgroups, hierarchies

KEPT = {
    *("cgroup.controllers", "cgroup.subtree_control", "cgroup.procs", "cgroup.type", "cgroup.events", "cgroup.kill"),
    *("cgroup.freeze", "memory.max", "memory.events", "memory.swap.max", "memory.oom.group", "pids.max", "cpu.max"),
    *("memory.limit_in_bytes", "memory.memsw.limit_in_bytes", "memory.oom_control", "memory.swappiness"),
    *("cpu.cfs_quota_us", "cpu.cfs_period_us"),
}
NAME = "sp" + "r" * 26


def text(path: str) -> str | None:
    """The content; None where it cannot be read, as with what is only written to."""
    try:
        with open(path, encoding="utf-8") as file:
            return file.read()
    except OSError as error:
        print(f"{path}: {error.strerror}", file=sys.stderr)
        return None


def may_write(path: str) -> bool:
    return os.access(path, os.W_OK, effective_ids=True)


def record(label: str) -> dict[str, object]:
    reason = cgroup_places.why_not()
    made = None if reason else cgroups.Cgroup.create(NAME, memory_bytes=64 << 20, pids=32, cpus=0.5)
    try:
        chains = {directory for tree in hierarchies.find_hierarchies().all() for directory in tree.chain}
        directories = {}
        for directory in sorted({*chains, *(path for tree in chains for path in _below(tree, chains))}):
            files = sorted(KEPT & set(os.listdir(directory))) if _is_whole(directory, chains) else []
            directories[os.path.relpath(directory, hierarchies.ROOT)] = {
                "writable": may_write(directory),
                "files": {name: [may_write(f"{directory}/{name}"), text(f"{directory}/{name}")] for name in files},
            }
        return {
            "label": label,
            "kernel": os.uname().release,
            "uid": os.getuid(),
            "reason": reason,
            "sandbox": [os.path.relpath(path, hierarchies.ROOT) for path in made.paths] if made else [],
            "proc": {"self/cgroup": text("/proc/self/cgroup"), "self/mountinfo": "".join(_mounts())},
            "cgroup": directories,
        }
    finally:
        if made is not None:
            made.remove()


def _mounts() -> list[str]:
    with open("/proc/self/mountinfo", encoding="utf-8") as lines:
        return [line for line in lines if line.split(" ")[4].startswith(hierarchies.ROOT)]


def _is_whole(directory: str, chains: set[str]) -> bool:
    return directory in chains or f"/{hierarchies.PARENT}" in directory


def _below(directory: str, chains: set[str]) -> list[str]:
    """Directories right below one on the way, and all of a sandbox's."""
    found = []
    for name in sorted(os.listdir(directory)):
        path = os.path.join(directory, name)
        if stat.S_ISDIR(os.lstat(path).st_mode):
            found.append(path)
            if name == hierarchies.PARENT:
                found += _below(path, chains)
    return found


if __name__ == "__main__":
    json.dump(record(sys.argv[1]), sys.stdout, indent=1)
    print()
