"""`sandport provider new`: what it writes works, is the example, and takes no other place than its own."""

import json
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from sandport.cli import provider_example, provider_scaffold
from sandport.errors import UsageError
from tests.integration.command import Command


def files_below(folder: Path) -> dict[str, str]:
    return {str(path.relative_to(folder)): path.read_text() for path in folder.rglob("*") if path.is_file()}


def worker_of(folder: Path, module: str) -> list[str]:
    return ["env", f"PYTHONPATH={folder / 'src'}", sys.executable, "-P", "-m", module]


def test_the_template_is_the_example_as_it_is() -> None:
    assert provider_example.TEMPLATE.read_text(encoding="utf-8") == provider_example.rendered()


def test_with_the_names_of_the_example_the_example_comes_out(tmp_path: Path) -> None:
    made = provider_scaffold.make("hello", str(tmp_path / "new"))
    written = files_below(tmp_path / "new")
    assert sorted(written) == sorted(made.files)
    programs = [path for path in written if path.endswith(".py")]
    assert len(programs) >= 8
    for path in programs:
        assert written[path] == (provider_example.EXAMPLE / path).read_text(), path
    for path, text in written.items():
        assert re.search("@[a-z]+@", path + text) is None, path
        assert "../" not in text, path


def test_a_new_provider_says_what_comes_next_and_runs_with_the_host(sandport: Command) -> None:
    made = sandport("provider", "new", "acme-gpu", "--folder", "a place")
    assert (made.code, made.err) == (0, "")
    folder = sandport.cwd / "a place"
    assert made.out.decode().splitlines()[0] == (
        f"{folder} is there: {len(files_below(folder))} files, a provider called acme-gpu that works."
    )
    for line in ("cd 'a place'", "sandport-conformance run --level L4 -- python -P -m acme_gpu_provider"):
        assert f"  {line}\n" in made.out.decode()
    project = tomllib.loads((folder / "pyproject.toml").read_text())["project"]
    assert project["name"] == "sandport-provider-acme-gpu"
    assert project["entry-points"]["sandport.providers"] == {"acme-gpu": "acme_gpu_provider"}
    words = json.dumps(worker_of(folder, "acme_gpu_provider"))
    (sandport.cwd / "sandport.toml").write_text(f"version = 1\n[providers.acme-gpu]\ncommand = {words}\n")
    told = sandport("--config", "sandport.toml", "run", "-p", "acme-gpu", "--", "echo", "hello")
    assert (told.code, told.out) == (0, b"hello\n"), told.err


@pytest.mark.slow
def test_the_first_commit_of_a_new_provider_keeps_the_first_three_levels(tmp_path: Path) -> None:
    folder = tmp_path / "acme"
    provider_scaffold.make("acme", str(folder))
    kit = [
        sys.executable,
        "-m",
        "sandport_conformance",
        "run",
        "--level",
        "L2",
        "--",
        *worker_of(folder, "acme_provider"),
    ]
    judged = subprocess.run(kit, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert judged.returncode == 0, judged.stdout
    assert "L0-L2 conformant" in judged.stdout


def test_json_has_the_names_the_files_and_the_next_commands(sandport: Command) -> None:
    made = sandport("provider", "new", "acme", "--json")
    assert made.code == 0
    told = made.object
    folder = sandport.cwd / "sandport-provider-acme"
    assert told["files"] == sorted(files_below(folder))
    assert told["next"][0] == "cd sandport-provider-acme"
    assert {key: told[key] for key in ("name", "folder", "distribution", "module")} == {
        "name": "acme",
        "folder": str(folder),
        "distribution": "sandport-provider-acme",
        "module": "acme_provider",
    }


@pytest.mark.parametrize("name", ["Acme", "1st", "a.b", "a--b", "a-", "../a", "ä", "a" * 65, ""])
def test_what_is_no_name_is_refused_with_the_rule(sandport: Command, name: str) -> None:
    done = sandport("provider", "new", name, "--json")
    assert done.code == 2
    assert done.object["error"]["condition"] == "UsageError"
    assert "is no name for a provider" in done.err
    assert list(sandport.cwd.iterdir()) == []


def test_a_name_that_is_installed_is_refused(sandport: Command) -> None:
    done = sandport("provider", "new", "local")
    assert done.code == 2
    assert "a provider called 'local' is installed already, by sandport-provider-local" in done.err
    assert list(sandport.cwd.iterdir()) == []


def test_a_name_whose_distribution_is_installed_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`a_b` and `a-b` would be one distribution: installing the second would take the first away without a word."""
    metadata = tmp_path / "sandport_provider_a_b-0.1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: sandport-provider-a-b\nVersion: 0.1.0\n")
    (metadata / "entry_points.txt").write_text("[sandport.providers]\na_b = a_b_provider\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(
        UsageError, match="'a_b' is installed by sandport-provider-a-b, which 'a-b' would be called too"
    ):
        provider_scaffold.names_of("a-b")
    with pytest.raises(UsageError, match="a provider called 'a_b' is installed already"):
        provider_scaffold.names_of("a_b")
    assert provider_scaffold.names_of("a-c")["distribution"] == "sandport-provider-a-c"


def test_a_place_that_is_taken_stays_as_it_is(sandport: Command) -> None:
    taken = sandport.cwd / "taken"
    taken.mkdir()
    os.symlink("nowhere", sandport.cwd / "dangling")
    for folder in ("taken", "dangling", "."):
        done = sandport("provider", "new", "acme", "--folder", folder)
        assert done.code == 2
        assert f"{folder} is there already; nothing was written" in done.err
    assert list(taken.iterdir()) == []
    missing = sandport("provider", "new", "acme", "--folder", "no/such")
    assert missing.code == 2
    assert "no is no folder that is there" in missing.err
    assert sorted(path.name for path in sandport.cwd.iterdir()) == ["dangling", "taken"]


def test_the_group_has_help_with_examples(sandport: Command) -> None:
    for words in (["provider"], ["provider", "new"]):
        done = sandport(*words, "--help")
        assert done.code == 0
        assert "Examples:\n  sandport provider new acme\n" in done.out.decode()
