"""What a caller says about a command, turned into params of the wire; nothing is sent from here."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

from msgspec import Struct

from sandport_protocol.octets import Octets, pack

from .arguments import check_seconds
from .errors import UsageError

SHELL = ("sh", "-c", "if command -v bash >/dev/null 2>&1; then exec bash; else exec sh; fi")
"""What a person gets on a terminal: bash where it is there."""
TERMINAL = "xterm-256color"
"""What `TERM` says unless the caller knows better: nearly every terminal of today, in a browser too, is one."""
Argument = str | bytes | os.PathLike[str] | os.PathLike[bytes]
"""A word of a command, or a path in a sandbox; bytes where it is no UTF-8."""


class CommandLine(Struct, frozen=True, kw_only=True):
    """What to run and how, in the wire's terms."""

    argv: tuple[Octets, ...] | None
    shell: Octets | None
    cwd: Octets | None
    env: dict[str, Octets]
    user: str | None
    timeout_ms: int | None

    def members(self) -> dict[str, Any]:
        """Keyword arguments for `ExecuteParams` and `StartProcessParams`."""
        return {name: getattr(self, name) for name in self.__struct_fields__}

    def name(self) -> str:
        """The program, for messages."""
        if self.argv is not None:
            first = self.argv[0] if self.argv else ""
            return first if isinstance(first, str) else repr(first.b64)
        return "shell command"


def command_line(
    argv: Sequence[Argument] | None,
    *,
    shell: str | bytes | None,
    cwd: Argument | None,
    env: Mapping[str, str | bytes] | None,
    user: str | None,
    timeout_s: float | None,
) -> CommandLine:
    """Check what can be checked without a sandbox.

    Raises:
        UsageError: Neither or both of argv and shell, a plain string as argv, a time-out that is not above 0, or a
            value that is neither text nor bytes.
    """
    if isinstance(argv, str | bytes):
        raise UsageError("argv is a list of words, not one string; pass a list, or the text as shell=")
    if (argv is None) == (shell is None):
        raise UsageError("give either argv (a list of words) or shell (text for the sandbox's shell)")
    if argv is not None and len(argv) == 0:
        raise UsageError("argv is empty; its first word is the program")
    if timeout_s is not None:
        check_seconds("timeout_s", timeout_s, or_none=", or None for no limit")
    for name in env or {}:
        if not isinstance(name, str):
            raise UsageError(f"a variable's name is text, not {name!r}")
    try:
        return _packed(argv, shell, cwd, env or {}, user, timeout_s)
    except UnicodeEncodeError as error:
        raise UsageError(f"{error.object!r:.100} has a surrogate that stands for no byte; pass bytes") from None
    except TypeError as error:
        raise UsageError(f"words, directories and variables are text, bytes or paths: {error}") from None


def _packed(
    argv: Sequence[Argument] | None,
    shell: str | bytes | None,
    cwd: Argument | None,
    env: Mapping[str, str | bytes],
    user: str | None,
    timeout_s: float | None,
) -> CommandLine:
    return CommandLine(
        argv=None if argv is None else tuple(pack(os.fspath(word)) for word in argv),
        shell=None if shell is None else pack(os.fspath(shell)),
        cwd=None if cwd is None else pack(os.fspath(cwd)),
        env={name: pack(os.fspath(value)) for name, value in env.items()},
        user=user,
        timeout_ms=None if timeout_s is None else max(1, round(timeout_s * 1000)),
    )
