"""The vendor from a test's side: orders, the clock, what is there, and what was done.

```python
pytest_plugins = ["sandport_provider_fake.testing"]


def test_mine(fake):
    fake.order("acquire.before", "throttle", times=2)
    ...
    fake.assert_nothing_left()
```

It talks to the vendor's folder and to no worker, so it also orders faults for workers that a test never sees. It needs
neither the host nor pytest; pytest is imported where pytest loads this module as a plugin.
"""

from __future__ import annotations

import asyncio
import json
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sandport_sdk.config import decode, nearest
from sandport_sdk.v1 import errors

from . import config as orders
from .journal import SharedFile, replace
from .starter import MARK
from .vendor import Record, Setup, Vendor

if TYPE_CHECKING:
    from collections.abc import Callable

    import pytest

WITHIN_S = 60.0
"""What a wait of a test may take before something is wrong; it ends a hang and judges nothing."""
_LOOK_S = 0.005


class Clock:
    """The vendor's clock, for a test."""

    def __init__(self, vendor: Vendor) -> None:
        self._vendor = vendor

    @property
    def now_s(self) -> float:
        """Seconds of Unix time."""
        return self._vendor.clock.now_ms() / 1000

    def stand_still(self) -> None:
        """From now on it moves only by `advance`."""
        with self._vendor.lock.held_here():
            self._vendor.clock.make_virtual()

    def advance(self, by_s: float) -> None:
        """Move it, for every worker; a clock that runs by itself runs on from there."""
        with self._vendor.lock.held_here():
            self._vendor.clock.advance(round(by_s * 1000))


class Fake:
    """One vendor, in the folder where the worker of a host with this home keeps its state.

    Attributes:
        home: What to open a host with.
        state_dir: The vendor's folder.
        clock: The vendor's clock.
    """

    def __init__(self, home: str | os.PathLike[str], *, provider: str = "fake") -> None:
        """Make the folders, where they are not there.

        Args:
            home: The folder for a host's state.
            provider: The provider's name in that host's settings.
        """
        self.home = Path(home)
        self.state_dir = self.home / "workers" / provider
        for folder in (self.home, self.home / "workers", self.state_dir):
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._vendor = Vendor(self.state_dir)
        self._last = 0
        self.clock = Clock(self._vendor)

    # ------------------------------------------------------------ what is to happen

    def order(self, point: str, action: str, **members: object) -> str:
        """Order a fault for every worker of the vendor; the id that its count is kept under.

        Args:
            point: Where, such as `acquire.after-record`.
            action: What, such as `crash`.
            **members: More of the order: `times`, `after`, `probability`, `only`, and what belongs to the action.

        Raises:
            ConfigInvalid: There is no such order; the message names the member.
        """
        with self._vendor.lock.held_here():
            said = self._orders()
            self._last += 1
            name = members.setdefault("id", f"{os.getpid()}-{time.monotonic_ns()}-{self._last}")
            said["faults"].append({"point": point, "action": action, **members})
            self._write_orders(said)
        return str(name)

    def clear(self) -> None:
        """Take every order away; what happened stays counted."""
        with self._vendor.lock.held_here():
            self._write_orders({**self._orders(), "faults": []})

    def seed(self, seed: int) -> None:
        """What comes out of probabilities."""
        with self._vendor.lock.held_here():
            self._write_orders({**self._orders(), "seed": seed})

    def set_up(self, *, create_settle_s: float = 0.0) -> None:
        """What the vendor declares of itself; for workers that start after this."""
        setup = {"create_settle_ms": round(create_settle_s * 1000)}
        decode(Setup, json.dumps(setup).encode())
        replace(self.state_dir / "vendor.json", json.dumps(setup).encode())

    def sandport_toml(self, environment: str = "fake", **config: object) -> str:
        """The text of a sandport.toml with one environment of this vendor, and this config."""
        decode(orders.FakeConfig, json.dumps(config).encode())
        lines = (f"{name} = {_toml(value)}" for name, value in config.items())
        head = f'version = 1\n\n[environments.{environment}]\nprovider = "fake"\n'
        return "\n".join((head, f"[environments.{environment}.config]", *lines)) + "\n"

    # ------------------------------------------------------------ what is, and what was

    def sandboxes(self) -> list[Record]:
        """Every sandbox that the vendor has, also half-made ones; without those whose time is over."""
        now_ms = self._vendor.clock.now_ms()
        return [one for one in self._vendor.records() if one.state != "gone" and one.expires_at_ms > now_ms]

    def files(self, sandbox_id: str) -> Path:
        """A sandbox's working directory."""
        return self._vendor.files(sandbox_id)

    def journal(self, what: str | None = None, **facts: object) -> list[dict[str, Any]]:
        """Everything that was done, in order; or what is called so, and has these facts."""
        return [
            line
            for line in self._vendor.journal.read()
            if what in (None, line["what"]) and all(line.get(name) == value for name, value in facts.items())
        ]

    async def seen(self, what: str, *, count: int = 1, within_s: float = WITHIN_S, **facts: object) -> dict[str, Any]:
        """The journal's line that is called so and has these facts, once there are `count` of them: the last of those.

        Raises:
            AssertionError: There were fewer in all that time.
        """
        await self.until(
            lambda: len(self.journal(what, **facts)) >= count, f"{count} times {what} {facts or ''}", within_s=within_s
        )
        return self.journal(what, **facts)[count - 1]

    async def until(self, holds: Callable[[], bool], what: str = "", *, within_s: float = WITHIN_S) -> None:
        """Return once something holds; looked at again and again, since no file wakes who waits for it.

        Raises:
            AssertionError: It did not in all that time; the message has `what` and the journal.
        """
        deadline = time.monotonic() + within_s
        while not holds():
            assert time.monotonic() < deadline, f"waited in vain: {what}; the journal: {self.journal()}"
            await asyncio.sleep(_LOOK_S)

    def left(self) -> list[str]:
        """What is still there: records, files, guards, processes; in words."""
        live = {one.sandbox_id for one in self.sandboxes()}
        # Whose time is over has ended, though its files go when the next worker looks.
        over = {one.sandbox_id for one in self._vendor.records() if one.state != "gone"} - live
        found = [f"sandbox {one.sandbox_id} ({one.state})" for one in self.sandboxes()]
        for kind in ("files", "guards"):
            folder = self.state_dir / kind
            names = set(os.listdir(folder)) if folder.exists() else set()
            found += [f"{kind} of {name}" for name in sorted(names - over)]
        ids = {str(line["sandboxId"]) for line in self.journal("create")}
        return found + [f"process {pid} of {sandbox_id}" for pid, sandbox_id in _marked() if sandbox_id in ids]

    def assert_nothing_left(self, *, within_s: float = WITHIN_S) -> None:
        """Nothing is there any more of all that was ever made here. Waits for what is about to end.

        Raises:
            AssertionError: Something is, and what.
        """
        deadline = time.monotonic() + within_s
        while left := self.left():
            assert time.monotonic() < deadline, f"left at the vendor: {', '.join(left)}"
            time.sleep(_LOOK_S)

    def assert_once(self) -> None:
        """No sandbox id served two creates, and no command ran twice under one nonce.

        Raises:
            AssertionError: One did, and which.
        """
        for what, name in (("create", "sandboxId"), ("create refused", "sandboxId"), ("execute", "nonce")):
            seen = [line[name] for line in self.journal(what)]
            twice = sorted({value for value in seen if seen.count(value) > 1 or what == "create refused"})
            assert not twice, f"{what} more than once: {twice}"

    def _orders(self) -> dict[str, Any]:
        said = SharedFile(self.state_dir / "faults.json").read_object()
        return {"faults": [], "seed": 0, **said}

    def _write_orders(self, said: dict[str, Any]) -> None:
        content = json.dumps(said).encode()
        try:
            decode(orders.Orders, content)
        except errors.ConfigInvalid as error:
            raise errors.ConfigInvalid(f"no such order: {error}{_meant(said['faults'])}", detail=error.detail) from None
        replace(self.state_dir / "faults.json", content)


def _meant(faults: list[dict[str, Any]]) -> str:
    """What the last order probably meant, where its point is none."""
    point = faults[-1].get("point") if faults else None
    if not isinstance(point, str) or point in orders.POINTS:
        return ""
    guess = nearest(point, orders.POINTS)
    return f"; did you mean {guess!r}?" if guess else f"; there are: {', '.join(orders.POINTS)}"


def _marked() -> list[tuple[int, str]]:
    """Live processes with a sandbox's mark, and whose."""
    mark = f"{MARK}=".encode()
    found = []
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                words = Path("/proc", name, "environ").read_bytes().split(b"\0")
            except OSError:
                continue  # it ended just now, or is another user's
            found += [(int(name), word[len(mark) :].decode()) for word in words if word.startswith(mark)]
    return found


def _toml(value: object) -> str:
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{name} = {_toml(each)}" for name, each in value.items()) + " }"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(_toml, value)) + "]"
    return json.dumps(value)


def pytest_configure(config: pytest.Config) -> None:
    """Bring the fixture `fake`; pytest calls this where the module is one of its plugins."""
    import pytest

    class Fixtures:
        @pytest.fixture
        def fake(self, tmp_path: Path) -> Fake:
            """A vendor of the test's own."""
            return Fake(tmp_path / "home")

    config.pluginmanager.register(Fixtures(), "sandport-fake-fixtures")
