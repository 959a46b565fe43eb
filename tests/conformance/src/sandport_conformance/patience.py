"""How long answers are waited for: less once a method has shown that it is not answered at all."""

from __future__ import annotations

from collections import Counter

from .times import Times

_QUICK = ("initialize", "ping", "shutdown", "validateConfig", "a request")
"""What depends on nothing outside the worker."""
_ENOUGH = 2
"""So many answers in a row are waited for with all patience."""
_SHORT_MOMENTS = 25


class Patience:
    """The waits of a run, which all its sessions share.

    Args:
        times: The limits in force.
    """

    def __init__(self, times: Times) -> None:
        self._times = times
        self._missed: Counter[str] = Counter()

    def of(self, method: str) -> float:
        """How long an answer to a method may take, in seconds."""
        whole_s = self._times.answer_s if method in _QUICK else self._times.call_s
        return min(whole_s, self._times.moment_s * _SHORT_MOMENTS) if self.is_short(method) else whole_s

    def is_short(self, method: str) -> bool:
        """Whether a method was waited for in vain too often, and never answered since."""
        return self._missed[method] >= _ENOUGH

    def answered(self, method: str) -> None:
        """An answer came."""
        self._missed[method] = 0

    def missed(self, method: str) -> None:
        """It did not come in the time that `of` says."""
        self._missed[method] += 1
