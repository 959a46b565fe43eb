"""The guide works: its files are written, its commands run in its order, and they print what it says.

`pip install -e` is done by hand, without an index: an environment whose packages are those of this one, and one folder
more, with the metadata that the host reads.
"""

import contextlib
import json
import os
import re
import shlex
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path

import pytest

from sandport_sdk.sandbox_folder import SandboxFolder, answer, ask

GUIDE = Path(__file__).parents[1] / "GUIDE.md"
# A block of commands may name the kind of machine that it is for.
BLOCK = re.compile(r"<!-- (run|install|write|append|replace)(?:: (\S+))?(?: (\w+))? -->\n```\w+\n(.*?)```", re.DOTALL)
FOLDER = "sandport-provider-box"
HANG_S = 100


class Reader:
    """Somebody who does what the guide says, in a shell's folder and environment."""

    def __init__(self, home: Path) -> None:
        self.folder = home
        self.machine = "user-namespaces" if has_user_namespaces() else "no-user-namespaces"
        self.environment = home / "environment"
        python = make_environment(self.environment)
        self.variables = {
            "PATH": f"{python.parent}{os.pathsep}{os.environ['PATH']}",
            "HOME": str(home),
            "LANG": "C.UTF-8",
            "SANDPORT_HOME": str(home / "state"),
        }

    def do(self, kind: str, path: str, name: str, text: str) -> None:
        """Do what one block says."""
        place = self.folder / path
        if kind == "run":
            if path and path != self.machine:
                return
            for command, told in commands(text):
                self.run(command, told)
        elif kind == "install":
            install(self.environment, self.folder / "src")
        elif kind == "write":
            place.write_text(text)
        elif kind == "append":
            place.write_text(f"{place.read_text()}\n\n{text}")
        else:
            method = rf"^    def {name}\(.*?(?=^    (?:async )?def )"
            changed, count = re.subn(method, lambda _: text + "\n", place.read_text(), flags=re.DOTALL | re.MULTILINE)
            assert count == 1
            place.write_text(changed)

    def run(self, command: str, told: str) -> None:
        """Run a command, and hold what it prints against what the guide says."""
        if command.startswith("cd "):
            self.folder /= command.removeprefix("cd ")
            return
        done = subprocess.run(
            command,
            shell=True,
            cwd=self.folder,
            env=self.variables,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,  # In the order of a terminal.
            text=True,
            timeout=HANG_S,
            check=False,
        )
        wanted = ".*".join(map(re.escape, told.split("...")))
        printed = done.stdout
        assert re.fullmatch(wanted, printed, re.DOTALL), f"$ {command}\n{printed}\nis not\n{told}"


def has_user_namespaces() -> bool:
    """Whether this machine lets us make one; a chroot never does."""
    return subprocess.run(["unshare", "--user", "--map-root-user", "true"], check=False).returncode == 0


def end_keepers(home: Path) -> list[Path]:
    """End every sandbox below a folder; those that there were."""
    left = []
    for folder, _, files in os.walk(home):  # which bears that folders go meanwhile
        if "record.json" not in files:
            continue
        place = Path(folder, "record.json")
        record = json.loads(place.read_bytes())
        sandbox = SandboxFolder(place.parents[1], record["sandboxId"], record["storeId"])
        with contextlib.suppress(ConnectionRefusedError), sandbox.connect() as connection:
            ask(connection, end=None)
            answer(connection)
        left.append(place)
    return left


def commands(text: str) -> Iterator[tuple[str, str]]:
    """Each command of a block, with what it prints."""
    for part in re.split(r"^\$ ", text, flags=re.MULTILINE)[1:]:
        command, _, told = part.partition("\n")
        yield command, told


def make_environment(folder: Path) -> Path:
    """An environment that has all that this one has; its interpreter."""
    packages = packages_of(folder)
    packages.mkdir(parents=True)
    (packages / "all.pth").write_text(f"import site; site.addsitedir({sysconfig.get_path('purelib')!r})\n")
    real = Path(sys._base_executable)  # type: ignore[attr-defined]
    (folder / "pyvenv.cfg").write_text(f"home = {real.parent}\n")
    (folder / "bin").mkdir()
    python = folder / "bin" / "python"
    python.symlink_to(real)
    for program, module in (("sandport", "sandport"), ("sandport-conformance", "sandport_conformance")):
        script = folder / "bin" / program
        script.write_text(f'#!/bin/sh\nexec {shlex.quote(str(python))} -P -m {module} "$@"\n')
        script.chmod(0o755)
    return python


def install(folder: Path, sources: Path) -> None:
    """What `pip install -e` leaves of the guide's provider in an environment."""
    info = packages_of(folder) / "sandport_provider_box-0.1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: sandport-provider-box\nVersion: 0.1.0\n")
    (info / "entry_points.txt").write_text("[sandport.providers]\nbox = box_provider\n")
    (packages_of(folder) / "box.pth").write_text(f"{sources}\n")


def packages_of(folder: Path) -> Path:
    """Where an environment has its packages."""
    return folder / "lib" / f"python{sys.version_info.major}.{sys.version_info.minor}" / "site-packages"


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_who_does_what_the_guide_says_sees_what_it_shows(tmp_path: Path) -> None:
    reader = Reader(tmp_path)
    blocks = BLOCK.findall(GUIDE.read_text(encoding="utf-8"))
    assert len(blocks) >= 10
    try:
        for kind, path, name, text in blocks:
            reader.do(kind, path, name, text)
    finally:
        left = end_keepers(tmp_path)
    assert reader.folder == tmp_path / FOLDER
    assert left == []


def test_every_program_and_every_command_of_the_guide_is_run_or_says_why_not() -> None:
    text = GUIDE.read_text(encoding="utf-8")
    shown: list[str] = re.findall(r"^```\w+\n.*?```", text, re.DOTALL | re.MULTILINE)
    run = {match.group(0).partition("```")[2] for match in BLOCK.finditer(text)}
    left = [block for block in shown if block.removeprefix("```") not in run]
    # These take an index of packages, or half a minute; `examples/hello_provider/tests` has the kit's whole run.
    assert all("$ pip install" in block or "--level L4" in block for block in left), left
