"""What tests of several modules are given."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from sdk.tests.sandboxes import Worker, running_worker


@pytest.fixture
def worker(tmp_path: Path) -> Iterator[Worker]:
    """A worker of sandboxes on this machine, of which nothing is left."""
    with running_worker(tmp_path) as made:
        yield made
        for sandbox_id in made.listed():
            made.destroy(sandbox_id)
    assert list(tmp_path.iterdir()) == []
