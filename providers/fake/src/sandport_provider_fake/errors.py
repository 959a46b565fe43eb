"""The kernel's errors, and the ones that a fault orders, as ours."""

from __future__ import annotations

import errno
import os

from sandport_sdk.v1 import errors, pack

_EXHAUSTED = frozenset({errno.EAGAIN, errno.ENOMEM, errno.EMFILE, errno.ENFILE, errno.ENOSPC, errno.EDQUOT})
_ABSENT = frozenset({errno.ENOENT, errno.ENOTDIR})

BY_NAME: dict[str, type[errors.WireError]] = {condition.__name__: condition for condition in errors.CONDITIONS}
"""Every condition of the wire, by its name."""


def start_failed(stage: str, number: int, *, program: bytes, cwd: bytes) -> errors.WireError:
    """Why a command was not started; see `guard` for the stages."""
    why = os.strerror(number)
    if stage == "cwd":
        return errors.PathNotFound(
            f"the working directory {_text(cwd)} cannot be entered: {why}",
            detail=errors.Detail(path=pack(cwd), reason="cwd"),
            dispatched="no",
        )
    shown = errors.Detail(path=pack(program))
    if number in _EXHAUSTED:
        return errors.QuotaExceeded(f"{_text(program)} cannot be started now: {why}", dispatched="no")
    if number == errno.E2BIG:
        return errors.TooLarge(
            "the arguments and variables are longer than the kernel passes to a program", dispatched="no"
        )
    there = b"/" in program and os.path.lexists(os.path.join(cwd, program))
    if number in _ABSENT and not there:
        return errors.CommandNotFound(
            f"there is no program {_text(program)} in the sandbox", detail=shown, dispatched="no"
        )
    return errors.CommandNotExecutable(f"{_text(program)} cannot be run: {why}", detail=shown, dispatched="no")


def sandbox_failed(error: OSError, *, dispatched: errors.Dispatched) -> errors.WireError:
    """Why a sandbox could not be made, used or removed."""
    if error.errno in _EXHAUSTED:
        return errors.QuotaExceeded(f"this machine has no room for it now: {error}", dispatched=dispatched)
    return errors.Unavailable(f"the vendor's folder cannot be used: {error}", dispatched=dispatched)


def _text(name: bytes) -> str:
    return repr(os.fsdecode(name))
