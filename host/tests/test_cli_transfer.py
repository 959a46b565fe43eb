"""--in LOCAL[:REMOTE] and --out REMOTE[:LOCAL]: what goes where."""

from pathlib import Path

import pytest

from sandport.cli.transfer import into_sandbox, out_of_sandbox
from sandport.errors import UsageError


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "tree").mkdir()
    (tmp_path / "a:b").mkdir()
    for name in ("file", "a", "tree/inner", "x:y", "back\\slash"):
        (tmp_path / name).touch()
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    ("value", "local", "remote"),
    [
        ("tree", "tree", "."),
        (".", ".", "."),
        ("tree/", "tree/", "."),
        ("file", "file", "file"),
        ("tree/inner", "tree/inner", "inner"),
        ("file:other", "file", "other"),
        ("tree:sub/dir", "tree", "sub/dir"),
        ("file:/abs/x", "file", "/abs/x"),
        ("a:b", "a", "b"),
        ("a\\:b", "a:b", "."),
        ("x\\:y", "x:y", "x:y"),
        ("x\\:y:z", "x:y", "z"),
        ("x\\:y:z\\:1", "x:y", "z:1"),
        ("back\\slash", "back\\slash", "back\\slash"),
        ("back\\slash:b", "back\\slash", "b"),
    ],
)
@pytest.mark.usefixtures("here")
def test_in_splits_at_the_last_colon(value: str, local: str, remote: str) -> None:
    transfer = into_sandbox(value)
    assert (transfer.local, transfer.remote) == (local, remote)


@pytest.mark.usefixtures("here")
def test_a_link_to_a_folder_counts_as_the_folder(here: Path) -> None:
    (here / "link").symlink_to("tree")
    assert into_sandbox("link").remote == "."


@pytest.mark.parametrize("value", ["", ":", ":x", "file:", "gone", "gone:x", "x:y"])
@pytest.mark.usefixtures("here")
def test_an_in_that_cannot_be_done_is_refused_by_name(value: str) -> None:
    with pytest.raises(UsageError) as caught:
        into_sandbox(value)
    assert str(caught.value).startswith(f"--in {value}: ")


@pytest.mark.usefixtures("here")
def test_a_colon_that_was_taken_for_the_separator_is_explained() -> None:
    with pytest.raises(UsageError, match=r"there is no 'x' here; a colon that belongs to a name is written \\:"):
        into_sandbox("x:y")


@pytest.mark.parametrize(
    ("value", "remote", "local"),
    [
        ("report", "report", "report"),
        ("deep/report.xml", "deep/report.xml", "report.xml"),
        ("report/", "report/", "report"),
        ("report:here", "report", "here"),
        ("/abs/x:y/z", "/abs/x", "y/z"),
        ("a\\:b", "a:b", "a:b"),
        (".", ".", "."),
        ("x/..", "x/..", "."),
    ],
)
def test_out_without_a_target_keeps_its_name(value: str, remote: str, local: str) -> None:
    transfer = out_of_sandbox(value)
    assert (transfer.remote, transfer.local) == (remote, local)


@pytest.mark.parametrize("value", ["", ":", ":x", "report:", ".."])
def test_an_out_that_cannot_be_done_is_refused_by_name(value: str) -> None:
    with pytest.raises(UsageError) as caught:
        out_of_sandbox(value)
    assert str(caught.value).startswith(f"--out {value}: ")
