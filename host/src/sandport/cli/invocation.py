"""One run of a command that works in a sandbox: planned, carried out, and its object written."""

from __future__ import annotations

import traceback
from collections.abc import Callable

from sandport.errors import UsageError

from .application import Settings
from .failures import failure_of
from .messages import say, write
from .plan import ExecWish, Plan, RunWish, plan_of_exec, plan_of_run
from .report import Ids, Report


def run(wish: RunWish, settings: Settings) -> int:
    """Do what was asked for; answers the exit code."""
    ids = Ids(provider=wish.provider, environment=wish.environment)
    return done(lambda: plan_of_run(wish, settings), settings, ids, as_json=wish.as_json)


def exec_(wish: ExecWish, settings: Settings) -> int:
    """Do what was asked for; answers the exit code."""
    return done(lambda: plan_of_exec(wish, settings), settings, Ids(), as_json=wish.as_json)


def done(planned: Callable[[], Plan], settings: Settings, ids: Ids, *, as_json: bool) -> int:
    """Plan, carry it out, write the object that was asked for; answers the exit code."""
    report = Report(ids=ids)
    try:
        plan = planned()
    except UsageError as error:
        failure = failure_of(error)
        report.failed(failure)
        say(failure.message)
        if settings.debug:
            write(traceback.format_exc())
    else:
        report.ids = plan.ids
        from .execution import perform

        perform(plan, settings, report)
    if as_json:
        report.write()
    return report.code
