"""After the first validateConfig, takes a byte a millisecond for a while; and then everything, line by line."""

import os
import sys
import time
from collections.abc import Iterator

from tests.integration.workers.speaker import Message, Speaker


class SlowReader(Speaker):
    """Its own splitting of lines, so that reading may be as slow as it likes."""

    def __init__(self) -> None:
        super().__init__()
        self.handlers["validateConfig"] = self.dawdle
        self.slow_bytes = 0

    def dawdle(self, message: Message) -> Message:
        if self.arguments:
            self.slow_bytes = int(self.arguments.pop())
        return {"config": {}}

    def lines(self) -> Iterator[bytes]:
        rest = b""
        fd = sys.stdin.fileno()
        while data := os.read(fd, 1 if self.slow_bytes > 0 else 65536):
            if self.slow_bytes > 0:
                self.slow_bytes -= 1
                time.sleep(0.001)
            lines = (rest + data).split(b"\n") if b"\n" in data else [rest + data]
            rest = lines.pop()
            yield from lines


def main() -> None:
    import json

    reader = SlowReader()
    for line in reader.lines():
        message = json.loads(line)  # half a frame, or two in one, ends this worker
        reader.record("received", method=message.get("method"), id=message.get("id"))
        reader.take(message)


if __name__ == "__main__":
    main()
