"""Wrong words of what copies files: the option and the fix are named, exit code 2, and nothing is started."""

from pathlib import Path

import msgspec
import pytest

from sandport.cli.application import invoke
from sandport.cli.interrupts import Interrupts
from sandport.cli.transfer import octal, size_bytes
from sandport.errors import UsageError

WRONG = [
    (["run", "--exclude", "[a", "--in", ".", "--", "true"], "--exclude '[a': this pattern can match nothing"),
    (["run", "--exclude", "./x", "--in", ".", "--", "true"], "--exclude './x': patterns are relative to the source"),
    (["run", "--exclude", "x", "--", "true"], "--exclude x: nothing is copied that it could leave something out of"),
    (["run", "--gitignore", "--out", "x", "--", "true"], "--gitignore: nothing is copied"),
    (["run", "--expose", "gone", "--", "true"], "--expose gone: there is no such folder here"),
    (["run", "--expose", ".", "-c", "expose=1", "--", "true"], "--expose: config expose is no list of directories"),
    (["sync", "in"], "Missing argument 'LEASE'"),
    (["sync", "in", "box"], "Missing argument 'LOCAL'"),
    (["sync", "out", "box"], "Missing argument 'REMOTE'"),
    (["sync", "in", "", "."], "the lease's id or name is empty"),
    (["sync", "in", "box", ""], "sync: LOCAL is empty; '.' is the folder itself"),
    (["sync", "in", "box", "gone"], "sync in: there is no 'gone' here"),
    (["sync", "in", "box", ".", "--mode", "0600"], "--mode 0600: is for a single file; '.' is a folder"),
    (["sync", "in", "box", ".", "--mode", "755"], "--mode 755: write it in octal with a leading 0, as in --mode 0755"),
    (["sync", "out", "box", "x", "--mode", "0888"], "--mode 0888: expected permission bits in octal"),
    (["sync", "out", "box", "x", "--mode", "07777"], "--mode 07777: expected permission bits in octal"),
    (["sync", "in", "box", ".", "--replace", "--delete"], "--replace and --delete: give one of them"),
    (["sync", "in", "box", ".", "-q", "-v"], "-q and -v: give one of them"),
    (["sync", "out", "box", ".."], "say where to put it, as in sandport sync out box .. LOCAL"),
    (["sync", "out", "box", ".", "--delete"], "--delete: would empty the current folder; say where to"),
    (["sync", "out", "box", "x", "--max-bytes", "much"], "--max-bytes much: expected a number of bytes above 0"),
    (["sync", "out", "box", "x", "--max-entries", "0"], "--max-entries 0: expected a number above 0"),
    (["sync", "in", "box", ".", "--max-bytes", "1"], "No such option '--max-bytes'"),
    (["sync", "out", "box", ".", "--follow-symlinks"], "No such option '--follow-symlinks'"),
    (["sync", "round", "box", "."], "No such command 'round'"),
]


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "cwd").mkdir()
    monkeypatch.chdir(tmp_path / "cwd")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("SANDPORT_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("SANDPORT_CONFIG", raising=False)
    return tmp_path / "home"


@pytest.mark.parametrize(("words", "complaint"), WRONG, ids=[" ".join(words) for words, _ in WRONG])
def test_a_wrong_word_is_named_with_the_fix_and_nothing_is_started(
    words: list[str], complaint: str, home: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert invoke(words, Interrupts()) == 2
    out, err = capfd.readouterr()
    assert (out, err[:10]) == ("", "sandport: ")
    assert complaint in err
    assert 1 <= len(err.splitlines()) <= 2
    assert not home.exists()


def test_json_has_its_object_whatever_is_wrong(capfd: pytest.CaptureFixture[str]) -> None:
    for words in (["in", "box", "gone"], ["out", "box"], ["in", "box", ".", "--mode", "755"]):
        assert invoke(["sync", *words, "--json"], Interrupts()) == 2
        found = msgspec.json.decode(capfd.readouterr().out)
        assert (found["code"], found["codeFrom"], found["error"]["condition"]) == (2, "sandport", "UsageError")
        assert found["moved"] == []


@pytest.mark.parametrize(("text", "mode"), [("0600", 0o600), ("0o755", 0o755), ("0", None), ("00", 0), ("0777", 0o777)])
def test_a_mode_is_written_in_octal(text: str, mode: int | None) -> None:
    """crewAIInc/crewAI#5756 and OpenSandbox's mode field: 755 taken as a decimal number."""
    if mode is None:
        with pytest.raises(UsageError, match="expected permission bits in octal"):
            octal("--mode", text)
    else:
        assert octal("--mode", text) == mode


@pytest.mark.parametrize("text", ["755", "644", "400"])
def test_a_mode_without_its_zero_is_refused_with_a_hint(text: str) -> None:
    with pytest.raises(UsageError, match=f"as in --mode 0{text}"):
        octal("--mode", text)


@pytest.mark.parametrize(
    ("text", "size"), [("1", 1), ("20G", 20 << 30), ("512k", 512 << 10), ("3MiB", 3 << 20), ("1tb", 1 << 40)]
)
def test_a_size_may_have_a_unit(text: str, size: int) -> None:
    assert size_bytes("--max-bytes", text) == size


def test_a_provider_that_shows_no_directories_is_asked_and_named(capfd: pytest.CaptureFixture[str]) -> None:
    assert invoke(["run", "-p", "fake", "--expose", ".", "--", "true"], Interrupts()) == 2
    assert "--expose .: provider 'fake' does not show directories" in capfd.readouterr().err
