"""H: what a host's own memory grows by, for each lease that it holds and each worker that it runs."""

from __future__ import annotations

import json
import subprocess
import sys

from .order import ROOT, CannotMeasure
from .rounds import Row, Size, Values


class HostMemory:
    """A host of its own in each round; workers' memory is their own and not counted."""

    name = "host memory"
    rows = (
        Row(id="H1", what="host memory per idle lease", unit="KiB", ours="lease"),
        Row(id="H2", what="host memory per idle worker", unit="KiB", ours="worker"),
    )

    def run(self, size: Size, turn: int) -> Values:
        """Weigh once."""
        command = [sys.executable, "-m", "tests.bench.host_memory", str(size.idle_leases), str(size.idle_workers)]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise CannotMeasure(f"host memory: {done.stderr.strip()[-500:]}")
        return {name: found / 1024 for name, found in json.loads(done.stdout).items()}
