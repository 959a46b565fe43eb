"""A worker process and commands in its sandboxes, with short names for what tests of the boundary do all the time."""

import base64
import os
from pathlib import Path
from typing import Any

from providers.local.tests.worker import Worker


class Inside:
    """One sandbox of a worker that is a process of its own."""

    def __init__(self, worker: Worker, **more: Any) -> None:
        self.worker = worker
        config = {"isolation": "require", **more.pop("config", {})}
        self.id = worker.acquire(config=config, **more)
        self.path = worker.state_dir / self.id
        self.init = worker.init_of(self.id)

    def run(self, shell: str, **more: Any) -> dict[str, Any]:
        """The result of a text in the shell."""
        answer = self.worker.answer(self.worker.begin("execute", sandboxId=self.id, shell=shell, **more))
        assert "result" in answer, answer
        result: dict[str, Any] = answer["result"]
        return result

    def says(self, shell: str, **more: Any) -> str:
        """What a text in the shell prints, both streams."""
        result = self.run(f"{{ {shell}\n}} 2>&1", **more)
        return base64.b64decode(result["stdout"].get("data", "")).decode()

    def python(self, text: str) -> str:
        """What a program prints."""
        argv = ["/usr/bin/env", "python3", "-c", text]
        result = self.worker.call("execute", sandboxId=self.id, argv=argv)
        errors = base64.b64decode(result["stderr"].get("data", "")).decode()
        assert result.get("exitCode") == 0, errors
        return base64.b64decode(result["stdout"].get("data", "")).decode()

    def destroy(self) -> str:
        return self.worker.destroy(self.id)


def processes_of(uid: int) -> list[int]:
    """Live processes of a user."""
    found = []
    for name in os.listdir("/proc"):
        try:
            lines = Path(f"/proc/{name}/status").read_text().splitlines() if name.isdigit() else []
        except (FileNotFoundError, ProcessLookupError):
            continue
        said = dict(line.split(":", 1) for line in lines if ":" in line)
        if said and int(said["Uid"].split()[0]) == uid and said["State"].split()[0] not in "ZX":
            found.append(int(name))
    return found
