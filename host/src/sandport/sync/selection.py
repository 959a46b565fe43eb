"""What of a tree is copied: patterns of the caller's, and the tree's own ignore files where they are to count.

The dialect is gitignore's. A directory that is left out is not entered, so nothing below it can be taken back by a
later pattern. `.git` is a name like any other: it is copied unless a pattern leaves it out.
"""

from __future__ import annotations

import contextlib
import enum
import errno
import os
import stat
from collections.abc import Callable, Iterator, Sequence
from typing import Final, TypeAlias

from sandport.sync.descent import OPEN_DIRECTORY
from sandport.sync.errors import printable
from sandport.sync.selection_rules import NO_STATE, Rule, Rules, State, lines_of, rule_of

__all__ = ["IGNORE_FILE_BYTES", "Cursor", "Selection", "Verdict"]

IGNORE_FILE_BYTES: Final = 128 << 10
"""An ignore file that is longer is not believed to be one; a long one that people write has a tenth of it."""

_IGNORE_FILE: Final = b".gitignore"
_REPOSITORY: Final = b".git"
_REPOSITORY_FILE: Final = b".git/info/exclude"

_OPEN_IGNORE_FILE: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC

_FILES_ON_A_PATH: Final = 64
_WEIGHT_ON_A_PATH: Final = 4 << 20
_DEEPEST: Final = 1024
"""How many ignore files count for one name, how much they may hold, and down to which level patterns with slashes
follow: a tree that is an enemy's must not fill the memory. Git itself can name no path that is much deeper."""

_FILES_IN_A_TREE: Final = 20_000
_WEIGHT_IN_A_TREE: Final = 64 << 20
"""Likewise for all ignore files of one tree, which are remembered after the visit."""

_TOO_MANY: Final = "its patterns do not count: there are too many patterns or ignore files"

Note: TypeAlias = Callable[[bytes, str], None]
"""Takes the path of an ignore file that does not count, and why."""

_Frame: TypeAlias = tuple[tuple[Rules, State], ...]


class Verdict(enum.Enum):
    """What becomes of a path."""

    KEPT = "kept"
    EXCLUDED = "excluded"
    BELOW = "below"
    """A directory above it is left out; that one is what counts as left out."""


class Selection:
    """Which names of a tree are copied.

    `start` gives a walk its view of one visit. For a list of paths in any order, such as an archive's members, there
    are `judge` and `matches`; the ignore files among them are told with `learn` before.
    """

    def __init__(self, exclude: Rules | None, *, gitignore: bool, above: bool) -> None:
        self._exclude = exclude
        self._gitignore = gitignore
        self._above = above
        self._top = self._frame_of_exclude()
        self._learned: dict[bytes, Rules] = {}
        self._learned_weight = 0
        self._cursor: Cursor | None = None

    @classmethod
    def build(cls, exclude: Sequence[str] = (), *, gitignore: bool = False, above: bool = False) -> Selection | None:
        """Understand what the caller wants.

        Args:
            exclude: Patterns in gitignore's dialect, relative to the source; the last one that matches decides, and
                they are asked before any file.
            gitignore: Whether `.gitignore` files in the tree and the `.git/info/exclude` of its top count.
            above: Whether those above the source count too, up to the git work tree that it stands in; for trees of
                this machine's user only.

        Returns:
            None if everything is copied.

        Raises:
            ValueError: A pattern can match nothing.
        """
        rules = [_checked(pattern) for pattern in exclude]
        if not rules and not gitignore:
            return None
        return cls(Rules(rules) if rules else None, gitignore=gitignore, above=above)

    def start(self, root_fd: int, note: Note) -> Cursor:
        """Begin a visit of a tree.

        Args:
            root_fd: Its top, opened for reading.
            note: Told of ignore files that do not count.
        """
        self._learned.clear()
        self._learned_weight = 0
        self._cursor = None
        cursor = Cursor(self._frame_of_exclude(), note, self._keep if self._gitignore else None)
        if self._gitignore:
            cursor.begin(root_fd, above=self._above)
        self._top = cursor.frame
        return cursor

    def _frame_of_exclude(self) -> _Frame:
        return () if self._exclude is None else ((self._exclude, self._exclude.start),)

    def _keep(self, path: bytes, rules: Rules) -> bool:
        """Remember a file's patterns; False if there are too many."""
        if len(self._learned) >= _FILES_IN_A_TREE or self._learned_weight + rules.weight > _WEIGHT_IN_A_TREE:
            return False
        self._learned[path] = rules
        self._learned_weight += rules.weight
        return True

    # Paths in any order

    def wants(self, path: bytes) -> bool:
        """Whether this is a file whose content `learn` should be told."""
        return self._gitignore and (path == _REPOSITORY_FILE or path.rpartition(b"/")[2] == _IGNORE_FILE)

    def learn(self, path: bytes, content: bytes) -> bool:
        """Take in an ignore file, of at most IGNORE_FILE_BYTES, before the first path is judged.

        Returns:
            False if its patterns do not count, because there are too many such files.
        """
        self._cursor = None
        rules = _rules_in(content)
        if rules is None:
            return True
        if not self._keep(path, rules):
            return False
        if path in (_IGNORE_FILE, _REPOSITORY_FILE):
            cursor = Cursor(self._frame_of_exclude(), _unheard, None)
            cursor.add(self._learned.get(_IGNORE_FILE), self._learned.get(_REPOSITORY_FILE))
            self._top = cursor.frame
        return True

    def judge(self, path: bytes, *, is_directory: bool) -> Verdict:
        """What becomes of a path, relative to the top of the tree that was visited, or whose ignore files were learned.

        Cheap for paths of one directory after the other.
        """
        names = [name for name in path.split(b"/") if name not in (b"", b".")]
        if not names:
            return Verdict.KEPT
        cursor = self._cursor
        if cursor is None:
            first = 0 if self._exclude is None else 1
            cursor = self._cursor = Cursor(self._top, _unheard, None, first=first)
        last = names.pop()
        shared = 0
        for name, there in zip(names, cursor.names, strict=False):
            if name != there:
                break
            shared += 1
        while len(cursor.names) > shared:
            cursor.leave()
        for name in names[shared:]:
            if cursor.excludes(name, is_directory=True):
                return Verdict.BELOW
            cursor.enter(name, None)
            cursor.add(self._learned.get(b"/".join((*cursor.names, _IGNORE_FILE))))
        return Verdict.EXCLUDED if cursor.excludes(last, is_directory=is_directory) else Verdict.KEPT

    def matches(self, path: bytes, is_directory: bool) -> bool:  # noqa: FBT001 - the one thing that is told of it
        """Whether a path is left out, by itself or with a directory above it."""
        return self.judge(path, is_directory=is_directory) is not Verdict.KEPT


class Cursor:
    """Where a visit is, and what is left out there.

    Attributes:
        names: The directories on the way down.
    """

    def __init__(
        self, top: _Frame, note: Note, keep: Callable[[bytes, Rules], bool] | None, *, first: int | None = None
    ) -> None:
        self.names: list[bytes] = []
        self._note = note
        self._keep = keep
        self._frames = [top]
        self._first = len(top) if first is None else first
        """How many of the callers' own patterns come before any file's."""

    @property
    def frame(self) -> _Frame:
        """What counts in the current directory."""
        return self._frames[-1]

    def excludes(self, name: bytes, *, is_directory: bool) -> bool:
        """Whether a name in the current directory is left out."""
        for rules, state in self._frames[-1]:
            verdict = rules.verdict(state, name, is_directory=is_directory)
            if verdict is not None:
                return verdict
        return False

    def enter(self, name: bytes, fd: int | None) -> None:
        """Go one level down, into a directory that is not left out.

        Args:
            name: Its name.
            fd: The directory, to look for an ignore file in.
        """
        self.names.append(name)
        deep = len(self.names) > _DEEPEST
        self._frames.append(_advanced(self._frames[-1], name, self._first, deep=deep))
        if self._keep is not None and fd is not None and not deep:
            self.add(self._read(fd, _IGNORE_FILE, self._path_of(_IGNORE_FILE)))

    def leave(self) -> None:
        """Go one level up."""
        self.names.pop()
        self._frames.pop()

    def add(self, rules: Rules | None, last: Rules | None = None) -> None:
        """Let a file's patterns count from the current directory on downwards.

        Args:
            rules: Those that come before the files of the directories above.
            last: Those that come after all others.
        """
        frame = self._frames[-1]
        for added in (rules, last):
            if added is None:
                continue
            weight = added.weight + sum(there.weight for there, _ in frame[self._first :])
            if len(frame) - self._first >= _FILES_ON_A_PATH or weight > _WEIGHT_ON_A_PATH:
                self._note(self._path_of(_IGNORE_FILE), _TOO_MANY)
                continue
            own = ((added, added.start),)
            frame = (*frame, *own) if added is last else (*frame[: self._first], *own, *frame[self._first :])
        self._frames[-1] = frame

    def begin(self, root_fd: int, *, above: bool) -> None:
        """Read what counts at the top of a tree."""
        inner = self._read(root_fd, _IGNORE_FILE, _IGNORE_FILE)
        if above and not _is_there(root_fd, _REPOSITORY):
            self._begin_above(root_fd)
            self.add(inner)
        else:
            self.add(inner, self._repository_rules(root_fd, _REPOSITORY_FILE))

    def _begin_above(self, root_fd: int) -> None:
        """Read what counts in the directories from the top of the git work tree down to the source."""
        try:
            source = os.fsencode(os.readlink(f"/proc/self/fd/{root_fd}"))
            names: list[bytes] = []
            place, name = os.path.split(source)
            while name:
                names.insert(0, name)
                if os.path.lexists(os.path.join(place, _REPOSITORY)):
                    break
                place, name = os.path.split(place)
            else:
                return
            for depth, name in enumerate(names):
                # The directories above the source are no part of the visit, so their names are not kept.
                with _opened(place) as fd:
                    shown = os.path.join(place, _IGNORE_FILE)
                    last = None if depth else self._repository_rules(fd, os.path.join(place, _REPOSITORY_FILE))
                    self.add(self._read(fd, _IGNORE_FILE, shown), last)
                own = self._frames[-1][: self._first]
                self._frames[-1] = (*own, *_advanced(self._frames[-1][self._first :], name, 0))
                place = os.path.join(place, name)
        except OSError as error:
            self._note(_IGNORE_FILE, f"those above the source do not count: {error.strerror}")

    def _repository_rules(self, fd: int, shown: bytes) -> Rules | None:
        try:
            with _opened(_REPOSITORY, dir_fd=fd) as repository, _opened(b"info", dir_fd=repository) as info:
                return self._read(info, b"exclude", shown)
        except FileNotFoundError:
            return None
        except OSError as error:
            if error.errno not in (errno.ENOTDIR, errno.ELOOP):
                self._note(shown, f"its patterns do not count: {error.strerror}")
            # A work tree whose repository is elsewhere, or something else of that name.
            return None

    def _read(self, fd: int, name: bytes, shown: bytes) -> Rules | None:
        try:
            content = _content(name, fd)
        except OSError as error:
            reason = "it is a symbolic link" if error.errno == errno.ELOOP else error.strerror
            self._note(shown, f"its patterns do not count: {reason}")
            return None
        if content is None:
            return None
        if len(content) > IGNORE_FILE_BYTES:
            self._note(shown, f"its patterns do not count: it is longer than {IGNORE_FILE_BYTES >> 10} KiB")
            return None
        rules = _rules_in(content)
        if rules is not None and self._keep is not None and not self._keep(shown, rules):
            self._note(shown, _TOO_MANY)
            return None
        return rules

    def _path_of(self, name: bytes) -> bytes:
        return b"/".join((*self.names, name))


def _advanced(frame: _Frame, name: bytes, first: int, *, deep: bool = False) -> _Frame:
    """The frame below a directory; the same object where nothing changes.

    Args:
        frame: The one of the directory above.
        name: The directory's name.
        first: How many at its beginning keep their place, even if they say nothing any more.
        deep: Patterns with slashes are no longer followed.
    """
    if all(not state and rules.speaks_of_names for rules, state in frame):
        return frame
    below = []
    for place, (rules, state) in enumerate(frame):
        advanced = NO_STATE if deep else rules.advance(state, name)
        if advanced or rules.speaks_of_names or place < first:
            below.append((rules, state if advanced == state else advanced))
    return tuple(below)


def _checked(pattern: str) -> Rule:
    shown = printable(os.fsencode(pattern))
    if "\0" in pattern:
        raise ValueError(f"exclude {shown}: a name has no NUL byte")
    rule = rule_of(os.fsencode(pattern))
    if rule is None:
        raise ValueError(f"exclude {shown}: this pattern can match nothing; see gitignore's rules for patterns")
    if any(part in ((ord("."),), (ord("."), ord("."))) for part in rule.parts):
        raise ValueError(
            f"exclude {shown}: patterns are relative to the source, and '.' and '..' are no names in it; "
            "write '/name' for what stands at its top"
        )
    return rule


def _rules_in(content: bytes) -> Rules | None:
    # One after the other: what a line means can take a thousand times the memory of the line, until it is compiled.
    rules = Rules((rule for line in lines_of(content) if (rule := rule_of(line)) is not None), size_bytes=len(content))
    return rules or None


def _unheard(_path: bytes, _reason: str) -> None:
    """For a list of paths: whoever took in its ignore files was told then."""


def _content(name: bytes, dir_fd: int) -> bytes | None:
    """An ignore file's content, at most one byte past the ceiling; None where there is none."""
    try:
        fd = os.open(name, _OPEN_IGNORE_FILE, dir_fd=dir_fd)
    except FileNotFoundError:
        return None
    try:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            return None
        pieces = []
        room = IGNORE_FILE_BYTES + 1
        while room and (piece := os.read(fd, room)):
            pieces.append(piece)
            room -= len(piece)
        return b"".join(pieces)
    finally:
        os.close(fd)


@contextlib.contextmanager
def _opened(name: bytes, *, dir_fd: int | None = None) -> Iterator[int]:
    fd = os.open(name, OPEN_DIRECTORY, dir_fd=dir_fd)
    try:
        yield fd
    finally:
        os.close(fd)


def _is_there(fd: int, name: bytes) -> bool:
    try:
        os.stat(name, dir_fd=fd, follow_symlinks=False)
    except OSError:
        # Missing; or not to be seen, and then there is nothing to read either.
        return False
    return True
