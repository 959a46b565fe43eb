"""A program that runs a worker as an ordinary user, for who is root.

Interpreter, sources and state are below directories of root's that are closed to others, so that user is shown them at
other places, in a mount namespace of the worker's own. What it imports from is in SOURCES, the state comes first:

    python as_user.py UID STATE_DIR
"""

import os
import subprocess
import sys
import sysconfig
from pathlib import Path

from sandport_provider_local import namespaces

SOURCES = ("providers/local/src", "sdk/src", "protocol/src")
STATE_DIR = f"{namespaces.STAGE}/0"
"""Where the worker has its state."""


def open_up(prefix: str, shown: str) -> None:
    """Let everybody reach the interpreter where it is: one with a shared library finds that at no other place."""
    top = Path("/", Path(prefix).parts[1])
    if os.stat(top).st_mode & 0o005 == 0o005:
        return
    subprocess.run(["mount", "-t", "tmpfs", "-o", "mode=755", "tmpfs", top], check=True)
    os.makedirs(prefix)
    subprocess.run(["mount", "--bind", shown, prefix], check=True)


def main(uid: int, state_dir: str) -> None:
    repository = Path(__file__).parents[3]
    shown = [state_dir, sys.base_prefix, sysconfig.get_path("platlib"), *(f"{repository}/{name}" for name in SOURCES)]
    places = [os.fsdecode(place) for place in namespaces.stage([os.fsencode(path) for path in shown])]
    os.chown(places[0], uid, uid)
    # Before the change of user: a virtual environment may lie where that user cannot look.
    python = Path(os.path.realpath(sys.executable))
    open_up(sys.base_prefix, places[1])
    namespaces.become(uid)
    variables = {"PATH": "/usr/bin:/bin", "PYTHONPATH": ":".join(places[2:]), "PYTHONDONTWRITEBYTECODE": "1"}
    os.execve(python, [os.fspath(python), "-P", "-m", "sandport_provider_local"], variables)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2])
