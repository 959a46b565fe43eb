"""`sandport provider add` and `remove`: a worker in any language, by one command, in the user's own file."""

import shutil
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

from host.tests.test_cli_providers import WORKER as LOTUS
from sandport.cli.provider_command import startable
from sandport.errors import UsageError
from tests.integration.command import Command
from tests.integration.stage import ROOT

WORKER = ROOT / "examples" / "stdlib_worker" / "worker.py"


def own(sandport: Command) -> Path:
    return sandport.folder / ".config" / "sandport" / "sandport.toml"


def table(sandport: Command) -> dict[str, Any]:
    return tomllib.loads(own(sandport).read_text())


def test_whoever_wrote_a_worker_runs_a_command_with_it_after_one_command(sandport: Command) -> None:
    shutil.copy(WORKER, sandport.cwd / "worker.py")
    sandport.configure("# mine\n[host]\nplugins = [] # none\n")
    done = sandport("provider", "add", "mine", "--env", "MINE_TOKEN", "--", sys.executable, "worker.py")
    assert (done.code, done.err) == (0, "")
    command = [sys.executable, str(sandport.cwd / "worker.py")]
    assert table(sandport)["providers"] == {"mine": {"command": command, "env": ["MINE_TOKEN"]}}
    assert own(sandport).read_text().startswith("version = 1\n# mine\n[host]\nplugins = [] # none\n")
    told = done.out.decode()
    assert "said hello: kill group" in told
    assert "as in: sandport run -p mine -- COMMAND\n" in told

    done = sandport("run", "-q", "-p", "mine", "--", "echo", "hello", cwd=sandport.folder)
    assert (done.code, done.out) == (0, b"hello\n")

    done = sandport("provider", "remove", "mine", "--json")
    assert (done.code, done.object) == (
        0,
        {"removed": "mine", "source": str(own(sandport)), "environments": [], "leases": []},
    )
    assert table(sandport) == {"version": 1, "host": {"plugins": []}}
    sandport.nothing_is_left()


def test_what_needs_a_provider_is_named_before_it_is_removed(sandport: Command) -> None:
    words = ("provider", "add", "mine", "--json", "--", sys.executable, "-P", "-m", "sandport_provider_local")
    added = sandport(*words).object
    assert added["provider"] == {
        "name": "mine",
        "command": [*words[5:]],
        "grants": [],
        "source": str(own(sandport)),
    }
    assert added["hello"]["name"] == "local"
    assert sandport("env", "add", "ci", "-p", "mine", "-c", "isolation=none").code == 0
    assert sandport("run", "-q", "-e", "ci", "--keep", "--name", "box", "--", "true").code == 0
    before = own(sandport).read_bytes()
    done = sandport("provider", "remove", "mine")
    assert (done.code, done.lines) == (
        2,
        [
            "sandport: mine: is in use",
            "          nobody could end its sandboxes without it; end them first: sandport leases end box",
            "          these environments are of no use without it: ci",
            "          to remove it all the same: add --yes",
        ],
    )
    assert own(sandport).read_bytes() == before
    assert sandport("leases", "end", "box").code == 0
    assert sandport("env", "remove", "ci").code == 0
    assert sandport("provider", "remove", "mine").code == 0
    sandport.nothing_is_left()


def test_variables_that_a_worker_reads_and_does_not_get_are_told(sandport: Command) -> None:
    (sandport.cwd / "lotus.py").write_text(LOTUS)
    env = {"LOTUS_TOKEN": "t", "LOTUS_REGION": "r"}
    words = ("provider", "add", "lotus", "--env", "LOTUS_REGION", "--", sys.executable, "lotus.py")
    done = sandport(*words, env=env)
    assert (done.code, done.lines) == (
        0,
        [
            "sandport: lotus reads variables that are set here and were not granted: LOTUS_TOKEN",
            "          to grant them: sandport provider remove lotus, and add it with --env LOTUS_TOKEN",
        ],
    )


@pytest.mark.parametrize(
    ("words", "code", "complaint"),
    [
        (["Mine", "--", "sh"], 2, "Mine: a provider's name has lower-case letters"),
        (["mine"], 2, "add: there is no command\n          as in: sandport provider add mine -- node worker.js"),
        (["mine", "--", ""], 2, "add: there is no command"),
        (["mine", "--", "worker.txt"], 2, "there is no program 'worker.txt' here or on PATH that may be run"),
        (["mine", "--env", "1=1", "--", "sh"], 2, "--env 1=1: is not a variable's name"),
        (["there", "--", "sh"], 2, "has [providers.there] already; remove that first"),
        (["local", "--", "sh"], 2, "local: sandport-provider-local installs a provider of this name"),
        (["mine", "--", "sh", "-c", "echo no licence >&2; exit 3"], 125, "exited with code 3 before it was ready"),
    ],
)
def test_what_does_not_say_hello_is_not_written_down(
    sandport: Command, words: list[str], code: int, complaint: str
) -> None:
    (sandport.cwd / "worker.txt").write_text("no program\n")
    sandport.configure('[providers.there]\ncommand = ["true"]\n')
    before = own(sandport).read_bytes()
    done = sandport("provider", "add", *words)
    assert (done.code, done.out) == (code, b"")
    assert complaint in done.err
    assert "Traceback" not in done.err
    assert own(sandport).read_bytes() == before


@pytest.mark.parametrize(
    ("name", "complaint"),
    [
        ("mien", "mien: sandport.toml has no such provider; did you mean 'mine'?; there are: mine"),
        ("local", "local: is installed, and no command of yours; as in: pip uninstall sandport-provider-local"),
    ],
)
def test_what_is_not_there_is_not_removed(sandport: Command, name: str, complaint: str) -> None:
    sandport.configure('[providers.mine]\ncommand = ["true"]\n')
    done = sandport("provider", "remove", name, "--json")
    assert (done.code, done.object["error"]["condition"]) == (2, "ProviderUnknown")
    assert complaint in done.err


def test_what_a_command_names_here_is_written_with_its_whole_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker is started from `/`; what only looks like a path stays what it is."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "sub").mkdir()
    for name in ("worker.js", "sub/data"):
        (tmp_path / name).write_text("")
    (tmp_path / "tool").write_text("#!/bin/sh\n")
    (tmp_path / "tool").chmod(0o755)
    shell = shutil.which("sh")
    for words, whole in (
        (["sh", "worker.js"], [shell, f"{tmp_path}/worker.js"]),
        (
            ["./tool", "sub", "./sub", ".", "sub/data"],
            [f"{tmp_path}/tool", "sub", f"{tmp_path}/sub", f"{tmp_path}", f"{tmp_path}/sub/data"],
        ),
        (["sh", "-c", "worker.js --x", "/no/such", "--file=worker.js"], None),
        (["sh", "-m", "worker", "http://a/b", "", "-"], None),
    ):
        assert list(startable(words)) == ([shell, *words[1:]] if whole is None else whole)
    with pytest.raises(UsageError, match="not UTF-8"):
        startable(["sh", "\udcff"])
    with pytest.raises(UsageError, match=r"no program 'worker\.js'"):
        startable(["worker.js"])
