"""Which providers are installed: metadata is read, and nothing of a provider runs."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandport.discovery import (
    PROVIDER_NAME,
    ProviderConflict,
    discover,
    how_to_get,
    import_folders,
    worker_command,
)
from sandport.errors import ProviderUnknown


def plant(
    folder: Path, distribution: str, entries: str | bytes, *, version: str = "1.0", metadata: str | None = None
) -> Path:
    """A distribution's metadata, as an installer writes it."""
    dist_info = folder / f"{distribution.replace('-', '_')}-{version}.dist-info"
    dist_info.mkdir(parents=True)
    if metadata is None:
        metadata = f"Metadata-Version: 2.1\nName: {distribution}\nVersion: {version}\n\nName: not-this\n"
    (dist_info / "METADATA").write_text(metadata)
    content = entries.encode() if isinstance(entries, str) else entries
    (dist_info / "entry_points.txt").write_bytes(content)
    return dist_info


def group(*lines: str) -> str:
    return "\n".join(["[sandport.providers]", *lines, ""])


def names(*folders: Path) -> list[str]:
    return [provider.name for provider in discover([str(folder) for folder in folders]).providers]


def test_a_provider_is_found_with_its_module_distribution_and_version(tmp_path: Path) -> None:
    dist_info = plant(tmp_path, "acme-sandboxes", group("acme = acme.worker"), version="2.1")
    (found,) = discover([str(tmp_path)]).providers
    assert (found.name, found.module, found.distribution, found.version, found.dist_info) == (
        "acme",
        "acme.worker",
        "acme-sandboxes",
        "2.1",
        str(dist_info),
    )


def test_the_local_provider_of_this_installation_is_found() -> None:
    assert discover().find("local").module == "sandport_provider_local"


def test_only_the_group_is_read(tmp_path: Path) -> None:
    entries = (
        "[console_scripts]\nacme = acme:main\n\n# ours\n[sandport.providers]\n; a note\nacme=acme.worker\n[x]\nz=q\n"
    )
    plant(tmp_path, "acme", entries)
    assert names(tmp_path) == ["acme"]


def test_an_egg_info_folder_is_read_as_well(tmp_path: Path) -> None:
    folder = tmp_path / "acme-3.0-py3.11.egg-info"
    folder.mkdir()
    (folder / "entry_points.txt").write_text(group("acme = acme"))
    (found,) = discover([str(tmp_path)]).providers
    assert (found.distribution, found.version) == ("acme", "3.0")


def test_a_second_copy_further_down_the_path_is_hidden(tmp_path: Path) -> None:
    plant(tmp_path / "a", "acme-x", group("acme = acme.new"), version="2.0")
    plant(tmp_path / "b", "Acme.X", group("acme = acme.old"), version="1.0")
    (found,) = discover([str(tmp_path / "a"), str(tmp_path / "b")]).providers
    assert found.module == "acme.new"


def test_two_distributions_with_one_providers_name_are_both_named(tmp_path: Path) -> None:
    plant(tmp_path, "acme", group("box = acme"), version="1.0")
    plant(tmp_path, "other", group("box = other", "fine = other.fine"), version="2.0")
    with pytest.raises(ProviderConflict) as caught:
        discover([str(tmp_path)]).find("box")
    for part in ("'box'", "acme 1.0", "other 2.0", "uninstall one of them", "[providers.box]"):
        assert part in str(caught.value)


def test_a_conflict_about_one_name_does_not_stop_the_use_of_another(tmp_path: Path) -> None:
    plant(tmp_path, "acme", group("box = acme"))
    plant(tmp_path, "other", group("box = other", "fine = other.fine"))
    assert discover([str(tmp_path)]).find("fine").module == "other.fine"


def test_an_unknown_provider_is_answered_with_those_that_are_there(tmp_path: Path) -> None:
    plant(tmp_path, "acme", group("acme = acme"))
    with pytest.raises(ProviderUnknown) as caught:
        discover([str(tmp_path)]).find("acne")
    assert "there are: acme" in str(caught.value)
    assert "sandport-provider-" not in str(caught.value)
    assert "'sandport providers' shows what is installed" in str(caught.value)


@given(name=st.from_regex(PROVIDER_NAME, fullmatch=True))
def test_only_a_package_that_exists_is_named(name: str) -> None:
    """A typo's package would be a stranger's to register."""
    named = re.findall(r"sandport-provider-[\w-]+", how_to_get(name))
    assert named == ([f"sandport-provider-{name}"] if name in ("local", "fake") else [])


def test_a_provider_of_ours_that_is_not_installed_is_told_with_its_package(tmp_path: Path) -> None:
    with pytest.raises(ProviderUnknown, match="pip install sandport-provider-local "):
        discover([str(tmp_path)]).find("local")


@pytest.mark.parametrize(
    ("line", "what"),
    [
        ("Acme = acme", "'Acme' is not a provider's name"),
        ("../x = acme", "'../x' is not a provider's name"),
        (f"{'a' * 65} = acme", "is not a provider's name"),
        ("acme = acme:main", "should name a module"),
        ("acme = -c", "should name a module"),
        ("acme =", "should name a module"),
    ],
)
def test_what_is_ours_and_wrong_is_reported_and_not_listed(tmp_path: Path, line: str, what: str) -> None:
    dist_info = plant(tmp_path, "acme", group(line))
    found = discover([str(tmp_path)])
    assert found.providers == ()
    (fault,) = found.faults
    assert what in fault.message
    assert fault.dist_info == str(dist_info)


def test_broken_metadata_of_a_foreign_package_is_passed_over(tmp_path: Path) -> None:
    plant(tmp_path, "binary", b"\xff\xfe\x00[console_scripts]")
    plant(tmp_path, "headless", group("headless = headless"), metadata="\x00 no header at all")
    (tmp_path / "empty-1.0.dist-info").mkdir()
    (tmp_path / "file-1.0.dist-info").write_text("not a folder")
    (tmp_path / ".dist-info").mkdir()
    plant(tmp_path, "acme", group("acme = acme"))
    found = discover([str(tmp_path), str(tmp_path / "absent"), str(tmp_path / "file-1.0.dist-info")])
    assert [(p.name, p.distribution, p.version) for p in found.providers] == [
        ("acme", "acme", "1.0"),
        ("headless", "headless", "1.0"),
    ]
    assert found.faults == ()


def test_metadata_of_ours_that_is_not_text_is_reported(tmp_path: Path) -> None:
    plant(tmp_path, "acme", b"[sandport.providers]\nacme = \xff\n")
    (fault,) = discover([str(tmp_path)]).faults
    assert "not UTF-8" in fault.message


def test_metadata_that_cannot_be_read_is_reported(tmp_path: Path) -> None:
    """Whose it is cannot be known, so it may not vanish in silence."""
    (tmp_path / "acme-1.0.dist-info" / "entry_points.txt").mkdir(parents=True)
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    faults = discover([str(tmp_path), str(tmp_path / "loop")]).faults
    assert [fault.message.partition(":")[0] for fault in faults] == ["cannot be read", "cannot be read"]


def test_the_current_folder_adds_no_provider(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker is started with -P from /: what lies in a cloned repository must not be offered either."""
    plant(tmp_path, "evil", group("evil = this"))
    monkeypatch.chdir(tmp_path)
    for entry in ("", ".", str(tmp_path)):
        monkeypatch.setattr(sys, "path", [entry, *sys.path])
        assert str(tmp_path) not in import_folders()
        assert "evil" not in names(*map(Path, import_folders()))


def test_a_worker_is_started_with_this_interpreter_and_without_the_current_folder(tmp_path: Path) -> None:
    plant(tmp_path, "acme", group("acme = acme.worker"))
    (found,) = discover([str(tmp_path)]).providers
    assert worker_command(found) == (sys.executable, "-P", "-m", "acme.worker")


LISTING = """
import json, sys
from sandport.discovery import discover
found = discover()
print(json.dumps([[p.name for p in found.providers], sorted(sys.modules)]))
"""


def test_discovery_runs_no_line_of_a_provider(tmp_path: Path) -> None:
    """Neither of a module that is a provider, nor of the package around one: `find_spec` would import that."""
    trace = tmp_path / "trace"
    write = f"open({str(trace)!r}, 'a').write(__name__)\n"
    site = tmp_path / "site"
    plant(site, "plain", group("plain = planted_plain"))
    (site / "planted_plain.py").write_text(write)
    plant(site, "deep", group("deep = planted_package.worker"))
    (site / "planted_package").mkdir()
    (site / "planted_package" / "__init__.py").write_text(write)
    (site / "planted_package" / "worker.py").write_text(write)

    done = subprocess.run(
        [sys.executable, "-P", "-c", LISTING],
        env=os.environ | {"PYTHONPATH": str(site)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    listed, modules = json.loads(done.stdout)
    assert {"plain", "deep", "local"} <= set(listed)
    assert not trace.exists()
    providers = ("planted_", "sandport_provider", "sandport_sdk")
    assert [name for name in modules if name.startswith(providers)] == []
    assert "importlib.metadata" not in modules
