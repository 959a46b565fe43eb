"""The parts of the boundary that touch nothing: what is shown, what is refused, what is made of a failed try."""

import asyncio
import contextlib
import json
import os
import socket
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandport_provider_local import machine
from sandport_provider_local.bubblewrap import Boundary, Machine, encode, is_within, steps
from sandport_provider_local.channel import Channel, ChannelClosed
from sandport_provider_local.config import refusal
from sandport_provider_local.isolation import Facts, explain
from sandport_provider_local.keeper import Keeper, Plan
from sandport_provider_local.launch import plan_of
from sandport_provider_local.link import Link
from sandport_provider_local.places import Place, Record
from sandport_provider_local.seccomp import program
from sandport_provider_local.term import Term
from sandport_sdk.testing import new_id

HERE = Machine(
    bwrap="/usr/bin/bwrap",
    version=(0, 8, 0),
    architecture="x86_64",
    links=(("/bin", "usr/bin"),),
    directories=("/usr", "/lib64"),
    hidden=("/proc/keys",),
    etc=("/etc/localtime",),
    interpreter=("/opt/python", "/opt/python/venv"),
    python="/opt/python/bin/python3",
    code=(("/src/init.py", "p/init.py"),),
    resolv_conf="nameserver 10.0.0.1\n",
)

# ---------------------------------------------------------------- what is shown


def words(boundary: Boundary, there: Machine = HERE, *, folders: bool = True) -> list[str]:
    return [word for step in steps(boundary, there, folders=folders) for word in step]


def test_the_network_is_cut_unless_it_is_granted_and_only_then_names_are_looked_up() -> None:
    assert "--unshare-net" in words(Boundary())
    assert "/etc/resolv.conf" not in words(Boundary())
    assert "--unshare-net" not in words(Boundary(network=True))
    assert ("file", "/etc/resolv.conf", HERE.resolv_conf) in steps(Boundary(network=True), HERE)


def test_an_option_that_an_older_bubblewrap_does_not_know_is_left_out() -> None:
    assert "--disable-userns" in words(Boundary())
    assert "--disable-userns" not in words(Boundary(), HERE._replace(version=(0, 6, 1)))


def test_the_filter_of_the_machine_is_a_step_and_an_unknown_machine_has_none() -> None:
    rows = [row for row in steps(Boundary(), HERE) if row[0] == "seccomp"]
    assert [bytes.fromhex(text) for _, text in rows] == [program("x86_64", network=False)]
    assert "seccomp" not in words(Boundary(), HERE._replace(architecture="m68k"))


def test_what_is_shown_already_is_not_shown_again() -> None:
    boundary = Boundary(expose=("/data/sub", "/data", "/usr/share", "/database"))
    shown = [step[1] for step in steps(boundary, HERE) if step[0] == "ro"]
    assert shown == ["/data", "/database", "/opt/python"]


def test_the_root_is_closed_after_everything_is_in_place() -> None:
    rows = steps(Boundary(expose=("/data",)), HERE)
    assert rows[-1] == ("arg", "--remount-ro", "/", "--chdir", "/sandbox")
    assert [row for row in rows if row[0] == "bind"] == [("bind", "sandbox", "/sandbox"), ("bind", "tmp", "/tmp")]
    assert [row for row in steps(Boundary(), HERE, folders=False) if row[0] == "bind"] == []


@given(path=st.text("/ab", max_size=12), other=st.text("/ab", max_size=12))
def test_a_path_is_within_another_where_its_parts_begin_with_the_others(path: str, other: str) -> None:
    path, other = (os.path.normpath(f"/{name}").replace("//", "/") for name in (path, other))
    parts, others = ([part for part in name.split("/") if part] for name in (path, other))
    assert is_within(path, other) == (parts[: len(others)] == others)


WORDS = st.text(st.characters(blacklist_characters="\0", blacklist_categories=["Cs"]), max_size=8)


@given(
    rows=st.lists(st.tuples(st.sampled_from(["arg", "file", "ro"]), WORDS, WORDS), max_size=6), command=st.lists(WORDS)
)
def test_a_keeper_reads_the_plan_that_a_worker_wrote(rows: list[tuple[str, str, str]], command: list[str]) -> None:
    head = ["/bin/bwrap", "7", "", "100", "", str(len(command)), *command]
    plan = Plan(b"\0".join([*map(os.fsencode, head), encode(rows)]) if rows else b"\0".join(map(os.fsencode, head)))
    assert (plan.uid, plan.cgroup, plan.open_files, plan.processes) == (7, b"", 100, None)
    assert plan.command == [os.fsencode(word) for word in command]
    assert plan.steps == [[os.fsencode(word) for word in row] for row in rows]


def test_a_plan_holds_what_was_asked_for() -> None:
    boundary = Boundary(uid=5, pids=10, open_files=99)
    with plan_of(boundary, HERE, command=["a", "b"], cgroup="name") as fd:
        plan = Plan(os.pread(fd, 1 << 20, 0))
    assert (plan.uid, plan.cgroup, plan.open_files, plan.processes) == (5, b"name", 99, 12)
    assert plan.steps[-1] == [b"arg", b"--remount-ro", b"/", b"--chdir", b"/sandbox"]


@given(
    boundary=st.builds(
        Boundary,
        uid=st.none() | st.integers(0, 2**31),
        network=st.booleans(),
        expose=st.lists(WORDS).map(tuple),
        cpus=st.none() | st.floats(0.01, 100),
    )
)
def test_a_boundary_is_read_from_the_record_as_it_was_written(boundary: Boundary) -> None:
    record = Record(new_id(), "store", "token", "bubblewrap", 1, 2, boundary=boundary)
    assert Record.of(json.loads(record.to_json())) == record


@pytest.mark.parametrize("said", ['"isolation": "bubblewrap"', '"isolation": "none", "boundary": {"expose": []}'])
def test_a_record_that_contradicts_itself_is_none(tmp_path: Path, said: str) -> None:
    """An init is never started anew with less around it than there was."""
    place = Place(tmp_path, new_id())
    place.create(store_id="s", ttl_ms=1000)
    text = (place.path / "record.json").read_text()
    (place.path / "record.json").write_text(text.replace('"isolation": "none"', said).replace(', "boundary": null', ""))
    assert place.read_record() is None
    place.remove()


def test_users_are_given_only_where_there_are_such() -> None:
    everybody, few = "0 0 4294967295\n", "0 100000 65536\n"
    if os.geteuid() != 0:
        assert machine.new_uid(everybody, everybody) is None
        return
    given = {machine.new_uid(everybody, everybody) for _ in range(20)}
    assert len(given) == 20
    for maps in ((few, everybody), (everybody, few), ("", "")):
        with pytest.raises(machine.NoIds, match="ordinary user"):
            machine.new_uid(*maps)


# ---------------------------------------------------------------- what is refused


def test_directories_that_nobody_means_to_show_are_refused_with_what_to_do(tmp_path: Path) -> None:
    home, state = tmp_path / "home" / "me", tmp_path / "sandport" / "workers" / "local"
    for folder in (home / "project", state, tmp_path / "sandport" / "logs", tmp_path / "data"):
        folder.mkdir(parents=True)
    (tmp_path / "link").symlink_to(home)
    (tmp_path / "file").touch()

    def why(path: Path | str) -> str | None:
        return refusal(os.fspath(path), homes=frozenset({os.fspath(home)}), state_dir=state)

    assert why(tmp_path / "data") is None
    assert why(home / "project") is None
    for path, word in (
        ("data", "absolute"),
        (f"{tmp_path}/data/", "write"),
        (f"{tmp_path}/home/../data", "write"),
        (tmp_path / "nothing", "make it first"),
        (tmp_path / "file", "the directory that holds"),
        (tmp_path / "link", "home"),
        (home, "home"),
        (home.parent, "home"),
        (tmp_path, "home"),
        ("/", "all of this machine"),
        ("/etc", "system"),
        ("/etc/ssl", "system"),
        ("/proc/self", "system"),
        ("/run", "system"),
        (state, "state"),
        (state.parent.parent, "state"),
        (tmp_path / "sandport" / "logs", "state"),
    ):
        said = why(path)
        assert said is not None, path
        assert word in said, (path, said)


# ---------------------------------------------------------------- why not

FACTS = Facts(root=False, capable=False, filtered=False, chrooted=False, settings={})


@pytest.mark.parametrize(
    ("facts", "words"),
    [
        (FACTS._replace(settings={"user.max_user_namespaces": "0"}), ("user.max_user_namespaces", "sysctl -w")),
        (FACTS._replace(settings={"kernel.unprivileged_userns_clone": "0"}), ("unprivileged_userns_clone=1",)),
        (FACTS._replace(settings={"kernel.apparmor_restrict_unprivileged_userns": "1"}), ("AppArmor", "userns=0")),
        (FACTS._replace(chrooted=True), ("chroot",)),
        (FACTS._replace(root=True, filtered=True), ("CAP_SYS_ADMIN", "--cap-add")),
        (FACTS._replace(root=True, capable=True, filtered=True), ("seccomp", "--security-opt")),
        (FACTS._replace(settings={"user.max_user_namespaces": "96365"}), ("bubblewrap cannot isolate here",)),
    ],
)
def test_a_failed_try_names_the_cause_and_what_helps(facts: Facts, words: tuple[str, ...]) -> None:
    said = explain("bwrap: setting up uid map: Permission denied..", facts)
    assert "setting up uid map" in said
    assert ".." not in said
    for word in words:
        assert word in said


def test_the_pages_that_bubblewrap_names_are_not_passed_on() -> None:
    """bubblewrap (Debian) ends this line with two full stops, behind links to pages that name every reason there is."""
    said = explain(
        "bwrap: No permissions to create new namespace, likely because the kernel does not allow non-privileged user "
        "namespaces. See <https://deb.li/bubblewrap> or <file:///usr/share/doc/bubblewrap/README.Debian.gz>..",
        FACTS._replace(chrooted=True),
    )
    assert "user namespaces: this process runs in a chroot" in said
    assert "<" not in said


def test_the_facts_are_read_from_the_kernels_files() -> None:
    files = {
        "/proc/self/status": "Name:\tx\nCapEff:\t0000000000200000\nSeccomp:\t2\n",
        "/proc/sys/user/max_user_namespaces": "0\n",
        "/proc/sys/kernel/apparmor_restrict_unprivileged_userns": "1\n",
    }
    facts = Facts.of_this_machine(lambda path: files.get(path, ""))
    assert (facts.capable, facts.filtered) == (True, True)
    assert facts.settings["user.max_user_namespaces"] == "0"
    assert facts.settings["kernel.apparmor_restrict_unprivileged_userns"] == "1"
    assert facts.settings["kernel.unprivileged_userns_clone"] == ""


# ---------------------------------------------------------------- an init that was taken over

NUMBERS = st.integers(-(2**70), 2**70).map(lambda number: b"%d" % number)
HOSTILE = st.lists(
    st.one_of(
        st.binary(max_size=300),
        st.sampled_from([b"up", b"attended", b"left", b"keep", b"end", b"ready", b"exit", b"killed", b"terminal", b""]),
        NUMBERS,
    ),
    min_size=1,
    max_size=6,
).map(b"\0".join)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    place = Place(tmp_path, new_id())
    place.create(store_id="s", ttl_ms=60_000)
    monkeypatch.chdir(place.path)
    return place.path


def test_a_keeper_takes_nothing_from_the_init_but_what_it_knows(folder: Path) -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    plan = Plan(b"\0".join([b"/bin/false", b"", b"", b"", b"", b"0"]))
    term = Term(2**50, 1000, kept=False)
    keeper = Keeper(term, plan, b"token")
    keeper.up, keeper.link = True, Link(ours)

    @given(message=HOSTILE)
    def say(message: bytes) -> None:
        keeper.lost = term.ending = ""
        theirs.send(message)
        keeper.receive()
        assert 0 <= term.grace_s <= 10**9
        assert term.ending in {"", "destroyed"}
        theirs.setblocking(False)
        with contextlib.suppress(BlockingIOError):
            while theirs.recv(1000):
                pass

    say()
    assert sorted(os.listdir(folder)) == ["record.json", "sandbox", "tmp"]
    theirs.close()
    keeper.receive()
    assert keeper.lost == "the init ended"
    ours.close()


@pytest.mark.anyio
async def test_a_worker_takes_nothing_from_the_init_but_what_it_knows() -> None:
    loop = asyncio.get_running_loop()
    told: list[object] = []
    loop.set_exception_handler(lambda _, context: told.append(context))

    def say(message: bytes) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        ours.setblocking(False)
        channel = Channel(loop, ours)
        theirs.send(message or b"\0")
        channel._receive()
        channel.close()
        theirs.close()

    given(message=HOSTILE)(say)()
    assert told == []


@pytest.mark.anyio
async def test_descriptors_that_nobody_asked_for_are_closed() -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    ours.setblocking(False)
    channel = Channel(asyncio.get_running_loop(), ours)
    read, write = os.pipe()
    for message in (b"killed\x009\0gone", b"terminal\x007\x000", b"terminal\x009\x005"):
        socket.send_fds(theirs, [message], [write, write])
    asked = asyncio.ensure_future(channel.terminal())
    await asyncio.sleep(0)
    theirs.recv(100)
    socket.send_fds(theirs, [b"terminal\x001\x000"], [write])
    with pytest.raises(OSError, match=os.strerror(0)):
        await asked
    os.close(write)
    assert os.read(read, 1) == b""
    os.close(read)
    theirs.send(b"exit\0nonsense")
    with pytest.raises(ChannelClosed):
        await channel.keep(True)
    theirs.close()
