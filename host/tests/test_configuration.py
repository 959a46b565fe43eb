"""sandport.toml: where it is found, what it may say, and how it says what is wrong."""

import os
import re
from pathlib import Path

import pytest

from sandport.configuration import Configuration, load
from sandport.errors import ConfigurationInvalid, EnvironmentUnknown


def write(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def read(tmp_path: Path, text: str, *, version: str = "version = 1") -> Configuration:
    return load(write(tmp_path / "sandport.toml", f"{version}\n{text}"))


WHOLE = """
version = 1

[host.timing]
close_grace_s = 20
stop = { drain_s = 2.5 }

[providers.acme]
command = ["/opt/acme/bin/worker", "--quiet"]
env = ["ACME_TOKEN"]
limits = { wedge_ms = 60000, in_flight = 16 }

[environments.ci]
provider = "acme"
config = { image = "python:3.13", sizes = [1, 2.5], nested = { on = true } }
env = { PYTHONDONTWRITEBYTECODE = "1" }
"""


def test_a_whole_file_is_read(tmp_path: Path) -> None:
    found = load(write(tmp_path / "mine.toml", WHOLE))
    assert found.host.timing.close_grace_s == 20.0
    assert found.host.timing.stop.drain_s == 2.5
    assert found.host.timing.stop.term_s == 2.0
    acme = found.providers["acme"]
    assert acme.command == ("/opt/acme/bin/worker", "--quiet")
    assert acme.env == ("ACME_TOKEN",)
    assert (acme.limits.wedge_ms, acme.limits.in_flight, acme.limits.heartbeat_ms) == (60_000, 16, 5_000)
    ci = found.environment("ci")
    assert ci.provider == "acme"
    assert ci.config == {"image": "python:3.13", "sizes": [1, 2.5], "nested": {"on": True}}
    assert ci.env == {"PYTHONDONTWRITEBYTECODE": "1"}
    assert found.sources == (tmp_path / "mine.toml",)


WRONG = [
    ("[host.timing]\nclose_grace = 3", "host.timing.close_grace: unknown key; did you mean 'close_grace_s'?"),
    ("[provider.x]", "provider: unknown key; did you mean 'providers'?"),
    ('[providers.x]\ncomand = ["a"]', "providers.x.comand: unknown key; did you mean 'command'?"),
    (
        "[providers.x]\nzzz = 1",
        "providers.x.zzz: unknown key; there is: command, creates_at_once, env, isolation, limits",
    ),
    ("[providers.x.limits]\nwedge_s = 3", "providers.x.limits.wedge_s: unknown key; did you mean 'wedge_ms'?"),
    ('[environments."a.b"]\nprovidr = "x"', "environments.\"a.b\".providr: unknown key; did you mean 'provider'?"),
    ('[providers.x]\ncommand = "run me"', "providers.x.command: expected a list, not a string"),
    ('[providers.x]\ncommand = ["a", 3]', "providers.x.command: expected a string, not a whole number (in [1])"),
    ("[providers.x]\ncommand = []", "providers.x.command: expected a program and its arguments"),
    ('[providers.x]\ncommand = ["./w"]', "providers.x.command: './w' should be an absolute path"),
    ('[providers.x]\ncommand = ["a\\u0000"]', "providers.x.command: a NUL byte"),
    ('[providers.x]\nenv = ["A=1"]', "providers.x.env: 'A=1' is not a variable's name"),
    ("[providers.X]", "providers.X: a provider's name has lower-case letters"),
    ("[providers]\nx = 3", "providers.x: expected a table, not the number 3"),
    ("[providers.x.limits]\nwedge_ms = 0", "providers.x.limits.wedge_ms: expected a number above 0, not 0"),
    ("[providers.x.limits]\nwedge_ms = 1.5", "providers.x.limits.wedge_ms: expected a whole number, not a number"),
    ("[host.timing]\ncall_s = true", "host.timing.call_s: expected a number, not true or false"),
    ("[host.timing]\ncall_s = inf", "host.timing.call_s: expected a number above 0, not inf"),
    ("[host.timing]\ncall_s = -1", "host.timing.call_s: expected a number above 0, not -1"),
    ("host = 3", "host: expected a table, not the number 3"),
    ("[environments.x]", "environments.x.provider: is missing"),
    ("[environments.x]\nprovider = 3", "environments.x.provider: expected a string, not a whole number"),
    ('[environments.x]\nprovider = "A B"', "environments.x.provider: 'A B' is not a provider's name"),
    ('[environments.x]\nprovider = "p"\nconfig.day = 2024-01-01', "environments.x.config.day: a provider's config is"),
    ('[environments.x]\nprovider = "p"\nconfig.a = [1, nan]', "environments.x.config.a[1]: nan does not fit"),
    ('[environments.x]\nprovider = "p"\nconfig.a = 99999999999999999999', "does not fit a number of JSON"),
    ('[environments.x]\nprovider = "p"\nenv = { A = 1 }', "environments.x.env: expected a string, not a whole number"),
    ('[environments.x]\nprovider = "p"\nenv = { "A-B" = "1" }', "environments.x.env: 'A-B' is not a variable's name"),
    ('[environments.x]\nprovider = "p"\nenv = { A = "\\u0000" }', "environments.x.env.A: a NUL byte"),
    ('[environments."a b"]\nprovider = "p"', "an environment's name has letters"),
    ("[environments.x\n", "is not TOML"),
    ("x = " + "[" * 5000, "nested too deeply"),
]


@pytest.mark.parametrize(("text", "complaint"), WRONG, ids=[complaint[:50] for _, complaint in WRONG])
def test_a_fault_is_named_with_the_file_the_path_and_what_would_be_right(
    tmp_path: Path, text: str, complaint: str
) -> None:
    with pytest.raises(ConfigurationInvalid) as caught:
        read(tmp_path, text)
    message = str(caught.value)
    assert complaint in message
    assert message.startswith(f"{tmp_path / 'sandport.toml'}: ")
    assert len(message.splitlines()) <= 2


@pytest.mark.parametrize(
    ("version", "complaint"),
    [
        ("", "version: is missing; write version = 1"),
        ("version = 2", "version: 2 is newer than 1"),
        ("version = true", "version: expected the number 1, not true"),
        ('version = "1"', "version: expected the number 1, not a string"),
    ],
)
def test_the_files_own_version_is_checked_first(tmp_path: Path, version: str, complaint: str) -> None:
    with pytest.raises(ConfigurationInvalid, match=re.escape(complaint)):
        read(tmp_path, "unknown_from_the_future = 1", version=version)


def test_a_file_that_is_not_utf8_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "sandport.toml"
    path.write_bytes(b"version = 1 # \xff")
    with pytest.raises(ConfigurationInvalid, match="is not UTF-8"):
        load(path)


def test_a_fifo_under_the_files_name_is_refused_and_does_not_hang(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "sandport.toml")
    with pytest.raises(ConfigurationInvalid, match="not a regular file"):
        load(environ={}, cwd=tmp_path)


def test_a_huge_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "sandport.toml"
    with path.open("wb") as file:
        file.truncate(2 * 1024 * 1024)
    with pytest.raises(ConfigurationInvalid, match="larger than 1024 KiB"):
        load(path)


# ------------------------------------------------------------------ where it is found


def environment(name: str) -> str:
    return f'version = 1\n[environments.{name}]\nprovider = "p"\n'


def test_without_any_file_everything_has_its_default(tmp_path: Path) -> None:
    assert load(environ={"HOME": str(tmp_path)}, cwd=tmp_path) == Configuration()


def test_a_named_file_is_the_only_one(tmp_path: Path) -> None:
    write(tmp_path / "home" / ".config" / "sandport" / "sandport.toml", environment("own"))
    write(tmp_path / "cwd" / "sandport.toml", environment("found"))
    variable = write(tmp_path / "variable.toml", environment("variable"))
    named = write(tmp_path / "named.toml", environment("named"))
    environ = {"HOME": str(tmp_path / "home"), "SANDPORT_CONFIG": str(variable)}
    assert set(load(named, environ=environ, cwd=tmp_path / "cwd").environments) == {"named"}


def test_the_variable_comes_before_the_users_own_file(tmp_path: Path) -> None:
    write(tmp_path / ".config" / "sandport" / "sandport.toml", environment("own"))
    variable = write(tmp_path / "variable.toml", environment("variable"))
    environ = {"HOME": str(tmp_path), "SANDPORT_CONFIG": str(variable)}
    assert set(load(environ=environ, cwd=tmp_path).environments) == {"variable"}
    environ["SANDPORT_CONFIG"] = ""
    assert set(load(environ=environ, cwd=tmp_path).environments) == {"own"}


def test_the_users_own_file_is_where_xdg_says(tmp_path: Path) -> None:
    write(tmp_path / "xdg" / "sandport" / "sandport.toml", environment("own"))
    environ = {"HOME": str(tmp_path), "XDG_CONFIG_HOME": str(tmp_path / "xdg")}
    assert set(load(environ=environ, cwd=tmp_path).environments) == {"own"}


@pytest.mark.parametrize("by_variable", [False, True])
def test_a_named_file_that_is_missing_is_an_error(tmp_path: Path, by_variable: bool) -> None:
    absent = tmp_path / "absent.toml"
    environ = {"SANDPORT_CONFIG": str(absent)} if by_variable else {}
    with pytest.raises(ConfigurationInvalid, match=r"absent\.toml: no such file \(named by (--config|\$SANDPORT)"):
        load(None if by_variable else absent, environ=environ, cwd=tmp_path)


def test_a_file_in_the_current_folder_adds_environments(tmp_path: Path) -> None:
    own = write(tmp_path / ".config" / "sandport" / "sandport.toml", environment("own"))
    found = write(tmp_path / "repo" / "sandport.toml", environment("found"))
    loaded = load(environ={"HOME": str(tmp_path)}, cwd=tmp_path / "repo")
    assert set(loaded.environments) == {"own", "found"}
    assert loaded.sources == (own, found)


@pytest.mark.parametrize(
    ("section", "path"),
    [
        ('[providers.x]\ncommand = ["/bin/sh"]', "providers.x"),
        ('[providers.local]\nenv = ["AWS_SECRET_ACCESS_KEY"]', "providers.local"),
        ("[host.timing]\nclose_grace_s = 1", "host.timing"),
        ("providers = 3", "providers"),
    ],
)
def test_a_cloned_repository_starts_no_programs_and_grants_no_variables(
    tmp_path: Path, section: str, path: str
) -> None:
    write(tmp_path / "sandport.toml", f"version = 1\n{section}\n")
    with pytest.raises(ConfigurationInvalid) as caught:
        load(environ={"HOME": str(tmp_path)}, cwd=tmp_path)
    assert f"sandport.toml: {path}: a file that was only found in the current folder" in str(caught.value)
    assert "--config" in str(caught.value)


def test_the_file_in_the_current_folder_is_trusted_when_it_is_named(tmp_path: Path) -> None:
    path = write(tmp_path / "sandport.toml", WHOLE)
    assert load(path, environ={}, cwd=tmp_path).providers["acme"].env == ("ACME_TOKEN",)
    assert load(environ={"SANDPORT_CONFIG": str(path)}, cwd=tmp_path).providers["acme"].env == ("ACME_TOKEN",)


def test_a_found_file_cannot_redefine_an_environment_of_the_user(tmp_path: Path) -> None:
    own = write(tmp_path / ".config" / "sandport" / "sandport.toml", environment("prod"))
    write(tmp_path / "repo" / "sandport.toml", environment("prod"))
    with pytest.raises(ConfigurationInvalid) as caught:
        load(environ={"HOME": str(tmp_path)}, cwd=tmp_path / "repo")
    assert f"environments.prod: {own} defines it too" in str(caught.value)


def test_an_unknown_environment_is_answered_with_the_nearest(tmp_path: Path) -> None:
    loaded = load(write(tmp_path / "c.toml", environment("staging")))
    with pytest.raises(EnvironmentUnknown, match=r"no environment 'stagin' .* did you mean 'staging'"):
        loaded.environment("stagin")
    with pytest.raises(EnvironmentUnknown, match=r"no sandport\.toml was found"):
        Configuration().environment("x")


def test_a_current_folder_that_was_deleted_has_no_settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    assert load(environ={"HOME": str(tmp_path)}) == Configuration()
