"""One thing that `sandport doctor` looked at."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

State = Literal["ok", "warning", "wrong"]


class Check(Struct, frozen=True, kw_only=True, rename="camel"):
    """What was found."""

    name: str
    state: State
    detail: str
    fix: str | None = None
    """What to do, where something can be done."""
    log_tail: tuple[str, ...] = ()
    """The last lines of a worker that did not start."""
