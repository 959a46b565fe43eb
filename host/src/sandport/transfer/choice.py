"""What of a tree a copy takes, and who is told how far it is: said once, whichever way the files go."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from msgspec import Struct

if TYPE_CHECKING:
    from sandport.sync import SyncProgress
    from sandport.sync.selection import Selection

__all__ = ["Choice", "OnProgress"]

OnProgress = Callable[["SyncProgress"], None]
"""Told how far a copy is, from another thread."""


class Choice(Struct, frozen=True, kw_only=True):
    """What of a tree is copied, and what becomes of the rest of the target."""

    exclude: tuple[str, ...] = ()
    gitignore: bool = False
    follow_symlinks: bool = False
    delete: bool = False
    protect: tuple[bytes, ...] = ()
    """Files and directories of this machine that `delete` spares, with all that lies above them."""
    state: bytes | None = None
    """Where the host keeps its state; likewise."""

    def selection(self, *, above: bool) -> Selection | None:
        """What is left out; None where nothing is.

        Args:
            above: Whether ignore files above the source count too, in the git work tree that it stands in.

        Raises:
            ValueError: A pattern can match nothing.
        """
        if not self.exclude and not self.gitignore:
            return None
        from sandport.sync.selection import Selection

        return Selection.build(self.exclude, gitignore=self.gitignore, above=above and self.gitignore)
