"""What isolated sandboxes are shown of the interpreter that runs here: what it needs of its prefixes, and no more.

A prefix may hold more than an interpreter: `python -m venv ~` makes one of a home, `python -m venv .` of a project.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from typing import NamedTuple

from .bubblewrap import is_within

NEEDED = ("bin", "include", "lib", "lib64", "libexec", "share", "ssl", "pyvenv.cfg")
"""What is needed of a prefix; `libexec` and `ssl` are those of distributions that bring all of it themselves."""


class Closed(NamedTuple):
    """What is not to be shown."""

    homes: frozenset[str] = frozenset()
    """Not as a whole; what is in them may be."""
    places: frozenset[str] = frozenset()
    """The system's and the state's: nor what is in them."""

    def lies_in(self, path: str) -> bool:
        """Whether any of it is this path or below it."""
        return any(is_within(one, path) for one in (*self.homes, *self.places))

    def holds(self, path: str) -> bool:
        """Whether a path is in one of the places."""
        return any(is_within(path, place) for place in self.places)


class Interpreter(NamedTuple):
    """An interpreter, by what it says of itself."""

    prefixes: frozenset[str]
    """Its own and those that it is based upon, by the names that it has for them."""
    bases: frozenset[str]
    """Those of them that it is based upon: what an installer has made, and nobody works in."""
    executable: str
    library: str
    """What its library is named in `lib`: python3.11."""
    platlibdir: str = "lib"

    @classmethod
    def running(cls) -> Interpreter:
        """The one that runs this."""
        bases = frozenset((sys.base_prefix, sys.base_exec_prefix))
        free_threaded = "t" if "t" in sys.abiflags else ""
        return cls(
            prefixes=bases | {sys.prefix, sys.exec_prefix},
            bases=bases,
            executable=sys.executable,
            library=f"python{sys.version_info[0]}.{sys.version_info[1]}{free_threaded}",
            platlibdir=sys.platlibdir,
        )

    def shown(self, closed: Closed) -> tuple[str, ...]:
        """Directories and files that are to be seen inside, at their own paths."""
        paths = {os.path.realpath(self.executable)}
        for name in self.prefixes:
            for prefix in {os.path.normpath(name), os.path.realpath(name)} - {"/"}:
                paths.update(self._of(prefix, closed, base=name in self.bases))
        return tuple(sorted(path for path in paths if os.path.exists(path)))

    def _of(self, prefix: str, closed: Closed, *, base: bool) -> Iterator[str]:
        own = os.path.realpath(prefix)
        narrow = closed.lies_in(prefix) or closed.lies_in(own)
        if base and not narrow and set(_entries(prefix)) <= set(NEEDED):
            yield prefix
            return
        for name in self._parts(prefix) if narrow else NEEDED:
            path = os.path.join(prefix, name)
            real = os.path.realpath(path)
            if (
                name.startswith("lib64")
                and self.platlibdir != "lib64"
                and os.path.realpath(f"{prefix}/lib64") == (os.path.realpath(f"{prefix}/lib"))
            ):
                continue  # A second name, which nothing asks for.
            leads_away = not is_within(real, own)
            if not (closed.lies_in(path) or closed.lies_in(real) or (leads_away and closed.holds(real))):
                yield path

    def _parts(self, prefix: str) -> list[str]:
        """What is needed at the very least, for a prefix whose directories may be somebody's."""
        folders = [f"{folder}/{self.library}" for folder in ("lib", "lib64", "include")]
        libraries = [f"lib/{name}" for name in _entries(f"{prefix}/lib") if name.startswith("libpython")]
        return ["bin", "pyvenv.cfg", *folders, *libraries]


def _entries(path: str) -> list[str]:
    try:
        return os.listdir(path)
    except OSError:  # It is not there, or not for us: then there is nothing of it to show.
        return []
