"""An end that no program can have is an error that says what was told, and never a success."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from sandport import Host
from sandport.errors import ProtocolViolation
from tests.integration.stage import QUICK, ROOT, Records, configuration

pytestmark = pytest.mark.anyio

WORKER = '''
"""Answers a command, and a wait for a process, with what its argument says."""

import json
from tests.integration.workers.speaker import MANDATORY, Speaker

processes = {}


def answer(message, said):
    speaker.succeed(message)
    whole = {"stdout": {"totalBytes": 0}, "stderr": {"totalBytes": 0}}
    return {**whole, **json.loads(said)}


def start(message):
    processes[message["params"]["processId"]] = message["params"]["argv"][0]
    return {}


speaker = Speaker()
speaker.handlers["execute"] = lambda message: answer(message, message["params"]["argv"][0])
speaker.handlers["startProcess"] = start
speaker.handlers["waitProcess"] = lambda message: answer(message, processes[message["params"]["processId"]])
speaker.handlers["writeProcess"] = lambda message: {"takenBytes": 300}
speaker.handlers["signalProcess"] = lambda message: {"delivered": False}
speaker.facts["supportedMethods"] = [*MANDATORY, "startProcess", "waitProcess", "writeProcess", "signalProcess"]
speaker.serve()
'''
CODES = (256, 512, -256, 2**40, -1, 3_221_225_786, 2**70)
"""256 is the wait status of a program that exited with 1; a system cuts each of the first four to 0."""
SIGNALS = (128, 384, -128, 300, -1, 0, 2**70)
UNTRUE: list[tuple[dict[str, Any], str]] = [
    *(({"ended": "exited", "exitCode": code}, f"exitCode must be from 0 to 255, not {code}") for code in CODES),
    *(({"ended": "signalled", "signal": number}, f"signal must be from 1 to 64, not {number}") for number in SIGNALS),
    ({"ended": "exited", "exitCode": 0, "signal": 9}, "a command that exited was not ended by a signal"),
    ({"ended": "exited", "exitCode": 0, "durationMs": -5}, "not -5"),
    ({"ended": "exited", "exitCode": 0, "durationMs": 2**70}, "durationMs must be"),
    ({"ended": "exited", "exitCode": 0, "stdout": {"totalBytes": 0, "droppedBytes": -1}}, "droppedBytes must be"),
    ({"ended": "timedOut", "tree": "gone", "durationMs": 1}, "timedOut, and the command was given no time-out"),
]


def command_of(tmp_path: Path) -> tuple[str, ...]:
    (tmp_path / "worker.py").write_text(WORKER)
    return ("env", f"PYTHONPATH={ROOT}", sys.executable, "-S", str(tmp_path / "worker.py"))


async def test_an_end_that_no_program_has_is_a_violation_that_says_what_came(tmp_path: Path) -> None:
    """What was 256 by its worker was 0 for whoever ran `sandport run`."""
    async with (
        Host.open(
            configuration({"scripted": command_of(tmp_path)}, timing=QUICK),
            home=tmp_path / "home",
            log=Records().log,
        ) as host,
        host.lease("scripted") as sandbox,
    ):
        for told, says in UNTRUE:
            line = [json.dumps(told)]
            with pytest.raises(ProtocolViolation) as raised:
                await sandbox.execute(line)
            assert says in str(raised.value)
            assert raised.value.dispatched == "yes"
            async with sandbox.start(line, stdin=True) as process:
                with pytest.raises(ProtocolViolation) as raised:
                    await process.wait()
                assert says in str(raised.value)
        late = '{"ended": "timedOut", "tree": "gone"}'
        assert (await sandbox.execute([late], timeout_s=30.0)).ended == "timedOut"
        async with sandbox.start([late], stdin=True, timeout_s=30.0) as process:
            assert (await process.wait()).ended == "timedOut"
            with pytest.raises(ProtocolViolation, match="300 bytes of the 3"):
                await process.stdin.write(b"abc")


@pytest.mark.parametrize(
    ("told", "says"),
    [('{"ended": "exited", "exitCode": 256}', "not 256"), ('{"ended": "timedOut"}', "given no time-out")],
)
def test_the_command_ends_with_a_code_of_its_own_for_an_end_that_no_program_has(
    tmp_path: Path, told: str, says: str
) -> None:
    words = ", ".join(f'"{word}"' for word in command_of(tmp_path))
    (tmp_path / "config.toml").write_text(f"version = 1\n[providers.odd]\ncommand = [{words}]\n")
    run = subprocess.run(
        [sys.executable, "-m", "sandport", "run", "--config", str(tmp_path / "config.toml"), "-p", "odd", "--", told],
        env={**os.environ, "SANDPORT_HOME": str(tmp_path / "home")},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert run.returncode == 125
    assert says in run.stderr
    assert "a fault in sandport itself" not in run.stderr
