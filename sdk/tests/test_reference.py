"""The reference is what the docstrings say now, and names everything that an author may import."""

import importlib

import pytest

from sandport_sdk import reference


def test_the_reference_is_fresh() -> None:
    assert reference.main(["--check"]) == 0


def test_a_stale_reference_is_named_with_the_command(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(reference, "PUBLISHED", reference.PUBLISHED.with_name("README.md"))
    assert reference.main(["--check"]) == 1
    assert capsys.readouterr().err == "README.md is stale; run: python -m sandport_sdk.reference --write\n"


@pytest.mark.parametrize("module", [name for name, _ in reference.MODULES])
def test_everything_that_is_offered_is_there_and_is_said_to_be_something(module: str) -> None:
    offered = importlib.import_module(module)
    for name in reference.public_names(module):
        assert hasattr(offered, name)
        if (module, name) not in (("sandport_sdk.v1", "types"), ("sandport_sdk.v1", "errors")):
            assert reference.find(module, name)[1], f"{module}.{name} has no docstring"
