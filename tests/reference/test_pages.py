"""The reference pages say what the docstrings say now, name all that may be imported, and have words for each."""

import importlib
import inspect

import pytest

from sandport_protocol.errors import SandportError
from tests.reference import __main__ as command
from tests.reference import host, sdk
from tests.reference.markdown import prose
from tests.reference.sources import find, public_names

HOST_NAMES = [
    (module, name)
    for group in (host.SURFACE, host.BESIDE, host.ANSWERS, host.SETTINGS, host.OPENING)
    for module, names in group
    for name in names
]


def test_the_pages_are_fresh() -> None:
    assert command.stale() == []


def test_a_stale_page_is_named_with_the_command(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(command, "PAGES", {command.ROOT / "README.md": sdk.page})
    assert command.main(["--check"]) == 1
    assert capsys.readouterr().err == "README.md is stale; run: python -m tests.reference --write\n"


@pytest.mark.parametrize(
    "module", [name for name, _ in sdk.MODULES] + ["sandport", "sandport.hooks", "sandport.errors"]
)
def test_everything_that_is_offered_is_there_and_is_said_to_be_something(module: str) -> None:
    offered = importlib.import_module(module)
    for name in public_names(module):
        assert hasattr(offered, name)
        if (module, name) not in sdk.PARTS and name[0] != "_":
            assert find(module, name)[2], f"{module}.{name} has no docstring"


def test_everything_that_the_host_offers_stands_in_its_page() -> None:
    shown = {name for _, name in HOST_NAMES} | {"SandportError"}
    assert {name for name in public_names("sandport") if name[0] != "_"} <= shown
    for module, name in HOST_NAMES:
        assert hasattr(importlib.import_module(module), name)


@pytest.mark.parametrize("name", ["Host", "Sandbox", "Process"])
def test_every_method_of_the_surface_says_what_it_does_and_what_is_hidden_is_there(name: str) -> None:
    of = getattr(importlib.import_module("sandport"), name)
    members = {member: value for member, value in vars(of).items() if member[0] != "_"}
    silent = [member for member, value in members.items() if not inspect.getdoc(value)]
    assert silent == []
    known = {*members, *(inspect.getdoc(of) or "").replace(":", " ").split()}
    assert host.INTERNAL[name] <= known


def test_each_error_says_when_it_is_raised_and_what_to_do() -> None:
    known = host.errors()
    assert set(host.to_do()) == set(known)
    for name, kind in known.items():
        assert issubclass(kind, SandportError)
        assert find("sandport.errors", name)[2]
        assert host.to_do()[name][-1] == "."


def test_every_error_of_the_host_is_in_the_tree() -> None:
    """Also those that the archive's reader raises, by the kind that is told."""
    for module in ("sandport.sandbox", "sandport.host", "sandport.blocking", "sandport.sync", "sandport.transfer.far"):
        importlib.import_module(module)
    told = set(host.errors().values())

    def below(kind: type[SandportError]) -> set[type[SandportError]]:
        return {kind}.union(*(below(one) for one in kind.__subclasses__()))

    ours = {one for one in below(SandportError) if one.__module__.startswith("sandport.")}
    missing = {one for one in ours - told if not one.__module__.startswith(("sandport.cli", "sandport.sync.tar"))}
    assert missing == set()
    assert all(set(one.__mro__) & told for one in ours)


def test_a_docstring_s_sections_become_lists_and_its_promises_paragraphs() -> None:
    doc = "What it is.\n\nArgs:\n    one, two: Both\n        of them.\n\nRepeat: the same. Cancel: nothing."
    assert [line for line in prose(doc) if line] == [
        "What it is.",
        "Args:",
        "- `one, two`: Both of them.",
        "**Repeat**: the same.",
        "**Cancel**: nothing.",
    ]
