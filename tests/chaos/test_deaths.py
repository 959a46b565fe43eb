"""A host that dies while another one looks after the dead is looked after too, once it is seen."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from sandport.lease.deaths import KernelDeaths

pytestmark = pytest.mark.anyio


HOST = """
import pathlib, sys
from sandport.instances import Instance
print(Instance.begin(pathlib.Path(sys.argv[1])).id, flush=True)
sys.stdin.read()
"""


def host(root: Path) -> tuple[subprocess.Popen[str], str]:
    """Another process that has the store open, and its instance."""
    process = subprocess.Popen(
        (sys.executable, "-c", HOST, root), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    return process, process.stdout.readline().strip()


def kill(process: subprocess.Popen[str]) -> None:
    process.kill()
    process.communicate()


async def test_who_dies_between_the_look_and_the_clearing_is_not_forgotten_with_what_its_workers_left(
    tmp_path: Path,
) -> None:
    first, second = host(tmp_path), host(tmp_path)
    kill(first[0])
    deaths = KernelDeaths(tmp_path)
    assert (await deaths.look(frozenset())).others == {first[1]}
    await deaths.end_workers(first[1])
    kill(second[0])
    await deaths.clear(frozenset())
    assert os.listdir(tmp_path / "instances") == [second[1]]
    assert (await deaths.look(frozenset())).others == {second[1]}
    await deaths.end_workers(second[1])
    await deaths.clear(frozenset())
    assert os.listdir(tmp_path / "instances") == []
