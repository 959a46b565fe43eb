"""Workers that write messages of a wrong form."""

from __future__ import annotations

import re
from typing import Any

from . import mutant
from .healthy import Healthy, Json
from .refusals import Refusal


@mutant("MSG-2")
class LeavesOutTheVersion(Healthy):
    """Writes errors without `jsonrpc`."""

    def encode(self, message: Json) -> bytes:
        return super().encode({n: v for n, v in message.items() if n != "jsonrpc" or "error" not in message})


@mutant("MSG-6")
class WritesBothOutcomes(Healthy):
    """Writes `error: null` beside a result."""

    def encode(self, message: Json) -> bytes:
        both = {"error": None} if "result" in message and self.phase == "serving" else {}
        return super().encode({**message, **both})


@mutant("MSG-6")
class WritesNoOutcome(Healthy):
    """Leaves out a result that is empty."""

    def encode(self, message: Json) -> bytes:
        return super().encode({n: v for n, v in message.items() if n != "result" or v})


@mutant("MSG-16")
class AsksTheHost(Healthy):
    """Asks the host for something before it probes."""

    def admit(self, request_id: Any, method: str, params: Any) -> None:
        if method == "probe":
            self.write(self.encode({"jsonrpc": "2.0", "id": "w1", "method": "host/secret", "params": {}}))
        super().admit(request_id, method, params)


@mutant("MSG-17")
class WritesExponents(Healthy):
    """Writes a duration as JavaScript would write a large one."""

    def encode(self, message: Json) -> bytes:
        return re.sub(rb'"durationMs":(\d+)', rb'"durationMs":\1e0', super().encode(message))


@mutant("MSG-17")
class WritesFractions(Healthy):
    """Writes the codes of errors as doubles."""

    def encode(self, message: Json) -> bytes:
        return re.sub(rb'"code":(-\d+)', rb'"code":\1.0', super().encode(message))


@mutant("MSG-18")
class WritesMembersTwice(Healthy):
    """Ends every error with a second `jsonrpc`."""

    def encode(self, message: Json) -> bytes:
        line = super().encode(message)
        return line.removesuffix(b"}\n") + b',"jsonrpc":"2.0"}\n' if "error" in message else line


@mutant("MSG-23")
class MeasuresBackwards(Healthy):
    """Measures durations by a clock that was set back meanwhile."""

    def encode(self, message: Json) -> bytes:
        return re.sub(rb'"durationMs":(\d+)', rb'"durationMs":-1\1', super().encode(message))


@mutant("ERR-1")
class UsesCodesOfItsOwn(Healthy):
    """Has a code that is in no table for methods that it does not know."""

    def encode(self, message: Json) -> bytes:
        return super().encode(message).replace(b'"code":-32601', b'"code":-32000')


@mutant("ERR-1")
class SaysNothing(Healthy):
    """Leaves the message of an error empty."""

    def refuse(self, request_id: Any, refusal: Refusal) -> None:
        refusal.message = ""
        super().refuse(request_id, refusal)


@mutant("ERR-2")
class LeavesOutTheData(Healthy):
    """Writes errors with a code and a message only."""

    def encode(self, message: Json) -> bytes:
        if "error" in message:
            error = message["error"]
            message = {**message, "error": {"code": error["code"], "message": error["message"]}}
        return super().encode(message)


@mutant("ERR-2")
class NeverSaysDispatched(Healthy):
    """Leaves its host in the dark about what may have happened."""

    def refuse(self, request_id: Any, refusal: Refusal) -> None:
        refusal.data["dispatched"] = "unknown"
        super().refuse(request_id, refusal)


@mutant("ERR-2")
class MixesUpConditions(Healthy):
    """Has a condition in its errors that does not belong to their code."""

    def refuse(self, request_id: Any, refusal: Refusal) -> None:
        refusal.data["condition"] = "Internal"
        super().refuse(request_id, refusal)


@mutant("ERR-1", "ERR-2")
class NeverSaysNo(Healthy):
    """Answers nothing that it would have to refuse."""

    def refuse(self, request_id: Any, refusal: Refusal) -> None:
        """Do not."""
