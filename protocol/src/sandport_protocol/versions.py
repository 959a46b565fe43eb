"""Which versions of the protocol exist, and which one two sides speak."""

from __future__ import annotations

from collections.abc import Sequence

from .errors import Detail, VersionMismatch

SUPPORTED: tuple[int, ...] = (1,)
"""Versions that this package speaks, lowest first."""


def pick(host: Sequence[int], worker: Sequence[int], *, worker_name: str = "the worker") -> int:
    """The highest version that both sides offer.

    Raises:
        VersionMismatch: There is none; the message names both sets and who should upgrade.
    """
    common = set(host) & set(worker)
    if common:
        return max(common)
    # With no common version one side is behind as a whole; the highest number of each says which.
    if not host or not worker:
        advice = "a side that offers no version at all is broken"
    elif max(worker) < max(host):
        advice = f"upgrade {worker_name}"
    else:
        advice = "upgrade the host"
    raise VersionMismatch(
        f"no common protocol version: the host offers {sorted(host)}, {worker_name} offers {sorted(worker)}; {advice}",
        dispatched="no",
        detail=Detail(field="protocolVersions", host_versions=tuple(host), worker_versions=tuple(worker)),
    )
