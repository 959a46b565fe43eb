"""A umask that takes from the owner too, as services set it (0177): what is made is still its user's to use."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.integration.command import Command
from tests.integration.unprivileged import bound_by_rights

ROOT = Path(__file__).parents[2]
UMASKS = (0o000, 0o177, 0o377, 0o777)

USE = """
import asyncio, json, os, stat, sys
from pathlib import Path
from sandport import Host
from sandport.configuration import Configuration, ProviderSettings

HELLO = Path("examples/hello_provider/src").absolute()

# The last one makes its sandboxes with what the SDK has for a machine's own.
PROVIDERS = {
    "local": ProviderSettings(),
    "hello": ProviderSettings(command=("env", f"PYTHONPATH={HELLO}", sys.executable, "-m", "hello_provider")),
}

def modes(top):
    found = {}
    for folder, folders, files in os.walk(top):
        if folder.endswith(("/files", "/sandbox")):
            folders[:], files = [], []
        for name in (*folders, *files):
            path = os.path.join(folder, name)
            status = os.lstat(path)
            kind = "folder" if stat.S_ISDIR(status.st_mode) else "file" if stat.S_ISREG(status.st_mode) else "other"
            found[os.path.relpath(path, top)] = (kind, stat.S_IMODE(status.st_mode))
    return found

async def use(folder, config):
    seen = {}
    for turn in range(2):
        async with Host.open(Configuration(providers=PROVIDERS), home=folder / "above" / "home") as host:
            for provider, more in (("local", config), ("hello", {})):
                async with host.lease(provider, config=more) as sandbox:
                    outcome = await sandbox.execute(["sh", "-c", "mkdir -p d/e; echo 1 >d/e/f; pwd >&2; cat d/e/f"])
                    assert (outcome.shell_code, bytes(outcome.stdout.data)) == (0, b"1\\n"), outcome
                    out = folder / f"out-{provider}-{turn}"
                    copied = await sandbox.sync_out("d", out)
                    assert copied.whole and (out / "e/f").read_text() == "1\\n"
                    assert (await sandbox.sync_in(out, "in/to/it")).whole
                    await sandbox.write_bytes("w/x", b"2")
                    outcome = await sandbox.execute(["sh", "-c", "cat in/to/it/e/f w/x"])
                    assert bytes(outcome.stdout.data) == b"1\\n2", outcome
                    seen |= modes(folder / "above" / "home")
    return seen

print(json.dumps(asyncio.run(use(Path(sys.argv[1]), json.loads(sys.argv[2])))))
"""


def run_with(umask: int, words: list[str], *, bound: bool) -> subprocess.CompletedProcess[bytes]:
    """A Python program as it comes up under that umask."""

    def prepare() -> None:
        if bound:
            bound_by_rights()
        os.umask(umask)

    words = [sys.executable, "-c", USE, *words]
    return subprocess.run(words, cwd=ROOT, capture_output=True, preexec_fn=prepare, timeout=120, check=False)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("isolation", "umask"), [*(("none", umask) for umask in UMASKS), ("prefer", 0o177), ("prefer", 0o777)]
)
def test_a_lease_is_of_use_whatever_the_umask(tmp_path: Path, umask: int, isolation: str) -> None:
    # An isolated sandbox of root's is another user's, which these rights would keep root from.
    bound = isolation == "none" or os.geteuid() != 0
    folder = tmp_path / "place"
    folder.mkdir()
    done = run_with(umask, [str(folder), json.dumps({"isolation": isolation})], bound=bound)
    subprocess.run(["chmod", "-R", "u+rwX", folder], check=True)
    assert done.returncode == 0, done.stderr.decode()
    made = json.loads(done.stdout)
    wrong = {
        path: oct(mode)
        for path, (kind, mode) in made.items()
        if kind != "other" and mode != (0o700 if kind == "folder" else 0o600)
    }
    assert wrong == {}
    assert {"instances", "workers", "workers/local", "workers/hello", "journal.db", "store-id"} <= set(made)


@pytest.mark.parametrize("umask", [0o177, 0o377, 0o777])
def test_a_command_runs_whatever_the_umask(sandport: Command, umask: int) -> None:
    def prepare() -> None:
        os.umask(umask)

    words = ("--in", "f", "--out", "d:above/d", "--", "sh", "-c", "cat f; mkdir d; cp f d")
    (sandport.cwd / "f").write_text("hi")
    done = sandport("run", "-p", "local", *words, preexec_fn=prepare)
    assert (done.code, done.out) == (0, b"hi"), done.err
    assert (sandport.cwd / "above/d/f").read_text() == "hi"
    assert (sandport.cwd / "above").stat().st_mode & 0o777 == 0o777 & ~(umask & 0o077)
