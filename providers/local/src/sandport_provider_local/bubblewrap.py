"""What an isolated sandbox is surrounded by, as steps for `keeper` to hand to bubblewrap; nothing is touched here.

The root inside is an allow-list: what is not named here is not there. It is read-only; what a sandbox may write to is
its own two directories and memory (/dev/shm).
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import NamedTuple

from . import seccomp

WORKING_DIRECTORY = "/sandbox"
TEMPORARY = "/tmp"
USER = "sandbox"
UID = 1000
CODE = "/.sandport"
"""Where the init's own program is, inside."""
CERTAIN = (
    *("/etc/nsswitch.conf", "/etc/ld.so.cache", "/etc/ld.so.conf", "/etc/ld.so.conf.d", "/etc/localtime"),
    *("/etc/timezone", "/etc/alternatives", "/etc/ssl/certs", "/etc/ssl/openssl.cnf", "/etc/ca-certificates"),
    *("/etc/ca-certificates.conf", "/etc/pki/tls/certs", "/etc/pki/ca-trust", "/etc/crypto-policies"),
    *("/etc/services", "/etc/protocols", "/etc/mime.types"),
)
"""What of the host's /etc is there inside, where the host has it."""
HIDDEN = ("/proc/keys", "/proc/key-users")
"""What of /proc is the machine's in every namespace, and is covered: whose keys there are, by name."""
RESERVE_PIDS = 2
"""Processes of a sandbox that are not its commands': bubblewrap's own and the init."""

_PASSWD = f"""\
root:x:0:0:root:/root:/usr/sbin/nologin
{USER}:x:{UID}:{UID}::{WORKING_DIRECTORY}:/bin/sh
nobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin
"""
_GROUP = f"root:x:0:\n{USER}:x:{UID}:\nnogroup:x:65534:\n"
_HOSTS = f"127.0.0.1 localhost {USER}\n::1 localhost ip6-localhost ip6-loopback\n"
_SINCE_DISABLE_USERNS = (0, 8)


class Boundary(NamedTuple):
    """What is around one sandbox; a part of its record, so that an init that is started anew stands within the same."""

    uid: int | None = None
    """The sandbox's own user and group of the host, where the host is root; None: the user who runs the host."""
    network: bool = False
    expose: tuple[str, ...] = ()
    memory_bytes: int | None = None
    pids: int | None = None
    cpus: float | None = None
    open_files: int | None = None

    @property
    def in_cgroup(self) -> bool:
        """Whether it takes a cgroup."""
        return self.memory_bytes is not None or self.pids is not None or self.cpus is not None


class Machine(NamedTuple):
    """What of this machine is to be seen inside; see `machine.look`."""

    bwrap: str
    version: tuple[int, ...]
    architecture: str
    """What `uname -m` says."""
    links: tuple[tuple[str, str], ...]
    """Names at the top that are symbolic links, and what they lead to: /bin and the like."""
    directories: tuple[str, ...]
    """Directories at the top that are shown: /usr, and /bin and the like where they are directories."""
    hidden: tuple[str, ...]
    """What of `HIDDEN` is there."""
    etc: tuple[str, ...]
    """What of `CERTAIN` is there."""
    interpreter: tuple[str, ...]
    """Directories and files of the running interpreter; see `interpreter.Interpreter.shown`."""
    python: str
    """The interpreter that runs the init inside: a path that is the same there."""
    code: tuple[tuple[str, str], ...]
    """Files of the init's program, and their names below `CODE`."""
    resolv_conf: str


Step = tuple[str, ...]
"""`arg WORD...` as it is; `bind SOURCE TARGET` and `ro SOURCE TARGET`, whose source may be where the sandbox's user has
no way to; `file TARGET TEXT`; `copy SOURCE TARGET`, a file that the keeper reads; `seccomp PROGRAM`, in hexadecimal."""


def steps(boundary: Boundary, machine: Machine, *, folders: bool = True) -> list[Step]:
    """Everything that comes before the command on bubblewrap's command line, in its order.

    Args:
        boundary: What is asked for.
        machine: What there is.
        folders: Whether the sandbox's own directories are there, as `sandbox` and `tmp` in the working directory; to
            try whether isolation is to be had it takes none.
    """
    made: list[Step] = [("arg", *_namespaces(boundary, machine))]
    if filter_ := seccomp.program(machine.architecture, network=boundary.network):
        made.append(("seccomp", filter_.hex()))
    made += [("arg", "--ro-bind", directory, directory) for directory in machine.directories]
    made += [("arg", "--symlink", target, link) for link, target in machine.links]
    made.append(("arg", "--dir", "/etc"))
    made += [("arg", "--ro-bind", path, path) for path in machine.etc]
    texts = {"passwd": _PASSWD, "group": _GROUP, "hosts": _HOSTS, "hostname": USER + "\n"}
    if boundary.network and machine.resolv_conf:
        texts["resolv.conf"] = machine.resolv_conf
    made += [("file", f"/etc/{name}", text) for name, text in texts.items()]
    made.append(("arg", "--proc", "/proc", "--dev", "/dev", "--tmpfs", "/dev/shm", "--remount-ro", "/dev"))
    made += [("arg", "--ro-bind", "/dev/null", path) for path in machine.hidden]
    made.append(("arg", "--dir", "/run", "--dir", "/var/tmp", "--symlink", "/run", "/var/run"))
    if folders:
        made += [("bind", "sandbox", WORKING_DIRECTORY), ("bind", "tmp", TEMPORARY)]
    else:
        made.append(("arg", "--dir", WORKING_DIRECTORY, "--tmpfs", TEMPORARY))
    shown = (*machine.interpreter, *boundary.expose)
    made += [("ro", path, path) for path in _outermost(shown, besides=machine.directories)]
    made += [("copy", source, f"{CODE}/{name}") for source, name in machine.code]
    made.append(("arg", "--remount-ro", "/", "--chdir", WORKING_DIRECTORY))
    return made


def _namespaces(boundary: Boundary, machine: Machine) -> tuple[str, ...]:
    words = ["--unshare-user", "--unshare-ipc", "--unshare-pid", "--unshare-uts", "--unshare-cgroup-try"]
    if not boundary.network:
        words.append("--unshare-net")
    if machine.version >= _SINCE_DISABLE_USERNS:
        words.append("--disable-userns")
    words += ["--uid", str(UID), "--gid", str(UID), "--hostname", USER, "--cap-drop", "ALL"]
    return (*words, "--as-pid-1", "--die-with-parent")


def _outermost(paths: tuple[str, ...], *, besides: tuple[str, ...]) -> list[str]:
    """These paths without those that are in another one, or in what is shown anyway."""
    kept: list[str] = []
    for path in sorted(set(paths), key=len):
        if not any(is_within(path, other) for other in (*besides, *kept)):
            kept.append(path)
    return kept


def is_within(path: str, other: str) -> bool:
    """Whether a path is another one or below it; both absolute and without dots or a slash at the end."""
    return path == other or path.startswith(other.rstrip("/") + "/")


def encode(rows: Sequence[Step]) -> bytes:
    """Steps as a keeper reads them.

    Raises:
        ValueError: A word holds a NUL.
    """
    words = [word for row in rows for word in (row[0], str(len(row) - 1), *row[1:])]
    if any("\0" in word for word in words):
        raise ValueError("a word with a NUL")
    return b"\0".join(os.fsencode(word) for word in words)
