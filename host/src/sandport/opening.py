"""What a host has before it opens: its place among the live processes of its home, and the plugins that hang in it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from .home import HomeUnusable
from .instances import Instance
from .log import Log

if TYPE_CHECKING:
    from .plugins import Plugins


def begun(root: Path) -> Instance:
    """This process among those that have the home open; the caller must `close` it.

    Raises:
        HomeUnusable: The file system refuses.
    """
    try:
        return Instance.begin(root)
    except OSError as error:
        raise HomeUnusable(
            f"{error.filename or root / 'instances'}: {error.strerror}; Sandport notes there which processes live\n"
            "free space on that disk, or set SANDPORT_HOME to a folder that can be written"
        ) from error


def hung_in(plugins: Sequence[object], log: Log) -> Plugins | None:
    """The plugins, ready to be called; None where there are none, and nothing is imported for them.

    Args:
        plugins: Objects with hooks, or names of installed ones.
        log: Where what is wrong with them goes.

    Raises:
        UsageError: One is not installed, or cannot be used.
    """
    if not plugins:
        return None
    from .plugins import Plugins

    # One that is named twice is meant once; of objects the caller knows what he gives.
    once = [one for place, one in enumerate(plugins) if not isinstance(one, str) or one not in plugins[:place]]
    return Plugins(once, log)
