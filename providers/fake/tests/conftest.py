"""A vendor for each test, and nothing left of it."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from sandport_provider_fake.testing import Fake


@pytest.fixture
def fake(tmp_path: Path) -> Iterator[Fake]:
    vendor = Fake(tmp_path / "home")
    yield vendor
    vendor.assert_nothing_left()
    vendor.assert_once()
