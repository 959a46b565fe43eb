"""The two programs that unpack and pack in a sandbox with a POSIX shell and a tar, and what their failures mean.

Above: `v1.sync`. The shell is needed to make the directory, to choose what is packed, and to name what is missing; the
tar must be GNU's or libarchive's (bsdtar), since others skip the records in which long names and times travel.
"""

from __future__ import annotations

from msgspec import Struct

from sandport_protocol.errors import (
    CommandNotFound,
    Detail,
    Internal,
    PathNotFound,
    PathOutsideRoot,
    PathRefused,
    ProtocolViolation,
    QuotaExceeded,
    Unavailable,
    WireError,
)
from sandport_protocol.octets import Octets, unpack

_NO_TAR, _NO_PATH, _REFUSED = 90, 91, 92
"""What the scripts exit with where tar was not begun: far from what a tar or a shell says by itself."""
_CHANGED = 1
"""GNU tar packed everything, and some of it changed meanwhile."""

_TAR = """export LC_ALL=C
unset TAR_OPTIONS
case "$(tar --version 2>/dev/null)" in
*'GNU tar'*) gnu=yes ;;
bsdtar*) gnu=no ;;
*) exit 90 ;;
esac
"""
_IN = (
    _TAR
    + """mkdir -p -- "$1" && cd -- "$1" || exit 92
exec tar -x -p -o -f -
"""
)
_OUT = (
    _TAR
    + """if [ -d "$1" ] && ! [ -L "$1" ]; then
    cd -- "$1" || exit 92
    name=.
elif [ -e "$1" ] || [ -L "$1" ]; then
    cd -- "$2" || exit 92
    name=./$3
else
    exit 91
fi
if [ $gnu = yes ]; then
    exec tar -c -b 128 --format=posix --pax-option=delete=atime,delete=ctime --sparse --hard-dereference \\
        --numeric-owner --ignore-failed-read -f - -- "$name"
fi
exec tar -c -b 128 --format pax -f - -- "$name"
"""
)

_REASONS = (
    ("No space left on device", "noSpace"),
    ("Disk quota exceeded", "noSpace"),
    ("File too large", "noSpace"),
    ("Read-only file system", "readOnly"),
    ("Permission denied", "permission"),
    ("Operation not permitted", "permission"),
    ("Is a directory", "kind"),
    ("Not a directory", "kind"),
    ("File exists", "kind"),
    ("Directory not empty", "kind"),
    ("File name too long", "name"),
    ("Invalid or incomplete multibyte", "name"),
    ("Member name contains '..'", "outside"),
    ("Path contains '..'", "outside"),
    ("does not look like a tar archive", "malformed"),
    ("Skipping to next header", "malformed"),
    ("Unrecognized archive format", "malformed"),
    ("Damaged tar archive", "malformed"),
    ("Malformed", "malformed"),
)
"""What a program says, and the `reason` that it stands for; the first that is found anywhere counts."""
_UNREADABLE = ("Input/output error", "Stale file handle")
"""Said of a file whose content is not what the archive then has; tar goes on, and exits as if nothing had happened."""
_NOISE = ("Exiting with failure status", "Error exit delayed")
_NOTES = 100
_SHOWN = 300
"""Characters of what a program said that go into a message."""


class Said(Struct, frozen=True):
    """How a program ended, and the beginning of what it wrote to stderr."""

    status: int
    text: str

    @property
    def notes(self) -> tuple[str, ...]:
        """The lines, without those that only say that there were others."""
        lines = (line.strip() for line in self.text.splitlines())
        return tuple(line for line in lines if line and not any(noise in line for noise in _NOISE))[:_NOTES]


def tar_in(path: Octets) -> tuple[bytes, ...]:
    """The words of a program that unpacks its input below a path, made where it is missing.

    Run it in the sandbox, in the working directory. It needs `sh`, `mkdir`, and GNU tar or bsdtar.
    """
    return (b"sh", b"-c", _IN.encode(), b"sh", _plain(path))


def tar_out(path: Octets) -> tuple[bytes, ...]:
    """The words of a program that packs what is at a path to its output.

    Run it in the sandbox, in the working directory. It needs `sh`, and GNU tar or bsdtar.
    """
    whole = _plain(path)
    parent, _, name = whole.rpartition(b"/")
    return (b"sh", b"-c", _OUT.encode(), b"sh", whole, parent or b"/", name)


def unpack_failure(said: Said, path: Octets) -> WireError | None:
    """Why it did not unpack all; None where it did."""
    return None if said.status == 0 else _failure(said, path, "unpack")


def pack_failure(said: Said, path: Octets) -> WireError | None:
    """Why what it packed is not the whole truth; None where it is, or where `notes` say enough."""
    if said.status not in (0, _CHANGED) or any(text in said.text for text in _UNREADABLE):
        return _failure(said, path, "pack")
    return None


def _failure(said: Said, path: Octets, doing: str) -> WireError:
    what = ascii(unpack(path).decode("utf-8", "backslashreplace"))
    why = "; ".join(said.notes)[:_SHOWN] or f"it ended with {said.status}"
    at = Detail(path=path)
    if said.status == _NO_TAR:
        return CommandNotFound(
            f"to {doing} {what} the sandbox needs GNU tar or bsdtar as `tar`",
            detail=Detail(path="tar"),
            dispatched="no",
        )
    if said.status == _NO_PATH:
        return PathNotFound(f"there is no {what} in the sandbox", detail=at, dispatched="no")
    if said.status == 127 and "not found" in said.text:
        return CommandNotFound(f"to {doing} {what} the sandbox lacks a program: {why}", dispatched="no")
    reason = next((reason for text, reason in _REASONS if text in said.text), None)
    begun = said.status != _REFUSED
    message = f"{what} cannot be {'read' if doing == 'pack' else 'written'}: {why}"
    if said.status < 0:
        return Unavailable(f"the program to {doing} {what} was ended by signal {-said.status}")
    if reason is None and begun:
        return Internal(f"the program to {doing} {what} failed: {why}", dispatched="unknown")
    if reason == "noSpace":
        detail = Detail(path=path, reason=reason)
        return QuotaExceeded(message, detail=detail, retry="never", dispatched="unknown" if begun else "no")
    if reason == "malformed":
        return ProtocolViolation(f"what came is no archive: {why}", detail=Detail(reason=reason))
    if reason == "outside":
        return PathOutsideRoot(f"the archive leads out of {what}: {why}", dispatched="unknown")
    return PathRefused(message, detail=Detail(path=path, reason=reason), dispatched="unknown" if begun else "no")


def _plain(path: Octets) -> bytes:
    """The path without slashes at its end, and never to be taken for an option or for `cd -`."""
    whole = unpack(path)
    if not whole.startswith(b"/"):
        whole = b"./" + whole
    return whole.rstrip(b"/") or b"/"
