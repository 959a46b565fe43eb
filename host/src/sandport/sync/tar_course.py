"""The way of an archive's members through a tree: which of them are taken, and how far up and down each lies.

Both passes over an archive go by this, the one that only counts and the one that writes. It touches no file system
and holds one path, however many members there are: what a name leads to, the tree itself decides, one directory
level at a time.
"""

from __future__ import annotations

import hashlib
from typing import Final

from sandport.sync.copy import LinkRule
from sandport.sync.entries import RESERVED_PREFIX
from sandport.sync.errors import TooLargeError, printable
from sandport.sync.ledger import Ledger
from sandport.sync.paths import leads_out
from sandport.sync.selection import Selection, Verdict
from sandport.sync.tar_format import Kind, Member
from sandport.sync.walk import skip_reserved

__all__ = ["Course", "Originals", "plain_path", "want"]

_NOWHERE: Final = (b"", b".")

_MOST_LEVELS: Final = 8192
"""Directories on the way to one member; each takes a few hundred bytes while it is open."""

_LONGEST_NAME_BYTES: Final = 255
_LONGEST_TARGET_BYTES: Final = 4095
"""The longest that the system takes for a name, and for what a symbolic link holds."""

_MOST_ORIGINALS: Final = 1 << 18
"""Files of one archive that hard links lead to; each takes about 200 bytes of memory."""

_REREAD_BYTES: Final = 64 << 20
"""What may be read again for hard links, beside four times the archive itself; an honest one needs half of it."""


class Course:
    """Where each member goes.

    After `place` has given a name, `up` says how many directories to leave, and `down` which to enter then.

    Args:
        account: Takes what is refused, skipped and excluded.
        selection: What is left out; it knows the ignore files of the archive already.
        links: Which symbolic links are taken.

    Attributes:
        directory: The path of the current directory, relative to the top, with a slash at its end.
        depth: How many directories below the top it is.
        up: Directories to leave for the last member.
        down: Directories to enter after that.
        implied: How many directories were to be entered in all without a member of their own.
    """

    def __init__(self, account: Ledger, selection: Selection | None, *, links: LinkRule) -> None:
        self.directory = b""
        self.up = 0
        self.down: list[bytes] = []
        self.implied = 0
        self._names: list[bytes] = []
        self._shared = 0
        self._account = account
        self._selection = selection
        self._keeps_inside = links is LinkRule.INSIDE
        self._parent: bytes | None = None
        """The last member's directory as it was written; None if it leads elsewhere by now."""
        self._reserved = b""

    @property
    def depth(self) -> int:
        """How many directories below the top the current directory is."""
        return len(self._names)

    def place(self, member: Member) -> bytes | None:
        """Find the place of a member.

        Returns:
            Its name in its directory, empty for the top of the tree itself; None if it is not taken. A member that is
            a directory is entered by the caller after the others, and is the current one from then on.

        Raises:
            TooLargeError: It lies too deep.
        """
        path = member.path
        cut = path.rfind(b"/") + 1
        name = path[cut:]
        if (
            path[:cut] == self._parent
            and member.kind is Kind.FILE
            and self._selection is None
            and len(name) <= _LONGEST_NAME_BYTES
            and name not in (b"", b".", b"..")
            and b"\0" not in name
            and not name.startswith(RESERVED_PREFIX)
        ):
            self.up = 0
            self.down = []
            return name
        names = self._names_of(member)
        if names is None:
            return None
        is_directory = member.kind is Kind.DIRECTORY
        if not names:
            if is_directory:
                self.up, self.down = 0, []
                return b""
            self._account.refuse(member.path, "it has no name")
            return None
        if not self._is_taken(member, names, is_directory=is_directory):
            return None
        name = names.pop()
        self._go(names)
        self._parent = path[:cut]
        if is_directory:
            self._names.append(name)
            self.directory = b"%b%b/" % (self.directory, name)
            self._parent = None
        return name

    def path_down(self, count: int) -> bytes:
        """The path of the first so many directories of `down`."""
        return b"/".join(self._names[: self._shared + count])

    def _names_of(self, member: Member) -> list[bytes] | None:
        path = member.path
        names = [name for name in path.split(b"/") if name not in _NOWHERE]
        reason = None
        if path.startswith(b"/"):
            reason = "its path is absolute"
        elif b"\0" in path:
            reason = "its path holds a NUL byte"
        elif b".." in names:
            reason = "its path holds '..'"
        elif any(len(name) > _LONGEST_NAME_BYTES for name in names):
            reason = f"it has a name of more than {_LONGEST_NAME_BYTES} bytes"
        if reason is not None:
            self._account.refuse(path, reason)
            return None
        if len(names) > _MOST_LEVELS:
            raise TooLargeError(
                f"{printable(path)} lies more than {_MOST_LEVELS:,} directories deep; leave it out", path=path
            )
        return names

    def _is_taken(self, member: Member, names: list[bytes], *, is_directory: bool) -> bool:
        for count, name in enumerate(names, 1):
            if name.startswith(RESERVED_PREFIX):
                # As in a walk, what stands below counts no more.
                reserved = b"/".join(names[:count])
                if reserved != self._reserved:
                    self._reserved = reserved
                    self._note_reserved(reserved, is_directory=is_directory or count < len(names))
                return False
        if self._selection is not None:
            path = b"/".join(names)
            verdict = self._selection.judge(path, is_directory=is_directory)
            if verdict is not Verdict.KEPT:
                if verdict is Verdict.EXCLUDED:
                    self._account.exclude(path)
                return False
        kind = member.kind
        if kind is Kind.LINK:
            reason = self.refusal_of_link(member.link_target, len(names) - 1)
            if reason is not None:
                self._account.refuse(b"/".join(names), reason)
            return reason is None
        if kind in (Kind.DEVICE, Kind.FIFO, Kind.OTHER):
            self._account.skip(b"/".join(names), f"it is a {kind.value}, which has no bytes to copy", "special")
            return False
        return True

    def _note_reserved(self, path: bytes, *, is_directory: bool) -> None:
        verdict = Verdict.KEPT if self._selection is None else self._selection.judge(path, is_directory=is_directory)
        if verdict is Verdict.KEPT:
            skip_reserved(path, self._account)
        elif verdict is Verdict.EXCLUDED:
            self._account.exclude(path)

    def refusal_of_link(self, target: bytes, depth: int) -> str | None:
        """Why a symbolic link is not taken, if it is not.

        Args:
            target: What it holds.
            depth: How many directories below the top it stands.
        """
        if not target or b"\0" in target:
            return "it holds no path"
        if len(target) > _LONGEST_TARGET_BYTES:
            return f"it holds more than {_LONGEST_TARGET_BYTES:,} bytes"
        return leads_out(target, depth) if self._keeps_inside else None

    def _go(self, names: list[bytes]) -> None:
        """Make another directory the current one."""
        here = self._names
        if names == here:
            self.up, self.down = 0, []
            return
        shared = 0
        for there, own in zip(names, here, strict=False):
            if there != own:
                break
            shared += 1
        self._shared = shared
        self.up = len(here) - shared
        self.down = names[shared:]
        self.implied += len(self.down)
        self._names = names
        self.directory = b"".join([b"%b/" % name for name in names])


def plain_path(path: bytes) -> bytes | None:
    """Spell a path of an archive as `Course.directory` does; None if it may not be taken at all."""
    if path.startswith(b"/") or b"\0" in path:
        return None
    names = [name for name in path.split(b"/") if name not in _NOWHERE]
    return None if b".." in names else b"/".join(names)


class Originals:
    """The members of an archive that hard links lead to: where they are, by a digest of their path.

    Args:
        wanted: The digests of those that some link leads to.
        archive_bytes: How long the archive is.
    """

    def __init__(self, wanted: frozenset[bytes], archive_bytes: int) -> None:
        self._wanted = wanted
        self._offsets: dict[bytes, int] = {}
        self._left_bytes = 4 * archive_bytes + _REREAD_BYTES

    def note(self, member: Member) -> None:
        """From here on, a member's path is what it has made of it; whether or not it was taken itself."""
        if not self._wanted:
            return
        path = plain_path(member.path)
        if path is None or (digest := _digest_of(path)) not in self._wanted:
            return
        if member.kind is Kind.FILE or member.kind is Kind.LINK:
            self._offsets[digest] = member.offset
        elif member.kind is Kind.HARD_LINK and (offset := self.find(member.link_target)) is not None:
            self._offsets[digest] = offset

    def find(self, target: bytes) -> int | None:
        """The offset of the member that a hard link with this target leads to; None if there is none so far."""
        path = plain_path(target)
        return None if path is None else self._offsets.get(_digest_of(path))

    def charge(self, original: Member) -> None:
        """Count what was read again, so that a few long headers with many links to them do not take for ever.

        Raises:
            TooLargeError: It is more than any honest archive takes.
        """
        self._left_bytes -= original.data_offset - original.offset
        if self._left_bytes < 0:
            raise TooLargeError(
                f"{printable(original.path)} has more hard links than can be followed; leave it out",
                path=original.path,
            )


def want(wanted: set[bytes], link: Member) -> None:
    """Note what a hard link leads to.

    Raises:
        TooLargeError: There are too many.
    """
    path = plain_path(link.link_target)
    if path is not None:
        wanted.add(_digest_of(path))
    if len(wanted) > _MOST_ORIGINALS:
        raise TooLargeError(
            f"the archive has hard links to more than {_MOST_ORIGINALS:,} files; copy a smaller part", path=link.path
        )


def _digest_of(path: bytes) -> bytes:
    """What stands for a path; no two can be made to have the same."""
    return hashlib.blake2b(path, digest_size=16).digest()
