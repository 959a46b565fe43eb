"""Somebody who does what a document says: in a copy of the repository, in one shell, in an environment of their own."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sysconfig
from pathlib import Path
from types import TracebackType
from typing import Self

from sdk.tests.test_guide import make_environment, packages_of
from tests.architecture.workspace import ROOT, files_in_git

HANG_S = 100
MARK = "\1done "
RUN = """\
import ast, asyncio, inspect, os, sys

sys.path.insert(0, os.getcwd())
with open(sys.argv[1], encoding="utf-8") as file:
    code = compile(file.read(), sys.argv[1], "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
sys.argv[1:] = []
done = eval(code, {"__name__": "__main__"})
if inspect.iscoroutine(done):
    asyncio.run(done)
"""
"""Runs a program that may await at its top, as the part of one does that stands in a document."""
PIP = """\
#!/bin/sh
verb=$1
shift
exec "{python}" -m pip --disable-pip-version-check "$verb" --no-index --no-deps --no-build-isolation --quiet "$@"
"""
"""pip, as it is where nothing is to be had from outside."""
PYTEST = """\
#!/bin/sh
exec "{python}" -P -m pytest "$@"
"""


TAKEN_IN = ("_pytest", "iniconfig", "packaging", "pluggy", "pygments", "pytest")
"""Packages that documents use inside of a sandbox."""


def link_or_copy(source: str, target: str) -> None:
    """A second name for a file, where that can be had."""
    try:
        os.link(source, target)
    except OSError:  # Another file system, or one without links.
        shutil.copy2(source, target)


class Reader:
    """A shell that goes on from command to command; a context manager, which ends it."""

    def __init__(self, place: Path) -> None:
        self.root = place / "sandport"
        for path in files_in_git():
            copy = self.root / path.relative_to(ROOT)
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(path, copy)
        environment = place / "environment"
        self.python = make_environment(environment)
        (environment / "bin" / "python3").symlink_to("python")
        # What a sandbox is shown of this environment is what lies in it, and not what it takes from elsewhere.
        packages = Path(sysconfig.get_path("purelib"))
        for name in (*TAKEN_IN, *(path.name for path in packages.glob("pluggy-*.dist-info"))):
            shutil.copytree(packages / name, packages_of(environment) / name, copy_function=link_or_copy)
        link_or_copy(str(packages / "py.py"), str(packages_of(environment) / "py.py"))
        for program, text in (("pip", PIP), ("pytest", PYTEST)):
            script = environment / "bin" / program
            script.write_text(text.format(python=self.python))
            script.chmod(0o755)
        (self.root / ".venv").symlink_to(environment)
        self.programs = place / "programs"
        self.programs.mkdir()
        (self.programs / "run").write_text(RUN)
        self.count = 0
        self.shell = subprocess.Popen(
            ["sh"],
            cwd=self.root,
            env={
                "PATH": f"{environment / 'bin'}{os.pathsep}{os.environ['PATH']}",
                "HOME": str(place),
                "LANG": "C.UTF-8",
                "SANDPORT_HOME": str(place / "state"),
                "PYTHONDONTWRITEBYTECODE": "1",
            },
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        assert self.shell.stdin
        assert self.shell.stdout
        self.shell.stdin.close()
        self.shell.stdout.close()
        self.shell.wait(HANG_S)

    def run(self, command: str) -> tuple[int, str]:
        """Run a command in the shell; its exit code, and what it printed to either stream."""
        assert self.shell.stdin
        assert self.shell.stdout
        self.shell.stdin.write(f"{{ {command}\n}} </dev/null\nprintf '\\001done %s\\n' $?\n")
        self.shell.stdin.flush()
        printed = ""
        while line := self.shell.stdout.readline():
            said, mark, status = line.partition(MARK)
            printed += said
            if mark:
                return int(status), printed
        return self.shell.wait(HANG_S), printed

    def run_program(self, text: str) -> tuple[int, str]:
        """Run a program of Python from the shell; its input is a pipe at its end, as a worker wants it."""
        self.count += 1
        program = self.programs / f"program_{self.count}.py"
        program.write_text(text, encoding="utf-8")
        return self.run(f": | python {self.programs / 'run'} {program}")


def is_as_told(printed: str, told: str) -> bool:
    """Whether output is what a document shows, where `...` stands for anything, and a time or a seed for any."""
    wanted = ".*".join(map(re.escape, without_chance(told).split("...")))
    return re.fullmatch(wanted, without_chance(printed), re.DOTALL) is not None


def without_chance(text: str) -> str:
    """A text without what differs from run to run."""
    return re.sub(r"\b\d+\.\d+ s\b|(?<=\bseed )\d+", "#", text.strip())
