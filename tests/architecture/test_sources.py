"""What no source file may say or do, whoever wrote it."""

import ast
import re
from pathlib import Path

import pytest

from tests.architecture.workspace import ROOT, files_in_git, member, texts_in_git

# A module with such a name says nothing of what it holds, and collects what fits nowhere.
EMPTY_NAMES = {"utils", "util", "helpers", "common", "misc", "shared", "base", "core", "manager", "service"}

LONG = 600

# Written in two parts, so that this file holds none of them.
REGISTRY_HOSTS = [
    "pypi" + ".org",
    "python" + "hosted.org",
    "npm" + "js.org",
    "npm" + "js.com",
    "yarn" + "pkg.com",
    "deb" + ".debian.org",
    "security" + ".debian.org",
    "archive" + ".ubuntu.com",
    "crates" + ".io",
    "ruby" + "gems.org",
    "proxy" + ".golang.org",
    "ana" + "conda.org",
]
INDEX_OPTION = re.compile(r"--(extra-)?index-" + r"url\b|^\s*(extra-)?index-" + r"url\s*=", re.MULTILINE)

# A developer's own folder. /home/user is what one vendor calls a sandbox's home, and a name in <angles> stands for any.
HOME_PATH = re.compile(r"/root/[\w.]|/Users/\w|/home/(?!user\b|me\b|you\b)\w")

VENDORS = ("e2b", "daytona", "cloudflare", "kubernetes")


def python_files() -> list[Path]:
    return [path for path in files_in_git() if path.suffix == ".py"]


def relative(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def test_no_module_has_a_name_that_says_nothing() -> None:
    assert len(python_files()) > 5
    found = [
        relative(path)
        for path in python_files()
        if EMPTY_NAMES & {part.lower() for part in path.relative_to(ROOT).with_suffix("").parts}
    ]
    assert found == []


def test_a_long_file_says_why() -> None:
    silent = []
    for path in python_files():
        text = path.read_text(encoding="utf-8")
        if len(text.splitlines()) > LONG:
            docstring = ast.get_docstring(ast.parse(text)) or ""
            if not re.search(r"^Why so long: \S", docstring, re.MULTILINE):
                silent.append(relative(path))
    assert silent == [], f"over {LONG} lines without a line 'Why so long: ...' in the module's docstring"


def test_no_file_names_a_package_registry() -> None:
    found = [f"{name}: {host}" for name, text in texts_in_git() for host in REGISTRY_HOSTS if host in text.lower()]
    found += [f"{name}: {m[0].strip()}" for name, text in texts_in_git() for m in INDEX_OPTION.finditer(text)]
    assert found == []


def test_no_file_names_a_place_on_somebodys_machine() -> None:
    here = str(ROOT) + "/"
    found = []
    for name, text in texts_in_git():
        found += [f"{name}: {text[m.start() : m.start() + 40]!r}" for m in HOME_PATH.finditer(text)]
        found += [f"{name}: {here}"] if here in text else []
    # This file spells the patterns out.
    assert [line for line in found if not line.startswith("tests/architecture/test_sources.py:")] == []


def test_pins_are_a_name_and_a_version_and_nothing_else() -> None:
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    assert lines == sorted(lines)
    wrong = [line for line in lines if not re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*==[0-9][0-9a-z.]*", line)]
    assert wrong == []


def host_trees() -> list[tuple[str, ast.Module]]:
    sources = member("sandport").source.rglob("*.py")
    return [(relative(path), ast.parse(path.read_text(encoding="utf-8"))) for path in sorted(sources)]


def imported_modules(tree: ast.Module) -> set[str]:
    """Each module that a file imports, whole or from."""
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.add(node.module)
            found.update(f"{node.module}.{alias.name}" for alias in node.names)
    return found


def test_the_host_reads_metadata_itself_and_loads_no_entry_point() -> None:
    """Loading one would run a provider's code in the host; importlib.metadata alone costs 45 ms of each start."""
    banned = {"importlib.metadata", "importlib_metadata", "pkg_resources"}
    trees = host_trees()
    assert trees
    found = [f"{name}: {module}" for name, tree in trees for module in imported_modules(tree) & banned]
    found += [
        f"{name}:{node.lineno}: {node.id}"
        for name, tree in trees
        for node in ast.walk(tree)
        if isinstance(node, ast.Name) and node.id in {"EntryPoint", "entry_points"}
    ]
    assert found == []


def without_docstrings(tree: ast.Module) -> list[ast.AST]:
    """Every node but the strings that stand alone: a docstring may explain what code must not do."""
    prose = {
        node.value
        for node in ast.walk(tree)
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
    }
    return [node for node in ast.walk(tree) if node not in prose]


def words_of(node: ast.AST) -> list[str]:
    """The names and strings that one node brings into the code."""
    match node:
        case ast.Constant(value=str(text)):
            return [text]
        case ast.Name(id=name) | ast.Attribute(attr=name) | ast.arg(arg=name) | ast.keyword(arg=str(name)):
            return [name]
        case ast.ClassDef(name=name) | ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
            return [name]
        case ast.ImportFrom(module=str(module)):
            return [module]
        case ast.alias(name=name, asname=asname):
            return [name, asname or ""]
        case _:
            return []


@pytest.mark.parametrize("vendor", VENDORS)
def test_the_hosts_code_knows_no_vendor(vendor: str) -> None:
    found = [
        f"{name}: {word!r}"
        for name, tree in host_trees()
        for node in without_docstrings(tree)
        for word in words_of(node)
        # A word of its own, or a part of a longer name: not the end of a hash's.
        if re.search(rf"(?<![a-z]){vendor}|{vendor}(?=_)", word.lower())
    ]
    assert found == []
