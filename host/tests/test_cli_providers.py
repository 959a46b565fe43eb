"""`sandport providers` and `sandport doctor`: what is there, what works, and what to do where it does not."""

import os
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from sandport.cli.places import Places, Space
from tests.integration.command import Command

# A whole worker that says its hello and ends with its input; standard library only.
WORKER = """
import json, sys
for line in sys.stdin:
    message = json.loads(line)
    if message.get("method") == "initialize":
        result = {
            "protocolVersion": 1,
            "provider": {"name": "lotus", "version": "7.8", "displayName": "Lotus"},
            "supportedMethods": ["initialize", "ping", "shutdown", "validateConfig", "probe", "acquireLease",
                                 "attachLease", "listLeases", "destroyLease", "execute"],
            "capabilities": {"kill": "group", "expiry": "vendor", "egress": ["none"]},
            "wantsEnv": ["LOTUS_TOKEN", "LOTUS_REGION", "LOTUS_UNSET"],
        }
        print(json.dumps({"jsonrpc": "2.0", "id": message["id"], "result": result}), flush=True)
    elif message.get("method") == "initialized":
        print(json.dumps({"jsonrpc": "2.0", "method": "ready"}), flush=True)
    elif "id" in message:
        print(json.dumps({"jsonrpc": "2.0", "id": message["id"], "result": {}}), flush=True)
"""


@pytest.fixture
def lotus(sandport: Command) -> Path:
    """A provider that only sandport.toml knows."""
    path = sandport.folder / "lotus.py"
    path.write_text(WORKER)
    sandport.configure(f'[providers.lotus]\ncommand = ["{sys.executable}", "{path}"]\nenv = ["LOTUS_REGION"]\n')
    return path


def by_name(listing: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    return {entry["name"]: entry for entry in listing}


def plant(sandport: Command, distribution: str, line: str, code: str = "") -> dict[str, str]:
    """An installed distribution with one entry point and a module; answers the environment that has it."""
    site = sandport.folder / "site"
    dist_info = site / f"{distribution}-1.0.dist-info"
    dist_info.mkdir(parents=True)
    (dist_info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {distribution}\nVersion: 1.0\n")
    (dist_info / "entry_points.txt").write_text(f"[sandport.providers]\n{line}\n")
    (site / f"{line.partition('=')[2].strip()}.py").write_text(code)
    return {"PYTHONPATH": str(site)}


@pytest.mark.usefixtures("lotus")
def test_installed_and_configured_providers_are_listed(sandport: Command) -> None:
    done = sandport("providers")
    assert done.code == 0
    head, *rows = done.out.decode().splitlines()
    assert head.split() == ["PROVIDER", "VERSION", "FROM"]
    assert [row.split()[0] for row in rows] == ["fake", "local", "lotus"]
    assert "\x1b" not in done.out.decode()


@pytest.mark.usefixtures("lotus")
def test_a_listing_in_json_says_where_each_comes_from(sandport: Command) -> None:
    found = by_name(sandport("providers", "--json").object["providers"])
    assert (found["local"]["origin"], found["local"]["module"]) == ("installed", "sandport_provider_local")
    assert found["local"]["distribution"] == "sandport-provider-local"
    assert (found["lotus"]["origin"], found["lotus"]["grants"]) == ("configured", ["LOTUS_REGION"])
    assert found["lotus"]["command"][0] == sys.executable
    assert all(entry["hello"] is None and entry["fault"] is None for entry in found.values())


def test_a_listing_imports_and_starts_nothing_and_leaves_no_state(sandport: Command) -> None:
    trace = sandport.folder / "trace"
    env = plant(sandport, "planted", "planted = planted_module", f"open({str(trace)!r}, 'w').write('imported')")
    done = sandport("providers", "--json", env=env)
    assert "planted" in by_name(done.object["providers"])
    assert not trace.exists()
    assert not sandport.home.exists()


@pytest.mark.usefixtures("lotus")
def test_a_probe_shows_what_a_worker_says_of_itself(sandport: Command) -> None:
    env = {"LOTUS_TOKEN": "t", "LOTUS_REGION": "r"}
    done = sandport("providers", "--probe", "--json", env=env)
    assert done.code == 0
    found = by_name(done.object["providers"])
    hello = found["lotus"]["hello"]
    assert (hello["version"], hello["displayName"], hello["protocolVersion"]) == ("7.8", "Lotus", 1)
    assert "execute" in hello["methods"]
    assert hello["capabilities"]["kill"] == "group"
    assert (hello["groups"], hello["missingGroups"]) == ([], ["process", "sync"])
    # One is granted, one is not set: only what is set here and did not get there is withheld.
    assert hello["withheld"] == ["LOTUS_TOKEN"]
    assert "process" in found["local"]["hello"]["groups"]


@pytest.mark.usefixtures("lotus")
def test_a_probe_as_a_table(sandport: Command) -> None:
    done = sandport("providers", "--probe", env={"LOTUS_TOKEN": "t"})
    assert done.code == 0
    row = next(line for line in done.out.decode().splitlines() if line.startswith("lotus"))
    for part in ("7.8", "kill group", "expiry vendor", "egress none", "LOTUS_TOKEN"):
        assert part in row


def test_one_provider_that_cannot_be_used_does_not_hide_the_others(sandport: Command) -> None:
    sandport.configure('[providers.broken]\ncommand = ["sh", "-c", "echo no licence >&2; exit 3"]\n')
    done = sandport("providers", "--probe", "--json")
    assert done.code == 1
    found = by_name(done.object["providers"])
    assert found["local"]["hello"] is not None
    assert found["broken"]["fault"]["condition"] == "WorkerStartFailed"
    assert "exited with code 3" in found["broken"]["fault"]["message"]
    assert found["broken"]["fault"]["logTail"] == ["no licence"]


def test_a_provider_that_is_configured_and_not_there_is_named(sandport: Command) -> None:
    sandport.configure('[providers.typo]\nenv = ["A"]\n')
    done = sandport("providers")
    assert done.code == 0
    assert "[providers.typo] is in sandport.toml, but has no command, and no such provider is installed" in done.err


def test_metadata_that_names_no_usable_provider_is_told(sandport: Command) -> None:
    env = plant(sandport, "planted", "Not A Name = planted")
    done = sandport("providers", env=env)
    assert done.code == 0
    assert "'Not A Name' is not a provider's name" in done.err


# ------------------------------------------------------------------ doctor


def checks(done: Any) -> dict[str, dict[str, Any]]:
    return by_name(done.object["checks"])


def test_a_sound_installation_is_told_so(sandport: Command) -> None:
    done = sandport("doctor", "--json")
    assert (done.code, done.object["ok"]) == (0, True)
    found = checks(done)
    # Whether this machine can isolate is not asked here; that the provider was asked is.
    assert found.pop("provider local, isolation")["detail"]
    assert {name: check["state"] for name, check in found.items()} == {
        "python": "ok",
        "settings": "ok",
        "home": "ok",
        "space": found["space"]["state"],  # that is the machine's affair
        "sandboxes": "ok",
        "journal": "ok",
        "processes": "ok",
        "clean-up": "ok",
        "provider fake": "ok",
        "provider fake, clock": "ok",
        "provider fake, vendor": "ok",
        "provider local": "ok",
        "provider local, limits": found["provider local, limits"]["state"],
        "provider local, python": "ok",
        "provider local, shell": "ok",
        "provider local, state directory": "ok",
    }
    assert str(sandport.home) in found["home"]["detail"]
    assert "mode 0700" in found["home"]["detail"]
    assert "no sandport.toml" in found["settings"]["detail"]
    assert "worker ready in" in found["provider local"]["detail"]


def test_the_same_for_a_person(sandport: Command) -> None:
    done = sandport("doctor")
    assert done.code == 0
    lines = done.out.decode().splitlines()
    words = [line.split() for line in lines if line.split()[1] != "space:" and not line.startswith(" ")]
    assert [line[0] for line in words] == ["ok"] * len(words)
    assert len(words) >= 8
    assert "\x1b" not in done.out.decode()


@pytest.mark.usefixtures("lotus")
def test_withheld_variables_come_with_the_line_that_grants_them(sandport: Command) -> None:
    done = sandport("doctor", env={"LOTUS_TOKEN": "t", "LOTUS_REGION": "r"})
    assert done.code == 0
    text = done.out.decode()
    assert "withheld from it: LOTUS_TOKEN" in text
    assert '[providers.lotus] env = ["LOTUS_REGION", "LOTUS_TOKEN"]' in text
    assert str(sandport.folder / ".config" / "sandport" / "sandport.toml") in text


def test_the_line_that_doctor_prints_is_right(sandport: Command, lotus: Path) -> None:
    line = '\nenv = ["LOTUS_REGION", "LOTUS_TOKEN"]\n'
    sandport.configure(f'[providers.lotus]\ncommand = ["{sys.executable}", "{lotus}"]{line}')
    done = sandport("doctor", "--json", env={"LOTUS_TOKEN": "t", "LOTUS_REGION": "r"})
    assert checks(done)["provider lotus"]["state"] == "ok"


def test_a_worker_that_does_not_start_is_wrong_and_its_last_words_are_shown(sandport: Command) -> None:
    sandport.configure('[providers.broken]\ncommand = ["sh", "-c", "echo one >&2; echo no licence >&2; exit 3"]\n')
    done = sandport("doctor")
    assert done.code == 1
    text = done.out.decode()
    assert "WRONG provider broken: " in text
    assert "exited with code 3" in text
    assert "| no licence" in text
    assert "ok    provider local" in text


def test_a_worker_that_says_nothing_is_given_up_in_time(sandport: Command) -> None:
    sandport.configure(
        '[host.timing]\nstart_s = 0.3\n[providers.silent]\ncommand = ["sleep", "60"]\n'
        '[providers.local]\ncommand = ["no-such-program"]\n'
    )
    done = sandport("doctor", "--json")
    assert done.code == 1
    found = checks(done)
    assert "did not say hello in 0.3 s" in found["provider silent"]["detail"]
    assert "there is no such program" in found["provider local"]["detail"]


def test_a_fault_in_the_settings_does_not_hide_the_rest(sandport: Command) -> None:
    sandport.configure("[hots]\n")
    done = sandport("doctor", "--json")
    assert done.code == 1
    found = checks(done)
    assert "hots: unknown key; did you mean 'host'?" in found["settings"]["detail"]
    assert found["provider local"]["state"] == "ok"


@pytest.mark.parametrize("version", ["99", "x"])
def test_a_home_that_cannot_be_used_is_wrong_and_nothing_is_started(sandport: Command, version: str) -> None:
    sandport.home.mkdir(mode=0o700)
    (sandport.home / "version").write_text(version)
    done = sandport("doctor", "--json")
    assert done.code == 1
    found = checks(done)
    assert found["home"]["state"] == "wrong"
    assert "SANDPORT_HOME" in (found["home"]["fix"] or found["home"]["detail"])
    assert found["provider local"]["state"] == "warning"
    assert [path.name for path in sandport.home.iterdir()] == ["version"]


def test_a_disk_on_which_nothing_can_be_made_is_one_line_of_the_report(sandport: Command) -> None:
    assert sandport("doctor").code == 0
    shutil.rmtree(sandport.home / "workers")
    (sandport.home / "workers").touch()
    done = sandport("doctor")
    assert done.code == 1
    assert "WRONG provider local: cannot be started: [Errno 17] File exists" in done.out.decode()
    assert "\nok    journal: " in done.out.decode()
    assert "\\n" not in done.out.decode() + done.err


def test_two_distributions_with_one_name_are_both_named(sandport: Command) -> None:
    env = plant(sandport, "one", "box = one_box")
    plant(sandport, "two", "box = two_box")
    done = sandport("doctor", "--json", env=env)
    assert done.code == 1
    detail = checks(done)["provider box"]["detail"]
    assert "one 1.0" in detail
    assert "two 1.0" in detail


def test_the_size_of_what_is_kept_is_told(sandport: Command) -> None:
    assert sandport("doctor").code == 0
    folder = sandport.home / "workers" / "local"
    (folder / "leftover").write_bytes(bytes(3_400_000))
    assert "workers 3.4 MB" in checks(sandport("doctor", "--json"))["home"]["detail"]


def test_each_sandbox_s_folder_is_told_with_its_size_and_what_room_is_left(sandport: Command) -> None:
    script = "head -c 2500000 /dev/zero > big"
    assert sandport("run", "-q", "--keep", "--name", "box", "--", "sh", "-c", script).code == 0
    (lease,) = sandport.leases()
    (sandport.home / "logs").mkdir(mode=0o700, exist_ok=True)
    (sandport.home / "logs" / "local.log").write_bytes(b"x" * 300)
    done = sandport("doctor", "--json")
    places = done.object["places"]
    by_what = {what: [one for one in places["places"] if one["what"] == what] for what in ("logs", "worker", "sandbox")}
    (sandbox,) = by_what["sandbox"]
    assert (sandbox["sandbox"], sandbox["provider"], sandbox["whole"]) == (lease["sandbox"], "local", True)
    assert sandbox["path"] == str(sandport.home / "workers" / "local" / lease["sandbox"])
    (worker,) = [one for one in by_what["worker"] if one["provider"] == "local"]
    assert 2_500_000 <= sandbox["sizeBytes"] <= worker["sizeBytes"] < 2_600_000
    (logs,) = by_what["logs"]
    assert (logs["path"], logs["files"], logs["sizeBytes"]) == (str(sandport.home / "logs"), 1, 300)
    found = os.statvfs(sandport.home)
    assert places["space"]["totalBytes"] == found.f_blocks * found.f_frsize
    assert 0 <= places["space"]["freeBytes"] <= places["space"]["totalBytes"]
    told = checks(done)
    assert f"1 has a folder below {sandport.home}/workers: {lease['sandbox']} 2.5 MB" in told["sandboxes"]["detail"]
    assert "workers 2.5 MB (local 2.5 MB), logs 300 B" in told["home"]["detail"]
    assert f"free at {sandport.home}" in told["space"]["detail"]
    assert sandport("leases", "end", "box").code == 0


def test_little_room_is_a_warning(tmp_path: Path) -> None:
    plenty = Space(free_bytes=50_000_000_000, total_bytes=90_000_000_000, free_files=5, total_files=10)
    for space, state in (
        (plenty, "ok"),
        (replace(plenty, free_bytes=999_999_999), "warning"),
        (replace(plenty, free_files=1, total_files=1000), "warning"),
        (replace(plenty, free_files=None, total_files=None), "ok"),
        (None, "warning"),
    ):
        room, _ = Places(home=str(tmp_path), space=space, places=()).checks()
        assert (room.state, room.fix is None) == (state, state == "ok" or space is None), space


def test_what_a_worker_says_cannot_steer_the_terminal(sandport: Command) -> None:
    sandport.configure("[providers.rude]\ncommand = ['sh', '-c', 'printf \"\\033[2Jcleared\\n\" >&2; exit 3']\n")
    for word in ("doctor", "run"):
        done = sandport(word) if word == "doctor" else sandport("run", "-p", "rude", "--", "true")
        text = done.out.decode() + done.err
        assert "cleared" in text
        assert "\x1b" not in text


def test_colours_are_for_terminals_that_want_them(sandport: Command) -> None:
    master, slave = os.openpty()
    try:
        for env, coloured in (({"TERM": "xterm"}, True), ({"TERM": "xterm", "NO_COLOR": "1"}, False)):
            assert sandport("doctor", env=env, stdout=slave).code == 0
            assert (b"\x1b[32m" in os.read(master, 65536)) is coloured
            assert sandport("providers", env=env, stdout=slave).code == 0
            assert (b"\x1b[" in os.read(master, 65536)) or not coloured
    finally:
        os.close(master)
        os.close(slave)


@pytest.mark.parametrize("words", [["providers"], ["providers", "--json"], ["doctor"], ["run", "--json", "--", "true"]])
def test_a_listing_into_a_closed_pipe_is_no_fault(sandport: Command, words: list[str]) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    done = sandport(*words, stdout=writer)
    os.close(writer)
    assert done.code == 141
    assert "Broken pipe" not in done.err
    assert "Traceback" not in done.err


def test_a_listing_onto_a_full_disk_is_a_failure(sandport: Command) -> None:
    with Path("/dev/full").open("wb") as full:
        done = sandport("providers", stdout=full)
    assert done.code == 125
    assert done.err == "sandport: stdout cannot be written: No space left on device\n"
