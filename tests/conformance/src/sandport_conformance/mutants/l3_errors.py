"""Workers whose errors lie, leak or are missing."""

from __future__ import annotations

import json
import os
import sys
from typing import Any

from . import mutant
from .healthy import Call, Healthy, Json
from .leases import Leases
from .programs import Program
from .refusals import Cancelled, Refusal


@mutant("ERR-3/command", "ERR-8")
class DeniesWhatItCancelled(Healthy):
    """Says of every cancelled call that nothing has happened."""

    def refuse(self, request_id: Any, refusal: Refusal) -> None:
        if refusal.condition == "Cancelled":
            refusal.data["dispatched"] = "no"
        super().refuse(request_id, refusal)


class LeavesCreates(Leases):
    """Waits for a cancel, and leaves what it has made by then."""

    def acquire_lease(self, call: Call) -> Json:
        call.cancelled.wait(1.0)
        try:
            return super().acquire_lease(call)
        except Cancelled:
            raise Refusal("Cancelled", "acquireLease was cancelled", dispatched="no") from None

    def remove(self, sandbox_id: str) -> None:
        if sandbox_id in self.attached:
            super().remove(sandbox_id)


@mutant("ERR-3/create", "LEASE-5")
class DeniesWhatItCreated(Healthy):
    """Says of a cancelled acquire that nothing has happened, and leaves the sandbox."""

    leases_class = LeavesCreates


# ------------------------------------------------------------------ its own faults


class Faults(Healthy):
    """Meets a fault of its own in a way of its own."""

    def handle(self, call: Call) -> Json:
        try:
            return super().handle(call)
        except (Refusal, Cancelled):
            raise
        except Exception as error:  # noqa: BLE001 - whatever it is, it is the fault that is meant
            return self.meet_fault(call, error)

    def meet_fault(self, call: Call, error: Exception) -> Json:
        """What to answer."""
        raise NotImplementedError


@mutant("ERR-4/state")
class EndsAtAFault(Faults):
    """Ends when a handler raises what it did not expect."""

    def meet_fault(self, call: Call, error: Exception) -> Json:
        print(f"{call.method}: {error!r}", file=sys.stderr, flush=True)
        os._exit(1)


@mutant("ERR-4/state")
class IsSilentAtAFault(Faults):
    """Lets the thread of a call die without an answer."""

    def meet_fault(self, call: Call, error: Exception) -> Json:
        sys.exit(f"{call.method}: {error!r}")


@mutant("ERR-4/state")
class SendsTracebacks(Faults):
    """Answers a fault with an error that has no code."""

    def meet_fault(self, call: Call, error: Exception) -> Json:
        self.settle(call.id, self.encode({"jsonrpc": "2.0", "id": call.id, "error": {"message": repr(error)}}))
        raise SystemExit


class StartsCarelessly(Leases):
    """Ends the process when the system does not start a program."""

    def launch(self, params: Json, name: str, *, keep_input: bool) -> Program:
        if len(json.dumps(params)) > 1 << 20:
            os._exit(1)
        return super().launch(params, name, keep_input=keep_input)


@mutant("ERR-4/size")
class EndsAtALongArgument(Healthy):
    """Ends when the system cannot start a command."""

    leases_class = StartsCarelessly


# ------------------------------------------------------------------ secrets and messages


@mutant("ERR-5/secrets")
class TellsWhatItGot(Healthy):
    """Puts the params into the message of every error."""

    def take_request(self, message: Json) -> None:
        self.got = message.get("params")
        super().take_request(message)

    def refuse(self, request_id: Any, refusal: Refusal) -> None:
        refusal.message = f"{refusal.message}: {json.dumps(self.got)[:500]}"
        super().refuse(request_id, refusal)


@mutant("ERR-5/says")
class SaysTheConditionOnly(Healthy):
    """Sends the name of the condition for a message."""

    def refuse(self, request_id: Any, refusal: Refusal) -> None:
        refusal.message = refusal.condition
        super().refuse(request_id, refusal)


# ------------------------------------------------------------------ partial output


class Partials(Leases):
    """Answers a cancelled command with a `partial` of its own."""

    def execute(self, call: Call) -> Json:
        try:
            return super().execute(call)
        except Refusal as refusal:
            if "partial" in refusal.data:
                self.spoil(refusal.data)
            raise

    def spoil(self, data: Json) -> None:
        """Change the data of the error."""
        raise NotImplementedError


class WithoutPartial(Partials):
    """Leaves it out."""

    def spoil(self, data: Json) -> None:
        del data["partial"]


class CountsWhatItKept(Partials):
    """Counts what it kept and not what there was."""

    def spoil(self, data: Json) -> None:
        kept = data["partial"]["stdout"]
        kept["totalBytes"] -= kept["droppedBytes"]
        kept["droppedBytes"] = 0


class KeepsTheHead(Partials):
    """Forgets the last bytes."""

    def spoil(self, data: Json) -> None:
        data["partial"]["stdout"]["tail"] = ""


@mutant("ERR-7")
class ThrowsOutputAway(Healthy):
    """Answers a cancelled command without what it had written."""

    leases_class = WithoutPartial


@mutant("ERR-7")
class CountsPartialsWrongly(Healthy):
    """Counts less than a cancelled command had written."""

    leases_class = CountsWhatItKept


@mutant("ERR-7")
class ForgetsTheTail(Healthy):
    """Keeps only the head of what a cancelled command had written, and does not count the rest as dropped."""

    leases_class = KeepsTheHead


@mutant("ERR-8")
class SendsLongErrors(Healthy):
    """Sends an error longer than the frame."""

    def shortened(self, error: Json) -> Json:
        return error


@mutant("ERR-8")
class LosesItsDataFirst(Healthy):
    """Sends an error that is too long without any data."""

    def shortened(self, error: Json) -> Json:
        return {"code": error["code"], "message": error["message"][:1000]}


@mutant("ERR-8")
class SaysTooLargeInstead(Healthy):
    """Replaces an error that is too long by TooLarge."""

    def shortened(self, error: Json) -> Json:
        return {"code": -32023, "message": "the error is too long", "data": {"condition": "TooLarge"}}
