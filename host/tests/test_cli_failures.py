"""What an exception becomes: of several that failed together, one is told."""

import pytest

from sandport.cli.failures import failure_of
from sandport.errors import UsageError, WorkerCrashed


@pytest.mark.parametrize(
    ("error", "condition"),
    [
        (UsageError("a"), "UsageError"),
        (ExceptionGroup("", [ExceptionGroup("", [UsageError("a")])]), "UsageError"),
        (ExceptionGroup("", [WorkerCrashed("a"), UsageError("b")]), "WorkerCrashed"),
        (ExceptionGroup("", [UsageError("a"), ValueError("b")]), "Bug"),
        (ExceptionGroup("", [ValueError("b")]), "Bug"),
    ],
)
def test_failures_of_several_tasks_are_one_unless_a_fault_of_ours_is_among_them(
    error: Exception, condition: str
) -> None:
    assert failure_of(error).condition == condition
