"""Wrong words: two lines that name the option and the fix, exit code 2, and nothing started."""

import pytest

from tests.integration.command import Command

WRONG = [
    (["run"], "there is no command"),
    (["run", "--"], "there is no command"),
    (["run", "--", ""], "there is no command"),
    (["run", "--timeout", "soon", "--", "true"], "--timeout soon: expected a number of seconds above 0"),
    (["run", "--timeout", "0", "--", "true"], "--timeout 0: expected"),
    (["run", "--timeout", "nan", "--", "true"], "--timeout nan: expected"),
    (["run", "--timeout", "1e300", "--", "true"], "--timeout 1e300: expected at most 315360000 seconds"),
    (["run", "--timeout", "inf", "--", "true"], "--timeout inf: expected at most"),
    (["run", "--ttl", "-1", "--", "true"], "--ttl -1: expected"),
    (["run", "--ttl", "5", "--timeout", "9", "--", "true"], "--ttl 5: the sandbox would end before --timeout 9"),
    (["run", "--env", "A", "--", "true"], "--env A: expected K=V"),
    (["run", "--env", "=1", "--", "true"], "--env =1: '' is not a variable's name"),
    (["run", "--env", "A-B=1", "--", "true"], "'A-B' is not a variable's name"),
    (["run", "-c", "network", "--", "true"], "-c network: expected KEY=VALUE"),
    (["run", "-c", "a\udcff=1", "--", "true"], "-c a\\xff=1: is not UTF-8"),
    (["run", "-c", "a=\udcff", "--", "true"], "-c a=\\xff: is not UTF-8"),
    (["run", "-p", "local", "-e", "x", "--", "true"], "-p and -e: give one of them"),
    (["run", "-q", "-v", "--", "true"], "-q and -v: give one of them"),
    (["run", "--in", "gone", "--", "true"], "--in gone: there is no 'gone' here"),
    (["run", "--out", "../x", "--", "true"], "--out ../x: '../x' is above the sandbox's working directory"),
    (["run", "--in", "/usr:../x", "--", "true"], "--in /usr:../x: '../x' is above the sandbox's working directory"),
    (["run", "--in", "/usr:/tmp/x", "--", "true"], "--in /usr:/tmp/x: '/tmp/x' is not below the sandbox's working"),
    (["exec", "box", "--out", "a/:/bin/sh", "--", "true"], "--out a/:/bin/sh: '/bin/sh' is a file here, and a folder"),
    (["run", "--out", ":x", "--", "true"], "--out :x: expected --out REMOTE[:LOCAL]"),
    (["run", "--stdin", "gone", "--", "true"], "--stdin gone: No such file or directory"),
    (["run", "--stdin", "/", "--", "true"], "--stdin /: is a directory"),
    (["run", "-e", "gone", "--", "true"], "there is no environment 'gone'"),
    (["run", "--name", "a b", "--", "true"], "--name a b: expected letters"),
    (["exec"], "Missing argument 'LEASE"),
    (["exec", "box"], "exec: there is no command"),
    (["exec", "box", "--"], "exec: there is no command"),
    (["exec", "", "--", "true"], "the lease's id or name is empty"),
    (["exec", "box", "--bogus", "--", "true"], "No such option '--bogus'"),
    (["exec", "box", "--timeout"], "'--timeout' requires an argument"),
    (["exec", "box", "--timeout", "x", "--", "true"], "--timeout x: expected"),
    (["leases", "shwo"], "No such command 'shwo'"),
    (["leases", "show"], "Missing argument 'LEASE'"),
    (["leases", "show", "x"], "there is no lease 'x'; nothing was ever leased here"),
    (["leases", "end"], "Missing argument 'LEASE...'"),
    (["reap", "--wait", "soon"], "--wait soon: expected a number of seconds"),
    (["reap", "--yes"], "--yes: belongs to --unknown"),
    (["reap", "--reason", "x"], "--reason: belongs to --forget"),
    (["reap", "--forget", "x"], "--forget x: say why, with --reason TEXT"),
    (["reap", "--forget", "x", "--reason", " "], "--forget x: say why, with --reason TEXT"),
    (["reap", "--forget", "x", "--reason", "y", "--unknown"], "--forget: goes alone"),
    (["reap", "--forget", "x", "--reason", "y"], "there is no lease 'x'"),
    (["run", "--bogus", "--", "true"], "No such option '--bogus'"),
    (["run", "--timeout"], "'--timeout' requires an argument"),
    (["rnu"], "No such command 'rnu'; did you mean 'run'?"),
    (["zzz"], "No such command 'zzz'\n"),
    (["--log-format", "xml", "providers"], "'xml' is not one of 'plain', 'json'"),
    (["--config", "gone.toml", "run", "--", "true"], "gone.toml: no such file (named by --config"),
    (["providers", "--config", "gone.toml"], "gone.toml: no such file (named by --config"),
    (["providers", "extra"], "no provider 'extra' is installed or configured; there are: fake, local"),
    (["providers", "local", "extra"], "unexpected extra argument (extra)"),
]


@pytest.mark.parametrize(("words", "complaint"), WRONG, ids=[" ".join(words) for words, _ in WRONG])
def test_a_wrong_word_is_named_with_the_fix_and_nothing_is_started(
    sandport: Command, words: list[str], complaint: str
) -> None:
    done = sandport(*words)
    assert (done.code, done.out) == (2, b"")
    assert complaint in done.err
    assert done.err.startswith("sandport: ")
    assert 1 <= len(done.lines) <= 2
    assert not sandport.home.exists()


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["-p", "gone"], "no provider 'gone' is installed or configured"),
        (["-p", "Not A Name"], "'Not A Name'"),
    ],
)
def test_an_unknown_provider_is_a_wrong_word(sandport: Command, words: list[str], complaint: str) -> None:
    done = sandport("run", *words, "--", "true")
    assert (done.code, done.out) == (2, b"")
    assert complaint in done.err
    assert len(done.lines) <= 2


def test_a_typing_error_in_the_settings_is_named_with_its_path(sandport: Command) -> None:
    sandport.configure('[environments.ci]\nprovidr = "local"\n')
    done = sandport("run", "-e", "ci", "--", "true")
    assert done.code == 2
    assert "sandport.toml: environments.ci.providr: unknown key; did you mean 'provider'?" in done.err
    assert len(done.lines) <= 2


def test_state_of_a_newer_version_is_refused(sandport: Command) -> None:
    sandport.home.mkdir(mode=0o700)
    (sandport.home / "version").write_text("99\n")
    done = sandport("run", "--", "true")
    assert done.code == 2
    assert "was written by a newer Sandport" in done.err
    assert "SANDPORT_HOME" in done.err


@pytest.mark.parametrize("words", [["--timeout", "x", "--", "true"], ["--bogus", "--", "true"], ["-p", "gone", "true"]])
def test_json_has_its_object_whatever_is_wrong(sandport: Command, words: list[str]) -> None:
    done = sandport("run", "--json", *words)
    found = done.object
    assert (done.code, found["code"], found["codeFrom"]) == (2, 2, "sandport")
    assert found["error"]["condition"] in {"UsageError", "ProviderUnknown"}
    assert found["error"]["dispatched"] == "no"
    assert found["error"]["message"]
    assert found["ended"] is None
    assert len(done.lines) <= 2


def test_a_json_of_the_programs_own_is_not_ours(sandport: Command) -> None:
    done = sandport("run", "--bogus", "--", "program", "--json")
    assert (done.code, done.out) == (2, b"")


def test_debug_shows_the_traceback(sandport: Command) -> None:
    done = sandport("run", "--debug", "--timeout", "x", "--", "true")
    assert done.code == 2
    assert "Traceback (most recent call last)" in done.err
    assert "--timeout x: expected" in done.err
