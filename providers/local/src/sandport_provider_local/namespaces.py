"""What bubblewrap does not do, and is done before it runs: a keyring of its own, and for root a user of its own.

What root shows is below directories that are closed to others, so it is shown in a mount namespace of its own. By
ctypes, since Python has no calls for it. All of it is done by a process that has just been forked and becomes
bubblewrap: whatever fails, the process ends, and the namespace with it.
"""

from __future__ import annotations

import ctypes
import os
import stat

STAGE = "/run"
"""Covered in that namespace, and what is shown is below it, by number."""

_CLONE_NEWNS = 0x20000
_MS_NOSUID, _MS_NODEV, _MS_REC, _MS_SLAVE = 0x2, 0x4, 0x4000, 0x80000
_MNT_DETACH = 2
_AT_EMPTY_PATH, _AT_RECURSIVE, _OPEN_TREE_CLONE = 0x1000, 0x8000, 1
_MOVE_MOUNT_F_EMPTY_PATH, _MOVE_MOUNT_T_EMPTY_PATH = 0x4, 0x40
_OPEN_TREE, _MOVE_MOUNT = 428, 429
"""The same on every architecture."""
_PIVOT_ROOT = {"x86_64": 155, "i686": 217, "armv7l": 218, "armv8l": 218, "ppc64le": 203, "s390x": 217}
_PIVOT_ROOT_ELSE = 41
"""Of the table that all newer architectures share."""
_KEYCTL = {
    ("x86_64", 64): 250,
    ("aarch64", 64): 219,
    ("riscv64", 64): 219,
    ("i686", 32): 288,
    ("armv7l", 32): 311,
    ("armv8l", 32): 311,
}
"""By machine and the width of this process, whose calls are others where it is not the machine's."""
_KEYCTL_JOIN_SESSION_KEYRING = 1
_PR_SET_PDEATHSIG = 1
_SIGKILL = 9

_libc = ctypes.CDLL(None, use_errno=True)


def stage(sources: list[bytes]) -> list[bytes]:
    """Enter a mount namespace in which each source is to be seen by everybody; returns where.

    In the new namespace the root directory is the namespace's own root, also where ours was a chroot: the kernel gives
    a process in a chroot no user namespace.

    Args:
        sources: Absolute paths of directories or files, as this process finds them.

    Raises:
        OSError: The kernel refuses; its text says at which step.
    """
    _call("unshare", _libc.unshare(_CLONE_NEWNS))
    root = os.open("/", os.O_PATH | os.O_DIRECTORY)
    own = os.open("/proc/self/ns/mnt", os.O_RDONLY)
    _call("enter the namespace's own root", _libc.setns(own, _CLONE_NEWNS))
    os.close(own)
    # What is mounted here is not to be seen by the host, and what the host unmounts is not to be held by us.
    _mount("make mounts follow the host's", b"none", b"/", None, _MS_REC | _MS_SLAVE)
    _leave_chroot(root)
    os.close(root)
    os.chdir("/")
    trees = [_open_tree(source) for source in sources]
    _mount(f"cover {STAGE}", b"sandport", STAGE.encode(), b"tmpfs", _MS_NOSUID | _MS_NODEV, b"mode=755,size=1m")
    shown = []
    for number, (source, tree) in enumerate(zip(sources, trees, strict=True)):
        place = f"{STAGE}/{number}".encode()
        if stat.S_ISDIR(os.fstat(tree).st_mode):
            os.mkdir(place, 0o755)
        else:
            os.close(os.open(place, os.O_WRONLY | os.O_CREAT, 0o644))
        _call(f"show {os.fsdecode(source)}", _move_mount(tree, -100, place, 0))
        os.close(tree)
        shown.append(place)
    return shown


def become(uid: int) -> None:
    """Be another user and group for good, with nothing of what this one may do.

    Raises:
        OSError: The kernel refuses.
    """
    os.setgroups([])
    os.setresgid(uid, uid, uid)
    os.setresuid(uid, uid, uid)


def leave_keyring() -> None:
    """Have a new, empty session keyring in place of the one that this process has from the host's session.

    What fails here is no fault: some kernels have no keys, containers forbid the call, and a user has so many keys.
    Where the filter stands (`seccomp`), nothing inside reaches any keyring, whosever it is.
    """
    number = _KEYCTL.get((os.uname().machine, 8 * ctypes.sizeof(ctypes.c_void_p)))
    if number is not None:
        _syscall(number, _KEYCTL_JOIN_SESSION_KEYRING, 0)


def die_with(parent: int) -> bool:
    """Be killed when the thread that forked this process ends; False where it has ended already."""
    zeros = (ctypes.c_ulong(0),) * 3
    _call("prctl", _libc.prctl(_PR_SET_PDEATHSIG, ctypes.c_ulong(_SIGKILL), *zeros))
    return os.getppid() == parent


def _leave_chroot(root: int) -> None:
    """Make what was the root directory, where that was a chroot, the root of this mount namespace."""
    if _mount_id(root) == _mount_id_of_root() and os.path.samestat(os.fstat(root), os.stat("/")):
        return
    tree = _call("clone the chroot", _syscall(_OPEN_TREE, root, b"", _AT_EMPTY_PATH | _AT_RECURSIVE | _OPEN_TREE_CLONE))
    _call("mount the chroot", _move_mount(tree, root, b"", _MOVE_MOUNT_T_EMPTY_PATH))
    os.fchdir(tree)
    os.close(tree)
    number = _PIVOT_ROOT.get(os.uname().machine, _PIVOT_ROOT_ELSE)
    _call("leave the chroot", _syscall(number, b".", b"."))
    _call("let go of what is outside of the chroot", _libc.umount2(b".", _MNT_DETACH))


def _mount_id_of_root() -> bytes:
    fd = os.open("/", os.O_PATH | os.O_DIRECTORY)
    try:
        return _mount_id(fd)
    finally:
        os.close(fd)


def _mount_id(fd: int) -> bytes:
    with open(f"/proc/self/fdinfo/{fd}", "rb") as file:
        return next(line for line in file if line.startswith(b"mnt_id:"))


def _open_tree(source: bytes) -> int:
    step = f"clone {os.fsdecode(source)}"
    return _call(step, _syscall(_OPEN_TREE, -100, source, _AT_RECURSIVE | _OPEN_TREE_CLONE | os.O_CLOEXEC))


def _move_mount(tree: int, folder: int, path: bytes, flags: int) -> int:
    return _syscall(_MOVE_MOUNT, tree, b"", folder, path, _MOVE_MOUNT_F_EMPTY_PATH | flags)


def _mount(step: str, source: bytes, target: bytes, kind: bytes | None, flags: int, data: bytes | None = None) -> None:
    _call(step, _libc.mount(source, target, kind, ctypes.c_ulong(flags), data))


def _syscall(number: int, *arguments: int | bytes) -> int:
    typed = [ctypes.c_char_p(word) if isinstance(word, bytes) else ctypes.c_long(word) for word in arguments]
    return int(_libc.syscall(ctypes.c_long(number), *typed))


def _call(step: str, result: int) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"cannot {step}: {os.strerror(number)}")
    return result
