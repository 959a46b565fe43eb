"""--in LOCAL[:REMOTE] and --out REMOTE[:LOCAL]: what goes where."""

from __future__ import annotations

import os

from msgspec import Struct

from sandport.errors import UsageError


class Transfer(Struct, frozen=True, kw_only=True):
    """One thing to copy."""

    local: str
    remote: str
    """Relative to the sandbox's working directory, or absolute."""
    option: str
    """As the user wrote it, for messages."""


def into_sandbox(value: str) -> Transfer:
    """What `--in` says.

    Without REMOTE the contents of a directory go to the working directory, and a file goes there under its own name.

    Raises:
        UsageError: It says nothing that can be done, or there is no such file.
    """
    option = f"--in {value}"
    local, remote = _split(value, option, "--in LOCAL[:REMOTE]")
    if not os.path.exists(local):
        hint = "; a colon that belongs to a name is written \\:" if remote is not None else ""
        raise UsageError(f"{option}: there is no {local!r} here{hint}")
    if remote is None:
        remote = "." if os.path.isdir(local) else os.path.basename(local)
    return Transfer(local=local, remote=remote, option=option)


def out_of_sandbox(value: str) -> Transfer:
    """What `--out` says; without LOCAL it goes to the current folder under its own name.

    Raises:
        UsageError: It says nothing that can be done.
    """
    option = f"--out {value}"
    remote, local = _split(value, option, "--out REMOTE[:LOCAL]")
    if local is None:
        local = os.path.basename(os.path.normpath(remote))
        if local == "..":
            raise UsageError(f"{option}: say where to put it, as in --out {value}:LOCAL")
    return Transfer(local=local, remote=remote, option=option)


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
