"""What of this machine an isolated sandbox is shown, and which user it may run as: everything is only looked at."""

from __future__ import annotations

import os
import secrets
import shutil
import subprocess
import sys
from importlib.util import MAGIC_NUMBER
from pathlib import Path

from . import init, link, proc, spawn
from .bubblewrap import CERTAIN, HIDDEN, Machine
from .config import closed
from .interpreter import Interpreter

FIRST_ID = 1879048192
"""Users of sandboxes begin here: far from people's, from those of containers, and from 2**31."""
IDS = 2**24
_AT_TOP = ("bin", "sbin", "lib", "lib32", "lib64", "libx32", "libo32")
_INSIDE = (init, link, proc, spawn)
"""The modules that the init inside imports."""


class NoBubblewrap(Exception):
    """There is no bubblewrap here, or none that can be run; the text says what to do."""


def look(state_dir: Path | None = None) -> Machine:
    """What is there now; takes some milliseconds, most of them for bubblewrap's version.

    Args:
        state_dir: Where this provider keeps its sandboxes, which is shown to none.

    Raises:
        NoBubblewrap: There is none.
        OSError: There are no descriptors or processes left to look with.
    """
    bwrap = shutil.which("bwrap") or shutil.which("bwrap", path="/usr/local/bin:/usr/bin:/bin")
    if bwrap is None:
        raise NoBubblewrap(
            "bubblewrap is not installed (no 'bwrap' in PATH): install the package 'bubblewrap', e.g. "
            "'apt-get install bubblewrap'"
        )
    tops = [f"/{name}" for name in _AT_TOP if os.path.lexists(f"/{name}")]
    directories = ("/usr", *(top for top in tops if not os.path.islink(top)))
    return Machine(
        bwrap=bwrap,
        version=_version(bwrap),
        architecture=os.uname().machine,
        links=tuple((top, os.readlink(top)) for top in tops if os.path.islink(top)),
        directories=directories,
        hidden=tuple(path for path in HIDDEN if os.path.exists(path)),
        etc=tuple(path for path in CERTAIN if os.path.exists(path)),
        interpreter=Interpreter.running().shown(closed(state_dir)),
        python=os.path.realpath(sys.executable),
        code=_code(),
        resolv_conf=name_servers(),
    )


def _version(bwrap: str) -> tuple[int, ...]:
    try:
        # A file and no pipes: before 3.12 subprocess leaks the first of them where there is none for the second.
        with open(os.devnull, "r+b") as nothing, open(os.memfd_create("version"), "w+b") as file:
            subprocess.run([bwrap, "--version"], stdin=nothing, stdout=file, stderr=nothing, check=True, timeout=10)
            file.seek(0)
            said = file.read().decode()
        return tuple(int(part) for part in said.split()[-1].split(".") if part.isdigit())
    except (FileNotFoundError, PermissionError, subprocess.SubprocessError, IndexError, UnicodeError) as error:
        raise NoBubblewrap(f"{bwrap} cannot be run: {error}") from error


def _code() -> tuple[tuple[str, str], ...]:
    files = []
    for module in _INSIDE:
        source = Path(__file__).with_name(f"{module.__name__.rpartition('.')[2]}.py")
        chosen = Path(program_file(module.__spec__.cached if module.__spec__ is not None else None, os.fspath(source)))
        files.append((os.fspath(chosen), f"{__package__}/{source.stem}{chosen.suffix}"))
    return tuple(files)


def program_file(cached: str | None, source: str) -> str:
    """A module's file: compiled where the import of it has left that, since compiling is half of a start.

    Where imports may not write, what is compiled may be of an older source; so it is held against it as an import does.
    """
    if cached is None:
        return source
    try:
        with open(cached, "rb") as file:
            header = file.read(16)
        found = os.stat(source)
    except OSError:
        return source
    expected = b"".join(
        number.to_bytes(4, "little") for number in (0, int(found.st_mtime) & 0xFFFFFFFF, found.st_size & 0xFFFFFFFF)
    )
    return cached if header == MAGIC_NUMBER + expected else source


def name_servers() -> str:
    """The text of /etc/resolv.conf."""
    return _text("/etc/resolv.conf")


def _text(path: str) -> str:
    try:
        return Path(path).read_text(errors="replace").replace("\0", "")
    except OSError:
        return ""


class NoIds(Exception):
    """This namespace has no users to give away; the text says so."""


def new_uid(uid_map: str | None = None, gid_map: str | None = None) -> int | None:
    """A user of its own for one sandbox, where we are root; None where we are not.

    Raises:
        NoIds: The users that this namespace has end before those that sandboxes get.
    """
    if os.geteuid() != 0:
        return None
    for kind, said in (("uid", uid_map), ("gid", gid_map)):
        text = said if said is not None else _text(f"/proc/self/{kind}_map")
        extents = [(int(first), int(count)) for first, _, count in (line.split() for line in text.splitlines())]
        if not any(first <= FIRST_ID and first + count >= FIRST_ID + IDS for first, count in extents):
            raise NoIds(
                f"root's own user namespace does not have the users {FIRST_ID} to {FIRST_ID + IDS - 1} that "
                f"sandboxes get (/proc/self/{kind}_map): run Sandport as an ordinary user there, or map them"
            )
    return FIRST_ID + secrets.randbelow(IDS)
