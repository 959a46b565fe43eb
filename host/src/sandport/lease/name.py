"""What a lease may be called: one rule for `Host.lease`, `Sandbox.keep` and the command.

A journal of earlier days may have other names; those are found and ended as they are.
"""

from __future__ import annotations

import re

LEASE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")
_ID = re.compile(r"(le|sp)[a-z2-7]{26}")

RULE = (
    "letters, digits, '.', '_' and '-', at most 63, the first a letter or a digit, and not what looks like a lease's id"
)
"""For people."""


def may_be_called(name: str) -> bool:
    """Whether a new lease may have this name: one word of a command line, and never mistaken for an id."""
    return LEASE_NAME.fullmatch(name) is not None and _ID.fullmatch(name) is None
