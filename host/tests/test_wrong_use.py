"""What a wrong use of the surface says: one of the public errors, which names what to do next."""

import contextlib
import sqlite3
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from sandport import Host, Sandbox
from sandport.errors import EnvironmentUnknown, LeaseLost, NameTaken, SandportError, UsageError
from sandport.log import Log

pytestmark = pytest.mark.anyio

Wrong = tuple[Callable[[], Awaitable[Any]], type[SandportError], str]
"""What is done, what is raised, and the words that say what to do."""


@contextlib.asynccontextmanager
async def hosting(tmp_path: Path) -> AsyncIterator[Host]:
    async with Host.open(home=tmp_path / "home", log=Log(lambda *_: None)) as host:
        yield host


async def hears(wrong: list[Wrong]) -> None:
    """Do each, and hear what it says."""
    unheard = []
    for call, kind, words in wrong:
        try:
            await call()
        except SandportError as error:
            if not isinstance(error, kind) or words not in str(error) or error.dispatched != "no":
                unheard.append(f"{words!r}: {error!r} {error.dispatched}")
        else:
            unheard.append(f"{words!r}: nothing was raised")
    assert unheard == []


def leasing(host: Host, environment: str = "fake", **options: Any) -> Callable[[], Awaitable[None]]:
    async def lease() -> None:
        async with host.lease(environment, **options):
            pass

    return lease


NOT_NAMES = ("-x", "a b", "x" * 64, "le" + "a" * 26, "sp" + "2" * 26, ".", "\xe9", "a\n", "\udcff")
"""What the command could not say, or would take for something else."""


async def test_a_wrong_lease_starts_nothing_and_says_what_is_right(tmp_path: Path) -> None:
    async with hosting(tmp_path) as host:
        await hears(
            [
                (leasing(host, "fkae"), EnvironmentUnknown, "did you mean 'fake'?"),
                (leasing(host, "fkae"), EnvironmentUnknown, "'sandport providers' shows what is installed"),
                (leasing(host, ttl_s=0), UsageError, "give seconds above 0"),
                (leasing(host, name=""), UsageError, "leave it out, or give one"),
                *((leasing(host, name=name), UsageError, "the first a letter or a digit") for name in NOT_NAMES),
                (leasing(host, env={"A=B": "c"}), UsageError, "letters, digits and _"),
                (leasing(host, env={"A": 3}), UsageError, "a variable's value is text or bytes"),
            ]
        )
        assert host._supervisors == {}
        assert await host.store.sandboxes() == []
    await hears(
        [
            (leasing(host), UsageError, "use it inside of its block, or open another"),
            (host.leases, UsageError, "use it inside of its block, or open another"),
            (host.clean_up, UsageError, "use a host inside of its block"),
        ]
    )


def of_a_sandbox(host: Host, sandbox: Sandbox, here: Path) -> list[Wrong]:
    async def started(**options: Any) -> None:
        async with sandbox.start(["true"], **options):
            pass

    run, put = sandbox.execute, sandbox.sync_in
    return [
        (leasing(host, name="mine"), NameTaken, "choose another, or end that lease first"),
        (lambda: run("ls -l"), UsageError, "pass a list, or the text as shell="),
        (run, UsageError, "give either argv"),
        (lambda: run(["a\0"]), UsageError, "a NUL byte cannot be passed"),
        (lambda: run(["true"], timeout_s=-1), UsageError, "give seconds above 0, or None"),
        (lambda: run(["true"], timeout_s=1e6), UsageError, "lease with a larger ttl_s"),
        (lambda: run(["true"], output_limit_bytes=-1), UsageError, "give 0 to keep nothing and count all"),
        (lambda: started(output_limit_bytes=-1), UsageError, "give 0 to keep nothing and count all"),
        (lambda: run(["true"], spill_to=here / "file" / "x"), UsageError, "name a folder that can be written"),
        (lambda: put(here, "x", exclude="*.log"), UsageError, "write ['*.log']"),
        (lambda: put(here, "x", exclude=["!"]), UsageError, "see gitignore's rules"),
        (lambda: put(here, "x", mode=0o600), UsageError, "mode is for a single file"),
        (lambda: put(here / "file", "x", mode=7555), UsageError, "write it in octal"),
        (lambda: put(here, "x", replace=True, delete=True), UsageError, "ask for one of them"),
        (lambda: sandbox.sync_out("x", here, exclude="out"), UsageError, "write ['out']"),
        (lambda: sandbox.write_bytes("x", b"", mode=755), UsageError, "write it in octal"),
        (lambda: put(here, "/etc"), SandportError, "only files below it can be moved"),
    ]


async def test_a_wrong_call_of_a_sandbox_sends_nothing_and_says_what_is_right(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    async with hosting(tmp_path) as host, host.lease("fake", name="mine") as sandbox:
        await hears(of_a_sandbox(host, sandbox, tmp_path))


async def test_whatever_is_done_with_a_lease_that_is_over_says_to_take_a_new_one(tmp_path: Path) -> None:
    async with hosting(tmp_path) as host:
        async with host.lease("fake") as sandbox:
            pass

        async def attached() -> None:
            async with host.attach(sandbox.lease_id):
                pass

        await hears(
            [
                (lambda: sandbox.execute(["true"]), LeaseLost, "take a new lease"),
                (lambda: sandbox.read_bytes("x"), LeaseLost, "take a new lease"),
                (lambda: sandbox.write_bytes("x", b""), LeaseLost, "take a new lease"),
                (lambda: sandbox.sync_in(tmp_path), LeaseLost, "take a new lease"),
                (lambda: sandbox.sync_out(".", tmp_path), LeaseLost, "take a new lease"),
                (lambda: sandbox.keep("a b"), UsageError, "the first a letter or a digit"),
                (sandbox.keep, LeaseLost, "take a new one"),
                (attached, LeaseLost, "take a new one"),
            ]
        )


async def test_a_lease_with_a_name_of_earlier_days_is_listed_used_and_ended(tmp_path: Path) -> None:
    for name in ("-x", "a b", "x" * 300):
        async with hosting(tmp_path) as host, host.lease("fake", keep=True) as sandbox:
            pass
        with contextlib.closing(sqlite3.connect(tmp_path / "home" / "journal.db")) as db, db:
            db.execute("UPDATE lease SET name = ? WHERE id = ?", (name, sandbox.lease_id))
        async with hosting(tmp_path) as host:
            assert [one.name for one in await host.leases(name=name)] == [name]
            async with host.attach(name) as again:
                assert (await again.execute(["true"])).ok
            assert (await host.end_lease(name)).end == "gone"
