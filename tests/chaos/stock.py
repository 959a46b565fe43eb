"""Taking stock: everything that a run could have left, and what of it may be there.

Looked for in the kernel and on the disk, never in the memory of whoever ran: processes, what they are and whose;
mounts and sockets; files of the home and temporary ones; rows of the journal; what the provider itself lists.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import signal
import time
from pathlib import Path

from sandport.home import Home
from sandport_sdk.testing import HostInMemory
from sandport_sdk.v1 import Provider, types

from .place import Place

WITHIN_S = 10.0
"""What was killed, or told to end, may take so long to be gone: a machine under load is slow."""

LASTING = (
    r"version|store-id|journal\.db(-wal|-shm)?",
    r"instances|running|workers|workers/[a-z]+|logs",
    r"logs/[^/]+",
    r"workers/fake/(vendor\.(lock|json|jsonl)|(clock|faults|passed|outage|rate)\.json|sandboxes|files|guards|creates)",
    r"workers/fake/creates/\d+",
    # Of a worker that was killed while it wrote: the fake vendor's disk is a cloud's, and no sandbox of anybody.
    r"workers/fake/(sandboxes/)?\.[^/]+\.json\.\d+",
)
"""What a home holds after everything has ended."""
_MAY_STAY = re.compile("|".join(f"(?:{pattern})" for pattern in LASTING))


def provider_class(name: str) -> type[Provider]:
    """The class of a provider, for a worker in memory."""
    if name == "local":
        from sandport_provider_local.provider import LocalProvider

        return LocalProvider
    from sandport_provider_fake.provider import FakeProvider

    return FakeProvider


def listed(place: Place, provider: str) -> list[str]:
    """What a fresh worker lists of this store."""
    home = Home.open(place.home)

    async def ask() -> list[str]:
        found: list[str] = []
        cursor = None
        state_dir = home.state_dir(provider)
        async with HostInMemory(provider_class(provider), state_dir=state_dir, store_id=home.store_id) as host:
            while True:
                page = await host.call("listLeases", types.ListLeasesParams(cursor=cursor))
                found += [lease.sandbox_id for lease in page.leases]
                cursor = page.next_cursor
                if cursor is None:
                    return found

    return asyncio.run(ask())


def files_left(place: Place, *, but: frozenset[str] = frozenset()) -> list[str]:
    """Files that should not be there any more; `but` names sandboxes that are kept."""
    faults = []
    for path in sorted(place.home.rglob("*")) if place.home.exists() else []:
        name = str(path.relative_to(place.home))
        if not _MAY_STAY.fullmatch(name) and not any(kept in name for kept in but):
            faults.append(f"a file of the home: {name}")
    faults += [f"a temporary file: {path.relative_to(place.tmp)}" for path in sorted(place.tmp.rglob("*"))]
    return faults


def kernel_left(place: Place) -> list[str]:
    """Sockets and mounts under the folder of a run."""
    mark = str(place.root)
    sockets = [line for line in Path("/proc/net/unix").read_text().splitlines() if mark in line]
    mounts = [line for line in Path("/proc/self/mountinfo").read_text().splitlines() if mark in line]
    return [f"a socket: {line}" for line in sockets] + [f"a mount: {line}" for line in mounts]


# ------------------------------------------------------------------ processes


def living(pid: int) -> bool:
    """Whether a process runs; one that only waits to be reaped does not."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_bytes()
    except OSError:
        return False
    return stat[stat.rindex(b")") + 2 :].split()[0] not in (b"Z", b"X")


def below(ancestor: int) -> list[int]:
    """Every living process below one."""
    children: dict[int, list[int]] = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            with contextlib.suppress(OSError):
                stat = Path(f"/proc/{name}/stat").read_bytes()
                fields = stat[stat.rindex(b")") + 2 :].split()
                children.setdefault(int(fields[1]), []).append(int(name))
    found: list[int] = []
    fresh = [ancestor]
    while fresh:
        fresh = [child for parent in fresh for child in children.get(parent, ())]
        found += fresh
    return [pid for pid in found if living(pid)]


def marked(*marks: str) -> list[int]:
    """Every living process with one of these texts in its arguments, environment, directory or open files."""
    texts = [mark.encode() for mark in marks]
    found = []
    for name in os.listdir("/proc"):
        if not name.isdigit() or int(name) == os.getpid():
            continue
        with contextlib.suppress(OSError):
            said = Path(f"/proc/{name}/cmdline").read_bytes() + Path(f"/proc/{name}/environ").read_bytes()
            said += os.fsencode(os.readlink(f"/proc/{name}/cwd"))
            for fd in os.listdir(f"/proc/{name}/fd"):
                with contextlib.suppress(OSError):
                    said += os.fsencode(os.readlink(f"/proc/{name}/fd/{fd}"))
            if any(text in said for text in texts) and living(int(name)):
                found.append(int(name))
    return found


def described(pid: int) -> str:
    """A process, for a person."""
    with contextlib.suppress(OSError):
        words = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
        return f"process {pid}: {words[:200]}"
    return f"process {pid}"


def reap() -> None:
    """Take the status of every child that has ended, also of orphans that came to this process."""
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


def processes_left(place: Place, *, within_s: float = WITHIN_S) -> list[str]:
    """Processes below this one, or marked with a run's folder, that do not end; this process must be a subreaper.

    They are killed: the next run must not find them.
    """
    until = time.monotonic() + within_s
    while True:
        reap()
        left = sorted({*below(os.getpid()), *marked(str(place.root))})
        if not left:
            return []
        if time.monotonic() > until:
            break
        time.sleep(0.01)
    faults = [described(pid) for pid in left]
    while left := below(os.getpid()):
        for pid in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        reap()
        time.sleep(0.005)
    return faults


def descriptors() -> list[str]:
    """What this process has open."""
    found = []
    for fd in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            found.append(os.readlink(f"/proc/self/fd/{fd}"))
    return sorted(found)
