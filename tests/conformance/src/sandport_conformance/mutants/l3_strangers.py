"""Workers that find what a command has started by a mark in its environment, and by nothing else."""

from __future__ import annotations

from . import mutant
from .healthy import Healthy
from .l3_commands import TellsAnother, leases_with
from .leases import Json, Leases
from .places import Place, marked
from .programs import Program


class ByItsMark(Program):
    """Is found by its mark."""

    def strays(self) -> set[int]:
        return marked(self.mark)


@mutant("CMD-19/stranger", "CANCEL-6/stranger", "PRC-5/stranger")
class KillsByMarks(Healthy):
    """Declares `kill: tree`, and kills what carries a mark in its environment."""

    leases_class = leases_with(ByItsMark)


class GoneByItsMark(ByItsMark, TellsAnother):
    """Takes what it does not find for what is not there."""

    def changed(self, result: Json) -> Json:
        return {**result, "tree": "gone"} if "tree" in result else result


@mutant("CMD-11/stranger")
class ProvesByMarks(Healthy):
    """Says that a tree is gone when two looks find nothing more that carries its mark."""

    leases_class = leases_with(GoneByItsMark)


class MarkedPlace(Place):
    """Finds what runs in it by a mark."""

    def strays(self) -> set[int]:
        return marked(self.mark)


class InMarkedPlaces(Leases):
    """Has such sandboxes."""

    def place(self, sandbox_id: str) -> Place:
        return MarkedPlace(self.root / sandbox_id)


@mutant("LEASE-22/stranger")
class EndsByMarks(Healthy):
    """Ends in a sandbox what carries its mark, and leaves what has shed it."""

    leases_class = InMarkedPlaces
