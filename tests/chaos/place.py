"""The folder of one run: a home, a folder for temporary files, and one outside of every sandbox where runs are counted.

```text
home/           the host's state
tmp/            TMPDIR of all its processes
out/ran         a line for each command that ran, written by the command
out/go-…        made when a command may go on
events.jsonl    what the victims say of themselves
ledger-N        the points that the Nth victim passed
log-N           what it printed
```
"""

from __future__ import annotations

import contextlib
import os
import shutil
import sqlite3
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

from msgspec import Struct, json

from sandport.configuration import Configuration, EnvironmentSettings, HostSettings, ProviderSettings
from sandport.lease.delays import Delays
from sandport.numbers import Restart, StopLadder, Timing

TIMING = Timing(
    close_grace_s=8.0,
    command_margin_s=8.0,
    stop=StopLadder(drain_s=2.0, eof_s=2.0, term_s=1.0, kill_s=5.0),
    restart=Restart(at_most=1000, first_delay_s=0.001, longest_delay_s=0.001),
)
DELAYS = Delays(first_s=0.05, longest_s=0.5, absent_s=0.1)
NOT_ISOLATED = EnvironmentSettings(provider="local", config={"isolation": "none"})
"""Its commands say what they do in files of this machine, which they could not see from inside."""
"""A clean-up in a hurry. Orphan graces stay what they are, half a minute: nothing here may clean up by itself."""


class Event(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a victim says of itself."""

    what: str
    nonce: str = ""
    how: str = ""
    dispatched: str = ""
    detail: str = ""
    lease: str = ""
    sandbox: str = ""


class Row(Struct, frozen=True):
    """What the journal says of a sandbox and its latest lease."""

    sandbox: str
    state: str
    lease: str
    lease_state: str
    kept: bool
    owner: str | None


class Place:
    """The folder of one run."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.home = root / "home"
        self.tmp = root / "tmp"
        self.out = root / "out"

    @classmethod
    def make(cls, *, within: Path | None = None) -> Place:
        """A new one."""
        place = cls(Path(tempfile.mkdtemp(prefix="sandport-chaos-", dir=within)))
        for folder in (place.tmp, place.out):
            folder.mkdir()
        return place

    def remove(self) -> None:
        """Remove it with everything in it."""
        shutil.rmtree(self.root)

    def configuration(self, *providers: str) -> Configuration:
        """What every host of it is opened with."""
        return Configuration(
            host=HostSettings(timing=TIMING, clean_up=DELAYS),
            providers={name: ProviderSettings(env=("TMPDIR",)) for name in providers},
            environments={"local": NOT_ISOLATED} if "local" in providers else {},
        )

    def environ(self) -> dict[str, str]:
        """The environment of every process of it."""
        kept = {name: value for name, value in os.environ.items() if not name.startswith("SANDPORT_")}
        return kept | {"SANDPORT_HOME": str(self.home), "TMPDIR": str(self.tmp)}

    def ledger(self, number: int) -> Path:
        """Of the Nth victim."""
        return self.root / f"ledger-{number}"

    def log(self, number: int) -> Path:
        """Of the Nth victim."""
        return self.root / f"log-{number}"

    # ------------------------------------------------------------ what was said and done

    def say(self, event: Event) -> None:
        """Write down what a victim says; it is there whatever becomes of it next."""
        fd = os.open(self.root / "events.jsonl", os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        try:
            os.write(fd, json.encode(event) + b"\n")
        finally:
            os.close(fd)

    def said(self, what: str) -> list[Event]:
        """Every event of a kind."""
        try:
            lines = (self.root / "events.jsonl").read_bytes().splitlines()
        except FileNotFoundError:
            return []
        return [event for event in (json.decode(line, type=Event) for line in lines) if event.what == what]

    def ran(self) -> Counter[str]:
        """How often each command ran."""
        try:
            return Counter((self.out / "ran").read_text().split())
        except FileNotFoundError:
            return Counter()

    def vendor_journal(self) -> list[dict[str, Any]]:
        """What the fake vendor did."""
        try:
            lines = (self.home / "workers" / "fake" / "vendor.jsonl").read_bytes().splitlines()
        except FileNotFoundError:
            return []
        return [json.decode(line) for line in lines]

    def vendor_keeps(self, provider: str, sandbox: str) -> bool:
        """Whether the provider's own record of a sandbox says that it outlives its workers."""
        name = f"{sandbox}/record.json" if provider == "local" else f"sandboxes/{sandbox}.json"
        record: dict[str, Any] = json.decode((self.home / "workers" / provider / name).read_bytes())
        return bool(record["keep"])

    # ------------------------------------------------------------ the journal

    def rows(self) -> list[Row]:
        """The journal as it is at this moment, read from a copy: nobody who comes later can tell that it was read."""
        copied = self.root / "copied"
        copied.mkdir()
        try:
            for end in ("", "-wal"):
                with contextlib.suppress(FileNotFoundError):
                    shutil.copyfile(self.home / f"journal.db{end}", copied / f"journal.db{end}")
            return read_rows(copied / "journal.db")
        finally:
            shutil.rmtree(copied)


def read_rows(path: Path) -> list[Row]:
    """What a journal says; nothing where there is none yet."""
    if not path.exists():
        return []
    with contextlib.closing(sqlite3.connect(path)) as db:
        if not db.execute("SELECT 1 FROM sqlite_master WHERE name = 'lease'").fetchone():
            return []
        found = db.execute(
            """
            SELECT sandbox.id, sandbox.state, lease.id, lease.state, kept, sandbox.owner FROM sandbox
            JOIN lease ON sandbox_key = sandbox.key AND lease.generation = sandbox.generation ORDER BY sandbox.key
            """
        )
        return [Row(one[0], one[1], one[2], one[3], bool(one[4]), one[5]) for one in found]
