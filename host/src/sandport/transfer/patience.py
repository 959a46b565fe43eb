"""How long a transfer waits for a far side that does nothing, before it says so and ends."""

from __future__ import annotations

import msgspec

from sandport.numbers import Timing

__all__ = ["Patience"]


class Patience(msgspec.Struct, frozen=True, kw_only=True):
    """The bounds of one transfer, in seconds.

    Attributes:
        connect_s: A worker has so long to come to the socket.
        stall_s: Not one byte moves for so long: a vendor that holds back its uploads takes a minute or two.
        settle_s: From the last byte to the answer: a vendor may begin its own upload only then.
        close_s: Everything that a failed or cancelled transfer leaves is gone by then, or given up.
    """

    connect_s: float
    stall_s: float
    settle_s: float
    close_s: float

    @classmethod
    def of(cls, timing: Timing) -> Patience:
        """The bounds that go with a host's."""
        return cls(
            connect_s=timing.call_s,
            stall_s=5 * timing.call_s,
            settle_s=3 * timing.acquire_s,
            close_s=timing.close_grace_s,
        )
