"""The far side of one sandbox: its shell, which tar it has, and how long it may do nothing."""

from __future__ import annotations

from typing import Final

from sandport.numbers import Timing
from sandport.sync.errors import SyncError
from sandport.sync.tar_format import Dialect
from sandport.transfer import script
from sandport.transfer.patience import Patience
from sandport.transfer.shell import Commands, Shell

__all__ = ["Far"]

_GNU: Final = "gnu"
_BSD: Final = "bsd"
_BUSYBOX: Final = "busybox"
_OTHER: Final = "other"

_EXTRACT: Final = {_GNU: "--warning=no-timestamp", _BSD: "", _BUSYBOX: "", _OTHER: ""}
_CREATE: Final = {
    _GNU: (
        "--format=posix --pax-option=delete=atime,delete=ctime --sparse --hard-dereference --numeric-owner "
        "--ignore-failed-read --quoting-style=escape"
    ),
    _BSD: "--format=pax",
    _BUSYBOX: "",
    _OTHER: "",
}


class Far:
    """What files need of a sandbox that is not a directory of this machine.

    Attributes:
        commands: The sandbox.
        shell: Its shell.
        patience: How long it may do nothing.
        has_socket: Whether its worker moves archives itself.
    """

    def __init__(self, commands: Commands, timing: Timing) -> None:
        self.commands = commands
        self.patience = Patience.of(timing)
        self.shell = Shell(commands, self.patience)
        self.has_socket = False
        self._tar: str | None = None

    async def has_processes(self) -> bool:
        """Whether a command's input can be poured in."""
        return "process" in await self.commands.groups()

    async def dialect(self) -> Dialect:
        """What its tar reads; asked once."""
        if self._tar is None:
            self._tar = await self._probe()
        return Dialect.PAX if self._tar == _GNU else Dialect.PLAIN

    async def _probe(self) -> str:
        outcome = await self.shell.run(script.PROBE)
        said = bytes(outcome.stdout)
        if not outcome.ok:
            raise SyncError("the sandbox's shell does not run a script, which moving files needs")
        if said.strip() == b"none":
            raise SyncError(
                "the sandbox has no tar, which moving files needs; install it in the sandbox's image, or use a "
                "provider that moves files itself"
            )
        if b"GNU tar" in said:
            return _GNU
        if b"bsdtar" in said:
            return _BSD
        return _BUSYBOX if b"BusyBox" in said or b"busybox" in said else _OTHER

    @property
    def extract_options(self) -> str:
        """For tar, when it extracts; once `dialect` was asked."""
        return _EXTRACT[self._tar or _OTHER]

    @property
    def create_options(self) -> str:
        """For tar, when it archives; once `dialect` was asked."""
        return _CREATE[self._tar or _OTHER]
