"""The provider's config."""

from __future__ import annotations

import os
import pwd
from pathlib import Path
from typing import Annotated, Literal

from msgspec import Meta

from sandport_sdk.v1 import Config, errors

from .bubblewrap import is_within
from .interpreter import Closed

LEAST_MEMORY_BYTES = 32 * 1024 * 1024
"""The init and bubblewrap take some 12 MiB of it."""
_FIRST_PERSON = 1000
"""Users below are the system's; their homes are no homes."""
_SYSTEM = ("/run", "/var/run", "/proc", "/sys", "/dev", "/etc", "/boot")


class LocalConfig(Config, frozen=True, kw_only=True):
    """What a sandbox of this machine is made with; each key's description is in its schema, for people."""

    isolation: Annotated[
        Literal["require", "prefer", "none"],
        Meta(
            description="Whether a boundary is drawn around it. require refuses where that is not to be had; prefer "
            "goes without, and says so in the lease's notes; none means a directory and its processes, with nothing "
            "that keeps them from the rest of the machine."
        ),
    ] = "prefer"
    network: Annotated[
        bool,
        Meta(
            description="Whether its programs have the machine's network, with everything that listens on it. A "
            "lease's own grant of egress goes before this."
        ),
    ] = False
    expose: Annotated[
        tuple[str, ...],
        Meta(description="Directories of this machine that are seen inside, at the same paths, read-only."),
    ] = ()
    memory_bytes: (
        Annotated[int, Meta(ge=LEAST_MEMORY_BYTES, description="Memory of all its processes together.")] | None
    ) = None
    pids: Annotated[int, Meta(ge=1, le=1_000_000, description="Its processes and threads at once.")] | None = None
    cpus: (
        Annotated[float, Meta(ge=0.01, le=10_000, description="Processor time per time: 0.5 is half of one processor.")]
        | None
    ) = None
    open_files: Annotated[int, Meta(ge=64, le=1_000_000, description="Descriptors of one process.")] | None = None

    @property
    def limits(self) -> tuple[str, ...]:
        """The limits that it asks for."""
        return tuple(name for name in ("memory_bytes", "pids", "cpus", "open_files") if getattr(self, name) is not None)

    def check(self, state_dir: Path) -> None:
        """Refuse what contradicts itself, and what must not be shown to a sandbox.

        Args:
            state_dir: Where this provider keeps its sandboxes, below the host's own state.

        Raises:
            ConfigInvalid: A limit without isolation, or a path of `expose` that is refused.
        """
        if self.isolation == "none" and self.limits:
            field = f"config.{self.limits[0]}"
            raise errors.ConfigInvalid(
                f'{field}: a limit cannot be kept with isolation = "none"; leave one of the two out',
                detail=errors.Detail(field=field),
            )
        for number, path in enumerate(self.expose):
            if (why := refusal(path, homes=_homes(), state_dir=state_dir)) is not None:
                raise errors.ConfigInvalid(
                    f"config.expose[{number}]: {path!r} {why}", detail=errors.Detail(field=f"config.expose[{number}]")
                )


def refusal(path: str, *, homes: frozenset[str], state_dir: Path) -> str | None:
    """Why a directory is not shown to sandboxes, and what to do; None where it may be."""
    if not path.startswith("/"):
        return f"is no absolute path; write {os.path.abspath(path)!r} if that is meant"
    if path != os.path.normpath(path) or "\0" in path:
        return f"is written with dots or slashes that it does not need; write {os.path.normpath(path)!r}"
    if not os.path.isdir(path):
        return "is not a directory of this machine; make it first, or expose the directory that holds the file"
    states = _states(state_dir)
    for name in (path, os.path.realpath(path)):
        if name == "/":
            return "is all of this machine; name the directories that are needed"
        if any(is_within(home, name) for home in homes):
            return "is a home directory, or holds one; name the directories in it that are needed"
        if any(is_within(name, system) or is_within(system, name) for system in _SYSTEM):
            return "belongs to the system; copy what is needed into the sandbox"
        if any(is_within(name, state) or is_within(state, name) for state in states):
            return "holds the host's own state, or is in it; keep what is to be seen elsewhere"
    return None


def closed(state_dir: Path | None) -> Closed:
    """What `expose` refuses, for what is shown without being asked for."""
    states = [] if state_dir is None else _states(state_dir)
    return Closed(_homes(), frozenset((*_SYSTEM, *states)))


def _states(state_dir: Path) -> list[str]:
    states = [os.path.realpath(state_dir)]
    if state_dir.parent.name == "workers":  # So the host has it in its own home.
        states.append(os.path.realpath(state_dir.parent.parent))
    return states


def _homes() -> frozenset[str]:
    people = (user for user in pwd.getpwall() if user.pw_uid == 0 or user.pw_uid >= _FIRST_PERSON)
    named = {user.pw_dir for user in people if user.pw_name != "nobody"} | {os.path.expanduser("~")}
    homes = {
        path for name in named if name.startswith("/") for path in (os.path.normpath(name), os.path.realpath(name))
    }
    return frozenset(homes - {"/"})
