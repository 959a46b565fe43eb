"""Several stories with workers of their own, told at the same time: their waits overlap, and each check reads one.

A module of checks writes each story as a function of a `Stage`, and names those that are told together:

```python
ENDINGS = Tale((killed_politely, left_alone))


def a_check(lab: Lab) -> None:
    cause = tell(lab, ENDINGS, killed_politely)
```
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from typing import Any, TypeVar, cast

from .lab import Lab
from .sandbox import Sandbox
from .session import Session
from .times import Times

_T = TypeVar("_T")


@dataclass(slots=True)
class Stage:
    """What one story works with: as a lab, but nothing of it is shared with the other stories.

    Attributes:
        lab: The check that asked first.
        sessions: The workers of this story.
    """

    lab: Lab
    sessions: list[Session] = field(default_factory=list)

    @property
    def times(self) -> Times:
        """How long a worker may take."""
        return self.lab.times

    def spawn(self, **options: Any) -> Session:
        """A worker of this story's own; see `Lab.spawn`."""
        greet = options.pop("greet", True)
        session = self.lab.spawn(greet=False, **options)
        self.sessions.append(session)
        if greet:
            session.greet()
        return session

    def sandbox(self, session: Session) -> Sandbox:
        """A sandbox in one of its workers; see `Lab.new_sandbox`."""
        return self.lab.new_sandbox(session)


Story = Callable[[Stage], _T]


@dataclass(frozen=True, slots=True)
class _Told:
    future: Future[Any]
    stage: Stage


@dataclass(frozen=True, slots=True)
class Tale:
    """Stories that are told together, once in a run.

    Attributes:
        stories: All of them.
    """

    stories: tuple[Story[Any], ...]

    def __call__(self, lab: Lab) -> Mapping[Story[Any], _Told]:
        """Tell them all, each in a thread of its own; none of them fails here."""
        with ThreadPoolExecutor(len(self.stories)) as pool:
            stages = {story: Stage(lab) for story in self.stories}
            told = {story: _Told(pool.submit(story, stage), stage) for story, stage in stages.items()}
            wait([each.future for each in told.values()])
        return told


def tell(lab: Lab, tale: Tale, story: Story[_T]) -> _T:
    """What a story found; its whole tale is told where it was not yet.

    Raises:
        Exception: Whatever the story raised: its failure is that of every check that asks for it.
    """
    told = lab.once(tale)[story]
    lab.used = list(told.stage.sessions)
    return cast(_T, told.future.result())
