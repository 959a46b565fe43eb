"""Why isolation cannot be had, where that is so: by trying it once, and by looking at what usually prevents it."""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from . import machine
from .bubblewrap import Boundary, Machine
from .launch import plan_of, program

MEANT = 'To say that it is meant: isolation = "none" in its config (-c isolation=none); to have it refused: "require"'
"""What ends a note that nothing isolates; both are keys of the config."""
TRY_S = 30.0
"""A try takes some 50 ms."""
_CAP_SYS_ADMIN = 21


def unprotected() -> str:
    """What it means that nothing isolates a sandbox here."""
    rights = "with all rights of root" if os.geteuid() == 0 else "with all rights of this user"
    return f"nothing isolates this sandbox: its commands run {rights} on this machine"


class Isolation:
    """What this worker knows of isolation here. It is found out once, when somebody needs it."""

    def __init__(self, state_dir: Path | None = None) -> None:
        """Know nothing yet.

        Args:
            state_dir: Where the provider keeps its sandboxes, which is shown to none.
        """
        self._state_dir = state_dir
        self._machine: Machine | None = None
        self._tried = asyncio.Lock()
        self._known = False
        self._obstacle: str | None = None

    async def machine(self) -> Machine:
        """What sandboxes are shown of this machine.

        Raises:
            NoBubblewrap: There is no bubblewrap.
            OSError: There are no descriptors or processes left to look with.
        """
        if self._machine is None:
            self._machine = await asyncio.to_thread(machine.look, self._state_dir)
        return self._machine._replace(resolv_conf=machine.name_servers())

    async def obstacle(self) -> str | None:
        """Why a sandbox cannot be isolated here, and what helps, for people; None where it can be.

        Raises:
            OSError: There are no descriptors or processes left to try with.
        """
        async with self._tried:
            if not self._known:
                self._obstacle = await self._find()
                self._known = True
        return self._obstacle

    @property
    def hopeless(self) -> str | None:
        """What `obstacle` has found, if it was asked."""
        return self._obstacle

    async def _find(self) -> str | None:
        self._machine = None  # What was there may have been replaced since.
        try:
            there = await self.machine()
            uid = machine.new_uid()
        except (machine.NoBubblewrap, machine.NoIds) as error:
            return str(error)
        return await asyncio.to_thread(_try, there, uid)


def _try(there: Machine, uid: int | None) -> str | None:
    boundary = Boundary(uid=uid)
    command = [there.python, "-I", "-S", "-E", "-c", "pass"]
    plan = plan_of(boundary, there, command=command, cgroup="", folders=False)
    # Files and no pipes of subprocess: before 3.12 it leaks the first of them where there is none for the second.
    with plan as fd, open(os.devnull, "r+b") as nothing, open(os.memfd_create("said"), "w+b") as said:
        words = [sys.executable, *program("keeper", first=f"import os; os.dup2({fd}, 4)"), "--try"]
        try:
            tried = subprocess.run(
                words,
                pass_fds=(fd,),
                stdin=nothing,
                stdout=nothing,
                stderr=said,
                cwd="/",
                env={"LANG": "C.UTF-8"},
                timeout=TRY_S,
                check=False,
            )
        except subprocess.SubprocessError as error:
            return f"trying it failed: {error}"
        said.seek(0)
        lines = said.read().decode(errors="replace").strip().splitlines()
    if tried.returncode == 0:
        return None
    last = lines[-1] if lines else f"exit code {tried.returncode}"
    return explain(last.rpartition("cannot isolate: ")[2], Facts.of_this_machine())


class Facts(NamedTuple):
    """What the usual reasons show in."""

    root: bool
    capable: bool
    """Whether this process has CAP_SYS_ADMIN."""
    filtered: bool
    """Whether it is under a seccomp filter."""
    chrooted: bool
    settings: dict[str, str]
    """The kernel's settings by name."""

    @classmethod
    def of_this_machine(cls, read: Callable[[str], str] | None = None) -> Facts:
        """What they are here; `read` gives the text of a file, empty where it has none."""
        read = read or _read
        status = dict(line.split(":", 1) for line in read("/proc/self/status").splitlines() if ":" in line)
        capabilities = int(status.get("CapEff", "0").strip() or "0", 16)
        names = [name for name, _, _ in _SETTINGS]
        return cls(
            root=os.geteuid() == 0,
            capable=bool(capabilities >> _CAP_SYS_ADMIN & 1),
            filtered=status.get("Seccomp", "0").strip() == "2",
            chrooted=_is_chrooted(read("/proc/self/mountinfo")),
            settings={name: read(f"/proc/sys/{name.replace('.', '/', 1)}").strip() for name in names},
        )


_SETTINGS = (
    ("user.max_user_namespaces", "0", "sysctl -w user.max_user_namespaces=15000"),
    ("kernel.unprivileged_userns_clone", "0", "sysctl -w kernel.unprivileged_userns_clone=1"),
    (
        "kernel.apparmor_restrict_unprivileged_userns",
        "1",
        "sysctl -w kernel.apparmor_restrict_unprivileged_userns=0, or give bwrap an AppArmor profile with userns",
    ),
)
"""Settings that forbid user namespaces at this value, and what helps."""


def explain(said: str, facts: Facts) -> str:
    """What a failed try means: what was said, the likely cause, and what helps.

    Args:
        said: The last line of the try.
        facts: What is known of the machine.
    """
    # Bubblewrap sends its readers to pages of its distributor's, where all reasons there are stand side by side.
    said = said.partition(" See <")[0].rstrip(". ")
    causes = [
        f"{name} is {value}; as root: {remedy}"
        for name, value, remedy in _SETTINGS
        if facts.settings.get(name) == value
    ]
    if not causes and facts.chrooted and not facts.root:
        causes.append("this process runs in a chroot, where the kernel gives an ordinary user no user namespaces")
    if not causes and facts.root and not facts.capable:
        causes.append(
            "this root has no CAP_SYS_ADMIN, as in most containers: give it to the container (--cap-add=SYS_ADMIN or "
            "--privileged), or run Sandport as an ordinary user"
        )
    if not causes and facts.filtered:
        causes.append(
            "this process is under a seccomp filter, as in most containers, which may forbid it: start the container "
            "with --security-opt seccomp=unconfined"
        )
    if not causes and not facts.root and "No permissions" in said:
        causes.append("that is so in a chroot, in many containers, and where a security module says so")
    return f"{said}: {'; '.join(causes)}" if causes else f"bubblewrap cannot isolate here: {said}"


def _is_chrooted(mounts: str) -> bool:
    """Whether our root directory is not that of the first process that we see, or no mount: then it is some folder."""
    with contextlib.suppress(OSError):  # Only root may look at it.
        return not os.path.samestat(os.stat("/"), os.stat("/proc/1/root/"))
    points = [fields[4] for line in mounts.splitlines() if len(fields := line.split(" ")) > 4]
    return bool(points) and "/" not in points


def _read(path: str) -> str:
    with contextlib.suppress(OSError):
        return Path(path).read_text(errors="replace")
    return ""
