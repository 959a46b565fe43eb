"""The project that the demo tests: a pinned source distribution, fetched once and checked, or this repository's own."""

from __future__ import annotations

import hashlib
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import NamedTuple

REPOSITORY = Path(__file__).resolve().parents[2]
CACHE = REPOSITORY / ".cache" / "demo"


class Project(NamedTuple):
    """A tree and how its tests are run in it."""

    title: str
    tree: Path
    tests: tuple[str, ...]
    """The paths to give to pytest."""
    python_path: str
    """What the tests import from, relative to the tree."""
    changed: str
    """A file of the tree for the sandbox to change."""


PINNED = "toolz==1.0.0"
ARCHIVE = "toolz-1.0.0.tar.gz"
SHA256 = "2c86e3d9a04798ac556793bced838816296a2f085017664e4995cb40a1047a02"


def project(scratch: Path, *, offline: bool) -> Project:
    """The pinned project, unpacked below `scratch`; this repository's `protocol/` where it cannot be fetched."""
    archive = CACHE / ARCHIVE
    if not offline and not _is_ours(archive):
        print(f"fetching {PINNED} (once; it is kept in {CACHE.relative_to(REPOSITORY)})", flush=True)
        _fetch()
    if _is_ours(archive):
        with tarfile.open(archive) as file:
            # The digest says what is inside; the filter only exists from Python 3.11.4 on.
            if hasattr(tarfile, "data_filter"):
                file.extraction_filter = tarfile.data_filter
            file.extractall(scratch)
        return Project(PINNED, scratch / ARCHIVE.removesuffix(".tar.gz"), ("toolz",), ".", "README.rst")
    print("no source distribution at hand: using this repository's protocol/", flush=True)
    # Those of its tests that need nothing of the repository around it.
    tests = tuple(f"tests/test_{name}.py" for name in ("capabilities", "octets", "read_buffers"))
    return Project("sandport-protocol", REPOSITORY / "protocol", tests, "src", "README.md")


def _is_ours(archive: Path) -> bool:
    return archive.is_file() and hashlib.sha256(archive.read_bytes()).hexdigest() == SHA256


def _fetch() -> None:
    CACHE.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--no-binary", ":all:"]
    done = subprocess.run([*command, "--dest", str(CACHE), PINNED], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        said = done.stderr.strip().splitlines()
        print(f"it cannot be fetched: {said[-1] if said else 'pip failed'}", flush=True)
