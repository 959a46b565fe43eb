"""What a real interpreter has imported after a start, and that the contracts on imports can fail."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.architecture.workspace import MEMBERS, PROVIDERS, ROOT, Member, load_toml


def modules_after(code: str) -> set[str]:
    """The modules that a fresh interpreter holds once it has run the code."""
    # The report goes to a descriptor of its own, so that what the code prints is not mistaken for it.
    report = "\nimport os, sys\nos.write(3, '\\n'.join(sys.modules).encode())"
    done = subprocess.run(
        ["sh", "-c", 'exec 3>&1 >/dev/null; exec "$0" -P -c "$1"', sys.executable, code + report],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return set(done.stdout.split())


def test_importing_the_host_imports_neither_the_sdk_nor_a_provider() -> None:
    loaded = modules_after("import sandport")
    assert "sandport" in loaded
    assert loaded.isdisjoint({"sandport_sdk", *(dist.package for dist in PROVIDERS)})


def test_the_commands_help_imports_nothing_that_costs_its_start() -> None:
    code = """
import sys
from sandport.cli import main
sys.argv = ["sandport", "--help"]
try:
    main()
except SystemExit as end:
    assert not end.code, end.code
"""
    loaded = modules_after(code)
    assert "sandport.cli" in loaded
    assert loaded.isdisjoint({"anyio", "asyncio", "importlib.metadata", "rich", "sqlite3", "structlog"})


def test_the_sdk_imports_nothing_that_costs_a_workers_start() -> None:
    loaded = modules_after("import sandport_sdk.v1")
    assert "sandport_sdk.v1" in loaded
    assert loaded.isdisjoint({"anyio", "importlib.metadata", "structlog"})


@pytest.mark.parametrize("dist", PROVIDERS, ids=lambda dist: dist.folder)
def test_a_providers_package_imports_nothing_of_ours(dist: Member) -> None:
    loaded = modules_after(f"import {dist.package}")
    assert {name for name in loaded if name.startswith("sandport")} == {dist.package}


def contracts_report(tree: Path) -> subprocess.CompletedProcess[str]:
    """import-linter's verdict on a copy of the workspace."""
    sources = [str(path) for path in (*tree.glob("*/src"), *tree.glob("*/*/src"))]
    return subprocess.run(
        [Path(sys.executable).with_name("lint-imports"), "--no-cache", "--no-logo"],
        cwd=tree,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sources)},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.fixture
def bare_tree(tmp_path: Path) -> Path:
    """The workspace with the same packages and contracts, and no code but what a test puts there."""
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    for dist in MEMBERS:
        source = tmp_path / dist.folder / "src" / dist.package
        source.mkdir(parents=True)
        (source / "__init__.py").touch()
    return tmp_path


def test_the_contracts_hold_where_nothing_is_imported(bare_tree: Path) -> None:
    report = contracts_report(bare_tree)
    assert report.returncode == 0, report.stdout + report.stderr
    count = len(load_toml(ROOT / "pyproject.toml")["tool"]["importlinter"]["contracts"])
    assert f"Contracts: {count} kept, 0 broken." in report.stdout


# A file, and an import in it that some contract forbids.
FORBIDDEN = [
    ("protocol/src/sandport_protocol/clock.py", "import time"),
    ("protocol/src/sandport_protocol/pipe.py", "import os"),
    ("protocol/src/sandport_protocol/loop.py", "import asyncio"),
    ("protocol/src/sandport_protocol/log.py", "from logging import getLogger"),
    ("protocol/src/sandport_protocol/up.py", "import sandport_sdk"),
    ("protocol/src/sandport_protocol/up.py", "import sandport"),
    ("sdk/src/sandport_sdk/loop.py", "import anyio"),
    ("sdk/src/sandport_sdk/log.py", "import structlog"),
    ("sdk/src/sandport_sdk/up.py", "import sandport"),
    ("sdk/src/sandport_sdk/up.py", "import sandport_provider_local"),
    ("host/src/sandport/sideways.py", "import sandport_sdk"),
    ("host/src/sandport/plugin.py", "import sandport_provider_local"),
    ("host/src/sandport/vendor.py", "def start() -> None:\n    import e2b"),
    ("providers/local/src/sandport_provider_local/up.py", "import sandport"),
    ("providers/local/src/sandport_provider_local/wire.py", "import sandport_protocol"),
    ("providers/local/src/sandport_provider_local/sideways.py", "import sandport_provider_fake"),
    ("providers/fake/src/sandport_provider_fake/wire.py", "import sandport_protocol"),
    ("providers/fake/src/sandport_provider_fake/testing.py", "def host() -> None:\n    import sandport"),
    ("tests/conformance/src/sandport_conformance/types.py", "import sandport_protocol"),
    ("tests/conformance/src/sandport_conformance/worker.py", "import sandport_sdk"),
    ("tests/conformance/src/sandport_conformance/host.py", "def start() -> None:\n    import sandport"),
    ("tests/conformance/src/sandport_conformance/codec.py", "import msgspec"),
    ("sdk/src/sandport_sdk/judged.py", "import sandport_conformance"),
]


@pytest.mark.parametrize(("file", "code"), FORBIDDEN, ids=lambda value: value.removesuffix(".py"))
def test_a_forbidden_import_breaks_a_contract(bare_tree: Path, file: str, code: str) -> None:
    (bare_tree / file).write_text(code + "\n", encoding="utf-8")
    report = contracts_report(bare_tree)
    assert report.returncode == 1, report.stdout + report.stderr
    assert "0 broken" not in report.stdout
