"""The worlds by the names that their traces use."""

from __future__ import annotations

from .client_pair import ClientPair
from .lease_world import LeaseWorld
from .pair import Pair
from .trace import World

WORLDS: dict[str, type[World]] = {
    "connection pair": Pair,
    "worker client": ClientPair,
    "lease book": LeaseWorld,
}
