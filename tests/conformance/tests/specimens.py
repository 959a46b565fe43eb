"""Workers for the tests of the engine: each does one thing that the engine must see, name or survive."""

import base64
import os
import signal
import sys
import tempfile
from pathlib import Path
from typing import Any

from sandport_conformance.mutants.healthy import Call, Healthy, Json
from sandport_conformance.mutants.leases import Leases
from sandport_conformance.mutants.places import Guard, Place
from sandport_conformance.mutants.refusals import Refusal

ROOT = Path(__file__).resolve().parents[3]


def command(specimen: type[Healthy]) -> tuple[str, ...]:
    """What starts a specimen, without site-packages for the sake of its start."""
    path = [str(ROOT / "tests/conformance/src"), str(ROOT)]
    code = f"import sys; sys.path[:0] = {path}; from {__name__} import {specimen.__name__} as s; s().main()"
    return (sys.executable, "-S", "-E", "-c", code)


class NeedsToken(Healthy):
    """Acquires nothing without `config.region` and the secret `token`; tells the secret in its errors."""

    class leases_class(Leases):  # noqa: N801 - it is the attribute of this name
        def faults_of_config(self, config: Any) -> list[Json]:
            return [] if config.get("region") else [{"field": "config.region", "message": "is missing"}]

        def acquire_lease(self, call: Call) -> Json:
            self.check_config(call.params)
            token = call.params.get("secrets", {}).get("token", "")
            print("the token is", token, file=sys.stderr)
            coded = base64.b64encode(f"user:{token}".encode()).decode()
            raise Refusal("QuotaExceeded", f"no quota for {token} ({coded})", retry="later")


class KeepsSandboxes(Healthy):
    """Says that it destroyed a sandbox, and keeps it for good."""

    class guard_class(Guard):  # noqa: N801 - it is the attribute of this name
        def after_grace(self, place: Place) -> bool:
            return False

    class leases_class(Leases):  # noqa: N801 - it is the attribute of this name
        def destroy_lease(self, call: Call) -> Json:
            return {"state": "destroyed"}


class WithoutProcesses(Healthy):
    """Advertises the mandatory methods alone."""

    methods = Healthy.methods[:10]


class RefusesTheHello(Healthy):
    """Never agrees."""

    def admit(self, request_id: Any, method: str, params: Any) -> None:
        super().admit(request_id, method, {"protocolVersions": "none"} if method == "initialize" else params)


class FloodsStderr(Healthy):
    """Writes 8 MiB to its log before it serves."""

    def take_descriptors(self) -> None:
        super().take_descriptors()
        for _ in range(128):
            sys.stderr.write("x" * 65535 + "\n")
        sys.stderr.write("the last line\n")
        sys.stderr.flush()


class WaitsForTheEnd(Healthy):
    """Ends with its input, and not when it has answered `shutdown`."""

    over = False

    def end(self) -> None:
        self.over = True
        super().end()

    def leave(self) -> None:
        if self.over:
            super().leave()


def spin() -> None:
    """Say where, and then be deaf and busy for ever."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    Path(tempfile.gettempdir(), f"spinning-{os.getpid()}").touch()
    while True:
        pass


class SpinsInACommand(Healthy):
    """Does nothing else any more once it is to run a command."""

    def receive(self, line: bytes) -> None:
        if b'"execute"' in line:
            spin()
        super().receive(line)


class SpinsAtTheEnd(Healthy):
    """Never ends."""

    def end(self) -> None:
        spin()


class RefusesSandboxes(Healthy):
    """Never makes a sandbox, and counts how often it was asked."""

    class leases_class(Leases):  # noqa: N801 - it is the attribute of this name
        def acquire_lease(self, call: Call) -> Json:
            print("asked for a sandbox", file=sys.stderr)
            raise Refusal("Unavailable", "the vendor is down", retry="later")


class LosesCommands(Healthy):
    """Reads an `execute`, logs it, and forgets it."""

    def receive(self, line: bytes) -> None:
        if b'"execute"' in line:
            print("an execute came", file=sys.stderr, flush=True)
            return
        super().receive(line)


class HoldsCommands(Healthy):
    """Takes an `execute`, and never answers."""

    def handle(self, call: Call) -> Json:
        if call.method == "execute":
            call.cancelled.wait()
        return super().handle(call)


class RefusesTheFirstSandbox(Healthy):
    """Has a bad moment."""

    class leases_class(Leases):  # noqa: N801 - it is the attribute of this name
        def acquire_lease(self, call: Call) -> Json:
            bad = self.used.with_name("bad-moment")
            if not bad.exists():
                bad.touch()
                raise Refusal("Unavailable", "a bad moment", retry="later")
            return super().acquire_lease(call)


class WantsAToken(Healthy):
    """Has issues with a config without `region`, and makes nothing without a secret."""

    class leases_class(Leases):  # noqa: N801 - it is the attribute of this name
        def faults_of_config(self, config: Any) -> list[Json]:
            missing = [] if config.get("region") else [{"field": "config.region", "message": "is missing"}]
            return [*missing, *super().faults_of_config(config)]

        def acquire_lease(self, call: Call) -> Json:
            raise Refusal("AuthenticationFailed", "there is no token")
