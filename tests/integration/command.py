"""The installed `sandport` command, started as a user would, with a home and a folder of its own."""

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from sandport.lease.view import view

SANDPORT = Path(sys.executable).with_name("sandport")

# Far above what a command takes on a busy machine: it ends a hang.
BOUND_S = 60


class Done(msgspec.Struct, frozen=True):
    """A command that ended."""

    code: int
    out: bytes
    err: str

    @property
    def lines(self) -> list[str]:
        return self.err.splitlines()

    @property
    def object(self) -> dict[str, Any]:
        """The one JSON document on stdout."""
        return msgspec.json.decode(self.out, type=dict[str, Any])


class Command:
    """Runs `sandport` in a folder, with nothing of this machine's settings."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.home = folder / "home"
        self.cwd = folder / "cwd"
        self.cwd.mkdir()
        self.env = {
            "PATH": f"{SANDPORT.parent}{os.pathsep}{os.environ['PATH']}",
            "HOME": str(folder),
            "LANG": "C.UTF-8",
            "SANDPORT_HOME": str(self.home),
        }

    def start(self, *arguments: str | bytes | Path, env: dict[str, str] | None = None, **options: Any) -> Any:
        """The process, with pipes unless told otherwise."""
        pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        options = {"cwd": self.cwd} | pipes | options
        return subprocess.Popen([SANDPORT, *arguments], env=self.env | (env or {}), **options)

    def __call__(
        self,
        *arguments: str | bytes | Path,
        stdin: bytes | None = None,
        env: dict[str, str] | None = None,
        **options: Any,
    ) -> Done:
        """Run it to its end."""
        if stdin is not None:
            options["stdin"] = subprocess.PIPE
        with self.start(*arguments, env=env, **options) as process:
            try:
                out, err = process.communicate(stdin, timeout=BOUND_S)
            except subprocess.TimeoutExpired:
                process.kill()
                out, err = process.communicate()
                raise AssertionError(f"sandport did not end in {BOUND_S} s; it said {out!r} {err!r}") from None
        return Done(process.returncode, out or b"", (err or b"").decode())

    def shell(self, script: str) -> Done:
        """Run a line of shell in which `sandport` is a command."""
        done = subprocess.run(
            ["sh", "-c", script], env=self.env, cwd=self.cwd, capture_output=True, timeout=BOUND_S, check=False
        )
        return Done(done.returncode, done.stdout, done.stderr.decode())

    def sandboxes(self) -> list[str]:
        """What is left of sandboxes of this machine."""
        folder = self.home / "workers" / "local"
        return [path.name for path in folder.iterdir() if path.name.startswith("sp")] if folder.exists() else []

    def leases(self, *more: str) -> list[dict[str, Any]]:
        """What `sandport leases` says."""
        done = self("leases", "--json", *more)
        assert done.code == 0, done
        found: list[dict[str, Any]] = done.object["leases"]
        return found

    def leased(self) -> list[str]:
        """The ids of those leases, from the journal itself."""
        return [one.lease.id for one in view(self.home, now_ms=time.time_ns() // 1_000_000).leases]

    def processes(self) -> list[str]:
        """Processes of this machine that have to do with this folder: workers, inits, commands."""
        mine = os.fsencode(self.folder)
        found = []
        for entry in os.scandir("/proc"):
            if not entry.name.isdigit() or int(entry.name) == os.getpid():
                continue
            try:
                words = Path(entry.path, "cmdline").read_bytes()
                told = words + Path(entry.path, "environ").read_bytes()
                if mine in told or mine in os.fsencode(Path(entry.path, "cwd").readlink()):
                    found.append(words.replace(b"\0", b" ").decode(errors="replace").strip() or entry.name)
            except OSError:
                continue  # it ended, or is somebody else's
        return found

    def nothing_is_left(self) -> None:
        """Check that no sandbox, process or lease is there; what ends by itself may take its time."""
        until(lambda: not self.processes(), lambda: f"still there: {self.processes()}")
        assert self.sandboxes() == []
        assert self.leased() == []

    def configure(self, text: str) -> None:
        """Write the user's own sandport.toml."""
        path = self.folder / ".config" / "sandport" / "sandport.toml"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"version = 1\n{text}")


def until(holds: Callable[[], bool], otherwise: Callable[[], str] = lambda: "it did not come to it") -> None:
    """Wait for something to hold; the bound ends a hang."""
    end = time.monotonic() + BOUND_S
    while not holds():
        assert time.monotonic() < end, otherwise()
        time.sleep(0.02)
