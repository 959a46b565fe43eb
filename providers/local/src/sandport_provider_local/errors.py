"""The kernel's errors as ours: one table for starting a command, one for making a sandbox."""

from __future__ import annotations

import errno
import os

from sandport_sdk.v1 import errors, pack

from .cgroup_places import CgroupUnavailable

_EXHAUSTED = frozenset({errno.EAGAIN, errno.ENOMEM, errno.EMFILE, errno.ENFILE, errno.ENOSPC, errno.EDQUOT})
"""What the machine or the user has too little of; later there may be more."""

_NOT_EXECUTABLE = {
    errno.EACCES: "permission",
    errno.EPERM: "permission",
    errno.EISDIR: "directory",
    errno.ENOEXEC: "format",
    errno.ELIBBAD: "format",
    errno.EINVAL: "format",
    errno.ETXTBSY: "busy",
}
"""Why a file that is there cannot be run: `detail.reason`."""


def start_failed(stage: str, number: int, *, program: bytes, cwd: bytes) -> errors.WireError:
    """Why a command was not started; see `init` for the stages."""
    why = os.strerror(number)
    if stage == "cwd":
        return errors.PathNotFound(
            f"the working directory {_text(cwd)} cannot be entered: {why}",
            detail=errors.Detail(path=pack(cwd), reason="cwd"),
        )
    shown = errors.Detail(path=pack(program))
    if stage == "interpreter":
        return errors.CommandNotExecutable(
            f"{_text(program)} is there, but the interpreter that its first line or its header names is not",
            detail=errors.Detail(path=shown.path, reason="interpreter"),
        )
    if number == errno.ENOEXEC:
        return errors.CommandNotExecutable(
            f"{_text(program)} cannot be run: it is neither a program for this machine nor a script whose first line "
            "says what runs it; a script needs one such as #!/bin/sh, or is run as an argument: sh FILE",
            detail=errors.Detail(path=shown.path, reason="format"),
        )
    if number in _NOT_EXECUTABLE:
        return errors.CommandNotExecutable(
            f"{_text(program)} cannot be run: {why}",
            detail=errors.Detail(path=shown.path, reason=_NOT_EXECUTABLE[number]),
        )
    if number == errno.E2BIG:
        return errors.TooLarge("the arguments and variables are longer than the kernel passes to a program")
    if number in _EXHAUSTED:
        return errors.QuotaExceeded(f"{_text(program)} cannot be started now: {why}")
    if stage == "program":
        return errors.CommandNotFound(f"there is no program {_text(program)} in the sandbox", detail=shown)
    return errors.Internal(f"{_text(program)} cannot be started: {why}", dispatched="no")


def sandbox_failed(error: OSError, *, dispatched: errors.Dispatched) -> errors.WireError:
    """Why a sandbox could not be made, used or removed."""
    if error.errno in _EXHAUSTED:
        return errors.QuotaExceeded(f"this machine has no room for it now: {error}", dispatched=dispatched)
    return errors.Unavailable(f"the sandbox's folder cannot be used: {error}", dispatched=dispatched)


def limit_failed(error: CgroupUnavailable) -> errors.WireError:
    """Why a limit that was asked for cannot be had."""
    return errors.NotSupported(
        f"the limits cannot be kept here: {error.reason}",
        dispatched="no",
    )


def _text(name: bytes) -> str:
    return repr(os.fsdecode(name))
