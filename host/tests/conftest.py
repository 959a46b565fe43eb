"""Fixtures of the host's tests."""

from pathlib import Path

import pytest

from tests.integration.command import Command


@pytest.fixture
def sandport(tmp_path: Path) -> Command:
    """The installed command, in a folder of its own."""
    return Command(tmp_path)
