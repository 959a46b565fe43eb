"""The command: its doors, its exit codes, and what it prints."""

import dataclasses
import json
import os
import shlex
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from sandport_conformance import catalogue, cli
from sandport_conformance.command_line import resolve
from sandport_conformance.mutants import command_of
from sandport_conformance.outcomes import Misuse
from sandport_conformance.progress import Progress
from sandport_conformance.report_html import to_html
from sandport_conformance.report_json import to_json
from sandport_conformance.requirements import requirements
from tests.conformance.tests.conftest import HEALTHY_COMMAND, python
from tests.conformance.tests.test_reports import REPORT as A_REPORT

PASSING = "FRAME-2"


def run(*options: str, worker: tuple[str, ...] = HEALTHY_COMMAND) -> int:
    return cli.main(["run", "--only", PASSING, *options, "--", *worker])


def test_a_conformant_worker_ends_with_0_and_one_line_of_summary(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("--seed", "7") == 0
    out = capsys.readouterr().out.splitlines()
    assert out[0].startswith("pass           L0 FRAME-2")
    assert out[-1] == "protocol 1, L0 conformant, 1/1 MUST, 0/0 SHOULD, 0 n/a, 0 untestable, seed 7"


def test_a_broken_worker_ends_with_1_and_the_way_to_mend_it(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("--scale", "0.05", worker=command_of("l0_frames:SplitsAtUnicodeSeparators")) == 1
    out = capsys.readouterr().out
    assert "FAIL           L0 FRAME-2" in out
    assert "fix: Split the bytes at 0x0A" in out
    assert "next: `sandport-conformance explain FRAME-2`" in out


def test_a_worker_that_cannot_be_started_ends_with_3_and_says_why(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(worker=python("sys.exit('no licence')")) == 3
    out = capsys.readouterr().out
    assert "no licence" in out
    assert "not started" in out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["run"], "there is no worker command; it comes after `--`"),
        (["run", "--", "no-such-program"], "there is no program 'no-such-program' on PATH"),
        (["run", "--", "./no-such-file"], "there is no program './no-such-file': no such file"),
        (["run", "--", "/"], "'/' is a directory"),
        (["run", "--", __file__], "is not executable: run chmod +x"),
        (["run", "--level", "L9", "--", "true"], "there is no level 'L9'"),
        (["run", "--level", "L5", "--", "true"], "L5 has no checks yet; the highest level that has some is L4"),
        (["run", "--level", "L0", "--only", "CMD-4", "--", "true"], "--only names the checks, and --level"),
        (["host"], "there is no host command; it comes after `--`"),
        (["matrix", "NOPE"], "there is no check 'NOPE'"),
        (["matrix", "MasksSignal"], "no broken worker 'MasksSignal'; did you mean MasksSignals"),
        (["diff", __file__, __file__], "is no report of this kit, which `run --json` writes: it is no JSON"),
        (["run", "--only", "FRAM-2", "--", "true"], "there is no check 'FRAM-2'; did you mean FRAME-2"),
        (["run", "--config", "/no/such.toml", "--", "true"], "/no/such.toml"),
        (["run", "--json", "/no/such/report.json", "--", "true"], "there is no directory /no/such"),
        (["run", "--scale", "0", "--", "true"], "--scale must be above 0"),
        (["explain", "FRAME-999"], "broken worker 'FRAME-999'; did you mean FRAME-9"),
        (["diff", "/no/a.json", "/no/b.json"], "/no/a.json"),
    ],
)
def test_wrong_usage_ends_with_2_and_a_message(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(arguments) == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize("arguments", [[], ["jduge"], ["list", "--", "worker"], ["run", "worker"]])
def test_arguments_that_argparse_refuses_end_with_2(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        cli.main(arguments)
    assert end.value.code == 2
    assert "usage: sandport-conformance" in capsys.readouterr().err


def test_a_forgotten_dash_dash_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        cli.main(["run", "node", "worker.js"])
    assert "unrecognized arguments: node worker.js; the worker's command comes after `--`" in capsys.readouterr().err


def test_a_requirement_without_a_check_of_its_own_is_told_as_explain_tells_it(
    capsys: pytest.CaptureFixture[str],
) -> None:
    of_checks = {check.requirement.id for check in catalogue.every_check()}
    shown = {one.id for check in catalogue.every_check() for one in check.also} - of_checks
    for_hosts = {one.id for one in requirements().values() if one.binds == "host"} - of_checks
    for name, words in ((min(shown), "no check of its own; it cannot hold"), (min(for_hosts), "no check")):
        assert cli.main(["run", "--only", name, "--", "true"]) == 2
        assert f"{name} has {words}" in capsys.readouterr().err


def test_a_must_without_a_check_is_named_at_the_end(capsys: pytest.CaptureFixture[str]) -> None:
    report = dataclasses.replace(A_REPORT, unjudged=("CMD-98", "CMD-99"))
    Progress(sys.stdout).end(report)
    assert "unjudged: 2 MUSTs that bind workers have no check: CMD-98, CMD-99" in capsys.readouterr().out
    assert json.loads(to_json(report))["unjudged"] == ["CMD-98", "CMD-99"]
    assert "CMD-98, CMD-99" in to_html(report)
    shown = {one.id for check in catalogue.every_check() for one in (check.requirement, *check.also)}
    for name in catalogue.unjudged("L4"):
        assert name not in shown
        assert requirements()[name].binds != "host"


def test_a_run_says_how_to_repeat_it_with_all_that_it_was_given(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    config, html = tmp_path / "my file.toml", tmp_path / "report.html"
    config.write_text("")
    broken = command_of("l0_frames:SplitsAtUnicodeSeparators")
    assert run("--scale", "0.05", "--config", str(config), "--html", str(html), worker=broken) == 1
    said = f"run --config '{config}' --scale 0.05 --only FRAME-2"
    assert f"`{said} --html report.html` writes" in capsys.readouterr().out
    assert said.replace("'", "&#x27;") in html.read_text()


def test_a_fault_of_the_kit_ends_with_4_and_blames_no_worker(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """The check is broken in a copy of the process: what it finds there is no `Session`."""
    code = (
        "import sys; from sandport_conformance import cli, catalogue; (check,) = catalogue.find('FRAME-2');"
        "object.__setattr__(check, 'run', lambda lab: lab.no_such_thing); sys.exit(cli.main(sys.argv[1:]))"
    )
    command = [sys.executable, "-c", code, "run", "--only", PASSING, "--", *HEALTHY_COMMAND]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 4, done.stderr
    assert "a fault of the kit in FRAME-2, please report it" in done.stdout
    assert "0/0 MUST" in done.stdout


def test_all_three_reports_are_written(tmp_path: Path) -> None:
    paths = {kind: tmp_path / f"report.{kind}" for kind in ("json", "junit", "html")}
    assert run(*(word for kind, path in paths.items() for word in (f"--{kind}", str(path)))) == 0
    assert json.loads(paths["json"].read_text())["conformant"] is True
    assert ET.fromstring(paths["junit"].read_text()).get("tests") == "1"
    assert paths["html"].read_text().startswith("<!doctype html>")


def test_no_secret_reaches_the_disk_or_the_terminal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from tests.conformance.tests import specimens

    monkeypatch.setenv("SPECIMEN_TOKEN", "hunter2-hunter2")
    config = tmp_path / "conformance.toml"
    config.write_text('[worker]\nconfig = { region = "eu" }\nsecrets = { token = "SPECIMEN_TOKEN" }\n')
    outputs = [word for kind in ("json", "junit", "html") for word in (f"--{kind}", str(tmp_path / kind))]
    worker = specimens.command(specimens.NeedsToken)
    assert cli.main(["run", "--config", str(config), "--only", "PROC-12", *outputs, "--", *worker]) == 1
    written = capsys.readouterr().out + "".join((tmp_path / kind).read_text() for kind in ("json", "junit", "html"))
    assert "[masked]" in written
    assert "hunter2" not in written
    assert "aHVudGVyM" not in written


def test_quiet_prints_what_fails_and_the_last_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("--quiet") == 0
    assert len(capsys.readouterr().out.splitlines()) == 1


def test_list_names_every_check_up_to_a_level(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["list", "--level", "L0"]) == 0
    out = capsys.readouterr().out
    assert "L0  MUST    FRAME-2" in out
    assert "PROC-3" not in out
    assert cli.main(["list"]) == 0
    assert "L1  MUST    PROC-3" in capsys.readouterr().out


def test_l4_comes_on_demand(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["list", "--level", "L3"]) == 0
    assert "LEASE-24/acquire" not in capsys.readouterr().out
    assert cli.main(["list", "--level", "L4"]) == 0
    assert "L4  MUST    LEASE-24/acquire" in capsys.readouterr().out
    assert {check.level for check in catalogue.select()} == {"L0", "L1", "L2", "L3"}


def test_explain_takes_several_names(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["explain", "frame-3", "MSG-4"]) == 0
    heads = [line.split()[0] for line in capsys.readouterr().out.splitlines() if line and not line.startswith(" ")]
    assert heads == ["FRAME-3", "MSG-4"]


def test_explain_tells_the_clause_the_reason_the_fix_and_what_it_catches(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["explain", "FRAME-2"]) == 0
    out = " ".join(capsys.readouterr().out.split())
    for said in (
        "Lines MUST be split on byte 0x0A only",
        "seen in: earendil-works/pi#1910",
        "fix: Split the bytes",
        "l0_frames:SplitsAtUnicodeSeparators: Takes U+2028",
    ):
        assert said in out


def test_diff_says_what_became_worse_and_better(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    good, bad = tmp_path / "good.json", tmp_path / "bad.json"
    assert run("--json", str(good)) == 0
    assert run("--json", str(bad), "--scale", "0.05", worker=command_of("l0_frames:SplitsAtUnicodeSeparators")) == 1
    capsys.readouterr()
    assert cli.main(["diff", str(good), str(bad)]) == 1
    assert "worse      FRAME-2: was pass, now fail: no answer" in capsys.readouterr().out
    assert cli.main(["diff", str(bad), str(good)]) == 0
    assert "better     FRAME-2: was fail, now pass" in capsys.readouterr().out
    assert cli.main(["diff", str(good), str(good)]) == 0


def test_diff_refuses_what_is_no_report(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "a.json"
    file.write_text("{}")
    assert cli.main(["diff", str(file), str(file)]) == 2
    assert "is no report of this kit" in capsys.readouterr().err


def test_a_file_of_the_current_directory_is_found_though_workers_start_in_the_root(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "worker.py").touch()
    monkeypatch.chdir(tmp_path)
    program, *arguments = resolve(["sh", "worker.py", "--config", "absent.py", "-c", ".", "/etc/passwd"])
    assert os.path.isabs(program)
    assert arguments == [str(tmp_path / "worker.py"), "--config", "absent.py", "-c", ".", "/etc/passwd"]
    with pytest.raises(Misuse, match="there is no worker command"):
        resolve([])


def test_help_starts_without_the_engine() -> None:
    code = (
        "import sys; from sandport_conformance import cli\n"
        "try: cli.main(['--help'])\n"
        "except SystemExit: pass\n"
        "print([m for m in sys.modules if m.startswith('sandport_conformance') or m in ('pytest', 'hypothesis')])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "exit codes:" in done.stdout
    loaded = done.stdout.splitlines()[-1]
    assert not any(name in loaded for name in ("run", "lab", "worker", "checks", "pytest'", "hypothesis"))


def test_the_module_is_the_command() -> None:
    command = [sys.executable, "-m", "sandport_conformance", "run", "--only", PASSING, "--", *HEALTHY_COMMAND]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, shlex.join(command) + done.stderr
