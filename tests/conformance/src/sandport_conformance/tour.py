"""A worker's ordinary day: one session that says a little of everything, for the checks that read the record."""

from __future__ import annotations

from .home import shut_down
from .lab import Lab


def tour(lab: Lab, *, sandbox: bool) -> None:
    """Hello, pings, config, what exists, perhaps a sandbox and commands in it, shutdown, and the end of the process.

    Args:
        lab: Starts the worker.
        sandbox: Whether to acquire one.

    Raises:
        Failed: Where the worker first does not do what it should; the record up to there is what there is.
    """
    session = lab.spawn()
    session.ping()
    session.call("validateConfig", lab.with_config())
    session.refused("conformance/noSuchMethod", {}, "MethodNotFound")
    session.call("probe", lab.with_config())
    session.call("listLeases", lab.with_config())
    if sandbox:
        acquired = lab.new_sandbox(session)
        acquired.execute(lab.command("print", text="once"))
        acquired.run_live(lab.command("print", text="live"))
        acquired.run_live(lab.command("complain", text="to stderr"))
        acquired.destroy()
    shut_down(session)
