"""Workers that misread params, ids and bytes, and whose pings prove nothing."""

from __future__ import annotations

import base64
import threading
import time
from typing import Any

from . import mutant
from .healthy import Call, Healthy, Json, key_of
from .leases import Leases
from .refusals import Refusal


class Misfits(Healthy):
    """Meets params that do not fit in a way of its own."""

    def refuse_request(self, request_id: Any, refusal: Refusal) -> None:
        if refusal.condition == "InvalidParams":
            refusal = self.meet_misfit(refusal)
        super().refuse_request(request_id, refusal)

    def meet_misfit(self, refusal: Refusal) -> Refusal:
        """What to answer."""
        raise NotImplementedError


@mutant("MSG-11/refused")
class SaysInternalToMisfits(Misfits):
    """Answers params that do not fit with the text of an exception."""

    def meet_misfit(self, refusal: Refusal) -> Refusal:
        return Refusal("Internal", f"KeyError: {refusal.message}")


@mutant("MSG-11/refused")
class DoubtsAboutMisfits(Misfits):
    """Says of params that it refused that something may have happened."""

    def meet_misfit(self, refusal: Refusal) -> Refusal:
        return Refusal("InvalidParams", refusal.message, dispatched="unknown")


@mutant("MSG-11/refused")
class TakesNumbersFromText(Healthy):
    """Takes a number that comes as a text."""

    def admit(self, request_id: Any, method: str, params: Any) -> None:
        if method == "acquireLease" and isinstance(params.get("ttlMs"), str):
            params["ttlMs"] = int(params["ttlMs"])
        super().admit(request_id, method, params)


@mutant("MSG-11/named")
class NamesNoMember(Misfits):
    """Says that params do not fit, and not which."""

    def meet_misfit(self, refusal: Refusal) -> Refusal:
        return Refusal("InvalidParams", "the params do not fit")


@mutant("MSG-12")
class TakesParamsByPosition(Healthy):
    """Takes an array for the params in their order."""

    def admit(self, request_id: Any, method: str, params: Any) -> None:
        super().admit(request_id, method, {} if params == [] else params)

    def handle(self, call: Call) -> Json:
        call.params = call.params or {}
        return super().handle(call)


@mutant("MSG-12")
class TakesNullForNothing(Healthy):
    """Takes params that are null for params that are missing."""

    def admit(self, request_id: Any, method: str, params: Any) -> None:
        super().admit(request_id, method, {} if params is None else params)

    def handle(self, call: Call) -> Json:
        call.params = call.params or {}
        return super().handle(call)


@mutant("MSG-12")
class SaysInvalidRequestToArrays(Misfits):
    """Answers params in an array as if the message were none."""

    def meet_misfit(self, refusal: Refusal) -> Refusal:
        return Refusal("InvalidRequest", refusal.message) if "params does" in refusal.message else refusal


@mutant("MSG-13")
class ServesAnIdTwice(Healthy):
    """Serves a second call under an id that is open."""

    def admit(self, request_id: Any, method: str, params: Any) -> None:
        with self.lock:
            first = self.open.pop(key_of(request_id), None)
            try:
                super().admit(request_id, method, params)
            finally:
                if first is not None:
                    self.open[key_of(request_id)] = first


@mutant("MSG-13")
class ForgetsTheFirstOfAnId(Healthy):
    """Refuses the second call of an id, and takes the id from the first."""

    def refuse_request(self, request_id: Any, refusal: Refusal) -> None:
        self.refuse(request_id, refusal)


@mutant("MSG-13")
class CancelsTheFirstOfAnId(Healthy):
    """Refuses the second call of an id, and cancels the first."""

    def refuse_request(self, request_id: Any, refusal: Refusal) -> None:
        super().refuse_request(request_id, refusal)
        if key_of(request_id) in self.open:
            self.interrupt(self.open[key_of(request_id)])


# ------------------------------------------------------------------ bytes


def _is_octets(value: Any) -> bool:
    return isinstance(value, dict) and "b64" in value


@mutant("OCT-1")
class TakesTextAlone(Healthy):
    """Refuses the form for bytes as if it were no value."""

    def admit(self, request_id: Any, method: str, params: Any) -> None:
        super().admit(request_id, method, params)
        if method == "execute" and any(map(_is_octets, params.get("argv") or ())):
            raise Refusal("InvalidParams", "argv: a string is needed")


@mutant("OCT-1")
class RefusesBytesWithoutAName(Healthy):
    """Says that bytes are not supported, and not where."""

    def admit(self, request_id: Any, method: str, params: Any) -> None:
        super().admit(request_id, method, params)
        if method == "execute" and any(map(_is_octets, params.get("argv") or ())):
            raise Refusal("NotSupported", "only text can be passed on")


@mutant("OCT-1")
class TurnsBytesIntoText(Healthy):
    """Replaces what is no UTF-8 in the value of a variable."""

    def admit(self, request_id: Any, method: str, params: Any) -> None:
        super().admit(request_id, method, params)
        for name, value in params.get("env", {}).items() if method == "execute" else ():
            if _is_octets(value):
                params["env"][name] = base64.b64decode(value["b64"]).decode("utf-8", "replace")


class EncodesPaths(Leases):
    """Writes every path in the form for bytes."""

    def lease_of(self, sandbox_id: str, egress: Json | None = None) -> Json:
        lease = super().lease_of(sandbox_id, egress)
        return {**lease, "workingDirectory": {"b64": base64.b64encode(lease["workingDirectory"].encode()).decode()}}


@mutant("OCT-2")
class EncodesText(Healthy):
    """Writes paths that are text in the form for bytes."""

    leases_class = EncodesPaths


# ------------------------------------------------------------------ pings


@mutant("PING-1")
class WaitsForTheHello(Healthy):
    """Answers no ping before the hello."""

    def admit(self, request_id: Any, method: str, params: Any) -> None:
        if self.phase == "new" and method == "ping":
            raise Refusal("NotInitialized", "ping before the hello")
        super().admit(request_id, method, params)


@mutant("PING-1")
class AnswersNoPingsAtTheEnd(Healthy):
    """Refuses pings once it was asked to shut down."""

    def admit(self, request_id: Any, method: str, params: Any) -> None:
        if self.draining and method == "ping":
            raise Refusal("Unavailable", "the worker is shutting down", retry="later")
        super().admit(request_id, method, params)


class PingsAreLate(Healthy):
    """Answers a ping as soon as no call is open."""

    def take_request(self, message: Json) -> None:
        if message["method"] != "ping":
            super().take_request(message)
        else:
            threading.Thread(target=self.when_idle, args=(message,), daemon=True).start()

    def when_idle(self, message: Json) -> None:
        """Answer it then."""
        self.wait_idle(60)
        super().take_request(message)


@mutant("PING-1", "CALL-2")
class QueuesPings(PingsAreLate):
    """Answers pings when the calls before them are over."""


@mutant("PING-2")
class ListsThePing(Healthy):
    """Lists the ping itself among the open ids."""

    def take_request(self, message: Json) -> None:
        if message["method"] == "ping":
            self.open[key_of(message["id"])] = Call(self, message["id"], "ping", {})
            self.answer(message["id"], self.pong())
        else:
            super().take_request(message)


@mutant("PING-2")
class ListsIdsAsText(Healthy):
    """Lists every open id as a string."""

    def pong(self) -> Json:
        return {"open": [str(request_id) for request_id in super().pong()["open"]]}


@mutant("PING-2")
class ListsNothing(Healthy):
    """Never lists an open id."""

    def pong(self) -> Json:
        return {"open": []}


@mutant("PING-2")
class ListsWhatIsOver(Healthy):
    """Goes on to list a call that was answered."""

    over: tuple[Any, ...] = ()

    def settle(self, request_id: Any, line: bytes) -> None:
        if key_of(request_id) in self.open:
            self.over = (request_id,)
        super().settle(request_id, line)

    def pong(self) -> Json:
        return {"open": [*super().pong()["open"], *self.over]}


@mutant("PING-3")
class LetsGoOfIdsEarly(Healthy):
    """Takes an id out of its table a moment before it writes the answer."""

    def settle(self, request_id: Any, line: bytes) -> None:
        with self.lock:
            self.open.pop(key_of(request_id), None)
        if threading.current_thread() is not threading.main_thread():
            time.sleep(0.05)
        super().settle(request_id, line)
