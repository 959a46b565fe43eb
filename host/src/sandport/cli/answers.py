"""One object on stdout also where a command that was asked for one fails."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from sandport.errors import SandportError

from .failures import failure_of
from .listing import put_json


@contextmanager
def answered(*, as_json: bool) -> Iterator[None]:
    """In the block, an error of ours is an object with `error` too; it is raised all the same."""
    try:
        yield
    except SandportError as error:
        if as_json:
            put_json({"error": failure_of(error)})
        raise
