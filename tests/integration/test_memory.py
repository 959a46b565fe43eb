"""What a host costs: its memory stays below a multiple of the ceilings, its descriptors stay as many as they were."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.integration.conftest import OpenHost
from tests.integration.stage import ROOT, open_descriptors, worker

MIB = 1024 * 1024


def embedded(what: str, home: Path, command: tuple[str, ...], **environ: str) -> list[dict[str, Any]]:
    """What an embedder said, in a process of its own."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.integration.embedder", what, str(home), *command],
        cwd=ROOT,
        env={**os.environ, **environ},
        stdout=subprocess.PIPE,
        check=True,
        timeout=60,
    )
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.mark.slow
def test_a_line_without_an_end_costs_less_than_three_times_its_ceiling(tmp_path: Path) -> None:
    """F17, modelcontextprotocol/typescript-sdk#2245, #88: memory grew without bound, copying was quadratic."""
    cap = 64 * MIB
    told, _ = embedded("overflow", tmp_path, worker("floods", "execute"), FRAME_BYTES=str(cap))
    assert told["kind"] == "WorkerCrashed"
    assert f"{cap} bytes (limits.frameBytes)" in told["error"]
    assert told["grown"] < 3 * cap


@pytest.mark.slow
def test_a_very_large_answer_leaves_nothing_of_its_size_behind(tmp_path: Path) -> None:
    """F18, microsoft/vscode-languageserver-node#544: one huge message pinned its buffer for life."""
    told, _ = embedded("large_answer", tmp_path, worker("answers_large"), FRAME_BYTES=str(128 * MIB))
    assert told["size"] == 100 * MIB
    assert told["after"] - told["before"] < 10 * MIB


@pytest.mark.slow
def test_an_endless_stream_and_a_consumer_that_stopped_cost_a_bounded_amount_on_both_sides(tmp_path: Path) -> None:
    """B09, 61: nushell/nushell#6934, #11911, haiku.rag#623: without credit the whole of it was held in memory."""
    told, _ = embedded("stalled", tmp_path, worker("well_behaved"))
    assert told["peak"] < 64 * MIB
    assert told["worker"] < 64 * MIB


@pytest.mark.anyio
async def test_liveness_is_looked_at_without_using_up_descriptors(open_host: OpenHost) -> None:
    """R09, hashicorp/go-plugin PR #378, PR #173: each check leaked a handle of the process."""
    async with open_host(scripted=worker("well_behaved")) as host:
        running = await host._supervisor("scripted").worker()
        before = open_descriptors()
        for _ in range(10_000):
            assert running.usable
            assert await host._supervisor("scripted").worker() is running
        for _ in range(100):
            await running.client.ping(deadline_s=30)
        assert open_descriptors() == before


@pytest.mark.anyio
async def test_a_host_leaves_no_descriptor_behind(open_host: OpenHost) -> None:
    for _ in range(3):
        before = open_descriptors()
        async with (
            open_host(scripted=worker("well_behaved", "--processes")) as host,
            host.lease("scripted") as sandbox,
        ):
            assert (await sandbox.execute(["true"])).ok
            async with sandbox.start(["true"]) as process:
                await process.wait()
        assert open_descriptors() == before
