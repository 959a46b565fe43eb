"""--in LOCAL[:REMOTE] and --out REMOTE[:LOCAL]: what goes where."""

import os
from pathlib import Path

import pytest

from sandport.cli.transfer import into_sandbox, out_of_sandbox, outside
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


@pytest.mark.parametrize(
    "value", ["", ":", ":x", "file:", "gone", "gone:x", "x:y", "file:../x", "file:../../x", "file:.."]
)
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


@pytest.mark.parametrize(
    "value",
    ["", ":", ":x", "report:", "..", "../x", "../x:x", "x:file/x", "x:file/", "x/:file", ".:file", "x:file/a/b"],
)
@pytest.mark.usefixtures("here")
def test_an_out_that_cannot_be_done_is_refused_by_name(value: str) -> None:
    with pytest.raises(UsageError) as caught:
        out_of_sandbox(value)
    assert str(caught.value).startswith(f"--out {value}: ")


@pytest.mark.parametrize("value", ["x:gone/deep/x", "x:tree", "x:file", "x:.", "a/../../x:y"])
@pytest.mark.usefixtures("here")
def test_an_out_that_may_be_done_is_not_refused(value: str) -> None:
    assert out_of_sandbox(value).option == f"--out {value}"


@pytest.mark.parametrize(
    ("remote", "refused"),
    [("x", False), ("/sandbox", False), ("/sandbox/x", False), ("/sandboxes", True), ("/tmp/x", True), ("/", True)],
)
def test_a_whole_path_has_to_be_below_the_working_directory(remote: str, *, refused: bool) -> None:
    assert (outside(remote, "/sandbox") is not None) is refused


def test_an_out_to_where_nothing_can_be_written_is_refused_before_anything_is_started(here: Path) -> None:
    (here / "closed").mkdir(0o500)
    if os.access(here / "closed", os.W_OK):  # as root
        assert out_of_sandbox("x:closed/y").local == "closed/y"
    else:
        with pytest.raises(UsageError, match=r"^--out x:closed/y: 'closed' cannot be written to"):
            out_of_sandbox("x:closed/y")
