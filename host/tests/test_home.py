"""The folder for state: private, versioned, and one store id however many processes open it."""

import os
import pwd
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from sandport.home import STORE_ID, Home, HomeUnusable, home_path


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_a_new_home_is_private_and_has_a_version_and_a_store_id(tmp_path: Path) -> None:
    home = Home.open(tmp_path / "deep" / "home")
    assert home.root == tmp_path / "deep" / "home"
    assert mode(home.root) == 0o700
    assert {path.name: mode(path) for path in home.root.iterdir()} == {"version": 0o600, "store-id": 0o600}
    assert (home.root / "version").read_text() == "1\n"
    assert STORE_ID.fullmatch(home.store_id)


def test_the_store_id_stays(tmp_path: Path) -> None:
    assert Home.open(tmp_path / "h").store_id == Home.open(tmp_path / "h").store_id
    assert Home.open(tmp_path / "h").store_id != Home.open(tmp_path / "other").store_id


RACE = """
import os, sys
from sandport.home import Home
os.read(0, 1)
print(Home.open(sys.argv[1]).store_id)
"""


def test_processes_that_open_a_new_home_at_once_agree_on_the_store_id(tmp_path: Path) -> None:
    for attempt in range(3):
        home = tmp_path / str(attempt)
        start, gate = os.pipe()
        racers = [
            subprocess.Popen([sys.executable, "-c", RACE, home], stdin=start, stdout=subprocess.PIPE, text=True)
            for _ in range(6)
        ]
        os.close(start)
        os.write(gate, b"x" * len(racers))
        os.close(gate)
        ids = {racer.communicate()[0].strip() for racer in racers}
        assert [racer.returncode for racer in racers] == [0] * len(racers)
        assert len(ids) == 1
        assert STORE_ID.fullmatch(ids.pop())
        assert {path.name for path in home.iterdir()} == {"version", "store-id"}


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({"SANDPORT_HOME": "/s", "XDG_STATE_HOME": "/x", "HOME": "/h"}, "/s"),
        ({"SANDPORT_HOME": "", "XDG_STATE_HOME": "/x", "HOME": "/h"}, "/x/sandport"),
        ({"XDG_STATE_HOME": "relative", "HOME": "/h"}, "/h/.local/state/sandport"),
        ({"HOME": "/h"}, "/h/.local/state/sandport"),
    ],
)
def test_the_home_is_where_the_variables_say(
    monkeypatch: pytest.MonkeyPatch, environ: dict[str, str], expected: str
) -> None:
    monkeypatch.setattr(sys, "platform", "linux")
    assert home_path(environ) == Path(expected)


def test_on_macos_the_home_is_in_the_library(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    assert home_path({"HOME": "/h"}) == Path("/h/Library/Application Support/sandport")


def test_looking_up_the_home_makes_nothing(tmp_path: Path) -> None:
    home_path({"SANDPORT_HOME": str(tmp_path / "h")})
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("version", "complaint"), [("2", "newer Sandport"), ("x", "is damaged"), ("", "is damaged")])
def test_state_that_this_version_does_not_know_is_refused(tmp_path: Path, version: str, complaint: str) -> None:
    Home.open(tmp_path / "h")
    (tmp_path / "h" / "version").write_text(version)
    with pytest.raises(HomeUnusable, match=complaint) as caught:
        Home.open(tmp_path / "h")
    assert "SANDPORT_HOME" in str(caught.value)
    assert (tmp_path / "h" / "version").read_text() == version


def test_a_damaged_store_id_is_refused_and_not_replaced(tmp_path: Path) -> None:
    Home.open(tmp_path / "h")
    (tmp_path / "h" / "store-id").write_text("")
    with pytest.raises(HomeUnusable, match="store-id: is damaged"):
        Home.open(tmp_path / "h")
    assert (tmp_path / "h" / "store-id").read_text() == ""


def test_an_empty_folder_is_closed_to_others_and_used(tmp_path: Path) -> None:
    (tmp_path / "h").mkdir()
    (tmp_path / "h").chmod(0o755)
    assert mode(Home.open(tmp_path / "h").root) == 0o700


def test_a_home_that_somebody_opened_to_others_is_closed_again(tmp_path: Path) -> None:
    home = Home.open(tmp_path / "h")
    home.root.chmod(0o777)
    assert mode(Home.open(tmp_path / "h").root) == 0o700


def test_an_empty_variable_is_none_and_no_home_directory_is_made(tmp_path: Path) -> None:
    own = Path(pwd.getpwuid(os.geteuid()).pw_dir)
    assert home_path({"HOME": ""}).is_relative_to(own)
    gone = tmp_path / "gone"
    with pytest.raises(HomeUnusable, match=rf"there is no home directory {gone},[^\n]*\n.*SANDPORT_HOME"):
        Home.open(environ={"HOME": str(gone)})
    assert not gone.exists()
    assert Home.open(environ={"HOME": str(gone), "SANDPORT_HOME": str(tmp_path / "h")}).root == tmp_path / "h"


@pytest.mark.parametrize(("bits", "content"), [(0o755, "somebody's"), (0o1777, None)])
def test_a_folder_with_another_purpose_is_left_alone(tmp_path: Path, bits: int, content: str | None) -> None:
    """SANDPORT_HOME=/tmp by mistake, as root, must not lock everybody out of /tmp."""
    (tmp_path / "h").mkdir()
    (tmp_path / "h").chmod(bits)
    if content:
        (tmp_path / "h" / content).touch()
    with pytest.raises(HomeUnusable, match="others may enter it") as caught:
        Home.open(tmp_path / "h")
    assert ("it holds something else" in str(caught.value)) is (content is not None)
    assert (f"chmod 700 {tmp_path / 'h'}" in str(caught.value)) is (content is None)
    assert mode(tmp_path / "h") == bits & 0o777 | bits & 0o7000


def test_a_file_in_the_homes_place_is_refused(tmp_path: Path) -> None:
    (tmp_path / "h").touch()
    with pytest.raises(HomeUnusable, match="is not a folder"):
        Home.open(tmp_path / "h")
    with pytest.raises(HomeUnusable, match="SANDPORT_HOME"):
        Home.open(tmp_path / "h" / "below")


def test_another_users_folder_is_refused(tmp_path: Path) -> None:
    folder = Path("/usr")
    if os.geteuid() == 0:
        folder = tmp_path / "h"
        folder.mkdir()
        os.chown(folder, 65534, 65534)
    with pytest.raises(HomeUnusable, match="belongs to another user"):
        Home.open(folder)


def test_a_place_that_the_file_system_refuses_is_named(tmp_path: Path) -> None:
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    with pytest.raises(HomeUnusable, match=r"(?s)loop.*set SANDPORT_HOME"):
        Home.open(tmp_path / "loop" / "h")


def test_each_provider_has_a_private_folder_of_its_own(tmp_path: Path) -> None:
    home = Home.open(tmp_path / "h")
    folder = home.state_dir("local")
    assert folder == home.state_dir("local")
    assert folder != home.state_dir("acme")
    assert mode(folder) == mode(folder.parent) == 0o700


@pytest.mark.parametrize("name", ["..", "a/b", "", "A"])
def test_a_name_that_would_leave_the_home_is_refused(tmp_path: Path, name: str) -> None:
    home = Home.open(tmp_path / "h")
    with pytest.raises(ValueError, match="not a provider's name"):
        home.state_dir(name)


def test_a_name_that_no_worker_could_be_told_is_refused(tmp_path: Path) -> None:
    with pytest.raises(HomeUnusable, match="not UTF-8"):
        Home.open(tmp_path / "h\udcff")
    assert list(tmp_path.iterdir()) == []


def test_what_a_killed_first_start_left_goes_in_time(tmp_path: Path) -> None:
    Home.open(tmp_path / "home")
    old, young = tmp_path / "home" / ".new-store-id-1-aa", tmp_path / "home" / ".new-version-2-bb"
    for path in (old, young):
        path.touch()
    os.utime(old, (0, 0))
    Home.open(tmp_path / "home")
    assert not old.exists()
    assert young.exists()  # its process may be at it
