"""Answers an execute with a result that does not agree with what it sent; the program's name says in which way."""

from typing import Any

from tests.integration.workers.speaker import LATER, Message, Speaker, exited


class Liar(Speaker):
    """Always sends `abc` on stdout first."""

    def __init__(self) -> None:
        super().__init__()
        self.handlers |= {"execute": self.execute, "cancel": self.cancel}

    def execute(self, message: Message) -> Any:
        request = message["id"]
        self.record("executes")
        self.output(request, "stdout", 0, b"abc")
        match message["params"]["argv"][0]:
            case "no end marks":
                return exited(0, stdout=3)
            case "one end mark":
                self.output(request, "stdout", 3, end="seen")
                return exited(0, stdout=3)
            case "too few":
                self._end(request)
                return exited(0, stdout=2)
            case "too many":
                self._end(request)
                return exited(0, stdout=4, stderr=1)
            case "another end":
                self._end(request)
                return exited(0, stdout=3) | {"stdout": {"totalBytes": 3, "end": "heldOpen"}}
            case "no exit code":
                self._end(request)
                return {"ended": "exited", "stdout": {"totalBytes": 3}}
            case "a code and a signal":
                self._end(request)
                return {"ended": "signalled", "signal": 9, "exitCode": 0, "stdout": {"totalBytes": 3}}
            case "another schema":
                self._end(request)
                return {"ended": "well"}
            case "a gap":
                self.output(request, "stdout", 5, b"f")
                return LATER
            case "after the end":
                self.output(request, "stdout", 3, end="seen")
                self.output(request, "stdout", 3, b"def")
                return LATER
            case "an unknown stream":
                self.output(request, "pty", 0, b"def")
                return LATER
        self._end(request)
        return exited(0, stdout=3)

    def _end(self, request: Any) -> None:
        self.output(request, "stdout", 3, end="seen")
        self.output(request, "stderr", 0, end="seen")

    def cancel(self, message: Message) -> None:
        request = message["params"]["id"]
        if request in self.open:
            self.refuse(request, -32026, "stopped", condition="Cancelled", dispatched="yes")


if __name__ == "__main__":
    Liar().serve()
