"""File sync is plain blocking code, for whatever loop or thread it is called from."""

from __future__ import annotations

import ast
import sys
from pathlib import Path

import sandport.sync


def imported() -> dict[str, set[str]]:
    """What each module of the package imports, whole or from."""
    found: dict[str, set[str]] = {}
    for file in Path(sandport.sync.__path__[0]).glob("*.py"):
        modules = found[file.stem] = set()
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                modules |= {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module:
                modules.add(node.module)
    return found


def test_the_package_needs_only_msgspec_the_one_tree_of_errors_and_no_loop() -> None:
    found = imported()
    assert len(found) > 5
    outside = {name for names in found.values() for name in names if not name.startswith("sandport.sync.")}
    assert outside - sys.stdlib_module_names - {"collections.abc"} == {"msgspec", "sandport_protocol.errors"}
    assert outside & {"asyncio", "concurrent", "selectors"} == set()


def test_threads_and_processes_are_the_matter_of_one_module_each() -> None:
    found = imported()
    users = {module: {name for name in found if module in found[name]} for module in ("threading", "subprocess")}
    assert users == {"threading": {"pair_copy"}, "subprocess": {"second_process"}}


def test_the_program_of_the_second_process_imports_next_to_nothing() -> None:
    """`typing` and `socket` would each double the time that it takes to start."""
    assert imported()["small_files"] - {"__future__"} == {"_socket", "os", "stat", "sys"}


def test_every_public_name_is_there() -> None:
    assert all(hasattr(sandport.sync, name) for name in sandport.sync.__all__)
