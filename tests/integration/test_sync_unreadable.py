"""What may not be read is missing from a copy, and whoever asked for the copy learns that, by every way."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.integration.command import Command
from tests.integration.sync_stage import WAYS
from tests.integration.unprivileged import bound_by_rights

ROOT = Path(__file__).parents[2]

SPOIL = (
    "mkdir -p d/shut d/gone; echo r >d/result; echo 1 >d/shut/f; echo 2 >d/fine; mkfifo d/pipe; echo 3 >d/.sandport-r"
)
SHUT = "chmod 0 d/result d/shut d/gone"

OWN = ("-c", "isolation=none")
"""The files of an isolated sandbox may be another user's, and then root needs what these processes go without."""

COPIES = """
import json, os, sys
from pathlib import Path
from tests.integration.sync_stage import every_way, inside

def told(result):
    return {
        "missing": result.missing_count,
        "whole": result.whole,
        "kinds": {os.fsdecode(notice.path): notice.kind for notice in result.skipped},
        "changed": result.changed_count,
    }

folder, script = Path(sys.argv[1]), sys.argv[2]
found = {}
with every_way(folder) as ways:
    for way, sandbox in ways.sandboxes.items():
        place = ways.fresh()
        ways.run(sandbox.execute(["sh", "-c", script]))
        assert open(inside(sandbox, "d/fine")).read() == "2\\n"
        try:
            open(inside(sandbox, "d/result"))
        except PermissionError:
            pass
        else:
            raise AssertionError("it may be read")
        out = ways.run(sandbox.sync_out("d", place / "out", exclude=["gone/"]))
        there = sorted(os.listdir(place / "out"))
        without = ["result", "shut", "gone", ".sandport-*"]
        rest = ways.run(sandbox.sync_out("d", place / "rest", exclude=without))
        into = ways.run(sandbox.sync_in(os.fsdecode(inside(sandbox, "d")), "again", exclude=["gone/"]))
        found[way] = {"out": told(out), "rest": told(rest), "in": told(into), "there": there}
print(json.dumps(found))
"""


@pytest.mark.slow
def test_a_copy_knows_by_every_way_whether_it_is_whole(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", COPIES, tmp_path, f"{SPOIL}; {SHUT}"],
        cwd=ROOT,
        capture_output=True,
        preexec_fn=bound_by_rights,
        timeout=120,
        check=False,
    )
    subprocess.run(["chmod", "-R", "u+rwX", tmp_path], check=True)
    assert done.returncode == 0, done.stderr.decode()
    found = json.loads(done.stdout)
    assert set(found) == set(WAYS)
    kinds = {"result": "denied", "shut": "denied", ".sandport-r": "reserved", "pipe": "special"}
    for way, said in found.items():
        for copy in ("out", "in"):
            one = said[copy]
            assert (one["missing"], one["whole"], one["kinds"], one["changed"]) == (3, False, kinds, 0), (way, copy)
        rest = said["rest"]
        assert (rest["missing"], rest["whole"], rest["kinds"]) == (0, True, {"pipe": "special"}), way
        assert "fine" in said["there"], way
        assert "result" not in said["there"], way


def test_an_out_that_may_not_be_read_is_no_success(sandport: Command) -> None:
    for spoil, missing in (
        (f"{SPOIL}; {SHUT}", {"result": "denied", "shut": "denied", "gone": "denied", ".sandport-r": "reserved"}),
        (SPOIL, {".sandport-r": "reserved"}),
    ):
        done = sandport("run", *OWN, "--json", "--out", "d", "--", "sh", "-c", spoil, preexec_fn=bound_by_rights)
        found, moved = done.object, done.object["moved"][0]
        assert (done.code, found["codeFrom"], found["exitCode"]) == (125, "sandport", 0)
        assert moved["missing"] == len(missing)
        assert {one["path"]: one["kind"] for one in moved["skippedPaths"]} == missing | {"pipe": "special"}
        assert found["warnings"] == [
            f"--out d: not all of it came out: {len(missing)} cannot be read or has a reserved name"
        ]
        for path in missing:
            assert f"--out d: skipped: {path}: " in done.err
    rest = ["--exclude", "result", "--exclude", "shut", "--exclude", "gone", "--exclude", ".sandport-*"]
    script = f"{SPOIL}; {SHUT}"
    assert sandport("run", *OWN, "--out", "d", *rest, "--", "sh", "-c", script, preexec_fn=bound_by_rights).code == 0
    assert (
        sandport("run", *OWN, "--out", "d", "--", "sh", "-c", f"{script}; exit 9", preexec_fn=bound_by_rights).code == 9
    )


@pytest.mark.parametrize("spoil", [f"{SPOIL}; {SHUT}", SPOIL])
def test_a_command_is_not_started_on_an_input_that_is_not_whole(sandport: Command, spoil: str) -> None:
    subprocess.run(["sh", "-c", spoil], cwd=sandport.cwd, check=True)
    done = sandport(
        "run", *OWN, "--json", "--in", "d", "--", "sh", "-c", "echo started >&2", preexec_fn=bound_by_rights
    )
    assert (done.code, done.object["codeFrom"], done.object["ended"]) == (125, "sandport", None)
    assert "the command was not started" in done.object["error"]["message"]
    assert "\nstarted" not in f"\n{done.err}"
    rest = ["--exclude", "result", "--exclude", "shut", "--exclude", "gone", "--exclude", ".sandport-*"]
    done = sandport("run", *OWN, "--in", "d", *rest, "--", "cat", "fine", preexec_fn=bound_by_rights)
    assert (done.code, done.out) == (0, b"2\n")
    subprocess.run(["chmod", "-R", "u+rwX", sandport.cwd], check=True)


def test_what_a_killed_copy_staged_is_missing_to_nobody(sandport: Command) -> None:
    """It is the host's own, and goes with the next copy into its directory."""
    (sandport.cwd / "d").mkdir()
    (sandport.cwd / "d/f").write_text("1")
    (sandport.cwd / "d" / ".sandport-0123456789abcdef").write_text("half")
    done = sandport("run", "--in", "d:d", "--out", "d:back", "--", "sh", "-c", "cp d/f d/.sandport-0123456789abcdef")
    assert done.code == 0, done.err
    assert os.listdir(sandport.cwd / "back") == ["f"]


def test_a_fifo_of_this_machine_is_no_target(sandport: Command) -> None:
    os.mkfifo(sandport.cwd / "fifo")
    (sandport.cwd / "link").symlink_to("fifo")
    for target in ("fifo", "link"):
        done = sandport("run", "--out", f"r:{target}", "--", "sh", "-c", "echo started >&2; echo 1 >r")
        assert (done.code, "neither a file nor a folder" in done.err, "started" in done.err) == (2, True, False)
    assert (sandport.cwd / "fifo").is_fifo()
