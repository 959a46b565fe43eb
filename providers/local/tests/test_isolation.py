"""What a command of an isolated sandbox can see, reach and do; the machine is asked, and not the code under test."""

import json
import os
import resource
import secrets
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from providers.local.tests.inside import Inside, processes_of
from providers.local.tests.leases import unique_sleep
from providers.local.tests.machine import children_of, running, started, state_of, until, wait_for_end
from providers.local.tests.worker import Worker
from sandport_provider_local.cgroup_places import why_not
from sandport_provider_local.hierarchies import leftovers

ROOT = os.geteuid() == 0
CGROUPS = why_not(("memory", "pids"))
"""Why there are none to be had here; None where there are."""
LIMITS = {"memory_bytes": 64 << 20, "pids": 30} if CGROUPS is None else {}
CANARY = f"canary-{secrets.token_hex(12)}"


@pytest.fixture(scope="module")
def worker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Worker]:
    state = tmp_path_factory.mktemp("state")
    state.chmod(0o700)
    worker = Worker(state, variables={"CANARY": CANARY})
    yield worker
    assert list(state.iterdir()) == []
    worker.close()


@pytest.fixture(scope="module")
def box(worker: Worker) -> Iterator[Inside]:
    box = Inside(worker)
    yield box
    assert box.destroy() == "destroyed"


@pytest.fixture(scope="module")
def ordinary(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Worker]:
    """A worker of an ordinary user: whoever runs the tests, or where that is root another one."""
    state = tmp_path_factory.mktemp("ordinary")
    state.chmod(0o700)
    worker = Worker(state, user=54321 if ROOT else None)
    yield worker
    assert list(state.iterdir()) == []
    worker.close()


# ---------------------------------------------------------------- what is not there


@pytest.fixture
def secret_file(tmp_path: Path) -> Iterator[Path]:
    """A file in the home of whoever runs the tests."""
    path = Path.home() / f".sandport-test-{CANARY}"
    path.write_text(CANARY)
    yield path
    path.unlink()


def test_files_of_the_machine_are_not_to_be_seen_by_any_name(box: Inside, secret_file: Path) -> None:
    """daytona#4230 and others: a sandbox that shares the host's files is none."""
    hidden = [secret_file, Path("/etc/shadow"), Path("/etc/sudoers"), box.path / "record.json", box.path / "socket"]
    ways = ["", "/proc/1/root", "/proc/self/root", "/proc/1/cwd", "/proc/*/root", "/proc/*/cwd", "/sandbox/../.."]
    for path in hidden:
        for way in ways:
            assert box.run(f"for file in {way}{path}; do [ -e $file ] && exit 9; done; exit 0")["exitCode"] == 0
    assert box.says("ls /home /run /srv /mnt /media /boot /sys 2>/dev/null | grep -v :") == ""
    assert CANARY not in box.says(f"grep -rs {CANARY} / --exclude-dir=proc --exclude-dir=usr --exclude-dir=lib*; true")


def test_nothing_of_the_machines_processes_is_to_be_seen(box: Inside) -> None:
    word = unique_sleep()
    other = subprocess.Popen(["sleep", word], env={"CANARY": CANARY})
    try:
        started(word)
        seen = box.says("cat /proc/[0-9]*/cmdline /proc/[0-9]*/environ 2>/dev/null | tr '\\0' '\\n'; ls /proc")
        assert word not in seen
        assert CANARY not in seen
        assert str(box.init) not in seen.split()
        assert os.fspath(box.path) not in seen
    finally:
        other.kill()
        other.wait()


def test_a_command_has_three_descriptors_and_the_inits_are_out_of_reach(box: Inside) -> None:
    assert box.says("ls -l /proc/1/fd").endswith("Permission denied\n")
    assert (
        box.says("cat /proc/1/environ; cat /proc/1/maps; ls /proc/1/root /proc/1/cwd").count("Permission denied") == 4
    )
    own = "import os; print([n for n in range(99) if os.path.exists(f'/proc/self/fd/{n}')])"
    assert box.python(own) == "[0, 1, 2]\n"


def test_abstract_sockets_of_the_machine_cannot_be_reached(box: Inside) -> None:
    name = f"\0sandport-{CANARY}"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(name)
        listener.listen()
        reach = f"import socket; socket.socket(socket.AF_UNIX).connect({name!r})"
        assert "ConnectionRefusedError" in box.says(f"python3 -c '{reach.replace(chr(39), chr(34))}'")


# ---------------------------------------------------------------- what cannot be done


def test_nothing_outside_of_its_own_directories_can_be_written(box: Inside) -> None:
    folders = "/ /usr /usr/bin /etc /root /run /var/tmp /dev /.sandport /.sandport/* /proc/sys/kernel"
    box_says = box.says(
        f"for f in {folders}; do (echo > $f/made) 2>/dev/null && echo $f; done; rm -rf /.sandport; true"
    )
    assert [line for line in box_says.splitlines() if line.startswith("/")] == []
    assert box.says("echo x > /etc/passwd; echo x > /.sandport/*/init.py*; true").count("Read-only file system") > 0
    assert box.says("for f in /sandbox /tmp /dev/shm; do echo > $f/made && rm $f/made && echo $f; done") == (
        "/sandbox\n/tmp\n/dev/shm\n"
    )


def test_commands_have_no_rights_and_cannot_get_any(box: Inside) -> None:
    said = dict(line.split(":\t") for line in box.says("cat /proc/self/status").splitlines() if ":\t" in line)
    assert {said[name].strip("0") for name in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb")} == {""}
    assert said["NoNewPrivs"] == "1"
    assert box.says("id -u; id -g; id -G; id -un") == "1000\n1000\n1000\nsandbox\n"
    assert (
        box.run("unshare -U true 2>/dev/null || unshare -m true 2>/dev/null || mount -t tmpfs x /tmp")["exitCode"] != 0
    )


def test_the_init_takes_no_harm_from_its_commands(box: Inside) -> None:
    signals = "KILL STOP TERM INT HUP QUIT USR1 SEGV TSTP"
    assert box.says(f"for s in {signals}; do kill -$s 1 || echo $s; done; kill -9 -1 2>/dev/null; echo x") == "x\n"
    attach = "import ctypes; print(ctypes.CDLL(None, use_errno=True).ptrace(16, 1, None, None), ctypes.get_errno())"
    assert box.python(attach) == "-1 1\n"
    assert "Permission denied" in box.says("echo > /proc/1/mem")
    assert box.says("echo still") == "still\n"
    assert state_of(box.init) not in "ZX"


# ---------------------------------------------------------------- the network

REACH = """
import errno, socket, sys
s = socket.socket()
s.settimeout(20)
try:
    s.connect(("192.0.2.1", 9))
except OSError as error:
    print(errno.errorcode[error.errno])
"""
SERVE = (
    "import http.server as h; h.ThreadingHTTPServer(('127.0.0.1', 8765), h.SimpleHTTPRequestHandler).serve_forever()"
)
FETCH = """
import time, urllib.request
while True:
    try:
        print(urllib.request.urlopen("http://localhost:8765/page").read().decode())
        break
    except OSError:
        time.sleep(0.01)
"""


def test_a_server_of_one_command_is_reached_by_the_next(box: Inside) -> None:
    box.run(f'echo served > page; setsid -f python3 -c "{SERVE}" >/dev/null 2>&1')
    assert box.python(FETCH) == "served\n\n"
    box.run("kill $(grep -l 8765 /proc/[0-9]*/cmdline | grep -v self | cut -d/ -f3); true")


def test_there_is_no_way_out(box: Inside) -> None:
    """Devices there may be, since some kernels make more than loopback in each namespace; a route there is none."""
    assert len(box.says("cat /proc/net/route").splitlines()) == 1
    assert box.python(REACH) == "ENETUNREACH\n"
    lease = box.worker.attach(box.id)["lease"]
    assert lease["egress"] == {"mode": "none"}


@pytest.mark.parametrize("way", ["config", "grant"])
def test_a_sandbox_with_the_network_has_the_machines(worker: Worker, way: str) -> None:
    more = {"config": {"network": True}} if way == "config" else {"egress": {"mode": "all"}}
    box = Inside(worker, **more)
    assert box.says("cat /proc/net/route") == Path("/proc/net/route").read_text()
    assert worker.attach(box.id)["lease"]["egress"] == {"mode": "all"}
    assert box.destroy() == "destroyed"


def test_a_grant_goes_before_the_config(worker: Worker) -> None:
    box = Inside(worker, config={"network": True}, egress={"mode": "none"})
    assert len(box.says("cat /proc/net/route").splitlines()) == 1
    assert box.destroy() == "destroyed"


# ---------------------------------------------------------------- users and files


def test_each_sandbox_of_roots_has_a_user_of_its_own(worker: Worker, box: Inside) -> None:
    """Only root has users to give away; an ordinary user's sandboxes are that user's."""
    other = Inside(worker)
    folders = [there.path / "sandbox" for there in (box, other)]
    first, second = (folder.stat().st_uid for folder in folders)
    assert len({first, second, 0}) == 3 if ROOT else {first, second} == {os.geteuid()}
    for there, uid in ((box, first), (other, second)):
        assert [Path(f"/proc/{pid}").stat().st_uid for pid in started_in(there)] == [uid]
        there.run("echo x > made; mkdir sub")
        assert {(there.path / "sandbox" / name).stat().st_uid for name in ("made", "sub")} == {uid}
    assert other.destroy() == "destroyed"
    assert not ROOT or processes_of(second) == []


def started_in(box: Inside) -> list[int]:
    """The one process of a command that sleeps, found from outside."""
    word = unique_sleep()
    box.run(f"setsid -f sleep {word} >/dev/null 2>&1")
    found = started(word)
    until(lambda: Path(f"/proc/{found[0]}/comm").read_text() == "sleep\n", "it runs")
    return found


def test_what_the_host_writes_below_local_root_is_seen_inside_and_the_other_way_round(box: Inside) -> None:
    (box.path / "sandbox" / "from-outside").write_text("a")
    assert box.says("cat from-outside; echo b > from-inside") == "a"
    assert (box.path / "sandbox" / "from-inside").read_text() == "b\n"
    (box.path / "tmp" / "there").write_text("c")
    assert box.says("cat /tmp/there $TMPDIR/there") == "cc"


def test_standard_streams_can_be_opened_anew(box: Inside) -> None:
    """What a container of another user's stumbles over: its pipes belonged to root."""
    assert box.says("echo out > /dev/stdout; echo err > /dev/stderr") == "out\nerr\n"
    assert box.says("cat /dev/stdin", stdin="aW4=") == "in"


def test_exposed_directories_are_seen_and_not_written(worker: Worker, tmp_path: Path) -> None:
    (tmp_path / "shown").mkdir()
    (tmp_path / "shown" / "file").write_text("shown\n")
    (tmp_path / "beside").write_text("not shown\n")
    box = Inside(worker, config={"expose": [os.fspath(tmp_path / "shown")]})
    assert box.says(f"cat {tmp_path}/shown/file; ls {tmp_path}") == "shown\nshown\n"
    assert "Read-only file system" in box.says(f"echo > {tmp_path}/shown/made")
    assert box.destroy() == "destroyed"


def test_the_running_interpreter_is_there(box: Inside) -> None:
    result = box.worker.call("execute", sandboxId=box.id, argv=[sys.executable, "-c", "import msgspec"])
    assert result["exitCode"] == 0


# ---------------------------------------------------------------- terminals


def test_a_terminal_is_the_sandboxs_own_and_controls_its_jobs(box: Inside) -> None:
    script = "tty; stty size; test -w $(tty) && bash -ic 'sleep 100 & jobs; kill %1; echo end'"
    box.worker.call(
        "startProcess",
        sandboxId=box.id,
        processId="terminal",
        argv=["sh", "-c", script],
        pty={"columns": 91, "rows": 17},
    )
    result = box.worker.call("waitProcess", sandboxId=box.id, processId="terminal")
    said = b"".join(box.worker.output(stream="pty")).decode().split("\r\n")
    assert result["exitCode"] == 0, said
    assert said[:2] == ["/dev/pts/0", "17 91"]
    assert any("Running" in line and "sleep 100" in line for line in said)
    assert not any("job control" in line for line in said)
    assert said[-2] == "end"


# ---------------------------------------------------------------- limits


@pytest.fixture(scope="module")
def limited(worker: Worker) -> Iterator[Inside]:
    if CGROUPS is not None:
        config = {"memory_bytes": 64 << 20, "pids": 30}
        asked = worker.begin("acquireLease", sandboxId=f"sp{'b' * 26}", ttlMs=60_000, config=config)
        error = worker.answer(asked)["error"]
        assert (error["data"]["condition"], CGROUPS in error["message"]) == ("NotSupported", True)
    box = Inside(worker, config={**LIMITS, "open_files": 100})
    yield box
    assert box.destroy() == "destroyed"
    assert box.id not in leftovers()


def test_a_fork_bomb_ends_at_the_limit_and_the_sandbox_goes_on(limited: Inside) -> None:
    bomb = "bomb() { bomb | bomb & }; bomb; sleep 60" if CGROUPS is None else "sleep 60"
    result = limited.run(bomb, timeoutMs=500)
    assert result["ended"] == "timedOut"
    assert result["tree"] == "gone"
    assert limited.says("echo on") == "on\n"


def test_want_of_memory_is_told_by_the_kernels_own_count_and_by_nothing_else(limited: Inside) -> None:
    """R08, SWE-ReX#176 and others: 137 was taken for want of memory, or the other way round."""
    greedy = "exec python3 -c 'bytearray(300 << 20)'" if CGROUPS is None else "exec true"
    result = limited.run(greedy)
    assert CGROUPS or (result["ended"], result.get("exitCode"), result["signal"]) == ("outOfMemory", None, 9)
    result = limited.run("kill -9 $$")
    assert (result["ended"], result["signal"]) == ("signalled", 9)
    assert CGROUPS or limited.run(greedy)["ended"] == "outOfMemory"
    assert state_of(limited.init) not in "ZX"


def test_limits_of_a_process_are_kept(limited: Inside) -> None:
    assert limited.says("ulimit -n; ulimit -Hn; ulimit -c") == "100\n100\n0\n"
    assert limited.run("kill -SEGV $$").get("coreDumped", False) is False


def test_more_open_files_than_the_host_may_have_are_refused(worker: Worker) -> None:
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    config = {"isolation": "require", "open_files": most + 1}
    error = worker.answer(worker.begin("acquireLease", sandboxId=f"sp{'c' * 26}", ttlMs=60_000, config=config))["error"]
    if most < 1_000_000:
        assert (error["data"]["condition"], error["data"]["detail"]["field"]) == ("NotSupported", "config.open_files")
        assert str(most) in error["message"]
    else:
        assert error["data"]["condition"] == "ConfigInvalid"


# ---------------------------------------------------------------- the end


def tree_below(pid: int) -> list[int]:
    found = children_of(pid)
    return found + [below for child in found for below in tree_below(child)]


@pytest.mark.parametrize("user", ["own", "ordinary"])
@pytest.mark.parametrize("victim", ["keeper", "bubblewrap", "init"])
def test_whoever_of_the_three_is_killed_nothing_is_left_and_the_truth_is_told(
    worker: Worker, ordinary: Worker, victim: str, user: str
) -> None:
    """cloudflare/sandbox-sdk#873: a broken stream ended as a result with exit 0."""
    worker = worker if user == "own" else ordinary
    box = Inside(worker, keep=True)
    word = unique_sleep()
    box.run(f"echo kept > file; env -i setsid -f sleep {word} >/dev/null 2>&1")
    call = worker.begin("execute", sandboxId=box.id, shell=f"echo some; setsid sleep {word} & sleep {word}")
    started(word, 3)
    everything = [box.init, *tree_below(box.init)]
    assert len(everything) >= 6
    os.kill(dict(zip(("keeper", "bubblewrap", "init"), everything, strict=False))[victim], signal.SIGKILL)
    error = worker.answer(call)["error"]["data"]
    assert (error["condition"], error["partial"]["stdout"]["data"]) == ("SandboxLost", "c29tZQo=")
    wait_for_end(*everything)
    attached = worker.attach(box.id)
    assert (attached["state"], attached["processesLost"]) == ("attached", True)
    assert box.says("cat file; id -u; ls /home") == "kept\n1000\nls: cannot access '/home': No such file or directory\n"
    assert worker.destroy(box.id) == "destroyed"
    assert running(word) == []


def test_a_destroy_leaves_no_process_no_mount_no_cgroup_and_no_folder(worker: Worker) -> None:
    mounts = Path("/proc/self/mountinfo").read_text()
    box = Inside(worker, config=LIMITS)
    word = unique_sleep()
    box.run(f"setsid -f sleep {word} >/dev/null 2>&1; env -i setsid -f sleep {word} >/dev/null 2>&1; mkdir -m 0 shut")
    everything = [box.init, *started(word, 2), *tree_below(box.init)]
    assert (box.id in leftovers()) is bool(LIMITS)
    assert box.destroy() == "destroyed"
    assert {state_of(pid) for pid in everything} <= {"X", "Z"}
    assert (box.path.exists(), box.id in leftovers()) == (False, False)
    assert Path("/proc/self/mountinfo").read_text() == mounts


def test_a_destroy_after_the_keeper_was_killed_removes_the_cgroup(worker: Worker) -> None:
    box = Inside(worker, config=LIMITS)
    os.kill(box.init, signal.SIGKILL)
    wait_for_end(box.init)
    assert (box.id in leftovers()) is bool(LIMITS)
    assert box.destroy() == "destroyed"
    assert (box.path.exists(), box.id in leftovers()) == (False, False)


def test_an_ordinary_user_gets_the_same_boundary(ordinary: Worker, secret_file: Path) -> None:
    box = Inside(ordinary)
    assert box.says("id -u; ls /home 2>/dev/null; touch /usr/x 2>/dev/null || echo no") == "1000\nno\n"
    assert box.run(f"test -e {secret_file}")["exitCode"] == 1
    assert box.python(REACH) == "ENETUNREACH\n"
    assert "Permission denied" in box.says("cat /proc/1/environ")
    assert box.says("echo out > /dev/stdout") == "out\n"
    if ROOT:
        assert (box.path / "sandbox").stat().st_uid == 54321
    assert box.destroy() == "destroyed"


CHROOT = """
mount --make-rslave / 2>/dev/null || :  # where these tests are in a chroot themselves, / is no mount
cd "$0"
for name in bin sbin lib lib32 lib64; do
    [ -L /$name ] && ln -s "$(readlink /$name)" $name
done
for path in /usr /etc /dev $NEEDED; do
    mkdir -p ./"$path"
    mount --rbind "$path" ./"$path"
done
mkdir -p proc run tmp
mount -t proc proc proc
exec chroot . "$@"
"""
"""Runs a command in a directory that is no mount, with what it needs of this machine in it."""

if ROOT:  # Nobody else may make a chroot, and nobody else could be isolated in one.

    def test_root_isolates_in_a_chroot_too(tmp_path: Path) -> None:
        """The kernel gives a process in a chroot no user namespace."""
        (tmp_path / "root").mkdir()
        (tmp_path / "state").mkdir(0o700)
        repository = Path(__file__).parents[3]
        needed = {sys.base_prefix, sys.prefix, os.fspath(repository), os.fspath(tmp_path / "state")}
        needed = {path for path in needed if not Path(path).is_relative_to("/usr")}
        prefix = ["unshare", "-m", "--propagation", "unchanged", "sh", "-ec", CHROOT, os.fspath(tmp_path / "root")]
        worker = Worker(tmp_path / "state", prefix=prefix, variables={"NEEDED": " ".join(sorted(needed))})
        try:
            box = Inside(worker)
            assert box.says("id -u; ls -d /home /sandbox 2>/dev/null; (echo > /made) 2>/dev/null || echo no") == (
                "1000\n/sandbox\nno\n"
            )
            assert box.destroy() == "destroyed"
        finally:
            worker.close()
        assert list((tmp_path / "state").iterdir()) == []


# ---------------------------------------------------------------- where it cannot be had

FAKE = """#!/bin/sh
if [ "$1" = --version ]; then echo bubblewrap 0.8.0; exit; fi
echo 'bwrap: No permissions to create a new namespace' >&2
exit 1
"""


@pytest.fixture
def barred(tmp_path: Path) -> Iterator[Worker]:
    """A worker that finds a bubblewrap which is not let."""
    program = tmp_path / "bin" / "bwrap"
    program.parent.mkdir()
    program.write_text(FAKE)
    program.chmod(0o755)
    (tmp_path / "state").mkdir(0o700)
    worker = Worker(tmp_path / "state", variables={"PATH": f"{program.parent}:{os.environ['PATH']}"})
    yield worker
    assert list((tmp_path / "state").iterdir()) == []
    worker.close()


def test_where_it_cannot_be_had_prefer_goes_without_and_says_so_and_nothing_else_is_given(barred: Worker) -> None:
    sandbox_id = barred.acquire(config={"isolation": "prefer"})
    lease = barred.attach(sandbox_id)["lease"]
    assert lease["workingDirectory"] == lease["localRoot"]
    assert lease["egress"] == {"mode": "all"}
    rights = "root" if ROOT else "this user"
    [note] = lease["notes"]
    assert f"nothing isolates this sandbox: its commands run with all rights of {rights} on this machine" in note
    assert "-c isolation=none" in note
    assert "\n" not in note
    assert barred.destroy(sandbox_id) == "destroyed"
    for config, egress, field in (
        ({"isolation": "require"}, None, "config.isolation"),
        ({"isolation": "prefer"}, {"mode": "none"}, "egress.mode"),
        ({"isolation": "prefer", "pids": 10}, None, "config.pids"),
    ):
        more = {} if egress is None else {"egress": egress}
        asked = barred.begin("acquireLease", sandboxId=f"sp{'a' * 26}", ttlMs=60_000, config=config, **more)
        error = barred.answer(asked)["error"]["data"]
        assert (error["condition"], error["detail"]["field"]) == ("NotSupported", field)
    checks = {check["name"]: check for check in barred.call("probe", config={"isolation": "require"})["checks"]}
    assert not checks["isolation"]["ok"]
    assert "bwrap" in json.dumps(checks["isolation"])
    assert not checks["limits"]["ok"]
    assert "nothing isolates" in checks["limits"]["detail"]
