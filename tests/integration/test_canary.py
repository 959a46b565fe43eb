"""What the host has and a sandbox must not: searched for inside, and in everything that is written or started outside.

The same search finds the secret where a test lets it out on purpose: a search that finds nothing anywhere proves
nothing.
"""

import contextlib
import re
import subprocess
from collections.abc import Iterator
from typing import Any

import pytest

from tests.integration.canary import NAME, Canary, Found
from tests.integration.command import Command, Done, until

# Shows all that a curious program would look at; the words after it are paths of the host.
LOOK = r"""
env
cat /proc/[0-9]*/environ /proc/[0-9]*/cmdline /proc/net/unix
cat /etc/shadow /etc/shadow- /etc/gshadow
for folder; do
    for root in "" /proc/[0-9]*/root; do
        ls -la "$root$folder"
        find "$root$folder" -maxdepth 3 -type f -size -64k -exec cat {} +
    done
done
ls -la / /home /root /run /var /mnt /srv /proc/[0-9]*/cwd/ /proc/[0-9]*/fd/
printf 'looked at %s folders\n' "$#"
cat
"""


# A line of /etc/shadow: a name, a hash or what locks it, and a day.
SHADOW = re.compile(rb"^\w+:[*!$][^:]*:\d+:", re.MULTILINE)


@pytest.fixture
def canary(sandport: Command) -> Canary:
    """A secret of the person who runs `sandport`."""
    return Canary.placed(sandport.folder)


@contextlib.contextmanager
def at_work(sandport: Command, canary: Canary, *arguments: str) -> Iterator[Any]:
    """A command that runs until its input ends."""
    started = sandport.start("run", "-p", "local", *arguments, env={NAME: canary.text}, stdin=subprocess.PIPE)
    with started as process:
        try:
            yield process
        finally:
            process.kill()


def end(process: Any) -> Done:
    """Let the command go, and read what it wrote."""
    out, err = process.communicate(timeout=60)
    return Done(process.returncode, out, err.decode(errors="replace"))


def written(process: Any, text: bytes) -> bytes:
    """Read what the command writes until a text has come."""
    seen = b""
    while text not in seen:
        data = process.stdout.read1()
        assert data, seen
        seen += data
    return seen


def test_a_sandbox_sees_nothing_of_its_host_and_the_host_tells_nobody(sandport: Command, canary: Canary) -> None:
    other = sandport.folder / "another" / "home"
    other.mkdir(parents=True)
    (other / ".credentials").write_text(canary.text)
    sandport.home.mkdir(mode=0o700)
    looked_at = [str(sandport.folder), str(sandport.home), str(other), "/home", "/run"]
    with at_work(
        sandport, canary, "-c", "isolation=require", "--stdin", "-", "--", "sh", "-c", LOOK, "look", *looked_at
    ) as process:
        seen = written(process, b"looked at 5 folders")
        found = canary.in_processes(process.pid)
        done = end(process)
    assert done.code == 0, done
    assert not canary.is_in(seen)
    assert not SHADOW.search(seen)
    assert b"journal.db" not in seen
    assert b".credentials" not in seen
    # What /proc/net/unix lists are the sandbox's own sockets; the host's are elsewhere.
    assert str(sandport.folder).encode() not in b"".join(line for line in seen.splitlines() if b": 0000" in line)
    found += canary.in_state(sandport.home)
    found += canary.in_report(stdout=seen + done.out, stderr=done.err.encode())
    for words in (["leases", "--json", "--all"], ["doctor", "--json"], ["providers", "--json"]):
        told = sandport(*words, env={NAME: canary.text})
        found += canary.in_report(**{words[0]: told.out + told.err.encode()})
    assert found == []


def planted(sandport: Command, canary: Canary, place: str) -> list[Found]:
    """What the search finds where a user lets the secret out."""
    run = {
        "argv": ["--", "sh", "-c", "echo up; cat", canary.text],
        "environment": ["--env", f"KEY={canary.text}", "--", "sh", "-c", "echo up; cat"],
        "row": ["--keep", "--name", f"n{canary.text}", "--", "sh", "-c", "echo up; cat"],
        "report": ["--", "sh", "-c", 'echo up; cat; cat "$1"', "show", "secret"],
    }[place]
    sandport.cwd.joinpath("secret").write_text(canary.text)
    with at_work(sandport, canary, "--in", "secret", "--stdin", "-", *run) as process:
        seen = written(process, b"up")
        found = canary.in_processes(process.pid)
        done = end(process)
    assert done.code == 0, done
    # The file that was sent in is in the sandbox's own folder while that is kept: where it belongs.
    found += [one for one in canary.in_state(sandport.home) if one.kind != "file"]
    return found + canary.in_report(stdout=seen + done.out)


@pytest.mark.parametrize("place", ["argv", "environment", "row", "report"])
def test_the_search_finds_a_secret_that_was_let_out(sandport: Command, canary: Canary, place: str) -> None:
    assert {one.kind for one in planted(sandport, canary, place)} == {place}
    sandport("reap", "--wait")
    for lease in sandport.leased():
        sandport("leases", "end", lease)
    until(lambda: not sandport.processes())


def test_the_search_finds_a_secret_in_a_log(sandport: Command, canary: Canary) -> None:
    (sandport.home / "logs").mkdir(parents=True)
    (sandport.home / "logs" / "worker.log").write_text(f"using key {canary.text}\n")
    assert canary.in_state(sandport.home) == [Found("log", "logs/worker.log")]
