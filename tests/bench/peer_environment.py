"""The environment of the peers: made when a run first measures them, apart from ours, and never by a test run."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from msgspec import Struct

from .order import ROOT, CannotMeasure

PINS = Path(__file__).with_name("peers.txt")
FOLDER = ROOT / ".venv-peers"
_PIN = re.compile(r"([a-z0-9-]+)==([0-9][0-9a-z.]*) +# ([a-z0-9-]+)")


class Pin(Struct, frozen=True):
    """One distribution of the environment."""

    name: str
    version: str
    needed_by: str
    """Another pin's name, or `bench`."""


def pins(text: str) -> dict[str, Pin]:
    """What a file of pins says, by name.

    Raises:
        ValueError: A line is neither a comment nor a pin.
    """
    found = {}
    for line in text.splitlines():
        if line.startswith("#"):
            continue
        match = _PIN.fullmatch(line)
        if match is None:
            raise ValueError(f"not a pin: {line!r}")
        found[match[1]] = Pin(*match.groups())
    return found


def ready(*, folder: Path = FOLDER, file: Path = PINS) -> str:
    """The interpreter of the peers' environment, which is made where it is not there or other pins hold.

    What is needed and not pinned is not fetched, so that the same is measured everywhere; it is an error.

    Raises:
        CannotMeasure: It cannot be made, for instance without network; pip's own words are on stderr.
    """
    python = folder / "bin" / "python"
    stamp = folder / ".stamp"
    text = file.read_text(encoding="utf-8")
    want = f"{sys.version}\n{text}"
    if python.exists() and stamp.is_file() and stamp.read_text(encoding="utf-8") == want:
        return str(python)
    print(f"making {folder.name} for the peers", file=sys.stderr, flush=True)
    stamp.unlink(missing_ok=True)
    _run("the environment of the peers cannot be made", "-m", "venv", "--clear", "--without-pip", str(folder))
    chosen = [f"{pin.name}=={pin.version}" for pin in pins(text).values()]
    pip = ("-m", "pip", "--disable-pip-version-check", "--no-input", "--python", str(python))
    # Wheels alone: building some of them takes longer than the whole run.
    fetch = ("install", "--quiet", "--quiet", "--retries", "1", "--no-deps", "--only-binary", ":all:")
    _run("pip could not install the peers (is there a network?)", *pip, *fetch, *chosen)
    _run(f"{file.name} lacks what a peer needs", *pip, "check")
    stamp.write_text(want, encoding="utf-8")
    return str(python)


def _run(what: str, *arguments: str) -> None:
    # Nothing of it may reach stdout, which is the table's.
    if subprocess.run([sys.executable, *arguments], stdout=sys.stderr, check=False).returncode != 0:
        raise CannotMeasure(what)
