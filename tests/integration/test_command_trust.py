"""What lies in the current folder, and what else runs at the same time, changes nothing."""

import sys

import pytest

from tests.integration.command import Command


@pytest.mark.parametrize(
    "words", [["run", "--", "true"], ["providers", "--probe"], ["run", "-p", "mine", "--", "true"]]
)
@pytest.mark.parametrize("provider", ["local", "mine"])
def test_a_cloned_repository_starts_no_program(sandport: Command, words: list[str], provider: str) -> None:
    trace = sandport.folder / "trace"
    (sandport.cwd / "sandport.toml").write_text(
        f'version = 1\n[providers.{provider}]\ncommand = ["touch", "{trace}"]\nenv = ["SECRET"]\n'
    )
    done = sandport(*words)
    assert done.code == 2
    assert "may define environments, not programs, grants or the host" in done.err
    assert not trace.exists()


def test_a_cloned_repository_may_define_environments(sandport: Command) -> None:
    (sandport.cwd / "sandport.toml").write_text(
        'version = 1\n[environments.test]\nprovider = "local"\nenv = { A = "1" }\n'
    )
    done = sandport("run", "-q", "-e", "test", "--", "sh", "-c", "echo $A")
    assert (done.code, done.out) == (0, b"1\n")


@pytest.mark.parametrize("words", ["run -q -- echo local", "providers"])
def test_a_current_folder_that_was_deleted_is_no_hindrance(sandport: Command, words: str) -> None:
    done = sandport.shell(f"mkdir gone && cd gone && rmdir ../gone && exec sandport {words}")
    assert (done.code, done.err) == (0, "")
    assert b"local" in done.out


def test_modules_in_the_current_folder_are_not_imported(sandport: Command) -> None:
    trace = sandport.folder / "trace"
    for name in ("click", "anyio", "msgspec", "asyncio", "sandport", "sandport_sdk", "sandport_provider_local", "site"):
        (sandport.cwd / f"{name}.py").write_text(f"open({str(trace)!r}, 'a').write({name!r})\n")
    done = sandport("run", "-q", "--", "echo", "fine")
    assert (done.code, done.out) == (0, b"fine\n")
    assert not trace.exists()


def test_runs_that_share_a_home_do_not_meet(sandport: Command) -> None:
    script = "echo $0 > mine; sleep 0.2; cat mine"
    running = [sandport.start("run", "-q", "--", "sh", "-c", script, str(number)) for number in range(5)]
    for number, process in enumerate(running):
        with process:
            assert process.communicate() == (f"{number}\n".encode(), b"")
            assert process.returncode == 0
    assert sandport.sandboxes() == []


def test_a_worker_in_another_interpreters_place_is_used_as_configured(sandport: Command) -> None:
    """A provider in its own virtual environment is an argument list in sandport.toml."""
    sandport.configure(
        f'[providers.mine]\ncommand = ["{sys.executable}", "-P", "-m", "sandport_provider_local"]\n'
        '[environments.own]\nprovider = "mine"\n'
    )
    assert sandport("run", "-q", "-p", "mine", "--", "echo", "x").out == b"x\n"
    assert sandport("run", "-q", "-e", "own", "--", "echo", "y").out == b"y\n"
