"""The log of a provider's workers as a file: every record a line, bounded, the user's alone, whoever else writes."""

import os
import stat
from pathlib import Path

from sandport.log import Log
from sandport.worker.log_file import LogFile, file_name
from sandport.worker.stderr import Level


def lines_of(path: Path) -> list[str]:
    return path.read_text().splitlines()


def test_a_record_is_a_line_with_its_time_level_process_and_source(tmp_path: Path) -> None:
    file = LogFile(tmp_path, "local")
    file("warning", "careful", {"pid": 7, "source": "stderr"})
    file("error", "two\nlines", {})
    first, second = lines_of(tmp_path / "logs/local.log")
    assert first[23:] == "Z warning pid=7 stderr: careful"
    assert second.endswith("Z error pid=? host: two\\nlines")
    file.close()


def test_all_that_a_worker_writes_is_in_its_file_and_what_the_host_notes_for_itself_is_not(tmp_path: Path) -> None:
    file = LogFile(tmp_path, "local")
    log = Log(lambda level, event, fields: None, threshold="error").and_to(file, threshold="debug")
    log("debug", "a host's", pid=7)
    log("debug", "DEBUG: a print", pid=7, source="stderr")
    assert [line.partition("Z ")[2] for line in lines_of(file.path)] == ["debug pid=7 stderr: DEBUG: a print"]
    file.close()


def test_folder_and_files_are_the_users_alone(tmp_path: Path) -> None:
    file = LogFile(tmp_path, "local", file_bytes=100)
    for _ in range(10):
        file("info", "x" * 30, {})
    file.close()
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in (tmp_path / "logs").iterdir()}
    assert modes == {"local.log": 0o600, "local.log.1": 0o600}
    assert stat.S_IMODE((tmp_path / "logs").stat().st_mode) == 0o700


def test_two_files_are_all_that_there_is_however_much_is_written(tmp_path: Path) -> None:
    file = LogFile(tmp_path, "local", file_bytes=10_000)
    for number in range(5000):
        file("info", f"line {number}", {"pid": 1})
    file.close()
    sizes = [path.stat().st_size for path in (tmp_path / "logs").iterdir()]
    assert len(sizes) == 2
    assert max(sizes) <= 10_000
    kept = lines_of(tmp_path / "logs/local.log.1") + lines_of(tmp_path / "logs/local.log")
    numbers = [int(line.rsplit(" ", 1)[1]) for line in kept]
    assert numbers == list(range(numbers[0], 5000))


def test_several_hosts_share_a_file_and_lose_no_line_of_the_last_ones(tmp_path: Path) -> None:
    files = [LogFile(tmp_path, "local", file_bytes=20_000) for _ in range(3)]
    for number in range(900):
        files[number % 3]("info", f"line {number}", {"pid": 1})
    for file in files:
        assert file.failed is None
        file.close()
    kept = lines_of(tmp_path / "logs/local.log.1") + lines_of(tmp_path / "logs/local.log")
    numbers = sorted(int(line.rsplit(" ", 1)[1]) for line in kept)
    assert numbers[-1] == 899
    assert len(set(numbers)) == len(numbers)
    assert all(path.stat().st_size < 30_000 for path in (tmp_path / "logs").iterdir())


def test_a_file_that_somebody_removed_is_begun_anew(tmp_path: Path) -> None:
    file = LogFile(tmp_path, "local", file_bytes=100_000)
    file("info", "before", {})
    file.path.unlink()
    for number in range(500):  # it is looked at again before a sixteenth of it is written
        file("info", f"line {number}", {})
    file.close()
    assert lines_of(file.path)[-1].endswith("line 499")


def test_a_line_longer_than_a_whole_file_is_written_and_turned_over_next(tmp_path: Path) -> None:
    file = LogFile(tmp_path, "local", file_bytes=100)
    file("info", "x" * 500, {})
    file("info", "after", {})
    file.close()
    assert lines_of(tmp_path / "logs/local.log")[0].endswith("after")


def test_a_folder_that_takes_no_file_costs_the_file_and_nothing_else(tmp_path: Path) -> None:
    (tmp_path / "logs").write_text("in the way")
    file = LogFile(tmp_path, "local")
    file("info", "x", {})
    assert isinstance(file.failed, OSError)
    assert file.place() == ""


def test_a_record_after_the_pause_is_written_again_and_the_host_is_told_once(tmp_path: Path) -> None:
    """One write to a full disk turned the log of a provider off for as long as its host lived."""
    told: list[str] = []
    log = Log(lambda level, event, fields: told.append(f"{level} {event}"), threshold="info")
    patient = LogFile(tmp_path, "patient")
    file = LogFile(tmp_path, "local", log=log, retry_s=0.0)
    for round_ in range(2):
        (tmp_path / "logs").write_text("in the way")
        for one in (file, patient):
            one("info", "lost", {})
            one.close()
        assert file.place() == ""
        (tmp_path / "logs").unlink()
        file("info", f"again {round_}", {})
        patient("info", "in the pause", {})
        assert file.failed is None
        assert patient.failed is not None
        assert file.place() == str(file.path)
        assert [line.rpartition(" ")[2] for line in lines_of(file.path)] == [str(round_)]
        file.close()
        file.path.unlink()
        assert os.listdir(tmp_path / "logs") == []
        (tmp_path / "logs").rmdir()
    (line,) = told
    assert line.startswith("warning ")
    assert str(file.path) in line


def test_a_link_in_its_place_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs/local.log").symlink_to(tmp_path / "other")
    file = LogFile(tmp_path, "local")
    file("info", "x", {})
    assert file.failed is not None
    assert not (tmp_path / "other").exists()


def test_tenants_have_files_of_their_own_whatever_their_ids_are() -> None:
    assert file_name("local") == "local.log"
    assert file_name("local", "acme-7") == "local@acme-7.log"
    strange = file_name("local", "../../etc/passwd")
    assert "/" not in strange
    assert strange != file_name("local", "../../etc/shadow")


def test_a_log_is_written_to_one_place_more_with_a_threshold_of_its_own(tmp_path: Path) -> None:
    seen: list[tuple[Level, str]] = []
    file = LogFile(tmp_path, "local")
    log = Log(lambda level, event, fields: seen.append((level, event)), threshold="warning")
    log.and_to(file).bind(pid=3)("info", "quiet")
    log.and_to(file).bind(pid=3)("error", "loud")
    assert seen == [("error", "loud")]
    assert [line[23:] for line in lines_of(file.path)] == ["Z info pid=3 host: quiet", "Z error pid=3 host: loud"]
    file.close()


def test_no_descriptor_is_left(tmp_path: Path) -> None:
    before = len(os.listdir("/proc/self/fd"))
    file = LogFile(tmp_path, "local", file_bytes=50)
    for _ in range(50):
        file("info", "x", {})
    file.close()
    assert len(os.listdir("/proc/self/fd")) == before
