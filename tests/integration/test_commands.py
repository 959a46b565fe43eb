"""Commands through a host and a worker that does everything right."""

import pytest

from tests.integration.conftest import OpenHost
from tests.integration.stage import worker

pytestmark = pytest.mark.anyio

WELL_BEHAVED = worker("well_behaved")


async def test_a_command_runs_and_its_outcome_says_everything(open_host: OpenHost) -> None:
    async with open_host(folders=WELL_BEHAVED) as host, host.lease("folders") as sandbox:
        outcome = await sandbox.execute(shell="printf out; printf err >&2; exit 3")
        assert (outcome.ended, outcome.exit_code, outcome.signal) == ("exited", 3, None)
        assert (bytes(outcome.stdout), bytes(outcome.stderr)) == (b"out", b"err")
