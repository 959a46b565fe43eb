"""Writes much on stderr in an execute, as the program's name says, before it answers."""

import fcntl
import os
import time
from typing import Any

from tests.integration.workers.speaker import Message, Speaker

MIB = 1024 * 1024
FORMS = (
    b"plain words\n"
    b'{"level": "warning", "message": "from json"}\n'
    b"Traceback (most recent call last):\n"
    b'  File "x.py", line 1, in <module>\n'
    b"ValueError: broken\n"
    b"\xff\xfe binary\n"
)


def write(data: bytes) -> None:
    while data:
        data = data[os.write(2, data) :]


class Noisy(Speaker):
    """Loud on stderr."""

    def __init__(self) -> None:
        super().__init__()
        self.handlers["execute"] = self.execute

    def execute(self, message: Message) -> Any:
        match message["params"]["argv"][0]:
            case "much":
                for number in range(8 * MIB // 64):
                    write(b"%063d\n" % number)
            case "one long line":
                write(b"x" * 10 * MIB + b"\nafter\n")
            case "many lines and the end":
                write(b"".join(b"line %d\n" % number for number in range(5000)))
                os._exit(1)
            case "long lines and the end":
                fcntl.fcntl(2, fcntl.F_SETPIPE_SZ, MIB)  # far more than is read at once
                while not os.path.exists(message["params"]["argv"][1]):
                    time.sleep(0.005)
                write(b"".join(b"long %d %s\n" % (number, b"x" * 60_000) for number in range(9)) + b"the last words\n")
                os._exit(1)
            case "every form":
                write(FORMS)
        return self.succeed(message)


if __name__ == "__main__":
    Noisy().serve()
