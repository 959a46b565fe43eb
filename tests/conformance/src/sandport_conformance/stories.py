"""Stories with workers of their own that are told at the same time, so that their waits overlap; each check reads one.

A story is a function of a `Stage`; it judges whatever needs its workers alive, for they end with the first check that
asks for a story of the tale:

```python
@PROCESS.story
def killed_politely(stage: Stage) -> str:
    session = stage.spawn()
    session.process.signal(signal.SIGTERM)
    return session.exit()


def a_check(lab: Lab) -> None:
    cause = tell(lab, PROCESS, killed_politely)
```
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from typing import Any, TypeVar, cast

from .home import LONG_GRACE_MS, Home
from .lab import Lab
from .outcomes import NoAnswer
from .sandbox import Sandbox
from .session import Session
from .times import Times

_T = TypeVar("_T")
_AT_ONCE = 8
"""Workers wait more than they work, but each has to start."""


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

    def home(self, *, grace_ms: int = LONG_GRACE_MS) -> Home:
        """A store of this story's own; see `Home`."""
        return Home(self.lab, lambda: self.spawn(greet=False), grace_ms=grace_ms)


@dataclass(frozen=True, slots=True)
class _Told:
    future: Future[Any]
    stage: Stage


Story = Callable[[Stage], _T]
_All = Mapping[Story[Any], _Told]


class Tale:
    """Stories that are told together, once in a run.

    Args:
        name: Names it to whoever debugs.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self._stories: list[Story[Any]] = []

    def story(self, story: Story[_T]) -> Story[_T]:
        """Let the function below be one of the stories; those that take long come first."""
        self._stories.append(story)
        return story

    def __call__(self, lab: Lab) -> _All:
        """Tell all of them."""
        return _tell_all(lab, self._stories)


@dataclass(frozen=True, slots=True)
class _Alone:
    story: Story[Any]

    def __call__(self, lab: Lab) -> _All:
        return _tell_all(lab, [self.story])


def _tell_all(lab: Lab, stories: Sequence[Story[Any]]) -> _All:
    """Tell stories in threads; none of them fails here."""
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        stages = {story: Stage(lab) for story in stories}
        told = {story: _Told(pool.submit(story, stage), stage) for story, stage in stages.items()}
        try:
            wait([each.future for each in told.values()])
        except KeyboardInterrupt as interrupt:
            lab.cut_short(interrupt)  # else the threads, which are waited for next, would wait for their workers
            raise
    return told


def tell(lab: Lab, tale: Tale, story: Story[_T]) -> _T:
    """What a story found. Where it was not told yet it is told now, and where many checks run, all of its tale with it.

    Raises:
        Exception: Whatever the story raised: its failure is that of every check that asks for it.
    """
    told = lab.once(tale if lab.together else _Alone(story))[story]
    lab.used = list(told.stage.sessions)
    try:
        return cast(_T, told.future.result())
    except NoAnswer as silence:
        if told.stage.lab is lab:
            raise
        raise silence.told_again(told.stage.lab.check_id) from silence


WIRE = Tale("the wire")
PROCESS = Tale("the process")
LIFE = Tale("the life of sandboxes")
