"""An archive that a sandbox would send that means harm: every member of it must be refused, skipped or tamed."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING, get_args

if TYPE_CHECKING:
    from collections.abc import Sequence
    from tarfile import TarFile

    from .config import HostileMember

ESCAPED = "escaped"
"""The name of every file that is meant to appear outside."""
HARMLESS = "harmless"
"""The name of the file that stands last, below the target, and arrives where the rest does no harm."""


def hostile_archive(members: Sequence[HostileMember]) -> bytes:
    """The archive; every kind of member where none is named. It is whole, and ends with its mark."""
    import tarfile  # only where it is ordered: a worker's start is not the time to read it

    from .config import HostileMember

    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for kind in members or get_args(HostileMember):
            _add(archive, kind)
        _file(archive, HARMLESS)
    return made.getvalue()


def _add(archive: TarFile, kind: HostileMember) -> None:
    import tarfile

    if kind == "absolute":
        _file(archive, f"/tmp/{ESCAPED}")
    elif kind == "dot-dot":
        _file(archive, f"inside/../../{ESCAPED}")
    elif kind == "link":
        _special(archive, "way-out", tarfile.SYMTYPE, "..")
        _file(archive, f"way-out/{ESCAPED}")
        _special(archive, "target", tarfile.SYMTYPE, f"../{ESCAPED}")
        _file(archive, "target")
    elif kind == "hard-link":
        _special(archive, "password", tarfile.LNKTYPE, "/etc/passwd")
        _special(archive, "above", tarfile.LNKTYPE, f"../{ESCAPED}")
    elif kind == "device":
        _special(archive, "null", tarfile.CHRTYPE)
        _special(archive, "disk", tarfile.BLKTYPE)
        _special(archive, "fifo", tarfile.FIFOTYPE)
    elif kind == "duplicate":
        _special(archive, "twice", tarfile.SYMTYPE, "/tmp")
        _special(archive, "twice", tarfile.DIRTYPE)
        _file(archive, f"twice/{ESCAPED}")
        _special(archive, "twice", tarfile.SYMTYPE, "/tmp")
        _file(archive, f"twice/{ESCAPED}")
    else:
        _setuid(archive)


def _setuid(archive: TarFile) -> None:
    import tarfile

    member = tarfile.TarInfo("setuid")
    member.mode = 0o6777
    member.uid = member.gid = 0
    archive.addfile(member)


def _file(archive: TarFile, name: str) -> None:
    import tarfile

    content = f"{name}\n".encode()
    member = tarfile.TarInfo(name)
    member.size = len(content)
    archive.addfile(member, io.BytesIO(content))


def _special(archive: TarFile, name: str, kind: bytes, linkname: str = "") -> None:
    import tarfile

    member = tarfile.TarInfo(name)
    member.type = kind
    member.linkname = linkname
    member.devmajor, member.devminor = (1, 3) if kind == tarfile.CHRTYPE else (0, 0)
    archive.addfile(member)
