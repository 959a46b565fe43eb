"""The list of distributions, which several files keep, says the same everywhere; each has what a reader expects."""

import re

import pytest

from tests.architecture.workspace import MEMBERS, PROVIDERS, ROOT, Member, load_toml, member

each_member = pytest.mark.parametrize("dist", MEMBERS, ids=lambda dist: dist.folder)


def test_the_four_first_distributions_are_found() -> None:
    names = {dist.name for dist in MEMBERS}
    assert names >= {"sandport-protocol", "sandport-sdk", "sandport", "sandport-provider-local"}


def test_dev_installs_every_member_after_those_it_depends_on() -> None:
    found = re.search(r'^members="(.*)"$', (ROOT / "dev").read_text(encoding="utf-8"), re.MULTILINE)
    assert found
    listed = found[1].split()
    assert sorted(listed) == sorted(dist.folder for dist in MEMBERS)
    position = {dist.name: listed.index(dist.folder) for dist in MEMBERS}
    for dist in MEMBERS:
        for required in dist.required() & position.keys():
            assert position[required] < position[dist.name], f"{dist.name} stands before {required}"


def test_import_linter_looks_at_every_member() -> None:
    roots = load_toml(ROOT / "pyproject.toml")["tool"]["importlinter"]["root_packages"]
    assert sorted(roots) == sorted(dist.package for dist in MEMBERS)


def test_mypy_finds_every_member() -> None:
    path = load_toml(ROOT / "pyproject.toml")["tool"]["mypy"]["mypy_path"]
    assert {f"$MYPY_CONFIG_FILE_DIR/{dist.folder}/src" for dist in MEMBERS} < set(path.split(":"))


def test_every_provider_is_under_the_contracts_that_bind_providers() -> None:
    """A provider that no contract names could import the host, the protocol or another provider."""
    contracts = {c["name"]: c for c in load_toml(ROOT / "pyproject.toml")["tool"]["importlinter"]["contracts"]}
    packages = {dist.package for dist in PROVIDERS}

    layers = contracts["protocol <- sdk <- providers; providers do not know each other"]["layers"]
    assert set(layers[0].split(" | ")) == packages
    assert layers[1:] == ["sandport_sdk", "sandport_protocol"]
    apart = contracts["host and providers do not know each other"]["modules"]
    assert set(apart) == packages | {"sandport"}
    through_sdk = contracts["a provider sees the protocol through the sdk alone"]
    assert set(through_sdk["source_modules"]) == packages


@each_member
def test_a_distribution_has_a_first_page_types_a_licence_and_tests(dist: Member) -> None:
    assert (dist.path / "README.md").read_text(encoding="utf-8").startswith(f"# {dist.name}\n")
    assert (dist.source / "py.typed").read_bytes() == b""
    assert (dist.path / "LICENSE").read_bytes() == (ROOT / "LICENSE").read_bytes()
    assert list((dist.path / "tests").rglob("test_*.py")), f"{dist.folder}/tests has no test"


def test_the_licence_is_apache_2_in_full() -> None:
    text = (ROOT / "LICENSE").read_text(encoding="utf-8")
    assert "Version 2.0, January 2004" in text
    for clause in range(1, 10):
        assert re.search(rf"^   {clause}\. \S", text, re.MULTILINE), f"clause {clause} is missing"
    assert "END OF TERMS AND CONDITIONS" in text
    assert "APPENDIX: How to apply the Apache License to your work." in text


@each_member
def test_a_manifest_says_what_installs_it_and_under_which_licence(dist: Member) -> None:
    manifest = load_toml(dist.path / "pyproject.toml")
    project = manifest["project"]
    assert manifest["build-system"]["build-backend"] == "hatchling.build"
    assert project["requires-python"] == ">=3.11"
    assert project["license"] == "Apache-2.0"
    assert project["license-files"] == ["LICENSE"]
    assert project["readme"] == "README.md"


def test_each_distribution_requires_only_what_its_place_allows() -> None:
    allowed = {
        "sandport-protocol": {"msgspec"},
        "sandport-sdk": {"sandport-protocol"},
        "sandport": {"sandport-protocol", "anyio", "click", "pluggy", "rich", "structlog"},
        "sandport-conformance": {"hypothesis", "pytest"},
    }
    for name, names in allowed.items():
        assert member(name).required() <= names
    for dist in PROVIDERS:
        ours = {name for name in dist.required() if name.startswith("sandport")}
        assert ours == {"sandport-sdk"}, f"{dist.name} requires {ours}"


@pytest.mark.parametrize("dist", PROVIDERS, ids=lambda dist: dist.folder)
def test_a_provider_announces_the_module_that_the_host_starts(dist: Member) -> None:
    name = dist.folder.removeprefix("providers/")
    entry_points = load_toml(dist.path / "pyproject.toml")["project"]["entry-points"]
    assert entry_points == {"sandport.providers": {name: dist.package}}
    assert (dist.source / "__init__.py").read_text(encoding="utf-8").strip() == "", "finding it must import nothing"
    assert (dist.source / "__main__.py").is_file()


def test_a_version_that_code_states_is_the_one_in_its_manifest() -> None:
    """Code states it a second time, because reading it from the installed metadata costs each start."""
    stated = {
        (path.relative_to(ROOT).as_posix(), version, load_toml(dist.path / "pyproject.toml")["project"]["version"])
        for dist in MEMBERS
        for path in dist.source.rglob("*.py")
        for version in re.findall(r'^__version__\b.*= "(.+)"$', path.read_text(encoding="utf-8"), re.MULTILINE)
    }
    assert stated
    assert {(path, version) for path, version, manifest in stated if version != manifest} == set()
