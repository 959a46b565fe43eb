"""What the tests of moving files share: a sandbox by every way, trees, and what a tree looks like with its holes."""

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import msgspec
from hypothesis import strategies as st

from host.tests.sync.trees import Directory, File, Link, Node, Seen, look, scratch_below
from sandport.files import Way
from sandport.host import Host
from sandport.sandbox import Sandbox
from tests.integration.stage import Records, configuration, worker

WAYS = ("local", "socket", "command", "chunks")
"""`chunks` is a command of a provider that has no processes, so that input goes in whole."""

SYNCING = worker("syncs", "--processes", "--direct")

OPEN = 0o700 if os.geteuid() else 0
"""What a directory needs to be filled by an ordinary user."""


@contextlib.asynccontextmanager
async def leased(host: Host, provider: str, way: str) -> AsyncIterator[Sandbox]:
    """A sandbox whose files go one way."""
    async with host.lease(provider) as sandbox:
        yield going(sandbox, way)


def going(sandbox: Sandbox, way: str) -> Sandbox:
    """Have a sandbox's files go one way."""
    if way == "chunks":
        sandbox.lease = msgspec.structs.replace(sandbox.lease, without=("process",))
    sandbox._files.way = Way.COMMAND if way == "chunks" else Way(way)
    return sandbox


class Ways:
    """A host, and a sandbox by each way, for tests that make many trees."""

    def __init__(self, runner: asyncio.Runner, sandboxes: dict[str, Sandbox], folder: Path, records: Records) -> None:
        self.run = runner.run
        self.sandboxes = sandboxes
        self.folder = folder
        self.records = records
        self._count = 0

    def fresh(self) -> Path:
        """A folder that nobody used before."""
        self._count += 1
        path = self.folder / f"tree-{self._count}"
        path.mkdir()
        return path


@contextlib.contextmanager
def every_way(folder: Path) -> Iterator[Ways]:
    """Sandboxes of one worker, each by another way."""
    records = Records()
    stack = contextlib.AsyncExitStack()

    async def begin() -> dict[str, Sandbox]:
        settings = configuration({"syncs": SYNCING})
        host = await stack.enter_async_context(Host.open(settings, home=folder / "home", log=records.log))
        return {way: await stack.enter_async_context(leased(host, "syncs", way)) for way in WAYS}

    with asyncio.Runner() as runner:
        try:
            yield Ways(runner, runner.run(begin()), folder, records)
        finally:
            runner.run(stack.aclose())


def inside(sandbox: Sandbox, path: str | bytes = b"") -> bytes:
    """Where a path of a sandbox is on this machine."""
    return os.path.join(sandbox.working_directory, os.fsencode(path))


def assert_no_scratch(sandbox: Sandbox) -> None:
    """Nothing of ours is left in a sandbox."""
    assert scratch_below(Path(os.fsdecode(sandbox.working_directory))) == set()


def allocated(path: bytes) -> int:
    """How many bytes of a file are on the disk."""
    return os.stat(path).st_blocks * 512


def open_ends() -> int:
    """How many sockets, pipes and files without a name this process has open."""
    count = 0
    for fd in os.listdir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):  # the listing's own descriptor is gone by now
            leads_to = os.readlink(f"/proc/self/fd/{fd}")
            count += leads_to.startswith(("socket:", "pipe:")) or leads_to.endswith(" (deleted)")
    return count


# ------------------------------------------------------------------ trees

TRICKY = [b"-rf", b" ", b"'\"", b"\n", b"a\n", b"\xff\xfe", b"...", b"*", b"[x]", b"$HOME", b"\\", b"~", b"x" * 255]

names = st.one_of(
    st.sampled_from(TRICKY),
    st.binary(min_size=1, max_size=255).map(lambda raw: raw.replace(b"/", b"|").replace(b"\0", b"0")),
).filter(lambda name: name not in (b".", b"..") and not name.startswith(b".sandport-"))

few_names = st.sampled_from([b"a", b"b", b"-c", b"d e"])

mtimes = st.integers(min_value=0, max_value=4_000_000_000_999_999_999)

link_targets = st.one_of(
    # Some examples follow them: outside of the tree they lead to nothing, or to one small file.
    st.sampled_from([b"a", b"../up", b"/nowhere/at/all", b"/etc/passwd", b"../../../out", b"nowhere", b"a/../../b"]),
    names,
)


def trees(of: st.SearchStrategy[bytes] = names, *, depth: int = 3) -> st.SearchStrategy[Directory]:
    """A directory and what is in it."""
    files = st.builds(
        File,
        content=st.binary(max_size=300),
        mode=st.integers(0, 0o777).map(lambda mode: mode | (0o400 if os.geteuid() else 0)),
        mtime_ns=mtimes,
        hole_before=st.sampled_from([0, 0, 0, 1, 300_000]),
    )
    links = st.builds(Link, link_targets, mtimes)
    kinds: list[st.SearchStrategy[Node]] = [files, links]
    if depth:
        kinds.append(trees(of, depth=depth - 1))
    return st.builds(
        Directory,
        st.dictionaries(of, st.one_of(kinds), max_size=4),
        st.integers(0, 0o1777).filter(lambda mode: mode & 0o7000 in (0, 0o1000)).map(lambda mode: mode | OPEN),
        mtimes,
    )


def seen_below(path: Path | bytes) -> Seen:
    """What is below a directory, without the directory itself."""
    return {at: what for at, what in look(path).items() if at}


def different(one: Seen, other: Seen) -> dict[tuple[bytes, ...], tuple[object, object]]:
    """Where two trees are not the same."""
    return {at: (one.get(at), other.get(at)) for at in {*one, *other} if one.get(at) != other.get(at)}
