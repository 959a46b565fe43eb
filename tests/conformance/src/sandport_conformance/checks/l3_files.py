"""L3: files are moved in sandboxes that the worker has (group `sync`)."""

from __future__ import annotations

from sandport_conformance.archives import archive
from sandport_conformance.declaration import Needs, check
from sandport_conformance.lab import Lab
from sandport_conformance.sandbox import Sandbox
from sandport_conformance.transfers import Drain, Feed

from .claims import expect_no_effect
from .files import (
    some_tree,
)


@check(
    "SYNC-25",
    needs=Needs(groups=("sync",)),
    why="A host that is told attaches the sandbox and sends the tree again; nothing of it came.",
    broken="makes the path somewhere else, or fails on the way",
    fix="Look the sandbox up first; answer NotAttached with `dispatched` `no`.",
)
def a_sandbox_that_is_not_attached_is_told(lab: Lab) -> None:
    """Both methods for a sandbox that the worker has not attached are NotAttached; for one that has ended too."""
    ended = lab.new_sandbox()
    ended.destroy()
    for sandbox, conditions in (
        (Sandbox(lab.worker, lab.new_sandbox_id(), {}), ("NotAttached",)),
        (ended, ("NotAttached", "LeaseNotFound")),
    ):
        with Feed([archive(some_tree())], timeout_s=lab.times.call_s) as feed:
            params = sandbox.params(socket=feed.path, path="kit")
            expect_no_effect(lab.worker.refused("syncIn", params, *conditions), "syncIn")
        with Drain(timeout_s=lab.times.call_s) as drain:
            params = sandbox.params(socket=drain.path, path="kit")
            expect_no_effect(lab.worker.refused("syncOut", params, *conditions), "syncOut")
