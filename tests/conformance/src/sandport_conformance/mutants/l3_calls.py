"""Workers that answer too often, too early or not at the same time, and that ignore what they do not know."""

from __future__ import annotations

import os
import threading
from typing import Any

from . import mutant
from .healthy import Call, Healthy, Json
from .leases import Leases
from .programs import Program
from .refusals import Refusal


@mutant("CALL-1/record")
class AnswersTwice(Healthy):
    """Sends the result of a command twice."""

    def answer(self, request_id: Any, result: Json) -> None:
        super().answer(request_id, result)
        if "ended" in result:
            super().answer(request_id, result)


@mutant("CALL-1/cancels")
class ForgetsCancelledCalls(Healthy):
    """Never answers a call that was cancelled."""

    def serve(self, call: Call) -> None:
        call.cancelled.wait(0.01)
        if not call.cancelled.is_set():
            super().serve(call)


@mutant("CALL-2")
class ServesInTurn(Healthy):
    """Serves one call after the other."""

    def __init__(self) -> None:
        super().__init__()
        self.turn = threading.Lock()

    def handle(self, call: Call) -> Json:
        with self.turn:
            return super().handle(call)


@mutant("CALL-2")
class ServesInTheReader(Healthy):
    """Reads nothing while a call runs."""

    def take_request(self, message: Json) -> None:
        super().take_request(message)
        if message["method"] == "execute":
            self.wait_idle(60)


# ------------------------------------------------------------------ too early


class DestroysLater(Leases):
    """Destroys a sandbox some time after it was told to."""

    def remove(self, sandbox_id: str) -> None:
        threading.Timer(0.5, super().remove, (sandbox_id,)).start()


@mutant("CALL-3", "LEASE-9/gone")
class DestroysInTheBackground(Healthy):
    """Answers a destroy before the sandbox is gone."""

    leases_class = DestroysLater


class AttachesLater(Leases):
    """Finishes a sandbox some time after it has told of it."""

    def acquire_lease(self, call: Call) -> Json:
        lease = super().acquire_lease(call)
        sandbox_id = call.params["sandboxId"]
        self.attached.discard(sandbox_id)
        threading.Timer(0.5, self.attached.add, (sandbox_id,)).start()
        return lease


@mutant("CALL-3")
class AcquiresInTheBackground(Healthy):
    """Answers an acquire before the sandbox can be used."""

    leases_class = AttachesLater


# ------------------------------------------------------------------ too many


@mutant("CALL-4")
class QueuesWithoutABound(Healthy):
    """Takes every call, however many are open."""

    def greet(self, request_id: Any, params: Json) -> None:
        super().greet(request_id, params)
        self.limits["inFlight"] = 1 << 30


class Overloads(Healthy):
    """Meets too many calls in a way of its own."""

    def refuse_request(self, request_id: Any, refusal: Refusal) -> None:
        if refusal.condition == "Overloaded":
            refusal = self.meet_overload(refusal)
        super().refuse_request(request_id, refusal)

    def meet_overload(self, refusal: Refusal) -> Refusal:
        """What to answer."""
        raise NotImplementedError


@mutant("CALL-4")
class EndsWhenOverloaded(Overloads):
    """Ends when too many calls are open."""

    def meet_overload(self, refusal: Refusal) -> Refusal:
        os._exit(1)


@mutant("CALL-4")
class DoubtsWhenOverloaded(Overloads):
    """Says of a call that was one too many that something may have happened."""

    def meet_overload(self, refusal: Refusal) -> Refusal:
        return Refusal("Overloaded", refusal.message, dispatched="unknown", retry="later")


@mutant("CALL-4")
class DropsTheOldest(Overloads):
    """Cancels the oldest call when too many are open."""

    def meet_overload(self, refusal: Refusal) -> Refusal:
        self.interrupt(next(iter(self.open.values())))
        return refusal


@mutant("CALL-4")
class LosesPlaces(Healthy):
    """Loses a place with each call that was cancelled."""

    lost = 0

    def interrupt(self, call: Call) -> None:
        super().interrupt(call)
        self.lost += 1

    def admit(self, request_id: Any, method: str, params: Any) -> None:
        super().admit(request_id, method, params)
        if method not in ("ping", "shutdown", "initialize") and self.lost > self.limits["inFlight"]:
            raise Refusal("Overloaded", "too many requests in flight", retry="later")


# ------------------------------------------------------------------ advice, repeats, progress


@mutant("CALL-5")
class KnowsNoMeta(Healthy):
    """Refuses `_meta` as a member that it does not know."""

    def admit(self, request_id: Any, method: str, params: Any) -> None:
        super().admit(request_id, method, params)
        if "_meta" in params and method != "initialize":
            raise Refusal("InvalidParams", "_meta is not known")


class GivesUp(Leases):
    """Cancels its own calls."""

    def execute(self, call: Call) -> Json:
        deadline_ms = call.params.get("_meta", {}).get("deadlineMs")
        if deadline_ms:
            threading.Timer(deadline_ms / 1000, self.worker.interrupt, (call,)).start()
        return super().execute(call)


@mutant("CALL-5")
class KeepsDeadlines(Healthy):
    """Cancels a call by itself when its deadline is over."""

    leases_class = GivesUp


class AttachesOnce(Leases):
    """Attaches a sandbox that is not attached yet, and no other."""

    def attach_lease(self, call: Call) -> Json:
        if call.params["sandboxId"] in self.attached:
            raise Refusal("InvalidRequest", "it is attached already")
        return super().attach_lease(call)


@mutant("CALL-9", "LEASE-7")
class RefusesToAttachTwice(Healthy):
    """Refuses to attach what is attached already."""

    leases_class = AttachesOnce


class DestroysOnce(Leases):
    """Destroys what is there, and nothing else."""

    def destroy_lease(self, call: Call) -> Json:
        if not self.exists(call.params["sandboxId"]):
            raise Refusal("LeaseNotFound", "there is no such sandbox")
        return super().destroy_lease(call)


@mutant("CALL-9", "LEASE-9/gone")
class RefusesToDestroyTwice(Healthy):
    """Fails to destroy what is gone."""

    leases_class = DestroysOnce


class CountsHandles(Leases):
    """Gives a sandbox a new handle each time."""

    attaches = 0

    def attach_lease(self, call: Call) -> Json:
        result = super().attach_lease(call)
        self.attaches += 1
        if "lease" in result:
            result["lease"]["notes"] = [f"attached {self.attaches} times"]
        return result


@mutant("CALL-9")
class AnswersDifferently(Healthy):
    """Answers a repeated attach differently."""

    leases_class = CountsHandles


class ReportsWithoutAnId(Leases):
    """Reports progress under an id of its own."""

    def report(self, call: Call, message: str) -> None:
        self.worker.notify("progress", {"id": f"progress of {call.id}", "message": message})


@mutant("CALL-12")
class ReportsUnderAnIdOfItsOwn(Healthy):
    """Reports progress under an id that nobody asked for."""

    leases_class = ReportsWithoutAnId


@mutant("CALL-12")
class ReportsLate(Healthy):
    """Reports progress once a call was answered."""

    def answer(self, request_id: Any, result: Json) -> None:
        super().answer(request_id, result)
        if "handle" in result:
            self.notify("progress", {"id": request_id, "message": "done", "done": 2, "total": 2})


# ------------------------------------------------------------------ what is not declared


class IgnoresUsers(Leases):
    """Runs every command as its own user."""

    def launch(self, params: Json, name: str, *, keep_input: bool) -> Program:
        return super().launch({**params, "user": None}, name, keep_input=keep_input)


@mutant("CAP-2/user")
class RunsAsItself(Healthy):
    """Runs a command for another user as its own."""

    leases_class = IgnoresUsers


class RunsFirst(Leases):
    """Refuses a user when the command has run."""

    def execute(self, call: Call) -> Json:
        params, call.params = call.params, {**call.params, "user": None}
        result = super().execute(call)
        if params.get("user") is not None:
            raise Refusal("NotSupported", "commands run as the worker's own user")
        return result


@mutant("CAP-2/user")
class RefusesAUserTooLate(Healthy):
    """Refuses a user only after it has run the command."""

    leases_class = RunsFirst


class IgnoresTerminals(Leases):
    """Starts every process with pipes."""

    def start_process(self, call: Call) -> Json:
        call.params = {**call.params, "pty": None}
        return super().start_process(call)


class WithoutTerminals(Healthy):
    """A sound worker that declares no terminals."""

    capabilities = {**Healthy.capabilities, "pty": False}  # noqa: RUF012 - read only


@mutant("CAP-2/pty", made_from=WithoutTerminals)
class StartsWithPipes(WithoutTerminals):
    """Starts a process that wants a terminal with pipes."""

    leases_class = IgnoresTerminals
