"""What the workspace is made of, read from the files that say so."""

import re
import subprocess
import tomllib
from functools import cache
from pathlib import Path
from typing import Any

import msgspec

ROOT = Path(__file__).resolve().parents[2]


class Member(msgspec.Struct, frozen=True):
    """One distribution of the workspace."""

    folder: str
    """Its folder, as a path from the root."""
    name: str
    """The distribution's name."""
    package: str
    """The name that a program imports."""
    dependencies: tuple[str, ...]
    """Its requirements, as written."""

    @property
    def path(self) -> Path:
        return ROOT / self.folder

    @property
    def source(self) -> Path:
        return self.path / "src" / self.package

    def required(self) -> set[str]:
        """The names of the distributions that it requires."""
        return {distribution_name(line) for line in self.dependencies}


def distribution_name(requirement: str) -> str:
    """The normalised name at the start of a requirement such as `anyio>=4.6`."""
    found = re.match(r"[A-Za-z0-9][A-Za-z0-9._-]*", requirement)
    assert found, f"not a requirement: {requirement!r}"
    return re.sub(r"[-_.]+", "-", found[0]).lower()


def load_toml(path: Path) -> dict[str, Any]:
    return tomllib.loads(path.read_text(encoding="utf-8"))


def read_member(manifest: Path) -> Member:
    project = load_toml(manifest)["project"]
    packages = [folder for folder in (manifest.parent / "src").iterdir() if (folder / "__init__.py").is_file()]
    assert len(packages) == 1, f"{manifest.parent / 'src'} should hold one package, not {packages}"
    return Member(
        folder=manifest.parent.relative_to(ROOT).as_posix(),
        name=project["name"],
        package=packages[0].name,
        dependencies=tuple(project.get("dependencies", ())),
    )


@cache
def files_in_git() -> tuple[Path, ...]:
    """Every file that git knows, and new ones that it would; a file that was just removed is left out."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        check=True,
        capture_output=True,
    )
    paths = (ROOT / name.decode() for name in set(listed.stdout.split(b"\0")) if name)
    return tuple(sorted(path for path in paths if path.is_file()))


def texts_in_git() -> list[tuple[str, str]]:
    """Each text file in git: its path from the root, and its content."""
    found = []
    for path in files_in_git():
        content = path.read_bytes()
        if b"\0" not in content:
            found.append((path.relative_to(ROOT).as_posix(), content.decode(errors="replace")))
    return found


@cache
def find_members() -> tuple[Member, ...]:
    """Every folder with a pyproject.toml and a src/; the root's own manifest makes no package.

    Examples have manifests too, to be copied; they are no part of the workspace.
    """
    manifests = (path for path in files_in_git() if path.name == "pyproject.toml")
    folders = (path for path in manifests if path.parent != ROOT and (path.parent / "src").is_dir())
    return tuple(read_member(path) for path in folders if path.relative_to(ROOT).parts[0] != "examples")


def pins() -> dict[str, str]:
    """constraints.txt: the pinned version of each distribution, by its normalised name."""
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    return {distribution_name(line): line.partition("==")[2] for line in lines}


MEMBERS = find_members()
PROVIDERS = tuple(member for member in MEMBERS if member.folder.startswith("providers/"))


def member(name: str) -> Member:
    """The member whose distribution has this name."""
    return next(member for member in MEMBERS if member.name == name)
