"""`--expose DIR`: how it is added to the config of the provider that has it."""

from pathlib import Path

import pytest

from sandport.cli.plan import exposed
from sandport.configuration import parse_overrides
from sandport.errors import UsageError


def test_folders_are_added_as_absolute_paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    monkeypatch.chdir(tmp_path)
    a, b = str(tmp_path / "a"), str(tmp_path / "b")
    assert exposed("local", {}, {}, []) == {}
    assert exposed("local", {}, {"network": True}, ["a", "./b/"]) == {"network": True, "expose": [a, b]}
    assert exposed("local", {"expose": ["/opt"]}, {}, ["a", "a"]) == {"expose": ["/opt", a]}, "the environment's stay"
    assert exposed("local", {"expose": ["/opt"]}, parse_overrides(['expose=["/srv"]']), ["a"]) == {
        "expose": ["/srv", a]
    }


def test_what_is_no_folder_or_no_provider_of_folders_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for provider, folder, complaint in (
        ("local", str(tmp_path / "file"), "no such folder"),
        ("local", "", "no such folder"),
        ("docker", str(tmp_path), "only provider 'local' shows directories of this machine, and this is 'docker'"),
    ):
        with pytest.raises(UsageError, match=complaint):
            exposed(provider, {}, {}, [folder])
    with pytest.raises(UsageError, match="no list of directories"):
        exposed("local", {"expose": "x"}, {}, [str(tmp_path)])
    (tmp_path / "b\udcff").mkdir()
    with pytest.raises(UsageError, match="not UTF-8"):
        exposed("local", {}, {}, [str(tmp_path / "b\udcff")])


def test_options_of_config_take_toml_s_values() -> None:
    assert parse_overrides(["network=true", 'expose=["/a", "/b"]', "memory_bytes=1073741824", "isolation=require"]) == {
        "network": True,
        "expose": ["/a", "/b"],
        "memory_bytes": 1073741824,
        "isolation": "require",
    }
