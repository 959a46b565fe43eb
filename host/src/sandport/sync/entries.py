"""What a tree is made of while it is on its way: the typed entries that a scanner yields and a target takes.

An entry carries one name, never a path: `DirectoryEntry` goes one level down, `DIRECTORY_END` one level up.
The bytes of a file follow its `FileEntry`, before the next entry is asked for.
"""

from __future__ import annotations

from typing import Final, TypeAlias

import msgspec

__all__ = [
    "DIRECTORY_END",
    "DIRECTORY_MODE_BITS",
    "FILE_MODE_BITS",
    "RESERVED_PREFIX",
    "DirectoryEnd",
    "DirectoryEntry",
    "Entry",
    "FileEntry",
    "LinkEntry",
]

RESERVED_PREFIX: Final = b".sandport-"
"""Names that begin so are Sandport's own scratch: never copied, and safe to remove when no copy is running."""

FILE_MODE_BITS: Final = 0o777
DIRECTORY_MODE_BITS: Final = 0o1777
"""Which mode bits travel. Never setuid or setgid; the sticky bit means something on directories only."""


class FileEntry(msgspec.Struct, frozen=True, gc=False):
    """A regular file. `mode` holds permission bits only; `size_bytes` is what was true when it was opened."""

    name: bytes
    mode: int
    size_bytes: int
    mtime_ns: int


class LinkEntry(msgspec.Struct, frozen=True, gc=False):
    """A symbolic link and the text it holds."""

    name: bytes
    target: bytes
    mtime_ns: int


class DirectoryEntry(msgspec.Struct, frozen=True, gc=False):
    """A directory begins: what follows is inside, until the matching `DIRECTORY_END`."""

    name: bytes
    mode: int
    mtime_ns: int


class DirectoryEnd(msgspec.Struct, frozen=True, gc=False):
    """The innermost open directory is complete."""


DIRECTORY_END: Final = DirectoryEnd()

Entry: TypeAlias = FileEntry | LinkEntry | DirectoryEntry | DirectoryEnd
