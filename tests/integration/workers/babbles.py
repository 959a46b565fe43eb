"""Writes something that is no message beside the answer of its first execute, in one of the ways that are seen."""

import json
from typing import Any

from tests.integration.workers.speaker import LATER, Message, Speaker, exited


class Babbler(Speaker):
    """The first execute goes wrong as the argument says, every later one is right."""

    def __init__(self) -> None:
        super().__init__()
        self.way = self.arguments[0]
        self.executions = 0
        self.handlers["execute"] = self.execute

    def execute(self, message: Message) -> Any:
        self.executions += 1
        if self.executions > 1:
            return self.succeed(message)
        request = message["id"]
        match self.way:
            case "a line":
                self.write(b"debug: x = 1\n")
                return self.succeed(message)
            case "glued":
                self.succeed(message)
                self.open.pop(request)
                answer = {"jsonrpc": "2.0", "id": request, "result": exited(0)}
                self.write(b"dbg" + json.dumps(answer).encode() + b"\n")
                return LATER
            case "not utf-8":
                self.write(b"\xff\n")
                return self.succeed(message)
            case "nan":
                self.note("progress", {"id": request, "done": float("nan")})
                return self.succeed(message)
            case "twice":
                result = self.succeed(message)
                self.answer(request, result)
                self.say({"id": 999, "result": {}})
                return result
        raise ValueError(self.way)


if __name__ == "__main__":
    Babbler().serve()
