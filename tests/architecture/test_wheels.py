"""Each distribution as a user gets it: a wheel that is whole and installs alone."""

import subprocess
import sys
import zipfile
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.architecture.workspace import MEMBERS, ROOT, Member

pytestmark = pytest.mark.slow

each_member = pytest.mark.parametrize("dist", MEMBERS, ids=lambda dist: dist.folder)

# Every module that the distribution brings must import with nothing there but what it requires.
IMPORT_ALL = """
import importlib, pkgutil, sys
package = importlib.import_module(sys.argv[1])
names = [module.name for module in pkgutil.walk_packages(package.__path__, package.__name__ + ".")]
for name in names:
    if not name.endswith(".__main__"):
        importlib.import_module(name)
print(package.__file__)
"""


def pip(*arguments: str | Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "pip", "--disable-pip-version-check", *arguments],
        cwd="/",
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Path]:
    """The wheel of each member, by the distribution's name."""
    folder = tmp_path_factory.mktemp("wheels")
    built = {}
    for dist in MEMBERS:
        target = folder / dist.name
        pip("wheel", "--no-deps", "--no-build-isolation", "--no-index", "--wheel-dir", target, dist.path)
        (built[dist.name],) = target.iterdir()
    return built


@each_member
def test_a_wheel_holds_the_package_its_types_and_its_licence(wheels: Mapping[str, Path], dist: Member) -> None:
    with zipfile.ZipFile(wheels[dist.name]) as wheel:
        names = set(wheel.namelist())
        (licence,) = (name for name in names if name.endswith(".dist-info/licenses/LICENSE"))
        assert wheel.read(licence) == (ROOT / "LICENSE").read_bytes()
    sources = (path for path in dist.source.rglob("*") if path.is_file() and "__pycache__" not in path.parts)
    expected = {path.relative_to(dist.path / "src").as_posix() for path in sources}
    assert f"{dist.package}/py.typed" in expected
    assert expected == {name for name in names if ".dist-info/" not in name}


def test_the_protocols_wheel_holds_the_schema(wheels: Mapping[str, Path]) -> None:
    with zipfile.ZipFile(wheels["sandport-protocol"]) as wheel:
        assert wheel.read("sandport_protocol/schema/v1.json").startswith(b"{")


@each_member
def test_a_wheel_installs_alone_and_every_module_imports(
    wheels: Mapping[str, Path], dist: Member, tmp_path: Path
) -> None:
    venv = tmp_path / "venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", venv], check=True)
    python = venv / "bin" / "python"
    others = [argument for wheel in wheels.values() for argument in ("--find-links", wheel.parent)]
    constraints = ROOT / "constraints.txt"
    pip("--python", python, "install", "--quiet", "--constraint", constraints, *others, wheels[dist.name])

    done = subprocess.run(
        [python, "-I", "-c", IMPORT_ALL, dist.package], cwd="/", capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert Path(done.stdout.splitlines()[-1]).is_relative_to(venv)
