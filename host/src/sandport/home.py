"""Where Sandport keeps its state on this machine: `$SANDPORT_HOME`, else the platform's folder for state.

```text
version         the layout's version; a newer one is refused
store-id        minted once; written on every vendor resource, so that a list can be told from other stores'
journal.db      sandboxes and leases, what was done and what is to be done
instances/ID    locked by each host of this home for as long as it lives
running/TOKEN   one for each worker that runs: which process it is
workers/NAME    what must survive a provider's worker
logs/
```

Everything is the user's alone: folders 0700, files 0600. Two processes may open a new home at the same moment.
"""

from __future__ import annotations

import os
import pwd
import re
import stat
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from msgspec import Struct

from .discovery import valid_name
from .errors import UsageError
from .private import make_folder, make_parents, open_private

VERSION = 1
STORE_ID = re.compile(r"st[a-z2-7]{26}")
"""`st` and 26 base32 characters (130 bits): legal as a DNS label, a label value and a file name."""

_LETTERS = "abcdefghijklmnopqrstuvwxyz234567"
_PENDING = ".new-"
_PENDING_S = 3600.0
"""A proposal that is so old is of a process that was killed over it: it takes milliseconds."""


class HomeUnusable(UsageError):
    """The folder for state cannot be used; the message says why and what to do."""


class Home(Struct, frozen=True, kw_only=True):
    """An opened folder for state."""

    root: Path
    store_id: str

    @classmethod
    def open(cls, path: str | Path | None = None, environ: Mapping[str, str] | None = None) -> Home:
        """Open the folder, and make it if it is not there.

        Args:
            path: The folder; by default what `home_path` finds.
            environ: The environment; by default the process's.

        Raises:
            HomeUnusable: It is not a folder of the user's alone, was written by a newer Sandport, is damaged, or its
                file system refuses.
        """
        environ = os.environ if environ is None else environ
        root = Path(path).absolute() if path is not None else home_path(environ)
        _check_name(root)
        if path is None:
            _check_home_is_there(root, environ)
        try:
            _make_private(root)
            _check_version(_settled(root, "version", str(VERSION)), root)
            store_id = _settled(root, "store-id", _new_store_id())
            _clear_pending(root)
        except OSError as error:
            at_fault = error.filename or root
            raise HomeUnusable(
                f"{at_fault}: {error.strerror}; Sandport keeps its state there\n"
                "set SANDPORT_HOME to a folder that can be written"
            ) from error
        if not STORE_ID.fullmatch(store_id):
            raise HomeUnusable(f"{root / 'store-id'}: is damaged; restore it, or set SANDPORT_HOME to another folder")
        return cls(root=root, store_id=store_id)

    def state_dir(self, provider: str) -> Path:
        """The folder of one provider (0700), made if it is not there: where its worker keeps what must survive it.

        Raises:
            ValueError: That is not a provider's name.
        """
        if not valid_name(provider):
            raise ValueError(f"{provider!r} is not a provider's name")
        return self._folder("workers", provider)

    @property
    def journal(self) -> Path:
        """The file of the store (0600)."""
        return self.root / "journal.db"

    def _folder(self, *parts: str) -> Path:
        folder = self.root
        for part in parts:
            folder /= part
            make_folder(folder)
        return folder


def home_path(environ: Mapping[str, str]) -> Path:
    """Where the state is, without touching it.

    Raises:
        HomeUnusable: No variable says so, and there is no home directory.
    """
    if named := environ.get("SANDPORT_HOME"):
        return Path(named).absolute()
    # The specification of these variables has relative paths ignored.
    if os.path.isabs(base := environ.get("XDG_STATE_HOME", "")):
        return Path(base, "sandport")
    home = home_directory(environ)
    if not os.path.isabs(home):
        raise HomeUnusable("there is no home directory to keep state in; set SANDPORT_HOME to a folder")
    if sys.platform == "darwin":
        return Path(home, "Library", "Application Support", "sandport")
    return Path(home, ".local", "state", "sandport")


def home_directory(environ: Mapping[str, str]) -> str:
    """The user's home directory; empty where there is none. A HOME that is empty counts as one that is not set."""
    if home := environ.get("HOME"):
        return home
    try:
        return pwd.getpwuid(os.geteuid()).pw_dir
    except KeyError:
        return ""


def _check_home_is_there(root: Path, environ: Mapping[str, str]) -> None:
    """Refuse to make somebody's home directory: as root, that would be below / for whoever comes next."""
    if environ.get("SANDPORT_HOME") or os.path.isabs(environ.get("XDG_STATE_HOME", "")):
        return
    home = home_directory(environ)
    if not os.path.isdir(home):
        raise HomeUnusable(
            f"{root}: there is no home directory {home}, below which Sandport keeps its state\n"
            "set HOME to one that is there, or SANDPORT_HOME to a folder for the state"
        )


def _make_private(root: Path) -> None:
    """Make the folder, or see that it is ours and closed to others."""
    make_parents(root)
    with suppress(FileExistsError):  # told below, in better words
        make_folder(root)
    status = root.stat()
    if not stat.S_ISDIR(status.st_mode):
        raise HomeUnusable(f"{root}: is not a folder; Sandport keeps its state there, set SANDPORT_HOME to another")
    if status.st_uid != os.geteuid():
        raise HomeUnusable(
            f"{root}: belongs to another user (uid {status.st_uid}); set SANDPORT_HOME to a folder of your own"
        )
    if stat.S_IMODE(status.st_mode) & 0o077 == 0:
        return
    # An empty folder was made for us, one with a version is ours; to close any other could lock out its owners.
    mode = f"{stat.S_IMODE(status.st_mode):04o}"
    if not (root / "version").exists() and any(root.iterdir()):
        raise HomeUnusable(
            f"{root}: others may enter it (mode {mode}) and it holds something else\nset SANDPORT_HOME to a new folder"
        )
    if status.st_mode & stat.S_ISVTX:
        # So is a folder that many users share, such as /tmp, which root owns and may find empty.
        raise HomeUnusable(
            f"{root}: others may enter it (mode {mode}), as a folder that many users share\n"
            f"if it is for Sandport alone: chmod 700 {root}; else set SANDPORT_HOME to a new folder"
        )
    root.chmod(0o700)


def _check_name(root: Path) -> None:
    # Workers are told where their state is, in JSON.
    try:
        str(root).encode()
    except UnicodeEncodeError:
        raise HomeUnusable(
            f"{root}: its name is not UTF-8; Sandport keeps its state there\nset SANDPORT_HOME to another folder"
        ) from None


def _check_version(text: str, root: Path) -> None:
    if not text.isascii() or not text.isdigit():
        raise HomeUnusable(f"{root / 'version'}: is damaged; restore it, or set SANDPORT_HOME to another folder")
    if int(text) > VERSION:
        raise HomeUnusable(
            f"{root}: was written by a newer Sandport (state version {int(text)}, this one knows {VERSION})\n"
            "upgrade sandport, or set SANDPORT_HOME to another folder"
        )


def _settled(root: Path, name: str, proposal: str) -> str:
    """The content of a small file that is written once; of several processes that propose one, the first wins.

    The content is on disk before the file has its name, and a link never replaces: no process ever reads half a file
    or another value than the rest.
    """
    path = root / name
    with suppress(FileNotFoundError):
        return path.read_text(encoding="utf-8", errors="replace").strip()
    pending = root / f"{_PENDING}{name}-{os.getpid()}-{os.urandom(4).hex()}"
    descriptor = open_private(pending, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
    try:
        with open(descriptor, "w", encoding="utf-8") as file:
            file.write(proposal + "\n")
            file.flush()
            os.fsync(descriptor)
        with suppress(FileExistsError):
            os.link(pending, path)
    finally:
        pending.unlink()
    folder = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
    return path.read_text(encoding="utf-8", errors="replace").strip()


def _clear_pending(root: Path) -> None:
    for entry in os.scandir(root):
        if entry.name.startswith(_PENDING):
            with suppress(FileNotFoundError):  # another process looks too
                if time.time() - entry.stat().st_mtime > _PENDING_S:
                    os.unlink(entry.path)


def _new_store_id() -> str:
    return "st" + "".join(_LETTERS[byte & 31] for byte in os.urandom(26))
