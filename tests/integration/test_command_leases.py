"""`sandport run --keep` and `sandport leases`: a sandbox that outlives its command, seen and ended by later ones."""

import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.integration.command import Command, Done, until

ENVIRONMENT = '[environments.ci]\nprovider = "local"\nenv = { A = "1" }\n'


@pytest.fixture(autouse=True)
def nothing_is_left(sandport: Command) -> Iterator[None]:
    """Whatever a test keeps is ended by it, or after it."""
    yield
    kept = sandport.leased()
    if kept:
        done = sandport("leases", "end", "--force", *kept)
        assert done.code == 0, done
    sandport.nothing_is_left()


def keep(sandport: Command, *words: str, name: str = "box") -> Done:
    return sandport("run", "-q", "--keep", "--name", name, *words, "--", "sh", "-c", "echo kept > file")


def running(sandport: Command, *words: str) -> Any:
    """A command that has printed `ready`, and would go on for long."""
    process = sandport.start(*words, "--", "sh", "-c", "echo ready; exec sleep 600")
    assert process.stdout.readline() == b"ready\n", process.stderr.read()
    return process


# ------------------------------------------------------------------ keeping


def test_a_kept_sandbox_is_used_and_ended_by_later_processes(sandport: Command) -> None:
    """paperclip#13515, background-agents#997: what is kept is found again, as it was, by its id."""
    done = sandport("run", "--keep", "--", "sh", "-c", "echo 1 > file")
    assert done.code == 0
    (line,) = [line for line in done.lines if "kept as" in line]
    (lease,) = sandport.leases()
    assert lease["id"] in line
    assert f"sandport exec {lease['id']} -- COMMAND" in line
    assert f"sandport leases end {lease['id']}" in line
    assert (lease["state"], lease["inUseBy"], lease["pending"], lease["owner"]) == ("kept", [], None, None)
    assert sandport("exec", "-q", lease["id"], "--", "sh", "-c", "cat file; echo 2 > file").out == b"1\n"
    assert sandport("exec", "-q", lease["id"], "--", "cat", "file").out == b"2\n"
    assert sandport("leases", "end", lease["id"]).code == 0
    sandport.nothing_is_left()


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (["--", "sh", "-c", "exit 3"], 3),
        (["--timeout", "0.2", "--", "sleep", "60"], 124),
        (["--", "./gone"], 127),
        (["--out", "gone", "--", "true"], 125),
    ],
    ids=["failed", "timed out", "not there", "nothing to bring"],
)
def test_a_sandbox_is_kept_whatever_became_of_the_command(sandport: Command, words: list[str], code: int) -> None:
    done = sandport("run", "--keep", *words)
    assert done.code == code
    assert "kept as le" in done.lines[-1]
    (lease,) = sandport.leases()
    assert sandport("exec", "-q", lease["id"], "--", "echo", "there").out == b"there\n"


def test_a_kept_lease_is_in_the_object(sandport: Command) -> None:
    done = sandport("run", "--json", "--keep", "--name", "box", "--ttl", "120", "--", "true")
    found = done.object
    (lease,) = sandport.leases()
    assert (found["kept"], found["name"], found["left"]) == (True, "box", [])
    assert (found["ids"]["lease"], found["ids"]["sandbox"]) == (lease["id"], lease["sandbox"])
    assert found["expiresAt"] == lease["expiresAt"] != None  # noqa: E711 - both, and some time


def test_a_run_that_keeps_nothing_says_so_in_its_object(sandport: Command) -> None:
    found = sandport("run", "--json", "--", "true").object
    assert (found["kept"], found["name"], found["expiresAt"], found["left"]) == (False, None, None, [])
    assert found["ids"]["lease"].startswith("le")


def test_an_interrupt_ends_what_would_have_been_kept(sandport: Command) -> None:
    """Whoever presses Ctrl-C wants an end; nobody was told the id yet."""
    with running(sandport, "run", "--keep") as process:
        process.send_signal(signal.SIGINT)
        assert process.stderr.read().decode().splitlines()[-1] == (
            "sandport: interrupted; what was started has been cleaned up"
        )
        assert process.wait() == 130
    assert sandport.leases() == []


def test_a_reader_that_leaves_ends_what_would_have_been_kept(sandport: Command) -> None:
    done = sandport.shell("sandport run -q --keep -- yes | head -1")
    assert (done.out, done.err) == (b"y\n", "")
    assert sandport.leases() == []


def test_a_name_is_one_lease_s_until_that_has_ended(sandport: Command) -> None:
    """crabbox#1742: a fixed id was used again for another request."""
    assert keep(sandport).code == 0
    (lease,) = sandport.leases()
    done = keep(sandport)
    assert done.code == 2
    assert lease["id"] in done.err
    assert len(done.lines) <= 2
    assert len(sandport.leases("--all")) == 1
    assert sandport("leases", "end", "box").code == 0
    assert keep(sandport).code == 0


@pytest.mark.parametrize("name", ["", "-x", "a b", "a/b", "x" * 64, "le" + "a" * 26, "ä"])
def test_a_name_that_could_be_taken_for_something_else_is_refused(sandport: Command, name: str) -> None:
    done = sandport("run", "--keep", f"--name={name}", "--", "true")
    assert (done.code, sandport.home.exists()) == (2, False)
    assert "--name" in done.err


def test_a_lease_that_is_in_its_block_can_be_used_beside_it_and_ends_with_it(sandport: Command) -> None:
    with running(sandport, "run", "-q", "--name", "live") as process:
        (lease,) = sandport.leases()
        assert (lease["state"], lease["kept"]) == ("active", False)
        assert [user["pid"] for user in lease["inUseBy"]] == [process.pid]
        assert lease["owner"]["pid"] == process.pid
        assert sandport("exec", "-q", "live", "--", "echo", "beside").out == b"beside\n"
        process.send_signal(signal.SIGINT)
        assert process.wait() == 130
    assert sandport.leases() == []


# ------------------------------------------------------------------ seeing


def test_where_nothing_was_leased_nothing_is_listed_and_nothing_made(sandport: Command) -> None:
    done = sandport("leases")
    assert (done.code, done.out, done.lines) == (0, b"", ["sandport: there are no leases"])
    assert sandport("leases", "--json").object == {"leases": [], "pending": 0}
    assert not sandport.home.exists()


def test_the_list_has_a_row_for_each_lease(sandport: Command) -> None:
    sandport.configure(ENVIRONMENT)
    assert keep(sandport, "-e", "ci", "--ttl", "7300").code == 0
    assert sandport("run", "-q", "--", "true").code == 0
    head, row = sandport("leases").out.decode().splitlines()
    assert head.replace("IN USE BY", "USERS").split() == [
        *("LEASE", "NAME", "STATE", "PROVIDER", "ENVIRONMENT"),
        *("RUN", "AGE", "EXPIRES", "USERS", "PENDING"),
    ]
    cells = row.split()
    assert cells[1:6] == ["box", "kept", "local", "ci", "-"]
    assert cells[7:] == ["2h", "-", "-"]
    everything = sandport("leases", "list", "--all").out.decode().splitlines()
    assert [line.split()[2] for line in everything[1:]] == ["kept", "ended"]
    again = sandport("leases", "--all").out.decode().splitlines()
    assert [line.split()[0] for line in again] == [line.split()[0] for line in everything]


def test_a_table_on_a_terminal_has_the_same_cells(sandport: Command) -> None:
    assert keep(sandport).code == 0
    master, slave = os.openpty()
    subprocess.run(["stty", "cols", "200"], stdin=slave, check=True)
    done = sandport("leases", stdout=slave, env={"TERM": "xterm", "COLUMNS": "200"})
    os.close(slave)
    shown = os.read(master, 65536).decode()
    os.close(master)
    assert done.code == 0
    (lease,) = sandport.leases()
    assert lease["id"] in shown
    assert "\x1b[" in shown


def test_one_lease_is_shown_with_what_was_done(sandport: Command) -> None:
    sandport.configure(ENVIRONMENT)
    assert keep(sandport, "-e", "ci", "-c", "isolation=none").code == 0
    (lease,) = sandport.leases()
    with running(sandport, "exec", "-q", "box") as process:
        for which in ("box", lease["id"], lease["sandbox"]):
            assert sandport("leases", "show", which, "--json").object["lease"]["id"] == lease["id"]
        found = sandport("leases", "show", lease["id"][:8], "--json").object
        assert [receipt["what"] for receipt in found["receipts"]] == ["requested", "creating", "created", "released"]
        assert [use["process"]["pid"] for use in found["uses"]] == [process.pid]
        assert found["sandbox"]["config"] == {"isolation": "none"}
        assert found["sandbox"]["env"] == ["A"]
        text = sandport("leases", "show", "box").out.decode()
        assert f"in use by    {process.pid} (sandport) since" in text
        assert "released" in text
        process.send_signal(signal.SIGTERM)


def test_values_of_variables_are_not_shown(sandport: Command) -> None:
    sandport.configure('[environments.ci]\nprovider = "local"\nenv = { TOKEN = "hunter2" }\n')
    assert keep(sandport, "-e", "ci").code == 0
    for words in (["leases", "show", "box"], ["leases", "show", "box", "--json"], ["leases", "--json"]):
        assert b"hunter2" not in sandport(*words).out


@pytest.mark.parametrize("words", [["exec", "bok", "--", "true"], ["leases", "show", "bok"], ["leases", "end", "bok"]])
def test_a_lease_that_is_not_there_is_told_with_the_nearest(sandport: Command, words: list[str]) -> None:
    assert keep(sandport).code == 0
    done = sandport(*words)
    assert (done.code, done.out) == (2, b"")
    assert done.err == "sandport: there is no lease 'bok'; did you mean 'box'?\n"


@pytest.mark.parametrize("words", [["show", "gone"], ["list"]])
def test_an_error_is_an_object_too(sandport: Command, words: list[str]) -> None:
    sandport.home.mkdir(mode=0o700)
    (sandport.home / "journal.db").write_bytes(b"nonsense" * 1000)
    done = sandport("leases", *words, "--json")
    assert done.code == done.object["error"]["code"] == 2
    (sandport.home / "journal.db").unlink()


def test_leases_are_completed(sandport: Command) -> None:
    assert keep(sandport).code == 0
    (lease,) = sandport.leases()
    for line in ("sandport exec ", "sandport leases show ", "sandport leases end x ", "sandport reap --forget "):
        for beginning, whole in (("b", "box"), (lease["id"][:5], lease["id"])):
            words = (line + beginning).split(" ")
            env = {
                "_SANDPORT_COMPLETE": "bash_complete",
                "COMP_WORDS": line + beginning,
                "COMP_CWORD": str(len(words) - 1),
            }
            assert sandport(env=env).out.decode() == f"plain,{whole}\n", line


# ------------------------------------------------------------------ ending


def test_several_are_ended_and_one_that_is_not_there_does_not_stop_it(sandport: Command) -> None:
    assert keep(sandport, name="one").code == 0
    assert keep(sandport, name="two").code == 0
    done = sandport("leases", "end", "one", "nought", "two", "--json")
    assert done.code == 2
    assert [(one["asked"], one["end"]) for one in done.object["leases"]] == [
        ("one", "gone"),
        ("nought", "refused"),
        ("two", "gone"),
    ]
    assert sandport.leases() == []


def test_what_had_ended_is_confirmed_again(sandport: Command) -> None:
    """openclaw#137025: the release of something already gone never confirmed."""
    assert keep(sandport).code == 0
    (lease,) = sandport.leases()
    assert sandport("leases", "end", lease["id"]).out.decode() == f"{lease['id']}: ended\n"
    done = sandport("leases", "end", lease["id"])
    assert (done.code, done.out.decode()) == (0, f"{lease['id']}: had ended before\n")


def test_a_lease_in_use_is_ended_with_force_only_and_its_user_is_told(sandport: Command) -> None:
    assert keep(sandport).code == 0
    with running(sandport, "exec", "box") as process:
        done = sandport("leases", "end", "box")
        assert done.code == 125
        assert done.err == (
            f"sandport: box: it is used by process {process.pid} (sandport); --force ends it all the same\n"
        )
        (lease,) = sandport.leases()
        assert lease["state"] == "kept"
        assert process.poll() is None
        assert sandport("leases", "end", "box", "--force").code == 0
        assert process.wait(timeout=60) == 125
        err = process.stderr.read().decode()
        assert "ended while the command ran" in err
        assert "Traceback" not in err
        assert len(err.splitlines()) <= 2


def test_a_run_whose_lease_another_one_ends_with_force_is_told(sandport: Command) -> None:
    with running(sandport, "run", "--name", "live") as process:
        assert sandport("leases", "end", "live").code == 125
        assert sandport("leases", "end", "live", "--force").code == 0
        assert process.wait(timeout=60) == 125
        assert "ended while the command ran" in process.stderr.read().decode()


def test_a_lease_ends_although_its_environment_is_not_configured_any_more(sandport: Command) -> None:
    """paperclip#11347: an environment was removed, and its leases could not be reached."""
    sandport.configure(ENVIRONMENT)
    assert keep(sandport, "-e", "ci").code == 0
    sandport.configure("")
    assert sandport("run", "-e", "ci", "--", "true").code == 2
    assert sandport("exec", "-q", "box", "--", "sh", "-c", "cat file; echo $A").out == b"kept\n1\n"
    assert sandport("leases", "end", "box").code == 0


def test_a_lease_whose_provider_is_not_configured_any_more_waits_for_it(sandport: Command) -> None:
    """paperclip#8513: a destroy was skipped since there was no worker, and forgotten."""
    here = "import sys; from sandport_provider_local import *"
    worker = sandport.shell(
        f"""{sandport.env["PATH"].split(":")[0]}/python -c '{here}; print(sys.executable)'"""
    ).out.decode()
    command = f'[providers.mine]\ncommand = ["{worker.strip()}", "-P", "-m", "sandport_provider_local"]\n'
    sandport.configure(command)
    assert keep(sandport, "-p", "mine").code == 0
    sandport.configure("")
    done = sandport("leases", "end", "box", "--json")
    assert (done.code, done.object["leases"][0]["end"]) == (125, "later")
    assert "sandport reap" in done.err
    (lease,) = sandport.leases()
    assert (lease["state"], lease["pending"]["why"], lease["pending"]["attempts"]) == ("ending", "ending", 0)
    assert "'mine'" in lease["pending"]["lastError"]
    assert sandport("reap").code == 125
    sandport.configure(command)
    assert sandport("reap").code == 0


# ------------------------------------------------------------------ several hosts


def test_one_command_s_end_touches_no_lease_of_another(sandport: Command) -> None:
    """agent-sandbox#467: an exit hook deleted the sandboxes of other owners."""
    assert keep(sandport).code == 0
    with running(sandport, "run", "-q", "--name", "other") as process:
        for words in (["run", "-q", "--", "true"], ["reap"], ["run", "-q", "--", "false"]):
            sandport(*words)
        assert {lease["name"]: lease["state"] for lease in sandport.leases()} == {"box": "kept", "other": "active"}
        assert sandport("exec", "-q", "other", "--", "echo", "alive").out == b"alive\n"
        assert sandport("exec", "-q", "box", "--", "cat", "file").out == b"kept\n"
        process.send_signal(signal.SIGINT)
        assert process.wait() == 130


def test_a_kept_lease_outlives_its_killed_user_and_its_killed_maker(sandport: Command) -> None:
    """crabbox#1144: a sweep deleted leases that another process had just claimed."""
    with running(sandport, "run", "-q", "--keep", "--name", "box") as process:
        process.kill()
        process.wait()
    (lease,) = sandport.leases()
    assert (lease["owner"]["live"], lease["pending"]) == (False, None)
    with running(sandport, "exec", "-q", "box") as process:
        process.kill()
        process.wait()
    assert sandport("reap").code == 0
    (lease,) = sandport.leases()
    assert (lease["state"], lease["owner"], lease["inUseBy"]) == ("kept", None, [])
    assert sandport("exec", "-q", "box", "--", "echo", "alive").out == b"alive\n"


@pytest.mark.slow
def test_a_kept_lease_ends_when_its_time_is_over(sandport: Command) -> None:
    # Long enough for the command to end before it on a busy machine.
    assert keep(sandport, "--ttl", "12").code == 0
    until(lambda: sandport.leases()[0]["pending"] is not None)
    (lease,) = sandport.leases()
    assert lease["pending"]["why"] == "expired"
    assert "its time is over" in sandport("leases").out.decode()
    done = sandport("exec", "box", "--", "true")
    # Whoever is faster: clean-up, which ended it at the start, or the provider.
    assert done.code in {2, 125}
    assert "Traceback" not in done.err
    assert 1 <= len(done.lines) <= 2
    assert sandport("reap").code == 0
    assert sandport.leases() == []


def test_a_state_of_an_embedder_is_seen_and_left(sandport: Command, tmp_path: Path) -> None:
    """What an embedder leases is listed with its own ids, and is its own."""
    script = tmp_path / "embedder.py"
    script.write_text(
        "import asyncio\nfrom sandport import Host\n"
        "async def main():\n"
        "    async with Host.open() as host, host.lease('local', run='run-7', tenant='acme') as sandbox:\n"
        "        print(sandbox.id, flush=True)\n"
        "        await asyncio.Event().wait()\n"
        "asyncio.run(main())\n"
    )
    python = Path(sandport.env["PATH"].split(os.pathsep)[0], "python")
    with subprocess.Popen([python, "-P", script], env=sandport.env, stdout=subprocess.PIPE, cwd=tmp_path) as process:
        assert process.stdout is not None
        sandbox = process.stdout.readline().decode().strip()
        assert sandport("reap").code == 0
        (lease,) = sandport.leases()
        assert (lease["sandbox"], lease["run"], lease["tenant"]) == (sandbox, "run-7", "acme")
        assert lease["owner"]["command"] == "embedder.py"
        assert sandport("exec", "-q", sandbox, "--", "echo", "in").out == b"in\n"
        process.kill()
    (lease,) = sandport.leases()
    assert lease["pending"]["why"] == "ownerDead"
    assert sandport("reap").code == 0


def test_a_lease_that_another_process_looks_after_is_ended_with_force_only(sandport: Command, tmp_path: Path) -> None:
    """Clean-up of another host has it in hand, without using it."""
    assert keep(sandport).code == 0
    (lease,) = sandport.leases()
    script = tmp_path / "keeper.py"
    script.write_text(
        "import asyncio, sys\nfrom sandport import Host\n"
        "async def main():\n"
        "    async with Host.open(cleans_up=False) as host:\n"
        "        row = await host.store.sandbox(sys.argv[1])\n"
        "        await host.store.claim(row.ref, by=host.instance)\n"
        "        print('has it', flush=True)\n"
        "        await asyncio.Event().wait()\n"
        "asyncio.run(main())\n"
    )
    python = Path(sandport.env["PATH"].split(os.pathsep)[0], "python")
    words = [python, "-P", script, lease["sandbox"]]
    with subprocess.Popen(words, env=sandport.env, stdout=subprocess.PIPE, cwd=tmp_path) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"has it\n"
        done = sandport("leases", "end", "box")
        assert (done.code, len(done.lines)) == (125, 1)
        assert f"process {process.pid} (keeper.py); --force ends it" in done.err
        assert sandport("leases", "end", "box", "--force").code == 0
        process.kill()
