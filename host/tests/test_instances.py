"""Instances: the kernel says which processes still have a store open."""

import fcntl
import json
import os
import signal
import stat
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from sandport.instances import INSTANCE_ID, Instance, clear_dead, dead, is_live

PROCESS = """
import os, sys
from pathlib import Path
from sandport.instances import Instance
instance = Instance.begin(Path(sys.argv[1]))
print(instance.id, flush=True)
exec(sys.argv[2])
sys.stdin.readline()
instance.close()
"""


@contextmanager
def process(root: Path, before: str = "") -> Iterator[tuple[subprocess.Popen[str], str]]:
    """Another process with an instance; it lives until it gets a line, or the end of the block."""
    # What it forks for a test warns that it has threads where it has some.
    command = [sys.executable, "-W", "ignore", "-c", PROCESS, str(root), before]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as started:
        try:
            assert started.stdout is not None
            yield started, started.stdout.readline().strip()
        finally:
            started.kill()


def names(root: Path) -> set[str]:
    return {entry.name for entry in (root / "instances").iterdir()}


def test_an_instance_is_live_until_it_is_closed(tmp_path: Path) -> None:
    instance = Instance.begin(tmp_path)
    assert INSTANCE_ID.fullmatch(instance.id)
    assert is_live(tmp_path, instance.id)
    assert stat.S_IMODE(instance.path.stat().st_mode) == 0o600
    assert stat.S_IMODE(instance.path.parent.stat().st_mode) == 0o700
    told = json.loads(instance.path.read_text())
    assert (told["pid"], told["argv0"]) == (os.getpid(), sys.argv[0])
    assert told["sinceMs"] > 0
    instance.close()
    instance.close()
    assert not is_live(tmp_path, instance.id)
    assert names(tmp_path) == set()


def test_one_process_may_have_several(tmp_path: Path) -> None:
    """Two hosts in one process: asking for one's own does not let go of the lock, as another kind of lock would."""
    first, second = Instance.begin(tmp_path), Instance.begin(tmp_path)
    assert is_live(tmp_path, first.id)
    assert is_live(tmp_path, first.id)
    first.close()
    assert not is_live(tmp_path, first.id)
    assert is_live(tmp_path, second.id)
    second.close()


def test_a_killed_process_is_dead_and_a_stopped_one_is_not(tmp_path: Path) -> None:
    with process(tmp_path) as (killed, killed_id), process(tmp_path) as (stopped, stopped_id):
        stopped.send_signal(signal.SIGSTOP)
        assert dead(tmp_path, [killed_id, stopped_id]) == set()
        killed.kill()
        killed.wait()
        assert dead(tmp_path, [killed_id, stopped_id]) == {killed_id}
        assert is_live(tmp_path, stopped_id)
        stopped.send_signal(signal.SIGCONT)
        stopped.communicate("end\n")
        assert dead(tmp_path, [stopped_id]) == {stopped_id}
        assert names(tmp_path) == {killed_id}


FORK = """
if os.fork() == 0:
    instance.close()  # the parent's: nothing happens
    os.close(1)
    sys.stdin.read()
    os._exit(0)
"""


def test_a_forked_child_does_not_keep_its_dead_parent_alive(tmp_path: Path) -> None:
    """The lock is the open file's, which a fork shares."""
    with process(tmp_path, FORK) as (parent, parent_id):
        assert parent.stdin is not None
        assert parent.stdout is not None
        # The child closes its end of our pipe once it has tried to close the instance; the parent lives and keeps its.
        children = Path(f"/proc/{parent.pid}/task/{parent.pid}/children")
        while not (found := children.read_text().split()) or os.path.exists(f"/proc/{found[0]}/fd/1"):
            assert parent.poll() is None
        assert is_live(tmp_path, parent_id)
        os.kill(parent.pid, signal.SIGKILL)
        parent.wait()
        assert Path(f"/proc/{found[0]}/stat").exists()
        assert not is_live(tmp_path, parent_id)


EXEC = """
import subprocess
child = subprocess.Popen(["sleep", "300"], stdout=subprocess.DEVNULL, close_fds=False)
print(child.pid, flush=True)
"""


def test_a_program_that_was_started_does_not_keep_its_dead_parent_alive(tmp_path: Path) -> None:
    with process(tmp_path, EXEC) as (parent, parent_id):
        assert parent.stdout is not None
        child = int(parent.stdout.readline())
        parent.kill()
        parent.wait()
        try:
            os.kill(child, 0)
            assert not is_live(tmp_path, parent_id)
        finally:
            os.kill(child, signal.SIGKILL)


BUSY = """
import threading
def begin():
    for _ in range(60):
        mine = Instance.begin(Path(sys.argv[1]))
        print("live", mine.id, flush=True)
        mine.close()
begin()
print("done", flush=True)
"""


def test_no_instance_is_ever_seen_dead_between_its_begin_and_its_end(tmp_path: Path) -> None:
    """Many begin and end while others ask after every file that they see; who looks dead loses its leases."""
    with ExitStack() as stack:
        began = [Instance.begin(tmp_path) for _ in range(5)]
        ours = {instance.id for instance in began}
        processes = [stack.enter_context(process(tmp_path, BUSY))[0] for _ in range(4)]
        asked = 0
        for each in processes:
            assert each.stdout is not None
            while (line := each.stdout.readline()) != "done\n":
                assert line.startswith("live ")
                asked += 1
                assert dead(tmp_path, ours) == set()
                # A file with a name is locked from the moment that it has it, until it has none any more.
                for name in names(tmp_path) - ours:
                    if INSTANCE_ID.fullmatch(name) and not is_live(tmp_path, name):
                        assert not (tmp_path / "instances" / name).exists()
        assert asked == 240
        for instance in began:
            instance.close()


def test_asking_blocks_nobody(tmp_path: Path) -> None:
    """Two who ask at once both learn that it is dead; one who asks does not keep a lock."""
    with process(tmp_path) as (killed, killed_id):
        killed.kill()
        killed.wait()
    descriptor = os.open(tmp_path / "instances" / killed_id, os.O_RDONLY)
    fcntl.flock(descriptor, fcntl.LOCK_SH)
    assert not is_live(tmp_path, killed_id)
    os.close(descriptor)
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(100):
        is_live(tmp_path, killed_id)
    assert len(os.listdir("/proc/self/fd")) == before


def test_what_is_no_instance_is_dead(tmp_path: Path) -> None:
    for name in ("in" + "a" * 26, "", "..", "../version", "in/../x", "in-a"):
        assert not is_live(tmp_path, name)


def test_one_that_cannot_be_asked_is_not_taken_for_dead(tmp_path: Path) -> None:
    name = "in" + "a" * 26
    (tmp_path / "instances").mkdir()
    (tmp_path / "instances" / name).symlink_to(name)
    with pytest.raises(OSError, match="symbolic links"):
        is_live(tmp_path, name)


def test_the_files_of_the_dead_go_when_no_row_names_them(tmp_path: Path) -> None:
    assert clear_dead(tmp_path, ()) == []
    live = Instance.begin(tmp_path)
    killed = []
    for _ in range(2):
        with process(tmp_path) as (dying, dying_id):
            dying.kill()
            dying.wait()
            killed.append(dying_id)
    pending, old = (tmp_path / "instances" / name for name in (".new-in1", ".new-in2"))
    for file in (pending, old):
        file.touch()
    os.utime(old, (1, 1))
    (tmp_path / "instances" / "notes").touch()
    assert clear_dead(tmp_path, {killed[0]}) == [killed[1]]
    assert names(tmp_path) == {live.id, killed[0], ".new-in1", "notes"}
    assert clear_dead(tmp_path, ()) == [killed[0]]
    assert is_live(tmp_path, live.id)
    live.close()


def test_a_folder_that_takes_no_file_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "instances").write_text("no folder")
    before = len(os.listdir("/proc/self/fd"))
    with pytest.raises(OSError, match=r"instances"):
        Instance.begin(tmp_path)
    assert len(os.listdir("/proc/self/fd")) == before
