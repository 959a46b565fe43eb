"""A host that is broken on purpose: it proves that `sandport-conformance host` can fail.

It believes any result, reads without bound, ends nothing by force, hands its environment and its session to its worker,
and waits for an answer until its alarm rings.
"""

from __future__ import annotations

import base64
import json
import os
import signal
import subprocess
import sys
from typing import Any, NoReturn

Json = dict[str, Any]
_PATIENCE_S = 20


class Careless:
    """The host's end of one worker."""

    def __init__(self, argv: list[str]) -> None:
        self.worker = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, close_fds=False)
        self.output = bytearray()

    def request(self, method: str, params: Json) -> Json:
        """Send a request, always under the same id, and take the next answer for its own."""
        self.send({"jsonrpc": "2.0", "id": 7, "method": method, "params": params})
        while line := self.read():
            message: Json = json.loads(line)
            if "method" not in message:
                return message
            if message["method"] == "output":
                self.output += base64.b64decode(message["params"].get("data", ""))
                stream = {"id": 7, "stream": message["params"]["stream"], "bytes": 1 << 20}
                self.send({"jsonrpc": "2.0", "method": "credit", "params": stream})
        return {"error": {"message": "end of file"}}

    def read(self) -> bytes:
        """A line, however long."""
        assert self.worker.stdout is not None
        return self.worker.stdout.readline()

    def send(self, message: Json) -> None:
        """A line."""
        assert self.worker.stdin is not None
        self.worker.stdin.write(json.dumps(message).encode() + b"\n")
        self.worker.stdin.flush()

    def run(self, argv: list[str], settings: Json) -> Json:
        """The answer for the kit."""
        state = os.environ["SANDPORT_HOME"]
        os.makedirs(state, exist_ok=True)
        self.request(
            "initialize",
            {
                "protocolVersions": [1],
                "host": {"name": "careless", "version": "0"},
                "storeId": "s" * 26,
                "stateDir": state,
                "limits": settings.get("limits", {}),
            },
        )
        self.send({"jsonrpc": "2.0", "method": "initialized", "params": {}})
        sandbox = "sp" + "a" * 26
        self.request("acquireLease", {"sandboxId": sandbox, "config": settings.get("config", {}), "ttlMs": 60000})
        answer = self.request("execute", {"sandboxId": sandbox, "argv": argv, "live": True})
        result = answer.get("result", {})
        error = answer.get("error")
        return {
            "ended": result.get("ended"),
            "exitCode": result.get("exitCode"),
            "stdoutBytes": len(self.output),
            "error": error and {"condition": "Internal", "message": error["message"], "dispatched": "unknown"},
            "tookS": 0.0,
        }


def ring(*_: object) -> NoReturn:
    """Leave without looking back."""
    os._exit(1)


def main() -> None:
    """Serve the kit once."""
    signal.signal(signal.SIGALRM, ring)
    signal.alarm(_PATIENCE_S)
    settings = json.loads(os.environ.get("SANDPORT_HOST_SETTINGS", "{}"))
    host = Careless(json.loads(os.environ["SANDPORT_HOST_WORKER"]))
    answer = host.run(sys.argv[sys.argv.index("--") + 1 :], settings)
    answer["next"] = {**answer}
    answer["beside"] = {**answer}
    sys.stdout.write(json.dumps(answer) + "\n")
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
