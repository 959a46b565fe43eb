"""The archives that `script.py` unpacks: a tree with its directories' modes and times apart, or one file."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping
from typing import IO, Final, Protocol, Self

from sandport.sync.mirror import KnownPaths
from sandport.sync.tar_format import Dialect
from sandport.sync.tar_write import DescriptorSink, Sink, TarWriter

__all__ = ["TREE", "Survey", "TreeArchive"]

TREE: Final = b"t/"
"""The prefix of the tree's members."""

_WORDS: Final = 200
"""Of one shell command."""

_OPEN: Final = 0o700
"""What the owner needs to fill a directory, and to move it."""


class TreeArchive(TarWriter):
    """An archive of a tree under `TREE`, with its top; ends with the archives of its directories.

    Use it as a context manager: the directories are gathered in a file without a name.

    Args:
        sink: Where to.
        dialect: For whoever unpacks it.
        inner: For the tar of the sandbox, which unpacks the archives of the directories.
        extra: Further files for `script.py`, by name.
    """

    def __init__(
        self, sink: Sink, *, dialect: Dialect, inner: Dialect, extra: Mapping[bytes, bytes] | None = None
    ) -> None:
        super().__init__(sink, dialect=dialect)
        self._inner = inner
        self._extra = extra or {}
        self._file: IO[bytes] = tempfile.TemporaryFile(prefix="sandport-")  # noqa: SIM115 - closed by `close`
        self._apart = TarWriter(DescriptorSink(self._file.fileno()), dialect=inner)
        # Small where everything has one of a few modes, and for the few sandboxes whose tar needs it.
        self._modes: IO[bytes] | None = None
        if inner is not Dialect.PAX:
            self._modes = tempfile.TemporaryFile(prefix="sandport-")  # noqa: SIM115 - closed by `close`
        self._mode, self._words = 0, _WORDS
        self._top: tuple[int, int] = (_OPEN, 0)
        self._open: list[tuple[bytes, int, int]] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()
        if self._modes is not None:
            self._modes.close()

    def directory(self, path: bytes, mode: int, mtime_ns: int) -> None:
        """Write a directory that its owner can fill; its own mode and time come at the end."""
        super().directory(path, mode | _OPEN if path != TREE else _OPEN, mtime_ns)
        if path == TREE:
            self._top = (mode, mtime_ns)
            return
        self._leave(path)
        self._open.append((path, mode, mtime_ns))

    def end(self) -> None:
        """Write the archives of the directories, and the end mark."""
        self._leave(b"")
        for name, content in self._extra.items():
            with tempfile.TemporaryFile(prefix="sandport-") as file:
                file.write(content)
                self._append(name, file)
        if self._modes is not None:
            self._append(b"m", self._modes)
            _empty(self._modes)
            self._modes.write(b'chmod %04o "./$T"\n' % self._top[0])
            self._append(b"n", self._modes)
        self._apart.end()
        self._append(b"d", self._file)
        _empty(self._file)
        top = TarWriter(DescriptorSink(self._file.fileno()), dialect=self._inner)
        top.directory(b"./", *self._top)
        top.end()
        self._append(b"r", self._file)
        super().end()

    def _leave(self, path: bytes) -> None:
        """Write the directories that are complete, the deepest first: `path` is not in them."""
        while self._open and not path.startswith(self._open[-1][0]):
            whole, mode, mtime_ns = self._open.pop()
            below = whole[len(TREE) :]
            self._apart.directory(below, mode, mtime_ns)
            if self._modes is not None:
                self._tell_mode(self._modes, mode, b"'./%b'" % below.replace(b"'", b"'\\''"))

    def _tell_mode(self, file: IO[bytes], mode: int, word: bytes) -> None:
        """Several directories in one command, as long as the mode is the same."""
        self._words = self._words + 1 if mode == self._mode and self._words < _WORDS else 0
        self._mode = mode
        file.write(b" %b" % word if self._words else b"\nchmod %04o %b" % (mode, word))

    def _append(self, name: bytes, file: IO[bytes]) -> None:
        file.flush()
        fd = file.fileno()
        os.lseek(fd, 0, os.SEEK_SET)
        self.file(name, 0o600, os.fstat(fd).st_size, 0, fd)


def _empty(file: IO[bytes]) -> None:
    file.flush()
    os.ftruncate(file.fileno(), 0)
    file.seek(0)


class Meets(Protocol):
    """Knows what is in the way of a copy."""

    def meet(self, path: bytes, *, is_directory: bool) -> None:
        """Raise where something could not take its place."""


class Survey(TarWriter):
    """Takes the members of a tree and writes nothing: what a copy would do, and which paths its source has.

    Args:
        known: Told of every path.
        obstacles: Asked about every path, where somebody wants to know.
    """

    def __init__(self, known: KnownPaths, obstacles: Meets | None = None) -> None:
        super().__init__(_Nowhere(), dialect=Dialect.PLAIN)
        self._known = known
        self._obstacles = obstacles

    def directory(self, path: bytes, mode: int, mtime_ns: int) -> None:
        """Note a directory."""
        if path != TREE:
            below = path[len(TREE) :].rstrip(b"/")
            if self._obstacles is not None:
                self._obstacles.meet(below, is_directory=True)
            self._known.add_directory(below)

    def link(self, path: bytes, target: bytes, mtime_ns: int) -> None:
        """Note a link."""
        self._note(path[len(TREE) :])

    def file(self, path: bytes, mode: int, size_bytes: int, mtime_ns: int, fd: int, **_: object) -> int:
        """Note a file, of which nothing is read."""
        self._note(path[len(TREE) :])
        return size_bytes

    def end(self) -> None:
        """Nothing was held back."""

    def _note(self, path: bytes) -> None:
        if self._obstacles is not None:
            self._obstacles.meet(path, is_directory=False)
        self._known.add(path)


class _Nowhere:
    def write(self, data: bytes | memoryview, /) -> object:
        """Nothing."""
        return len(data)
