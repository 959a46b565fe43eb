"""./dev and what CI runs: the help is true, and a fault ends non-zero and says so."""

import importlib.metadata
import os
import re
import shutil
import stat
import subprocess
from pathlib import Path

import pytest
from packaging.specifiers import SpecifierSet

from tests.architecture.workspace import MEMBERS, ROOT, distribution_name, load_toml, pins

DEV = (ROOT / "dev").read_text(encoding="utf-8")


def run_dev(*arguments: str, root: Path = ROOT, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [root / "dev", *arguments],
        env=os.environ | env,
        capture_output=True,
        text=True,
        check=False,
    )


def commands_in_help() -> set[str]:
    return set(re.findall(r"^  ([a-z]+)   ", run_dev("--help").stdout, re.MULTILINE))


def test_the_help_lists_every_command_and_no_other() -> None:
    dispatch = DEV[DEV.rindex("case $command in") :]
    built = set(re.findall(r"^    ([a-z]+)\)", dispatch, re.MULTILINE))
    assert {"setup", "demo", "test", "check"} <= built
    assert commands_in_help() == built


def test_without_a_command_the_help_is_printed() -> None:
    bare = run_dev()
    assert bare.returncode == 0
    assert bare.stdout == run_dev("--help").stdout
    assert "examples:" in bare.stdout


def test_an_unknown_command_fails_and_says_where_the_list_is() -> None:
    done = run_dev("tset")
    assert done.returncode != 0
    assert done.stderr == "dev: no command 'tset'; ./dev --help lists them\n"


def test_every_program_that_dev_starts_is_in_the_tree() -> None:
    started = re.findall(r'exec "\$python" (\S+\.py)', DEV)
    assert started
    assert [path for path in started if not (ROOT / path).is_file()] == []


def test_dev_and_the_ci_script_may_be_executed() -> None:
    for name in ("dev", ".ci/run"):
        assert (ROOT / name).stat().st_mode & stat.S_IXUSR, f"{name} is not executable"


def test_dev_is_plain_sh() -> None:
    assert DEV.startswith("#!/bin/sh\n")
    assert re.findall(r"\[\[|^\s*(?:local|function|source) \w|<<<|<\(|\bpipefail\b", DEV, re.MULTILINE) == []


@pytest.fixture
def copied_tree(tmp_path: Path) -> Path:
    """A checkout that has only what ./dev reads before it installs anything."""
    for name in ("dev", "pyproject.toml", "constraints.txt"):
        shutil.copy(ROOT / name, tmp_path)
    for dist in MEMBERS:
        (tmp_path / dist.folder).mkdir(parents=True)
        shutil.copy(dist.path / "pyproject.toml", tmp_path / dist.folder)
    return tmp_path


def program(path: Path, text: str) -> None:
    path.write_text(f"#!/bin/sh\n{text}\n", encoding="utf-8")
    path.chmod(0o755)


def test_a_python_without_venv_is_answered_with_the_one_command(copied_tree: Path, tmp_path: Path) -> None:
    """Debian's python3 has no ensurepip until python3-venv is installed."""
    without_venv = tmp_path / "bin"
    without_venv.mkdir()
    program(
        without_venv / "python3",
        "case $2 in *version_info\\[:2\\]*) echo 3.11 ;; *ensurepip*) exit 1 ;; *) exit 0 ;; esac",
    )
    for version in ("3.11", "3.12", "3.13"):
        program(without_venv / f"python{version}", "exit 127")
    done = run_dev("setup", root=copied_tree, PATH=f"{without_venv}:/usr/bin:/bin", PYTHON="")
    assert done.returncode != 0
    assert re.fullmatch(r"dev: python3 has no venv module; run: (sudo )?apt-get install python3-venv\n", done.stderr)


def test_an_interpreter_that_is_too_old_is_refused_by_name(copied_tree: Path, tmp_path: Path) -> None:
    program(tmp_path / "python3.8", "exit 1")
    done = run_dev("setup", "--python", str(tmp_path / "python3.8"), root=copied_tree)
    assert done.returncode != 0
    assert "python3.8 is not a Python 3.11 or newer" in done.stderr


@pytest.fixture
def ready_tree(copied_tree: Path) -> Path:
    """A checkout that is set up, with an interpreter that prints what it is asked to run."""
    (copied_tree / ".venv" / "bin").mkdir(parents=True)
    program(copied_tree / ".venv" / "bin" / "python", "printf '<%s>' \"$@\"")
    manifests = ["constraints.txt", "pyproject.toml"]
    listed = re.search(r'^members="(.*)"$', DEV, re.MULTILINE)
    assert listed
    manifests += [f"{folder}/pyproject.toml" for folder in listed[1].split()]
    content = b"".join((copied_tree / name).read_bytes() for name in manifests)
    checksum = subprocess.run(["cksum"], input=content, capture_output=True, check=True).stdout.decode().strip()
    (copied_tree / ".venv" / ".stamp").write_text(f"{copied_tree} {checksum}\n", encoding="utf-8")
    return copied_tree


def test_a_tree_that_is_set_up_starts_at_once(ready_tree: Path) -> None:
    done = run_dev("demo", "--keep", root=ready_tree, PYTHON="")
    assert (done.stdout, done.stderr) == ("<examples/demo/run.py><--keep>", "")


def test_fast_leaves_out_the_slow_tests_and_the_rest_goes_to_pytest(ready_tree: Path) -> None:
    done = run_dev("test", "--fast", "host/tests", "-k", "a lease", root=ready_tree, PYTHON="")
    assert done.stdout == "<-m><pytest><-m><not slow><host/tests><-k><a lease>"


def test_a_whole_run_is_shared_by_a_few_processes(ready_tree: Path) -> None:
    done = run_dev("test", "--fast", root=ready_tree, PYTHON="")
    assert re.fullmatch(r"<-m><pytest><-m><not slow><--numprocesses><[1-4]><--dist><worksteal>", done.stdout)


@pytest.mark.parametrize("changed", ["constraints.txt", "pyproject.toml", "host/pyproject.toml"])
def test_a_changed_pin_or_manifest_is_installed_before_anything_runs(ready_tree: Path, changed: str) -> None:
    with (ready_tree / changed).open("a", encoding="utf-8") as file:
        file.write("\n# changed\n")
    done = run_dev("test", root=ready_tree, PYTHON="")
    assert "installing the pinned dependencies" in done.stderr


@pytest.fixture
def needy_tree(ready_tree: Path) -> Path:
    """A checkout whose tests need a program that no machine has; apt-get and sudo only print what they are told."""
    dev = ready_tree / "dev"
    table = 'system_packages="no-such-program the-package\nsh dash"'
    text = re.sub(r'^system_packages="[^"]*"$', table, DEV, flags=re.MULTILINE)
    assert text != DEV
    dev.write_text(text, encoding="utf-8")
    (ready_tree / "bin").mkdir()
    program(ready_tree / "bin" / "apt-get", 'echo "apt-get $*"')
    return ready_tree


def on_debian() -> bool:
    release = Path("/etc/os-release")
    return release.is_file() and "debian" in release.read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("user", "sudo", "installs"),
    [("0", "exit 1", True), ("1000", 'shift; "$@"', True), ("1000", "exit 1", False)],
    ids=["root", "sudo without a password", "sudo with a password"],
)
def test_a_missing_system_package_is_installed_or_the_one_command_is_printed(
    needy_tree: Path, user: str, sudo: str, *, installs: bool
) -> None:
    program(needy_tree / "bin" / "id", f"echo {user}")
    program(needy_tree / "bin" / "sudo", sudo)
    done = run_dev("test", root=needy_tree, PYTHON="", PATH=f"{needy_tree}/bin:/usr/bin:/bin")
    if installs and on_debian():
        assert "apt-get install -y --no-install-recommends the-package -q\n" in done.stderr
        assert done.stdout.startswith("<-m><pytest>")
    else:
        install = "apt-get install -y --no-install-recommends the-package"
        prefix = "" if user == "0" else "sudo "
        assert done.stderr == f"dev: the test suite needs the-package; run: {prefix}{install}\n"
        assert done.returncode != 0


@pytest.mark.parametrize(
    ("failing", "status"), [("none", 0), ("check", 1), ("test", 1)], ids=["all pass", "check", "test"]
)
def test_the_ci_script_runs_check_and_test_and_fails_when_either_does(
    tmp_path: Path, failing: str, status: int
) -> None:
    (tmp_path / ".ci").mkdir()
    shutil.copy(ROOT / ".ci" / "run", tmp_path / ".ci")
    program(tmp_path / "dev", f'echo "$1 CI=$CI"; [ "$1" != {failing} ]')
    done = subprocess.run(["bash", tmp_path / ".ci" / "run"], cwd="/", capture_output=True, text=True, check=False)
    assert done.stdout == "check CI=true\ntest CI=true\n"
    assert done.returncode == status


def test_everything_that_is_required_is_pinned() -> None:
    wanted = {distribution_name(line) for line in load_toml(ROOT / "pyproject.toml")["dependency-groups"]["dev"]}
    wanted.update(name for dist in MEMBERS for name in dist.required())
    assert wanted - {dist.name for dist in MEMBERS} - pins().keys() == set()


def test_everything_installed_here_is_at_its_pin() -> None:
    """What somebody installed by hand is missing on every other machine."""
    brought_by_venv = {"pip", "setuptools"}
    ours = {dist.name for dist in MEMBERS}
    installed = {
        distribution_name(found.metadata["Name"]): found.version for found in importlib.metadata.distributions()
    }
    unpinned = {
        name: version
        for name, version in installed.items()
        if name not in ours | brought_by_venv and pins().get(name) != version
    }
    assert unpinned == {}


def test_every_pin_can_be_installed_by_the_oldest_python_that_the_readme_names() -> None:
    """A distribution's Python is often a few releases behind: Debian 12 has 3.11.2."""
    refused = {
        found.metadata["Name"]: required
        for found in importlib.metadata.distributions()
        if (required := found.metadata.json.get("requires_python")) and "3.11.0" not in SpecifierSet(required)
    }
    assert refused == {}
