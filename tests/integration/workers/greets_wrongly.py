"""Answers the hello with something that is none, as its argument says."""

import sys

from tests.integration.workers.speaker import MANDATORY, Message, Refused, Speaker


class Stranger(Speaker):
    """Gets no further than the hello."""

    def __init__(self) -> None:
        super().__init__()
        self.handlers["initialize"] = self.greet

    def greet(self, message: Message) -> Message:
        match self.arguments[0]:
            case "another version":
                return {"protocolVersion": 1, "provider": {"name": "stranger", "version": "3"}, "supportedMethods": []}
            case "refuses the versions":
                raise Refused(
                    -32010,
                    "no common protocol version: the host offers [2, 3], stranger offers [1]; upgrade stranger",
                    condition="VersionMismatch",
                    dispatched="no",
                    detail={"hostVersions": [2, 3], "workerVersions": [1]},
                )
            case "nothing":
                return {}
            case "no json":
                self.write(b"{" * 100 + b"\n")
                sys.exit(0)
            case "lacks a method":
                self.facts = {"supportedMethods": [method for method in MANDATORY if method != "listLeases"]}
                return self._initialize(message)
            case "lacks half a group":
                self.facts = {"supportedMethods": [*MANDATORY, "startProcess", "waitProcess"]}
                return self._initialize(message)
            case "cannot serve":
                self.facts = {"wantsEnv": ["X_TOKEN", "HOME"]}
                self.handlers["initialized"] = lambda note: self.note("failed", {"message": "X_TOKEN is not set"})
                return self._initialize(message)
        raise ValueError(self.arguments[0])


if __name__ == "__main__":
    Stranger().serve()
