"""The `sandport` command.

Only what the words on the command line need is imported: help and completions touch neither an event loop nor a
worker. Signals are caught before anything else, so that no moment of a run is one in which Ctrl-C leaves something
behind.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

__all__ = ["main"]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code.

    Args:
        arguments: The words after the command's name; by default the process's.
    """
    from .interrupts import Interrupts

    # What is made here is the user's: a umask that keeps him out of it too would keep him from every sandbox.
    os.umask(os.umask(0o077) & 0o077)
    interrupts = Interrupts()
    interrupts.install()

    from .descriptors import fill_closed

    fill_closed()

    from .application import invoke

    code = invoke(arguments, interrupts)
    interrupts.finish()
    return code
