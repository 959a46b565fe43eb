"""The ends of a call that has no result: what its handler raises."""

from __future__ import annotations

from typing import Any


class Refusal(Exception):
    """An error to answer a call with."""

    def __init__(self, condition: str, message: str, **data: Any) -> None:
        super().__init__(message)
        self.condition, self.message, self.data = condition, message, data


class Cancelled(Exception):
    """The call was cancelled, and its handler has ended."""
