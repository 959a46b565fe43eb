"""Starts a host command with an impostor, watches its memory, and looks for what it left behind."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from sandport_conformance import schema
from sandport_conformance.impostors import command_of
from sandport_conformance.impostors.impostor import CANARY
from sandport_conformance.outcomes import Failed, NotApplicable
from sandport_conformance.processes import (
    ExitCause,
    Identity,
    Survivor,
    in_session,
    kill_survivors,
    survivors,
)
from sandport_conformance.session_memory import SessionMemory
from sandport_conformance.times import Times

from .hostile import keep, measure
from .played import Measured, Played

ECHO = ("/bin/sh", "-c", "echo hello")
_ANSWER_BYTES = 1 << 20
_LOG_BYTES = 256 << 20
_TICK_S = 0.01
_LOOK_S = 0.2


class Stage:
    """Plays impostors to one host.

    Args:
        command: The host command, absolute.
        folder: Where journals, logs and the host's own state are kept.
        times: How long things may take on this machine.
    """

    def __init__(self, command: Sequence[str], folder: Path, times: Times) -> None:
        self.command, self.folder, self.times = tuple(command), folder, times
        self.all_played: list[Played] = []
        self.measured: dict[str, Measured] = {}
        """What hostile workers cost, by the name of the bound."""
        self.settings: dict[str, Any] = {
            "limits": {
                "heartbeatMs": 400,
                "wedgeMs": int(3000 * times.factor),
                "cancelGraceMs": int(700 * times.factor),
                "drainMs": 1000,
            },
            "startS": 6 * times.factor,
            "marginS": 1.5 * times.factor,
            "config": {"label": "judged"},
        }
        self._ordinary: Played | None = None

    @property
    def ordinary(self) -> Played:
        """A run with a worker that does nothing wrong, and takes a moment for its hello."""
        if self._ordinary is None:
            self._ordinary = self.play("hellos:SlowHello", "--again")
        return self._ordinary

    @property
    def began(self) -> bool:
        """Whether a run so far has answered, or has started a worker."""
        return any(
            played.answer is not None or any(entry["event"] == "started" for entry in played.journal)
            for played in self.all_played
        )

    def limit_s(self, played: Played, name: str) -> float:
        """A wait of the host's, in seconds: what it said in its hello, else the protocol's default."""
        return played.limits().get(name, schema.default_limits()[name]) / 1000

    def play(
        self,
        impostor: str,
        *options: str,
        argv: Sequence[str] = ECHO,
        timeout_s: float = 20.0,
        bound_s: float = 60.0,
        memory: str = "",
        environ: Mapping[str, str] | None = None,
        after: Played | None = None,
    ) -> Played:
        """Run the host once.

        Args:
            impostor: The worker that it gets, `module:Class`.
            *options: Words of the contract beside the time-out; `{folder}` in one is the folder of this run, in which
                the journal is.
            argv: What it runs.
            timeout_s: The command's time-out.
            bound_s: After this, times the machine's slowness, the host is killed.
            memory: The name of the bound, in `hostile.BOUNDS`, that its memory must keep.
            environ: Variables of the host's, beside those of the contract.
            after: An earlier run, whose home this one goes on with.

        Raises:
            NotApplicable: The host has nothing for one of the options.
            Failed: The host took too much memory, did not exit in time, failed, gave no answer, or left a process of
                its worker.
        """
        if memory:
            self.ordinary  # noqa: B018 - what is above it counts
        number = len(self.all_played) + 1
        folder = self.folder / f"{number:03}-{impostor.replace(':', '-')}"
        folder.mkdir()
        words = (*(option.replace("{folder}", str(folder)) for option in options), "--", *argv)
        home = folder / "home" if after is None else after.home
        bound_s *= self.times.factor
        played = self._run(impostor, folder, words, timeout_s, bound_s, dict(environ or {}), home)
        self.all_played.append(played)
        if memory:
            measured = measure(memory, played, self.ordinary)
            self.measured[memory] = measured
            keep(measured)
        if played.exit is None:
            raise Failed(f"the host was not done after {played.bound_s:.0f} s, and was killed")
        if played.answer is None:
            raise Failed(f"the host gave no answer ({played.exit}): {_tail(played.log)}")
        if unsupported := played.answer.get("unsupported"):
            raise NotApplicable(f"the host command has nothing for {str(unsupported)[:100]}")
        if played.left:
            names = ", ".join(f"{left.pid} {left.command}" for left in played.left)
            raise Failed(f"after the host's exit there still ran: {names[:400]}")
        return played

    def _run(
        self,
        impostor: str,
        folder: Path,
        words: Sequence[str],
        timeout_s: float,
        bound_s: float,
        more_environ: Mapping[str, str],
        home: Path,
    ) -> Played:
        journal, log, out = folder / "journal", folder / "log", folder / "answer"
        worker = command_of(impostor, journal)
        environ = {
            **os.environ,
            **more_environ,
            "SANDPORT_HOST_WORKER": json.dumps(worker),
            "SANDPORT_HOST_SETTINGS": json.dumps(self.settings),
            "SANDPORT_HOME": str(home),
            "KIT_SECRET": f"{CANARY}-1",
            "AWS_SECRET_ACCESS_KEY": f"{CANARY}-2",
        }
        surplus, other = os.pipe()
        with out.open("wb") as stdout, log.open("wb") as stderr:
            began = time.monotonic()
            process = subprocess.Popen(
                [*self.command, "run", "--timeout", str(timeout_s), *words],
                env=environ,
                stdin=subprocess.DEVNULL,
                stdout=stdout,
                stderr=stderr,
                start_new_session=True,
                pass_fds=(surplus,),
            )
        os.close(surplus)
        os.close(other)
        left: list[Survivor] = []
        try:
            peak, in_time = self._watch(process, log, began + bound_s)
            took_s = time.monotonic() - began
            if in_time:
                left = self._left_behind(process.pid, _journal_of(journal))
        except KeyboardInterrupt:
            _kill_session(process)
            _kill_workers(_journal_of(journal))
            raise
        finally:
            _kill_session(process)
        entries = _journal_of(journal)
        if not in_time:
            left = self._left_behind(process.pid, entries)
        return Played(
            impostor=impostor,
            answer=_answer_of(out),
            exit=ExitCause.of(_wait_status(process)) if in_time else None,
            bound_s=bound_s,
            took_s=took_s,
            peak_bytes=peak,
            home=home,
            log=log,
            journal=entries,
            left=tuple(left),
            environ=more_environ,
        )

    def _watch(self, process: subprocess.Popen[bytes], log: Path, until: float) -> tuple[int, bool]:
        """Wait for the host; the most memory of all processes in its session, and whether it ended in time."""
        memory = SessionMemory(process.pid)
        look_at = 0.0
        while process.poll() is None:
            now = time.monotonic()
            if now > until or log.stat().st_size > _LOG_BYTES:
                return memory.peak_bytes, False
            if now > look_at:
                memory.look_for_more()
                look_at = now + _LOOK_S
            memory.look()
            time.sleep(_TICK_S)
        return memory.peak_bytes, True

    def _left_behind(self, host: int, entries: list[dict[str, Any]]) -> list[Survivor]:
        """What lives of the host's session and of its workers once they had a moment; the workers' is killed."""
        workers = _workers_of(entries)

        def look() -> list[Survivor]:
            own = [Survivor(pid, "in the host's own session") for pid in in_session(host)]
            return own + [left for worker in workers for left in survivors(worker)]

        until = time.monotonic() + 2 * self.times.factor
        while (found := look()) and time.monotonic() < until:
            time.sleep(_TICK_S * 5)
        _kill_workers(entries)
        return list({left.pid: left for left in found}.values())


def _workers_of(entries: list[dict[str, Any]]) -> list[Identity]:
    # A token that is missing is told by PROC-20; as an empty text it would be found in every process that has none.
    return [
        Identity(entry["token"] or f"none-{os.urandom(8).hex()}", entry["pid"], entry["ticks"])
        for entry in entries
        if entry["event"] == "started"
    ]


def _kill_workers(entries: list[dict[str, Any]]) -> None:
    for worker in _workers_of(entries):
        kill_survivors(worker)
    for entry in entries:
        if entry["event"] == "child":
            with contextlib.suppress(ProcessLookupError):  # it ended with its worker
                os.kill(entry["child"], signal.SIGKILL)


def _kill_session(process: subprocess.Popen[bytes]) -> None:
    for pid in in_session(process.pid):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    process.wait()


def _wait_status(process: subprocess.Popen[bytes]) -> int:
    return -process.returncode if process.returncode < 0 else process.returncode << 8


def _journal_of(path: Path) -> list[dict[str, Any]]:
    if not path.exists():
        return []
    entries = []
    for line in path.read_bytes().splitlines():
        with contextlib.suppress(ValueError):  # a worker was killed while it wrote
            entries.append(json.loads(line))
    return entries


def _answer_of(path: Path) -> dict[str, Any] | None:
    with path.open("rb") as file:
        data = file.read(_ANSWER_BYTES)
    try:
        answer = json.loads(data)
    except ValueError:
        return None
    return answer if isinstance(answer, dict) else None


def _tail(path: Path) -> str:
    return path.read_bytes()[-600:].decode("utf-8", "replace")
