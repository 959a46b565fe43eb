"""Help, version and completions: complete, and cheap."""

import os
import subprocess
import sys

import pytest

from sandport import __version__
from sandport.cli.application import COMMANDS
from tests.integration.command import Command

# Each of these costs more than everything that a page of help needs.
HEAVY = {"aiosqlite", "anyio", "asyncio", "importlib.metadata", "rich", "sqlite3", "structlog"}


MODULES_AFTER = """
import sys
from sandport.cli import main
code = main(sys.argv[1:])
sys.stderr.write(" ".join(sys.modules))
sys.exit(code)
"""


def modules_after(*words: str) -> set[str]:
    """What a fresh interpreter holds after the command."""
    done = subprocess.run(
        [sys.executable, "-P", "-c", MODULES_AFTER, *words], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return set(done.stderr.split())


BELOW = (
    "env list",
    "env show",
    "env add",
    "env remove",
    "env probe",
    "provider new",
    "provider add",
    "provider remove",
    "leases list",
    "leases show",
    "leases end",
    "sync in",
    "sync out",
)


@pytest.mark.parametrize(
    "words",
    [
        ["--help"],
        ["--version"],
        *([name, "--help"] for name in COMMANDS),
        *([*name.split(), "--help"] for name in BELOW),
    ],
    ids=" ".join,
)
def test_help_imports_nothing_that_costs_its_start(words: list[str]) -> None:
    loaded = modules_after(*words)
    assert "click" in loaded
    assert HEAVY & loaded == set()


def test_a_list_of_providers_starts_no_loop_and_draws_no_table_into_a_pipe() -> None:
    loaded = modules_after("providers")
    assert HEAVY & loaded == set()
    assert {name for name in loaded if name.startswith(("sandport_provider", "sandport_sdk"))} == set()


def test_the_list_of_commands_is_what_there_is(sandport: Command) -> None:
    done = sandport("--help")
    assert done.code == 0
    text = done.out.decode()
    for name in COMMANDS:
        assert f"  {name} " in text
    for absent in ("secrets", "serve"):
        assert f"  {absent} " not in text


@pytest.mark.parametrize("name", [*COMMANDS, *BELOW])
def test_every_command_has_help_with_examples(sandport: Command, name: str) -> None:
    for word in ("--help", "-h"):
        done = sandport(*name.split(), word)
        assert done.code == 0
        assert f"Usage: sandport {name}" in done.out.decode()
        assert f"Examples:\n  sandport {name}" in done.out.decode()
        assert "--debug" in done.out.decode()


def test_without_a_word_the_help_is_shown(sandport: Command) -> None:
    done = sandport()
    assert (done.code, done.out) == (2, b"")
    assert done.err.startswith("Usage: sandport")


def test_the_version_is_told(sandport: Command) -> None:
    assert sandport("--version").out.decode() == f"sandport {__version__}\n"


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_shell_gets_its_completions(sandport: Command, shell: str) -> None:
    done = sandport(env={"_SANDPORT_COMPLETE": f"{shell}_source"})
    assert done.code == 0
    assert b"_SANDPORT_COMPLETE" in done.out


def complete(sandport: Command, line: str) -> list[str]:
    words = line.split(" ")
    env = {"_SANDPORT_COMPLETE": "bash_complete", "COMP_WORDS": line, "COMP_CWORD": str(len(words) - 1)}
    return [answer.partition(",")[2] for answer in sandport(env=env).out.decode().split()]


def test_commands_providers_and_environments_are_completed(sandport: Command) -> None:
    sandport.configure('[providers.lotus]\ncommand = ["x"]\n[environments.ci]\nprovider = "lotus"\n')
    assert complete(sandport, "sandport ru") == ["run"]
    assert complete(sandport, "sandport run -p lo") == ["local", "lotus"]
    for line in ("run -e", "shell -e", "env show", "env probe", "env remove"):
        assert complete(sandport, f"sandport {line} c") == ["ci"]
    assert complete(sandport, "sandport provider remove ") == ["lotus"]
    assert complete(sandport, "sandport leases --state en") == ["ending", "ended"]
    assert "--timeout" in complete(sandport, "sandport run --t")
    assert {"--exclude", "--expose"} == set(complete(sandport, "sandport run --ex"))
    assert complete(sandport, "sandport sync o") == ["out"]
    assert "--delete" in complete(sandport, "sandport sync out --d")


def test_the_file_that_the_line_names_is_the_one_that_is_completed_from(sandport: Command) -> None:
    sandport.configure('[environments.ci]\nprovider = "local"\n')
    (sandport.cwd / "other.toml").write_text('version = 1\n[environments.cx]\nprovider = "local"\n')
    for line in ("--config other.toml run", "run --config other.toml", "run --config=other.toml"):
        assert complete(sandport, f"sandport {line} -e c") == ["cx"], line


def test_bash_itself_completes(sandport: Command) -> None:
    """What it is given as a script, in a bash that is not at a terminal."""
    sandport.configure('[providers.lotus]\ncommand = ["x"]\n[environments.ci]\nprovider = "lotus"\n')
    script = """
eval "$(_SANDPORT_COMPLETE=bash_source sandport)"
complete -p sandport
for line in "sandport env probe c" "sandport run -p lo" "sandport provider re"; do
    COMPREPLY=() COMP_WORDS=($line)
    COMP_CWORD=$((${#COMP_WORDS[@]} - 1))
    _sandport_completion sandport
    echo "${COMPREPLY[@]}"
done
"""
    done = subprocess.run(["bash", "-c", script], env=sandport.env, capture_output=True, text=True, check=False)
    assert done.stdout.splitlines() == [
        "complete -o nosort -F _sandport_completion sandport",
        "ci",
        "local lotus",
        "remove",
    ], done.stderr


@pytest.mark.parametrize("line", ["run -p l", "run -e c", "exec b", "leases --state e"])
def test_a_completion_starts_nothing_and_is_cheap(sandport: Command, line: str) -> None:
    """No loop, no worker, no state; what it imports decides how long it takes."""
    words = ["sandport", *line.split()]
    env = sandport.env | {
        "_SANDPORT_COMPLETE": "bash_complete",
        "COMP_WORDS": " ".join(words),
        "COMP_CWORD": str(len(words) - 1),
    }
    done = subprocess.run(
        [sys.executable, "-P", "-c", MODULES_AFTER], env=env, capture_output=True, text=True, check=False
    )
    assert (HEAVY - {"sqlite3"}) & set(done.stderr.split()) == set()
    assert "sandport.cli.completion" in done.stderr
    assert not sandport.home.exists()


def test_a_broken_file_does_not_disturb_a_completion(sandport: Command) -> None:
    sandport.configure("nonsense")
    assert complete(sandport, "sandport run -p lo") == ["local"]


def test_help_into_a_closed_pipe_is_no_fault(sandport: Command) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    done = sandport("run", "--help", stdout=writer)
    os.close(writer)
    assert (done.code, done.err) == (141, "")
