"""Fixtures of the integration tests."""

import contextlib
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager
from pathlib import Path

import pytest

from sandport.host import Host
from sandport.numbers import Timing
from sandport_protocol.limits import Limits
from tests.integration.command import Command
from tests.integration.stage import QUICK, Journal, Records, configuration, leave_alone_what_is_there
from tests.integration.vendor import Vendor

OpenHost = Callable[..., AbstractAsyncContextManager[Host]]


@pytest.fixture(autouse=True)
def only_its_own_children() -> None:
    """What a test counts are its own processes, whatever ran before it in this process."""
    leave_alone_what_is_there()


@pytest.fixture
def records() -> Records:
    """The log of the hosts of this test."""
    return Records()


@pytest.fixture
def journal(tmp_path: Path) -> Journal:
    """Where a worker of this test writes down what it sees."""
    return Journal(tmp_path / "journal")


@pytest.fixture
def open_host(tmp_path: Path, records: Records) -> OpenHost:
    """Opens a host whose providers are the commands given by name."""

    @contextlib.asynccontextmanager
    async def opened(
        *,
        timing: Timing = QUICK,
        limits: Limits | None = None,
        env: tuple[str, ...] = (),
        environ: dict[str, str] | None = None,
        **commands: tuple[str, ...],
    ) -> AsyncIterator[Host]:
        settings = configuration(commands, timing=timing, limits=limits, env=env)
        async with Host.open(settings, home=tmp_path / "home", log=records.log, environ=environ) as host:
            yield host

    return opened


@pytest.fixture
def sandport(tmp_path: Path) -> Command:
    """The installed command, in a folder of its own."""
    return Command(tmp_path)


@pytest.fixture
def vendor(tmp_path: Path, records: Records) -> Iterator[Vendor]:
    """A fake vendor; no sandbox id may have served two creates, and no command have run twice."""
    vendor = Vendor(tmp_path, records)
    yield vendor
    vendor.fake.assert_once()
