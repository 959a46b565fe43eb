"""What of an interpreter's prefixes is shown: what it needs, whatever else the prefix is."""

import os
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from providers.local.tests.inside import Inside
from providers.local.tests.worker import Worker
from sandport_provider_local.interpreter import NEEDED, Closed, Interpreter


def made(prefix: Path, *names: str) -> Path:
    """A prefix of Python 3.11 with some more in it."""
    for name in ("bin", "lib/python3.11/site-packages", "include/python3.11", *names):
        (prefix / name).mkdir(parents=True, exist_ok=True)
    (prefix / "bin" / "python3.11").touch()
    (prefix / "lib" / "libpython3.11.so").touch()
    return prefix


def shown(closed: Closed, prefix: Path, base: Path | None = None, platlibdir: str = "lib") -> list[str]:
    """What is shown, relative to the prefix."""
    there = Interpreter(
        prefixes=frozenset(map(os.fspath, {prefix, base or prefix})),
        bases=frozenset({os.fspath(base or prefix)}),
        executable=os.fspath((base or prefix) / "bin" / "python3.11"),
        library="python3.11",
        platlibdir=platlibdir,
    )
    return [os.path.relpath(path, prefix) for path in there.shown(closed)]


def test_of_an_environment_only_what_is_needed_is_shown(tmp_path: Path) -> None:
    base = made(tmp_path / "base")
    project = made(tmp_path / "project", ".git", "src", "secrets", "share")
    (project / "pyvenv.cfg").touch()
    (project / ".env").touch()
    (project / "lib64").symlink_to("lib")
    needed = ["bin", "include", "lib", "pyvenv.cfg", "share"]
    assert shown(Closed(), project, base) == ["../base", "../base/bin/python3.11", *needed]
    # Where it has its libraries by the other name, that is there too.
    assert shown(Closed(), project, base, "lib64")[2:] == sorted([*needed, "lib64"])


def test_a_base_is_shown_as_a_whole_where_nothing_else_is_in_it(tmp_path: Path) -> None:
    base = made(tmp_path / "base", "share")
    assert shown(Closed(), base) == [".", "bin/python3.11"]
    (base / "conda-meta").mkdir()
    assert shown(Closed(), base) == ["bin", "bin/python3.11", "include", "lib", "share"]


@pytest.mark.parametrize("as_base", [True, False])
def test_of_a_prefix_that_is_a_home_only_the_interpreters_own_parts_are_shown(tmp_path: Path, as_base: bool) -> None:
    home = made(tmp_path / "home", ".ssh", "lib/mine", "include/mine", "share/mine")
    (home / "pyvenv.cfg").touch()
    base = None if as_base else made(tmp_path / "base")
    own = ["bin", "include/python3.11", "lib/libpython3.11.so", "lib/python3.11", "pyvenv.cfg"]
    said = [path for path in shown(Closed(homes=frozenset({os.fspath(home)})), home, base) if ".." not in path]
    assert said == (sorted([*own, "bin/python3.11"]) if as_base else own)


def test_a_home_is_known_by_any_name(tmp_path: Path) -> None:
    home = made(tmp_path / "home", ".ssh", "lib/mine")
    (tmp_path / "link").symlink_to(home)
    closed = Closed(homes=frozenset({os.fspath(home)}))
    said = shown(closed, tmp_path / "link")
    assert {"lib", "share", "."}.isdisjoint(said)
    assert {"bin", "lib/python3.11"} <= set(said)


@pytest.mark.parametrize("below", ["lib/sandport", "share/state", "state"])
def test_a_prefix_that_holds_the_state_shows_nothing_of_that(tmp_path: Path, below: str) -> None:
    prefix = made(tmp_path / "prefix", below)
    state = os.fspath(prefix / below)
    for path in shown(Closed(places=frozenset({state})), prefix):
        absolute = os.path.normpath(prefix / path)
        assert not state.startswith(f"{absolute}/")
        assert absolute != state


def test_a_part_that_leads_to_what_is_closed_is_left_out(tmp_path: Path) -> None:
    prefix = made(tmp_path / "prefix")
    (tmp_path / "home").mkdir()
    (tmp_path / "system" / "keys").mkdir(parents=True)
    (prefix / "share").symlink_to(tmp_path / "home")
    (prefix / "ssl").symlink_to(tmp_path / "system" / "keys")
    (prefix / "other").mkdir()
    closed = Closed(homes=frozenset({f"{tmp_path}/home"}), places=frozenset({f"{tmp_path}/system"}))
    assert shown(closed, prefix) == ["bin", "bin/python3.11", "include", "lib"]


def test_an_environment_in_a_home_or_in_the_state_is_still_shown(tmp_path: Path) -> None:
    """As those of pyenv and pipx are; nothing of what surrounds it is."""
    state = tmp_path / "person" / "state"
    prefix = made(state / "venv")
    closed = Closed(homes=frozenset({os.fspath(state.parent)}), places=frozenset({os.fspath(state)}))
    assert shown(closed, prefix) == [".", "bin/python3.11"]


def test_the_running_interpreter_needs_what_there_is() -> None:
    running = Interpreter.running()
    said = running.shown(Closed())
    assert os.path.realpath(running.executable) in said
    for prefix in running.prefixes:
        assert prefix in said or f"{prefix}/bin" in said
    assert {"bin", "lib", "pyvenv.cfg"} <= set(NEEDED)


INSTEAD = 'python=$1; shift 2; exec "$python" "$@"'
"""Runs another interpreter than the one of the command."""


@pytest.mark.parametrize("kind", ["home", "project"])
def test_an_environment_that_is_a_home_or_a_project_runs_inside_and_shows_nothing_else(
    tmp_path: Path, kind: str
) -> None:
    folder, state = tmp_path / kind, tmp_path / kind / ".local" / "state"
    state.mkdir(parents=True)
    state.chmod(0o700)
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
    (folder / sysconfig.get_path("purelib", vars={"base": str(folder)}) / "installed.py").write_text("print('here')\n")
    (folder / "bin" / "tool").write_text(f"#!{folder}/bin/python\nimport installed\n")
    (folder / "bin" / "tool").chmod(0o755)
    for name in (".ssh/id", "src/secret", "key"):
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text("secret\n")
        (folder / name).chmod(0o600)
    sources = [
        os.fspath(Path(__file__).parents[3] / name) for name in ("providers/local/src", "sdk/src", "protocol/src")
    ]
    path = ":".join([*sources, sysconfig.get_path("platlib")])
    variables = {"PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": "1"}
    if kind == "home":
        variables["HOME"] = os.fspath(folder)
    worker = Worker(
        state, variables=variables, prefix=["sh", "-c", INSTEAD, "sh", os.fspath(folder / "bin" / "python")]
    )
    try:
        box = Inside(worker)
        assert box.says("tool") == "here\n"
        assert set(box.says(f"ls -A {folder}").split()) <= {"bin", "include", "lib", "lib64", "pyvenv.cfg"}
        assert box.says(f"cat {folder}/.ssh/id {folder}/key {folder}/src/secret").count("No such file") == 3
        assert box.destroy() == "destroyed"
    finally:
        worker.close()
