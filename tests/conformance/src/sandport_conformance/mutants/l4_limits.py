"""Workers that give commands too much of themselves: their variables, their memory."""

from __future__ import annotations

import os
from typing import Any

from . import mutant
from .healthy import Healthy
from .l3_commands import leases_with
from .programs import Program, Stream


class OurVariables(Program):
    """Has the worker's variables."""

    def __init__(self, name: str, options: dict[str, Any], *rest: Any, **members: Any) -> None:
        super().__init__(name, {**options, "env": {**os.environb, **options["env"]}}, *rest, **members)


@mutant("CMD-28")
class PassesItsVariablesOn(Healthy):
    """Starts commands with its own environment."""

    leases_class = leases_with(OurVariables)


class AlwaysRoom(Stream):
    """Reads on, whoever follows."""

    def wait_room(self) -> None:
        """Do not."""


class ReadsOn(Program):
    """Reads all that comes."""

    stream_class = AlwaysRoom


@mutant("CRED-10/live")
class GathersWhatNobodyTakes(Healthy):
    """Keeps live output in memory that the host has no room for."""

    leases_class = leases_with(ReadsOn)


class CutsInTheEnd(Program):
    """Keeps everything first."""

    def _keep(self, name: str, limit: int) -> None:
        stream, pieces, offset = self.streams[name], [], 0
        while not stream.ended_at(offset):
            pieces.append(stream.read(offset, 1 << 20, wait_s=0.2))
            offset += len(pieces[-1])
        whole = b"".join(pieces)
        self._kept[name] = (whole[:limit], b"", len(whole[limit:]))


@mutant("CRED-10/kept")
class GathersBeforeItCuts(Healthy):
    """Gathers the whole output of a command, and cuts it when it has ended."""

    leases_class = leases_with(CutsInTheEnd)
