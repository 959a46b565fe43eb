"""`sandport env`: environments of the user's own file, with a config that its provider has taken."""

import os
import stat
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

from sandport.cli.environments import in_normal_form
from tests.integration.command import Command


def own(sandport: Command) -> Path:
    return sandport.folder / ".config" / "sandport" / "sandport.toml"


def test_an_environment_is_added_shown_used_and_removed(sandport: Command) -> None:
    done = sandport("env")
    assert (done.code, done.out) == (0, b"")
    assert done.err == "sandport: there are no environments; as in: sandport env add ci -p local\n"
    words = ("-p", "local", "-c", "isolation=none", "-c", "network=false", "--env", 'A=it\'s "1"\\')
    done = sandport("env", "add", "ci", *words)
    assert (done.code, done.err) == (0, "")
    assert f"ci: added to {own(sandport)}" in done.out.decode()
    assert own(sandport).read_text() == (
        'version = 1\n\n[environments.ci]\nprovider = "local"\nconfig = { isolation = "none", network = false }\n'
        'env = { A = "it\'s \\"1\\"\\\\" }\n'
    )
    assert stat.S_IMODE(own(sandport).stat().st_mode) == 0o600
    assert os.listdir(own(sandport).parent) == ["sandport.toml"]

    found = sandport("env", "show", "ci", "--json").object
    assert found["environment"] == {
        "name": "ci",
        "provider": "local",
        "config": {"isolation": "none", "network": False},
        "variables": ["A"],
        "source": str(own(sandport)),
    }
    assert (found["validated"]["isolation"], found["validated"]["network"]) == ("none", False)
    assert (found["leases"], found["error"]) == ([], None)

    done = sandport("run", "-q", "-e", "ci", "--keep", "--name", "box", "--", "sh", "-c", 'echo "$A"')
    assert (done.code, done.out) == (0, b'it\'s "1"\\\n')
    text = sandport("env", "show", "ci").out.decode()
    assert "leases     box" in text
    assert '"1"' not in text
    done = sandport("env", "remove", "ci")
    assert done.code == 2
    assert done.err.startswith("sandport: ci: leases were made in it: box\n")
    done = sandport("env", "remove", "ci", "--yes", "--json")
    assert (done.code, done.object) == (0, {"removed": "ci", "source": str(own(sandport)), "leases": ["box"]})
    assert own(sandport).read_text() == "version = 1\n"
    assert sandport("leases", "end", "box").code == 0
    sandport.nothing_is_left()


def test_the_list_says_where_each_comes_from(sandport: Command) -> None:
    sandport.configure('[environments.mine]\nprovider = "local"\nenv = { SECRET = "hunter2" }\n')
    path = sandport.cwd / "sandport.toml"
    path.write_text('version = 1\n[environments.theirs]\nprovider = "fake"\nconfig = { a = 1 }\n')
    found: list[dict[str, Any]] = sandport("env", "list", "--json").object["environments"]
    assert [(one["name"], one["source"]) for one in found] == [("mine", str(own(sandport))), ("theirs", str(path))]
    head, *rows = sandport("env").out.decode().splitlines()
    assert head.split() == ["ENVIRONMENT", "PROVIDER", "CONFIG", "VARIABLES", "FROM"]
    assert [row.split() for row in rows] == [
        ["mine", "local", "-", "SECRET", str(own(sandport))],
        ["theirs", "fake", '{"a":1}', "-", str(path)],
    ]
    done = sandport("env", "remove", "theirs")
    assert (done.code, done.err.splitlines()[0]) == (
        2,
        f"sandport: theirs: is defined by {path}, which is not your own file; edit that, or name it with --config",
    )
    assert sandport("env", "remove", "theirs", "--config", path).code == 0
    assert tomllib.loads(path.read_text()) == {"version": 1}


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["new", "-p", "local", "-c", "isolation=high"], "config.isolation: "),
        (["new", "-p", "local", "-c", 'expose=["/usr/../etc"]'], "config.expose[0]: "),
        (["new", "-p", "lokal"], "no provider 'lokal' is installed or configured; did you mean 'local'?"),
        (["new", "-p", "Local"], "-p Local: is not a provider's name"),
        (["new", "-p", "local", "--env", "1=1"], "'1' is not a variable's name"),
        (["a b", "-p", "local"], "a b: an environment's name has letters"),
        (["new"], "Missing option '-p'"),
        (["ci", "-p", "local"], "defines it already; remove it first"),
    ],
)
def test_what_is_wrong_is_named_and_nothing_is_written(sandport: Command, words: list[str], complaint: str) -> None:
    sandport.configure('[environments.ci]\nprovider = "local"\n')
    before = own(sandport).read_bytes()
    done = sandport("env", "add", *words)
    assert (done.code, done.out) == (2, b"")
    assert complaint in done.err
    assert "Traceback" not in done.err
    assert own(sandport).read_bytes() == before


def test_an_environment_that_is_not_there_is_told_with_the_nearest(sandport: Command) -> None:
    sandport.configure('[environments.ci]\nprovider = "local"\n')
    for word in ("show", "remove"):
        done = sandport("env", word, "cci", "--json")
        assert (done.code, done.object["error"]["condition"]) == (2, "EnvironmentUnknown")
        assert "did you mean 'ci'?" in done.err


def test_one_that_its_provider_refuses_is_shown_all_the_same(sandport: Command) -> None:
    sandport.configure('[environments.ci]\nprovider = "local"\nconfig = { network = "yes" }\n')
    done = sandport("env", "show", "ci", "--json")
    assert (done.code, done.object["validated"], done.object["error"]["code"]) == (2, None, 2)
    assert "config.network: " in done.err
    assert done.object["environment"]["config"] == {"network": "yes"}


def test_a_file_that_cannot_be_edited_safely_stays_as_it_is(sandport: Command) -> None:
    sandport.configure('environments = { ci = { provider = "local" } }\n')
    before = own(sandport).read_bytes()
    done = sandport("env", "remove", "ci")
    assert (done.code, done.err.splitlines()[1].strip()) == (2, "remove [environments.ci] by hand")
    done = sandport("env", "add", "new", "-p", "local")
    assert (done.code, done.lines[1:]) == (
        2,
        ["          add it by hand:", "          [environments.new]", '          provider = "local"'],
    )
    assert own(sandport).read_bytes() == before


def test_a_linked_file_stays_linked_and_keeps_its_mode(sandport: Command) -> None:
    sandport.configure("# mine\n")
    real = sandport.folder / "dotfiles.toml"
    own(sandport).rename(real)
    own(sandport).symlink_to(real)
    real.chmod(0o644)
    assert sandport("env", "add", "ci", "-p", "local").code == 0
    assert own(sandport).is_symlink()
    assert stat.S_IMODE(real.stat().st_mode) == 0o644
    assert real.read_text().startswith("version = 1\n# mine\n")


def test_a_size_is_written_as_its_number_of_bytes(sandport: Command) -> None:
    assert sandport("env", "add", "big", "-p", "local", "-c", "memory_bytes=512M", "-c", "pids=100").code == 0
    assert tomllib.loads(own(sandport).read_text())["environments"]["big"]["config"] == {
        "memory_bytes": 512_000_000,
        "pids": 100,
    }
    done = sandport("env", "add", "odd", "-p", "local", "-c", "memory_bytes=much")
    assert (done.code, "-c memory_bytes=much: expected a number of bytes" in done.err) == (2, True)
    assert "odd" not in own(sandport).read_text()


def test_two_that_add_at_once_lose_nothing(sandport: Command) -> None:
    adding = [sandport.start("env", "add", name, "-p", "local") for name in ("one", "two")]
    for process in adding:
        out, err = process.communicate(timeout=60)
        assert process.returncode == 0, (out, err)
    assert set(tomllib.loads(own(sandport).read_text())["environments"]) == {"one", "two"}


def test_what_is_written_are_the_keys_that_were_given() -> None:
    given = {"a": "1", "b": {"c": 2, "secret": "x"}, "d": [1]}
    normal = {"a": 1, "b": {"c": 2, "e": 5}, "d": [1, None], "f": None}
    assert in_normal_form(given, normal) == {"a": 1, "b": {"c": 2, "secret": "x"}, "d": [1]}


def test_a_file_on_a_full_or_closed_disk_is_told(sandport: Command) -> None:
    (sandport.folder / ".config").mkdir()
    (sandport.folder / ".config" / "sandport").write_text("no folder")
    done = sandport("env", "add", "ci", "-p", "local")
    assert done.code == 2
    assert "Traceback" not in done.err
    assert len(done.lines) == 1


# ------------------------------------------------------------------ probing

# A whole worker whose checks its config decides; standard library only.
PICKY = """
import json, sys
METHODS = ["initialize", "ping", "shutdown", "validateConfig", "probe", "acquireLease", "attachLease", "listLeases",
           "destroyLease", "execute"]
def answer(method, params):
    config = params.get("config", {})
    if method == "initialize":
        return {"protocolVersion": 1, "provider": {"name": "picky", "version": "1", "displayName": "Picky"},
                "supportedMethods": METHODS, "capabilities": {"kill": "group", "expiry": "vendor", "egress": ["none"]}}
    if method == "validateConfig":
        if "quota" in config:
            return {"config": config | {"region": "eu"}}
        return {"issues": [{"field": "config.quota", "message": "is missing"}]}
    if method == "probe":
        quota = {"name": "quota", "ok": config["quota"] > 0, "detail": "\\x1b[2J"}
        return {"checks": [{"name": "credential", "ok": True}, quota], "without": ["process"]}
    return {}
for line in sys.stdin:
    message = json.loads(line)
    if "id" in message and "method" in message:
        result = answer(message["method"], message.get("params", {}))
        print(json.dumps({"jsonrpc": "2.0", "id": message["id"], "result": result}), flush=True)
    elif message.get("method") == "initialized":
        print(json.dumps({"jsonrpc": "2.0", "method": "ready"}), flush=True)
"""


def test_a_provider_is_asked_whether_an_environment_works(sandport: Command) -> None:
    worker = sandport.folder / "picky.py"
    worker.write_text(PICKY)
    sandport.configure(
        f'[providers.picky]\ncommand = ["{sys.executable}", "{worker}"]\n'
        '[environments.good]\nprovider = "picky"\nconfig = { quota = 1 }\n'
        '[environments.bad]\nprovider = "picky"\nconfig = { quota = 0 }\n'
        '[environments.wrong]\nprovider = "picky"\n'
    )
    done = sandport("env", "probe", "good", "--json")
    assert (done.code, done.err) == (0, "")
    assert (done.object["ok"], done.object["validated"]) == (True, {"quota": 1, "region": "eu"})
    assert [(one["name"], one["ok"]) for one in done.object["checks"]] == [("credential", True), ("quota", True)]
    assert (done.object["environment"]["name"], done.object["without"]) == ("good", ["process"])

    done = sandport("env", "probe", "bad")
    assert (done.code, done.lines) == (1, ["sandport: bad: provider picky finds 1 of 2 checks not well"])
    lines = done.out.decode().splitlines()
    assert [line.split()[:2] for line in lines[:4]] == [
        ["CHECK", "STATE"],
        ["config", "ok"],
        ["credential", "ok"],
        ["quota", "WRONG"],
    ]
    assert lines[4:] == ["this config takes away: process"]
    assert "\x1b" not in done.out.decode()

    done = sandport("env", "probe", "wrong", "--json")
    assert (done.code, done.object["error"]["condition"]) == (2, "ConfigurationInvalid")
    assert "config.quota: is missing" in done.err
    done = sandport("env", "probe", "gone")
    assert (done.code, done.err.startswith("sandport: there is no environment 'gone'")) == (2, True)
    worker.write_text("raise SystemExit(3)")
    assert sandport("env", "probe", "good").code == 125
    assert sandport.leases("--all") == []
