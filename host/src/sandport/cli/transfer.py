"""--in LOCAL[:REMOTE] and --out REMOTE[:LOCAL]: what goes where, and how."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence

from msgspec import Struct

from sandport.errors import UsageError

_OCTAL = re.compile(r"0[0-7]{1,4}|0o[0-7]{1,4}")
_SIZE = re.compile(r"([0-9]{1,15})([kKmMgGtT]?)i?[bB]?")
_SHIFTS = {"": 0, "k": 10, "m": 20, "g": 30, "t": 40}


class Manner(Struct, frozen=True, kw_only=True):
    """How a thing is copied; what does not apply to its direction is as it is by default."""

    exclude: tuple[str, ...] = ()
    gitignore: bool = False
    follow_symlinks: bool = False
    replace: bool = False
    delete: bool = False
    dry_run: bool = False
    mode: int | None = None
    max_bytes: int | None = None
    max_entries: int | None = None

    @property
    def selects(self) -> bool:
        """Whether it leaves something out."""
        return bool(self.exclude) or self.gitignore


AS_IT_IS = Manner()
"""Everything, and nothing is deleted."""


class Transfer(Struct, frozen=True, kw_only=True):
    """One thing to copy."""

    local: str
    remote: str
    """Relative to the sandbox's working directory, or absolute."""
    option: str
    """As the user wrote it, for messages."""
    manner: Manner = AS_IT_IS


def into_sandbox(value: str, manner: Manner = AS_IT_IS) -> Transfer:
    """What `--in` says.

    Without REMOTE the contents of a directory go to the working directory, and a file goes there under its own name.

    Raises:
        UsageError: It says nothing that can be done, or there is no such file.
    """
    option = f"--in {value}"
    local, remote = _split(value, option, "--in LOCAL[:REMOTE]")
    hint = "; a colon that belongs to a name is written \\:" if remote is not None else ""
    return transfer_in(local, remote, option, manner, hint=hint)


def transfer_in(local: str, remote: str | None, option: str, manner: Manner, *, hint: str = "") -> Transfer:
    """A copy into the sandbox, under the source's own name where no other is given.

    Raises:
        UsageError: There is no such file, or its target is outside of the sandbox; the message begins with `option`.
    """
    if not os.path.exists(local):
        raise UsageError(f"{option}: there is no {local!r} here{hint}")
    if remote is None:
        remote = "." if os.path.isdir(local) else os.path.basename(local)
    _check_remote(remote, option)
    return Transfer(local=local, remote=remote, option=option, manner=manner)


def out_of_sandbox(value: str, manner: Manner = AS_IT_IS) -> Transfer:
    """What `--out` says; without LOCAL it goes to the current folder under its own name.

    Raises:
        UsageError: It says nothing that can be done.
    """
    option = f"--out {value}"
    remote, local = _split(value, option, "--out REMOTE[:LOCAL]")
    return transfer_out(remote, local, option, manner, example=f"--out {value}:LOCAL")


def transfer_out(remote: str, local: str | None, option: str, manner: Manner, *, example: str) -> Transfer:
    """A copy out of the sandbox, under the source's own name where no other is given.

    Raises:
        UsageError: It has no name of its own, is outside of the sandbox, or cannot be written here.
    """
    if local is None:
        local = os.path.basename(os.path.normpath(remote))
        if local == "..":
            raise UsageError(f"{option}: say where to put it, as in {example}")
    _check_remote(remote, option)
    if not manner.dry_run:
        _check_target(local, option, holds=remote.endswith("/") or remote == os.curdir)
    return Transfer(local=local, remote=remote, option=option, manner=manner)


def outside(remote: str, working_directory: str) -> str | None:
    """Why a path is none of a sandbox's files that can be copied; None where it is one.

    Args:
        remote: As it was given.
        working_directory: The sandbox's.
    """
    top = working_directory.rstrip("/")
    if not remote.startswith("/") or remote == top or remote.startswith(top + "/"):
        return None
    return (
        f"{remote!r} is not below the sandbox's working directory {working_directory!r}, and only files below it are "
        "copied; write it without the slash that it begins with, for a path below it"
    )


def _check_remote(remote: str, option: str) -> None:
    # What a link leads to is not known here: behind a first name '..' may well stay inside.
    if remote.split("/", 1)[0] == "..":
        raise UsageError(
            f"{option}: {remote!r} is above the sandbox's working directory; only files below it are copied"
        )


def _check_target(local: str, option: str, *, holds: bool) -> None:
    """Refuse a target that cannot be written, as far as that is to be seen before.

    Args:
        local: The target.
        option: What names it.
        holds: Whether it is certain that a folder comes.
    """
    if os.path.lexists(local):
        if os.path.isdir(local):
            place = local
        elif os.path.exists(local) and not os.path.isfile(local):
            raise UsageError(f"{option}: {local!r} is neither a file nor a folder here; name another target")
        elif holds or local.endswith("/"):
            raise UsageError(f"{option}: {local!r} is a file here, and a folder comes; name another target")
        else:
            place = os.path.dirname(local) or os.curdir
    else:
        place = local.rstrip("/")
        while not os.path.lexists(place):
            place = os.path.dirname(place) or os.curdir
    if not os.path.isdir(place):
        raise UsageError(f"{option}: {place!r} is no folder, so that nothing can be put into it; name another target")
    if not os.access(place, os.W_OK | os.X_OK):
        raise UsageError(f"{option}: {place!r} cannot be written to; change its rights, or name another target")


def patterns(values: Sequence[str]) -> tuple[str, ...]:
    """What `--exclude` says.

    Raises:
        UsageError: A pattern can match nothing.
    """
    if values:
        from sandport.sync.selection import Selection

        for value in values:
            try:
                Selection.build([value])
            except ValueError as error:
                raise UsageError(f"--{error}") from error
    return tuple(values)


def octal(option: str, text: str) -> int:
    """What an option says in permission bits.

    Raises:
        UsageError: It is not written in octal; digits without a leading 0 are taken for a decimal number somewhere on
            the way too often.
    """
    if _OCTAL.fullmatch(text) and (mode := int(text, 8)) <= 0o777:
        return mode
    hint = f"write it in octal with a leading 0, as in {option} 0{text}" if re.fullmatch("[1-7][0-7]{2}", text) else ""
    raise UsageError(f"{option} {text}: {hint or f'expected permission bits in octal, as in {option} 0644'}")


def size_bytes(option: str, text: str) -> int:
    """What an option says in bytes.

    Raises:
        UsageError: It is no number of them.
    """
    match = _SIZE.fullmatch(text)
    if match is None or not int(match[1]):
        raise UsageError(f"{option} {text}: expected a number of bytes above 0, as in {option} 20G")
    return int(match[1]) << _SHIFTS[match[2].lower()]


def _split(value: str, option: str, form: str) -> tuple[str, str | None]:
    first, second = value, None
    for index in range(len(value) - 1, -1, -1):
        if value[index] == ":" and value[index - 1 : index] != "\\":
            first, second = value[:index], value[index + 1 :]
            break
    if not first or second == "":
        raise UsageError(f"{option}: expected {form}")
    return _unescaped(first), None if second is None else _unescaped(second)


def _unescaped(text: str) -> str:
    # A backslash before anything else is part of the name.
    return text.replace("\\:", ":")
