"""What cannot be copied, or cannot be trusted, is reported and stops nothing else."""

from __future__ import annotations

import fcntl
import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from host.tests.sync.conftest import Sandbox
from host.tests.sync.trees import Directory, File, Link, Node, make, make_socket, names_below, once
from sandport.sync import Refused, Skipped, SyncError, copy_in, copy_out
from sandport.sync.ledger import Ledger


def reasons(notices: tuple[Skipped | Refused, ...]) -> dict[bytes, str]:
    return {notice.path: notice.reason for notice in notices}


def test_fifos_sockets_and_devices_are_skipped_without_being_opened(sandbox: Sandbox, tmp_path: Path) -> None:
    """paperclip#5823: a socket or a FIFO in the tree aborted everything."""
    make(tmp_path / "source", Directory({b"d": Directory({b"f": File(b"text")})}))
    os.mkfifo(tmp_path / "source/d/fifo")
    make_socket(tmp_path / "source/d/socket")
    kinds = {b"d/fifo": "FIFO", b"d/socket": "socket"}
    if os.geteuid() == 0:
        os.mknod(tmp_path / "source/d/device", 0o020666, os.makedev(1, 3))
        kinds[b"d/device"] = "device"
    result = copy_in(tmp_path / "source", sandbox.fd, b"work")
    assert {path: kind for path, kind in kinds.items() if kind in reasons(result.skipped)[path]} == kinds
    assert names_below(sandbox.path / "work") == {b"d", b"d/f"}
    os.mkfifo(sandbox.path / "work/fifo")
    outward = copy_out(sandbox.fd, b"work", tmp_path / "back")
    assert list(reasons(outward.skipped)) == [b"fifo"]
    assert names_below(tmp_path / "back") == {b"d", b"d/f"}


def test_a_special_file_that_is_named_itself_is_an_error(sandbox: Sandbox, tmp_path: Path) -> None:
    os.mkfifo(sandbox.path / "fifo")
    with pytest.raises(SyncError, match="is a FIFO"):
        copy_out(sandbox.fd, b"fifo", tmp_path / "back")
    with pytest.raises(SyncError, match="is a FIFO"):
        copy_in(sandbox.path / "fifo", sandbox.fd, b"x")
    with pytest.raises(SyncError, match="is a device"):
        copy_in("/dev/null", sandbox.fd, b"x")


def test_what_may_not_be_read_is_skipped_and_the_rest_arrives(
    as_user: Callable[[Callable[[Path], None]], None],
) -> None:
    """NVIDIA/OpenShell#2920: one unreadable directory aborted all."""

    def copy(base: Path) -> None:
        tree: dict[bytes, Node] = {
            b"file": File(b"secret", 0o000),
            b"open": File(b"text"),
            b"dir": Directory({b"f": File()}, 0o000),
        }
        make(base / "source", Directory({**tree, b"listed": Directory({b"f": File()}, 0o444)}))
        (base / "sandbox").mkdir()
        root_fd = os.open(base / "sandbox", os.O_RDONLY)
        result = copy_in(base / "source", root_fd, b"work")
        assert set(reasons(result.skipped)) == {b"file", b"dir", b"listed/f"}
        assert all("permission" in reason for reason in reasons(result.skipped).values())
        assert (base / "sandbox/work/open").read_bytes() == b"text"
        assert set(os.listdir(base / "sandbox/work")) == {"open", "listed"}

    as_user(copy)


def test_links_that_would_lead_out_are_refused_and_the_rest_arrives(sandbox: Sandbox, tmp_path: Path) -> None:
    """NemoClaw#2317, NemoClaw#2268: absolute links inside a sandbox aborted the backup."""
    links = {
        b"absolute": b"/etc/passwd",
        b"above": b"../x",
        b"mixed": b"sub/../../x",
        b"chained": b"up/../../x",
        b"fine": b"sub/f",
        b"dangling": b"nowhere",
        b"self": b".",
    }
    below: dict[bytes, Node] = {
        b"up": Link(b".."),
        b"far": Link(b"../.."),
        b"f": File(b"text"),
        b"slashes": Link(b"..//./f"),
    }
    tree: dict[bytes, Node] = {name: Link(target) for name, target in links.items()}
    make(sandbox.path / "out", Directory({**tree, b"sub": Directory(below)}))
    result = copy_out(sandbox.fd, b"out", tmp_path / "back")
    refused = {b"absolute", b"above", b"mixed", b"chained", b"sub/far"}
    assert set(reasons(result.refused)) == refused
    assert names_below(tmp_path / "back") == names_below(sandbox.path / "out") - refused
    assert (result.links, result.files) == (5, 1)


def test_a_file_that_changes_while_it_is_read_is_reported(sandbox: Sandbox, tmp_path: Path) -> None:
    """harbor's tar helper: a log that is appended to failed the whole upload."""
    make(tmp_path / "source", Directory({b"log": File(b"x" * 300_000), b"still": File(b"x" * 300_000)}))
    log = tmp_path / "source/log"
    staged = sandbox.path / "work"

    def append_when_reading() -> bool:
        if log.stat().st_size == 300_000 and any(staged.parent.glob(".sandport-*/log")):
            with log.open("ab") as file:
                file.write(b"more")
        return False

    result = copy_in(tmp_path / "source", sandbox.fd, b"work", cancelled=append_when_reading)
    assert [notice.path for notice in result.changed] == [b"log"]
    assert (result.files, result.changed_count) == (2, 1)
    assert (staged / "log").stat().st_size == 300_000


def test_a_single_file_that_changes_is_reported_too(sandbox: Sandbox, tmp_path: Path) -> None:
    source = sandbox.path / "log"
    source.write_bytes(b"x" * 300_000)
    asked = iter(range(100))

    def shrink() -> bool:
        # The first questions come while the path is looked for; staging comes before the first piece.
        if next(asked) and any(tmp_path.glob(".sandport-*")):
            os.truncate(source, 10)
        return False

    result = copy_out(sandbox.fd, b"log", tmp_path / "log", cancelled=shrink)
    assert [notice.path for notice in result.changed] == [b"log"]


def test_a_file_of_the_kernels_whose_size_means_nothing_is_reported(sandbox: Sandbox) -> None:
    result = copy_in("/proc/self/status", sandbox.fd, b"status")
    assert [notice.path for notice in result.changed] == [b"/proc/self/status"]
    result = copy_in("/proc/sys/kernel/random", sandbox.fd, b"random")
    assert b"boot_id" in {notice.path for notice in result.changed}


def test_a_file_that_is_gone_or_swapped_before_it_is_read_is_reported(sandbox: Sandbox, tmp_path: Path) -> None:
    for name in ("gone", "fifo", "link", "dir"):
        make(sandbox.path / name, Directory({b"f": File(b"text")}))

    def swap(name: str) -> Callable[[], None]:
        def act() -> None:
            path = sandbox.path / name / "f"
            path.unlink()
            if name == "fifo":
                os.mkfifo(path)
            elif name == "link":
                path.symlink_to(tmp_path / "outside")
            elif name == "dir":
                path.mkdir()

        return act

    (tmp_path / "outside").write_bytes(b"precious")
    for name in ("gone", "fifo", "link", "dir"):
        # Inward, the question comes after the listing was read and before the file is opened.
        result = copy_in(sandbox.path / name, sandbox.fd, b"copy-" + name.encode(), cancelled=once(swap(name)))
        assert [notice.path for notice in result.changed] == [b"f"], name
        assert names_below(sandbox.path / f"copy-{name}") == set(), name


def test_a_directory_that_is_swapped_before_it_is_entered_is_reported(sandbox: Sandbox, tmp_path: Path) -> None:
    make(tmp_path / "outside", Directory({b"secret": File(b"precious")}))
    make(sandbox.path / "source", Directory({b"d": Directory({})}))

    def swap() -> None:
        (sandbox.path / "source/d").rmdir()
        (sandbox.path / "source/d").symlink_to(tmp_path / "outside")

    result = copy_in(sandbox.path / "source", sandbox.fd, b"work", cancelled=once(swap))
    assert [notice.path for notice in result.changed] == [b"d"]
    assert names_below(sandbox.path / "work") == set()


def test_a_file_under_a_lease_is_skipped_and_holds_up_nothing(sandbox: Sandbox, tmp_path: Path) -> None:
    """Opening it would wait until its holder gives it back, which a hostile one does not do for 45 seconds."""
    (sandbox.path / "leased").write_bytes(b"text")
    (sandbox.path / "free").write_bytes(b"text")
    with (sandbox.path / "leased").open("rb+") as holder:
        # The signal that asks for it back would end this process; this one is ignored.
        fcntl.fcntl(holder, fcntl.F_SETSIG, signal.SIGURG)
        fcntl.fcntl(holder, fcntl.F_SETLEASE, fcntl.F_WRLCK)
        result = copy_out(sandbox.fd, b".", tmp_path / "back")
    assert names_below(tmp_path / "back") == {b"free"}
    assert reasons(result.skipped) == {b"leased": "another program holds a lease on it"}


def test_notices_are_counted_whole_and_listed_within_bounds() -> None:
    ledger = Ledger()
    for number in range(20_000):
        ledger.skip(b"%d" % number, "why", "special" if number < 15_000 else "denied")
    for _ in range(20):
        ledger.refuse(b"x" * 1_000_000, "why")
    result = ledger.result()
    assert (result.skipped_count, len(result.skipped)) == (20_000, 10_000)
    assert (result.refused_count, len(result.refused)) == (20, 4)
    assert (result.missing_count, result.whole) == (5_000, False)
