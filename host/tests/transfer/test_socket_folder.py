"""The folder of a socket goes with its call; a dead host's goes with the next call of anybody."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from sandport.errors import Unavailable
from sandport.transfer import by_socket
from sandport.transfer.patience import Patience

PATIENCE = Patience(connect_s=60.0, stall_s=60.0, settle_s=60.0, close_s=1.0)

HOST = """
import asyncio
from sandport.transfer import by_socket
from sandport.transfer.patience import Patience

class Silent:
    id = "sp" + "a" * 26
    async def call(self, method, params, result, *, deadline_s):
        print(params.socket, flush=True)
        await asyncio.Event().wait()

patience = Patience(connect_s=60.0, stall_s=60.0, settle_s=60.0, close_s=1.0)
asyncio.run(by_socket.receive(Silent(), b"/x", lambda piece: None, patience))
"""


class Refusing:
    """A sandbox whose worker does not come."""

    id = "sp" + "a" * 26

    async def call(self, method: Any, params: Any, result: Any, *, deadline_s: float | None) -> Any:
        raise Unavailable("no", dispatched="no")


def begun() -> tuple[subprocess.Popen[str], Path]:
    """A host that waits for its worker, and the folder of its socket."""
    process = subprocess.Popen([sys.executable, "-c", HOST], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    return process, Path(process.stdout.readline().strip()).parent


def test_what_a_killed_host_left_goes_and_what_a_live_one_has_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    other = tmp_path / "sandport-somebody"
    other.mkdir()
    (dead, left), (live, kept) = begun(), begun()
    try:
        dead.send_signal(signal.SIGKILL)
        dead.wait()
        assert left.is_dir()
        with pytest.raises(Unavailable):
            asyncio.run(by_socket.receive(Refusing(), b"/x", lambda piece: None, PATIENCE))  # type: ignore[arg-type]
        assert set(os.listdir(tmp_path)) == {kept.name, other.name}
    finally:
        for process in (dead, live):
            process.kill()
            process.wait()
            assert process.stdout is not None
            process.stdout.close()
