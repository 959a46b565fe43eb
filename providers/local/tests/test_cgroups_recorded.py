"""Cgroups as other machines have them, from recordings: no kernel is at work here, only its files.

`recorded/README.md` says where they come from. What happens on such machines is shown by `test_cgroups.py` run there.
"""

import contextlib
import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from sandport_provider_local import cgroup_files, cgroup_limits, cgroup_places, cgroups, hierarchies
from sandport_provider_local.cgroup_places import CgroupUnavailable
from sandport_provider_local.cgroups import Cgroup
from sandport_provider_local.hierarchies import find_hierarchies, leftovers

RECORDED = Path(__file__).parent / "recorded"
LABELS = sorted(file.stem for file in RECORDED.glob("*.json"))
NAME = "sp" + "r" * 26
NOBODY = 65534
MIB = 1024 * 1024

REASONS = {
    "hybrid-user-below-systemd": "only root may create cgroups",
    "hybrid-user-in-a-login-session": "only root may create cgroups",
    "v1-user-below-systemd": "only root may create cgroups",
    "v1-user-in-a-login-session": "only root may create cgroups",
    "v2-root-in-a-limited-service": "holds processes itself",
    "v2-root-of-a-container": "holds processes itself",
    "v2-root-of-a-container-read-only": "mounted read-only",
    "v2-user-in-a-login-session": "`systemd-run --user --scope COMMAND`",
}
"""What is told where no limit can be had; everywhere else one can. The text about processes is what
google/gvisor#8111 and moby/moby#43093 got as a bare `device or resource busy`."""
WITHOUT = sorted(REASONS)
WITH = [label for label in LABELS if label not in REASONS]


def mode_of(label: str) -> str:
    return label.partition("-")[0]


class Copy:
    """A recording laid out as files below a folder of its own."""

    def __init__(self, folder: Path, label: str) -> None:
        self.recorded: dict[str, Any] = json.loads((RECORDED / f"{label}.json").read_text())
        self.mode = mode_of(label)
        self.sandbox = [folder / "cgroup" / path for path in self.recorded["sandbox"]]
        self.where = {"root": str(folder / "cgroup"), "proc": str(folder / "proc")}
        for name, text in self.recorded["proc"].items():
            path = folder / "proc" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        directories = self.recorded["cgroup"].items()
        for name, directory in directories:
            path = folder / "cgroup" / name
            path.mkdir(parents=True, exist_ok=True)
            for file, (writable, text) in directory["files"].items():
                (path / file).write_text(text or "")
                (path / file).chmod(0o666 if writable else 0o444)
        for name, directory in directories:
            (folder / "cgroup" / name).chmod(0o777 if directory["writable"] else 0o555)

    def file(self, name: str) -> Path:
        found: list[Path] = [path / name for path in self.sandbox if (path / name).exists()]
        assert len(found) == 1
        return found[0]

    def text(self, name: str) -> str:
        return self.file(name).read_text().strip()


@pytest.fixture
def folder() -> Iterator[Path]:
    # Not pytest's own, which only the user that runs the tests may enter.
    path = Path(tempfile.mkdtemp(prefix="sandport-recorded-"))
    path.chmod(0o755)
    yield path
    for directory, _, _ in os.walk(path):
        os.chmod(directory, 0o700)
    shutil.rmtree(path)


@contextlib.contextmanager
def without_roots_rights() -> Iterator[None]:
    """Root may write everywhere, and the recordings say by modes where their user could."""
    if os.geteuid() != 0:
        yield
        return
    os.seteuid(NOBODY)
    try:
        yield
    finally:
        os.seteuid(0)


@pytest.fixture(params=LABELS)
def copy(request: pytest.FixtureRequest, folder: Path) -> Copy:
    return Copy(folder, request.param)


def test_every_recording_is_known_and_every_mode_is_among_them() -> None:
    assert set(REASONS) < set(LABELS)
    assert {mode_of(label) for label in LABELS} == {"v1", "v2", "hybrid"}


def test_the_mode_is_told_and_each_controller_is_in_one_tree(copy: Copy) -> None:
    found = find_hierarchies(**copy.where)
    assert found.mode == copy.mode
    versions = {tree.version for name in hierarchies.CONTROLLERS if (tree := found.of(name)) is not None}
    assert versions == ({2} if copy.mode == "v2" else {1})


@pytest.mark.parametrize("label", WITH)
def test_limits_can_be_had_where_they_could_be_had(folder: Path, label: str) -> None:
    copy = Copy(folder, label)
    assert copy.recorded["reason"] is None
    with without_roots_rights():
        assert cgroup_places.why_not(**copy.where) is None


@pytest.mark.parametrize("label", WITHOUT)
def test_where_no_limit_can_be_had_the_reason_is_told_and_nothing_is_made(folder: Path, label: str) -> None:
    copy = Copy(folder, label)
    assert copy.recorded["sandbox"] == []
    assert REASONS[label] in copy.recorded["reason"]
    before = sorted(os.walk(copy.where["root"]))
    with without_roots_rights():
        reason = cgroup_places.why_not(**copy.where)
        with pytest.raises(CgroupUnavailable) as refused:
            Cgroup.create(NAME, memory_bytes=64 * MIB, pids=32, cpus=0.5, **copy.where)
    assert reason is not None
    assert REASONS[label] in reason
    assert refused.value.reason == str(refused.value) == reason
    assert sorted(os.walk(copy.where["root"])) == before
    assert leftovers(**copy.where) == []
    with pytest.raises(FileNotFoundError):
        Cgroup.open(NAME, **copy.where)


@pytest.mark.parametrize("label", WITH)
def test_a_sandbox_is_found_by_its_name_with_the_limits_that_the_kernel_took(folder: Path, label: str) -> None:
    copy = Copy(folder, label)
    assert leftovers(**copy.where) == [NAME]
    found = Cgroup.open(NAME, **copy.where)
    assert set(found.paths) == {str(path) for path in copy.sandbox}
    assert (found.oom_kills(), found.members()) == (0, [])
    assert len(found.paths) == (1 if copy.mode == "v2" else 3)
    # What would be written today is what the kernel showed to have taken.
    settings = cgroup_limits.settings_of(64 * MIB, 32, 0.5).values()
    written = {setting.file: setting.value for each in settings for setting in each[2 if copy.mode == "v2" else 1]}
    assert {name: copy.text(name) for name in written} == written
    if copy.mode == "v2":
        # The greediest process alone is killed, see the module's docstring.
        assert copy.text("memory.oom.group") == "0"
        assert written == {
            "memory.max": "67108864",
            "memory.swap.max": "0",
            "pids.max": "32",
            "cpu.max": "50000 100000",
        }


@pytest.mark.parametrize("label", WITH)
def test_a_sandbox_is_found_from_anywhere_on_the_machine(folder: Path, label: str) -> None:
    copy = Copy(folder, label)
    own = Path(copy.where["proc"], "self/cgroup")
    lines = own.read_text().splitlines()
    own.write_text("".join(line.rsplit(":", 1)[0] + ":/\n" for line in lines))
    assert leftovers("sp", **copy.where) == [NAME]
    assert leftovers("other", **copy.where) == []
    assert set(Cgroup.open(NAME, **copy.where).paths) == {str(path) for path in copy.sandbox}


@pytest.mark.parametrize(
    ("label", "place"),
    [
        # Not in the service, that somebody stops, and not outside of a limit that somebody set.
        ("v2-root-in-a-service", "."),
        ("v2-root-in-the-leaf-of-a-limited-service", "system.slice/run-u8.service"),
        ("v2-root-in-the-leaf-of-a-container", "."),
        ("v2-user-below-systemd", "user.slice/user-1000.slice/user@1000.service"),
        ("hybrid-root-in-a-service", "memory"),
        ("hybrid-root-in-a-limited-service", "memory/system.slice/run-u4.service"),
    ],
)
def test_a_sandbox_is_put_as_high_as_may_be_and_inside_every_limit_on_us(label: str, place: str, folder: Path) -> None:
    copy = Copy(folder, label)
    assert copy.recorded["sandbox"][0] == os.path.normpath(f"{place}/sandport/{NAME}")
    tree = find_hierarchies(**copy.where).of("memory")
    assert tree is not None
    with without_roots_rights():
        assert cgroup_places._place(tree, ["memory"]) == os.path.normpath(f"{copy.where['root']}/{place}")


def test_of_several_limits_on_us_the_deepest_holds(folder: Path) -> None:
    copy = Copy(folder, "v2-root-in-the-leaf-of-a-limited-service")
    for name in ("system.slice/memory.max", "system.slice/cpu.max"):
        Path(copy.where["root"], name).write_text("1000000000 100000\n")
    tree = find_hierarchies(**copy.where).v2
    assert tree is not None
    assert cgroup_places._place(tree, ["memory"]) == f"{copy.where['root']}/system.slice/run-u8.service"


def test_where_we_may_create_but_not_move_processes_is_no_place(folder: Path) -> None:
    copy = Copy(folder, "v2-user-below-systemd")
    tree = find_hierarchies(**copy.where).v2
    assert tree is not None
    for directory in tree.chain:
        Path(directory, "cgroup.procs").chmod(0o444)
    with without_roots_rights():
        assert "belong to root" in str(cgroup_places.why_not(**copy.where))


@pytest.mark.parametrize("label", ["v2-root-in-a-service", "v1-root-in-a-service", "hybrid-root-in-a-service"])
def test_the_counter_is_read_as_that_version_writes_it(folder: Path, label: str) -> None:
    copy = Copy(folder, label)
    file = copy.file("memory.events" if copy.mode == "v2" else "memory.oom_control")
    recorded = file.read_text()
    assert "oom_kill 0\n" in recorded
    file.write_text(recorded.replace("oom_kill 0\n", "oom_kill 3\n"))
    found = Cgroup.open(NAME, **copy.where)
    assert found.oom_kills() == 3
    counter = found.open_counter()
    assert counter is not None
    with open(counter, "rb"):
        assert cgroups.read_counter(counter) == 3
        # A kernel before 4.13 has no such line.
        file.write_text(recorded.replace("oom_kill 0\n", ""))
        assert (found.oom_kills(), cgroups.read_counter(counter)) == (0, 0)


def test_a_controller_that_is_not_delegated_is_named_with_what_root_can_do(folder: Path) -> None:
    # systemd before 252 hands a user memory and pids alone (rootless-containers/rootlesskit#282).
    copy = Copy(folder, "v2-user-below-systemd")
    for file in Path(copy.where["root"], "user.slice").rglob("cgroup.controllers"):
        file.write_text("memory pids\n")
    for file in Path(copy.where["root"], "user.slice").rglob("cgroup.subtree_control"):
        file.write_text("memory pids\n")
    with without_roots_rights():
        assert cgroup_places.why_not(["memory", "pids"], **copy.where) is None
        reason = cgroup_places.why_not(["memory", "cpu"], **copy.where)
    assert reason is not None
    assert "the controller cpu is not handed down" in reason
    assert "Delegate=cpu memory pids" in reason


def test_a_kernel_without_the_memory_controller_says_so(folder: Path) -> None:
    # As a Raspberry Pi has it (raspberrypi/linux#1198, #6980).
    copy = Copy(folder, "v2-root-in-a-service")
    Path(copy.where["root"], "cgroup.controllers").write_text("cpuset cpu io pids\n")
    assert "cgroup_enable=memory" in str(cgroup_places.why_not(["memory"], **copy.where))
    assert cgroup_places.why_not(["pids"], **copy.where) is None


def test_no_cgroups_at_all_are_told_with_what_to_mount(folder: Path) -> None:
    copy = Copy(folder, "v2-root-in-a-service")
    Path(copy.where["proc"], "self/mountinfo").write_text("27 1 254:0 / / rw - ext4 /dev/vda rw\n")
    assert find_hierarchies(**copy.where).mode == "none"
    assert "mount -t cgroup2" in str(cgroup_places.why_not(**copy.where))
    assert "no cgroups are mounted" in str(cgroup_places.why_not([], **copy.where))
    assert leftovers(**copy.where) == []


def test_a_namespace_that_our_own_cgroup_is_outside_of_is_told(folder: Path) -> None:
    copy = Copy(folder, "v2-root-in-a-service")
    Path(copy.where["proc"], "self/cgroup").write_text("0::/../other\n")
    assert "cannot be seen" in str(cgroup_places.why_not(**copy.where))


def test_a_threaded_cgroup_is_none_for_processes(folder: Path) -> None:
    copy = Copy(folder, "v2-root-in-the-leaf-of-a-container")
    Path(copy.where["root"], "cgroup.type").write_text("domain threaded\n")
    assert "'domain threaded'" in str(cgroup_places.why_not(["pids"], **copy.where))


def test_only_what_is_in_a_cgroup_is_signalled_and_never_the_number_zero(folder: Path) -> None:
    # Zero stands for a process of another PID namespace, and kill(0) would be the end of whoever asks.
    copy = Copy(folder, "v1-root-in-a-service")
    for path in copy.sandbox:
        (path / "cgroup.procs").write_text("0\n-1\n4194304\nx\n")
    found = Cgroup.open(NAME, **copy.where)
    assert found.members() == [0, 4194304]
    # What cannot be killed from here is told.
    assert found.kill(timeout_s=0.0) == [0, 4194304]


# ------------------------------------------------------------------ odd and hostile contents

TEXT = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=200)
PATHS = st.lists(st.sampled_from(["a", "..", ".", "", "b c", "self", "é", "x (deleted)"]), max_size=6).map(
    lambda names: "/" + "/".join(names)
)
FIELD = st.sampled_from(["/sys/fs/cgroup", "/sys/fs/cgroup/../..", "/sys/fs/cgroup/memory", "/", "/x", "-", "rw", ""])
MOUNTS = st.lists(
    st.builds(
        "{} {} 0:1 {} {} {} shared:1 - {} none {}".format,
        *(st.integers(), st.integers(), PATHS, FIELD, st.sampled_from(["rw", "ro,nosuid", ""])),
        *(st.sampled_from(["cgroup", "cgroup2", "tmpfs", ""]), st.sampled_from(["rw,memory", "rw,cpu,cpuacct", "ro"])),
    )
    | TEXT,
    max_size=8,
).map("\n".join)
OWN = st.lists(
    st.builds("{}:{}:{}".format, st.integers(), st.sampled_from(["", "memory", "cpu,cpuacct", "name=x"]), PATHS) | TEXT,
    max_size=6,
).map("\n".join)


def with_escapes(path: str) -> str:
    """As the kernel writes a path into mountinfo."""
    return "".join(f"\\{ord(letter):03o}" if letter in " \t\n\\" else letter for letter in path)


@given(point=TEXT, top=TEXT)
@example(point="\\040", top="/a b\\134\n")
def test_a_mount_point_with_any_letters_is_read_as_the_kernel_wrote_it(point: str, top: str) -> None:
    line = f"31 23 0:28 {with_escapes(top)} {with_escapes(point)} rw,relatime shared:9 - cgroup2 cgroup2 rw"
    (mount,) = hierarchies.parse_mounts(line + "\n")
    assert (mount.point, mount.top, mount.kind, mount.read_only) == (point, top, "cgroup2", False)


@given(mounts=MOUNTS, own=OWN)
def test_whatever_proc_says_nothing_outside_of_the_trees_is_looked_at(mounts: str, own: str) -> None:
    with tempfile.TemporaryDirectory() as path:
        folder = Path(path)
        (folder / "proc/self").mkdir(parents=True)
        (folder / "proc/self/mountinfo").write_text(mounts, newline="")
        (folder / "proc/self/cgroup").write_text(own, newline="")
        (folder / "cgroup/memory/a").mkdir(parents=True)
        root = folder / "cgroup"
        found = find_hierarchies(root=str(root), proc=str(folder / "proc"))
        for tree in found.all():
            for directory in (tree.mount, *tree.chain):
                assert Path(os.path.normpath(directory)).is_relative_to(root)
        assert found.mode in {"v1", "v2", "hybrid", "none"}


@given(TEXT)
def test_a_later_mount_hides_an_earlier_one_at_its_point(text: str) -> None:
    earlier = "31 23 0:28 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n"
    later = "50 31 0:60 / /sys/fs/cgroup rw - tmpfs tmpfs rw\n"
    assert hierarchies.parse_mounts(earlier + text.replace("\n", " ") + "\n" + later) == []


@given(TEXT | st.builds("oom_kill {}".format, TEXT), st.integers(0, 2**63))
@example("oom_kill ²", 1)
@example("oom_kill -1", 1)
@example("oom_kill_group 7\noom_kill", 2)
def test_a_count_is_a_number_whatever_stands_around_it(around: str, number: int) -> None:
    assert cgroup_files.parse_count(around, "oom_kill") >= 0
    if not any(line.split()[:1] == ["oom_kill"] for line in around.split("\n")):
        assert cgroup_files.parse_count(f"{around}\noom_kill {number}\n{around}", "oom_kill") == number


@given(st.text(max_size=250))
@example("sp" + "a" * 26)
def test_a_name_is_either_refused_or_one_plain_component(name: str) -> None:
    try:
        cgroups._check_name(name)
    except ValueError:
        return
    assert name
    assert not set(name) - set("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-")
    assert len(name) <= 200
