"""Who decides how long a sandbox lives, as its init sees it. Types only: no program of ours imports this."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable


class Above(Protocol):
    """Who decides how long the sandbox lives: the init's own `Term`, or the keeper at the other end of a link."""

    ending: str
    fd: int

    @property
    def unsent(self) -> bool:
        """Whether something waits to be sent."""

    def on_readable(self) -> None:
        """There is something at its descriptor."""

    def due(self) -> float | None:
        """When `on_time` has something to do, by `boot_time`."""

    def on_time(self, now: float) -> None:
        """Do what is due."""

    def attended(self) -> None:
        """A worker is there."""

    def left(self, grace_s: float) -> None:
        """The last worker has gone."""

    def stop(self) -> None:
        """A signal asks for the end."""

    def end(self) -> None:
        """A worker asks for the end."""

    def keep(self, kept: bool, answer: Callable[[int], None]) -> None:  # noqa: FBT001
        """Outlive the workers from now on, or no longer; the answer is the number of the error that left it as is."""
