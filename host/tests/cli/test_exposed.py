"""`--expose DIR`: how it is added to the config of the provider that has it."""

from pathlib import Path

import pytest

from sandport.cli.plan import check_exposes, exposed
from sandport.configuration import parse_overrides
from sandport.errors import UsageError


def test_folders_are_added_as_absolute_paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    monkeypatch.chdir(tmp_path)
    a, b = str(tmp_path / "a"), str(tmp_path / "b")
    assert exposed({}, {}, []) == {}
    assert exposed({}, {"network": True}, ["a", "./b/"]) == {"network": True, "expose": [a, b]}
    assert exposed({"expose": ["/opt"]}, {}, ["a", "a"]) == {"expose": ["/opt", a]}, "the environment's stay"
    assert exposed({"expose": ["/opt"]}, parse_overrides(['expose=["/srv"]']), ["a"]) == {"expose": ["/srv", a]}


def test_a_provider_whose_config_shows_no_folders_is_refused() -> None:
    whole = '{"type": "object", "additionalProperties": false, "properties": {"%s": {"type": "array"}}}'
    check_exposes([], "mine", (whole % "exposes").encode())
    check_exposes(["a"], "mine", (whole % "expose").encode())
    check_exposes(["a"], "mine", b"{}")  # it does not say all that there is, so the provider decides
    with pytest.raises(UsageError, match="--expose a: provider 'mine' does not show"):
        check_exposes(["a"], "mine", (whole % "exposes").encode())


def test_what_is_no_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for folder in (str(tmp_path / "file"), ""):
        with pytest.raises(UsageError, match="no such folder"):
            exposed({}, {}, [folder])
    with pytest.raises(UsageError, match="no list of directories"):
        exposed({"expose": "x"}, {}, [str(tmp_path)])
    (tmp_path / "b\udcff").mkdir()
    with pytest.raises(UsageError, match="not UTF-8"):
        exposed({}, {}, [str(tmp_path / "b\udcff")])


def test_options_of_config_take_toml_s_values() -> None:
    assert parse_overrides(["network=true", 'expose=["/a", "/b"]', "memory_bytes=1073741824", "isolation=require"]) == {
        "network": True,
        "expose": ["/a", "/b"],
        "memory_bytes": 1073741824,
        "isolation": "require",
    }
