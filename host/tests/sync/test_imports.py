"""File sync is plain blocking code, for whatever loop or thread it is called from."""

from __future__ import annotations

import ast
import sys
from pathlib import Path

import sandport.sync


def test_the_package_needs_only_msgspec_the_one_tree_of_errors_and_no_loop() -> None:
    found = set()
    files = list(Path(sandport.sync.__path__[0]).glob("*.py"))
    for file in files:
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                found |= {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module:
                found.add(node.module)
    outside = {name for name in found if not name.startswith("sandport.sync.")}
    assert len(files) > 5
    assert outside - sys.stdlib_module_names - {"collections.abc"} == {"msgspec", "sandport_protocol.errors"}
    assert outside & {"asyncio", "concurrent", "threading", "selectors", "subprocess"} == set()


def test_every_public_name_is_there() -> None:
    assert all(hasattr(sandport.sync, name) for name in sandport.sync.__all__)
