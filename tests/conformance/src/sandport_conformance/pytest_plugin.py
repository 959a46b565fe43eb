"""The pytest door: one test item for each check.

```console
$ pytest --sandport-worker "python worker.py" --sandport-level L2
```

A failed MUST fails its item; a SHOULD that is not met, and a known failure, are expected failures; what is not
applicable is skipped with its reason. Items carry the markers `sandport` and `sandport_l0` to `sandport_l6`. Without
`--sandport-worker` the plugin does nothing.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from .declaration import Check
    from .report import Report, Result
    from .run import Run

_GROUP = "sandport-conformance"


def pytest_addoption(parser: pytest.Parser) -> None:
    """Declare the options."""
    group = parser.getgroup("sandport", "Sandport conformance")
    group.addoption("--sandport-worker", metavar="COMMAND", help="judge this worker command: one item for each check")
    group.addoption("--sandport-config", metavar="FILE", type=Path, help="the author's file (TOML)")
    group.addoption("--sandport-level", metavar="LEVEL", default="L3", help="judge up to this level (default: L3)")
    group.addoption("--sandport-seed", metavar="N", type=int, help="repeat the choices of an earlier run")


def pytest_configure(config: pytest.Config) -> None:
    """Add the markers, and the run where a worker is given."""
    config.addinivalue_line("markers", "sandport: a check of a Sandport worker")
    for level in range(7):
        config.addinivalue_line("markers", f"sandport_l{level}: a check of level {level}")
    if config.getoption("--sandport-worker"):
        config.pluginmanager.register(_Door(config), _GROUP)


class _Door:
    """Adds the items, and keeps the one run that they share."""

    def __init__(self, config: pytest.Config) -> None:
        import os

        from .catalogue import expect_checks, select
        from .command_line import resolve
        from .outcomes import Misuse
        from .run import Run
        from .settings import load

        file = config.getoption("--sandport-config")
        try:
            expect_checks(config.getoption("--sandport-level"))
            self.run: Run = Run(
                resolve(shlex.split(config.getoption("--sandport-worker"))),
                settings=load(file, os.environ),
                checks=select(level=config.getoption("--sandport-level")),
                level=config.getoption("--sandport-level"),
                seed=config.getoption("--sandport-seed"),
                options=("--config", str(file)) if file else (),
            )
        except Misuse as error:
            raise pytest.UsageError(str(error)) from error
        self.started = False
        self.report: Report | None = None

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection_modifyitems(self, session: pytest.Session, items: list[pytest.Item]) -> None:
        """Add the items before -k and -m choose among them."""
        group = _Checks.from_parent(session, name=_GROUP, nodeid=_GROUP, door=self)
        report = group.ihook.pytest_make_collect_report(collector=group)
        group.ihook.pytest_collectreport(report=report)  # so that they are counted as collected
        items.extend(report.result)

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self) -> None:
        """End everything that the run has started, also when it was cut short."""
        if self.started:
            self.report = self.run.finish()
        else:
            self.run.abandon()

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        """Say the one line that the command would say."""
        if self.report is not None:
            terminalreporter.section("Sandport conformance")
            terminalreporter.line(self.report.summary)

    def start(self) -> None:
        """Start the worker before the first check."""
        if not self.started:
            self.started = True
            self.run.start()


class _Checks(pytest.Collector):
    """Holds the items."""

    def __init__(self, *, door: _Door, **arguments: Any) -> None:
        super().__init__(**arguments)
        self.door = door

    def collect(self) -> Iterator[pytest.Item]:
        """One item for each check, and one for what is left when all have run."""
        for check in self.door.run.checks:
            yield _CheckItem.from_parent(self, name=check.id, check=check)
        yield _LeftItem.from_parent(self, name="nothing-is-left")


class _NotConformant(Exception):
    """What a check found; shown without a traceback of the kit."""


class _Item(pytest.Item):
    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException], style: Any = None) -> Any:
        """The story of a failed check; a traceback only where the kit itself failed."""
        from .outcomes import NotStarted

        if isinstance(excinfo.value, _NotConformant | NotStarted):
            return str(excinfo.value)
        return super().repr_failure(excinfo, style)

    @property
    def door(self) -> _Door:
        assert isinstance(self.parent, _Checks)
        return self.parent.door


class _CheckItem(_Item):
    """One check."""

    def __init__(self, *, check: Check, **arguments: Any) -> None:
        super().__init__(**arguments)
        self.check = check
        self.add_marker(pytest.mark.sandport)
        self.add_marker(getattr(pytest.mark, f"sandport_{check.level.lower()}"))

    def runtest(self) -> None:
        """Judge it."""
        from .outcomes import Outcome
        from .report import Verdict

        self.door.start()
        result = self.door.run.judge(self.check)
        if result is None:
            raise RuntimeError(f"a fault of the kit itself:\n{self.door.run.faults[-1].traceback}")
        if result.verdict is Verdict.BAD:
            raise _NotConformant(_story(result))
        if result.outcome is Outcome.NOT_APPLICABLE:
            pytest.skip(f"not applicable: {result.reason}")
        if result.verdict is not Verdict.GOOD:
            pytest.xfail(f"{result.verdict}: {result.known or result.reason}")

    def reportinfo(self) -> tuple[str, None, str]:
        """How the item is called."""
        return _GROUP, None, f"{self.check.level} {self.check.id}: {self.check.title}"


class _LeftItem(_Item):
    """The end of the run."""

    def runtest(self) -> None:
        """End the run and look at what is left."""
        report = self.door.run.finish()
        if report.left:
            raise _NotConformant("\n".join(report.left))
        if report.faults and report.faults[-1].check == "after the run":
            raise RuntimeError(f"a fault of the kit itself:\n{report.faults[-1].traceback}")

    def reportinfo(self) -> tuple[str, None, str]:
        """How the item is called."""
        return _GROUP, None, "nothing is left after the run"


def _story(result: Result) -> str:
    lines = [
        f"{result.id} ({result.check.severity}): {result.reason}",
        f"clause: {result.check.requirement.clause}",
        f"fix:    {result.fix}",
    ]
    for evidence in result.evidence:
        lines += [f"worker: {shlex.join(evidence.command)}", f"ended:  {evidence.exit_cause}"]
        lines += [f"{e.at_s:9.4f} {e.direction:8} {e.text[:300]}" for e in evidence.transcript[-40:]]
        if evidence.stderr:
            lines += ["stderr:", evidence.stderr[-2000:]]
    return "\n".join(lines)
