"""Workers that break the rules of the hello."""

from __future__ import annotations

import os
import sys
import threading
import time
from typing import Any

from . import mutant
from .healthy import VERSIONS, Call, Healthy, Json
from .refusals import Refusal


@mutant("HELLO-2")
class SpeaksEveryVersion(Healthy):
    """Answers the highest version that the host offers."""

    def hello(self, params: Json) -> Json:
        return {**super().hello(params), "protocolVersion": max(params["protocolVersions"])}


@mutant("HELLO-2")
class SpeaksItsOwnVersion(Healthy):
    """Answers its own version, whatever the host offers."""

    def hello(self, params: Json) -> Json:
        return {**super().hello(params), "protocolVersion": 2}


class Strangers(Healthy):
    """Meets a hello without a common version in a way of its own."""

    def greet(self, request_id: Any, params: Json) -> None:
        if set(params["protocolVersions"]) & set(VERSIONS):
            super().greet(request_id, params)
        else:
            self.meet_stranger(request_id, params)

    def meet_stranger(self, request_id: Any, params: Json) -> None:
        """Answer it."""
        raise NotImplementedError


@mutant("HELLO-3")
class NamesOneSetOfVersions(Strangers):
    """Says only which versions it speaks itself."""

    def meet_stranger(self, request_id: Any, params: Json) -> None:
        self.refuse(request_id, Refusal("VersionMismatch", f"only {VERSIONS} is spoken here"))


@mutant("HELLO-3")
class EndsAtAStrangersHello(Strangers):
    """Refuses a hello without a common version and ends."""

    def meet_stranger(self, request_id: Any, params: Json) -> None:
        super(Strangers, self).greet(request_id, params)
        os._exit(1)


@mutant("HELLO-3")
class GreetsOnce(Strangers):
    """Takes a hello that failed for the one hello of the connection."""

    def meet_stranger(self, request_id: Any, params: Json) -> None:
        super(Strangers, self).greet(request_id, params)
        self.phase = "negotiated"


@mutant("HELLO-4")
class ServesBeforeInitialized(Healthy):
    """Serves calls as soon as the hello is answered."""

    def admit(self, request_id: Any, method: str, params: Any) -> None:
        before, self.phase = self.phase, "serving" if self.phase == "negotiated" else self.phase
        try:
            super().admit(request_id, method, params)
        finally:
            self.phase = before


@mutant("HELLO-4")
class EndsAtAnEarlyCall(Healthy):
    """Ends when it is called before it was greeted."""

    def admit(self, request_id: Any, method: str, params: Any) -> None:
        if self.phase == "new" and method not in ("initialize", "ping", "shutdown"):
            sys.exit("called before the hello")
        super().admit(request_id, method, params)


@mutant("HELLO-4")
class LooksForTheMethodFirst(Healthy):
    """Answers an unknown method before the hello as at any other time."""

    def admit(self, request_id: Any, method: str, params: Any) -> None:
        if method not in self.methods:
            raise Refusal("MethodNotFound", f"{method:.60} is not known")
        super().admit(request_id, method, params)


@mutant("HELLO-5")
class IsGreetedTwice(Healthy):
    """Takes a second hello for a new beginning."""

    def admit(self, request_id: Any, method: str, params: Any) -> None:
        if method == "initialize":
            self.phase = "new"
        super().admit(request_id, method, params)


@mutant("HELLO-5")
class ForgetsTheFirstHello(Healthy):
    """Refuses a second hello, and the first is over with it."""

    def admit(self, request_id: Any, method: str, params: Any) -> None:
        try:
            super().admit(request_id, method, params)
        except Refusal:
            self.phase = "new" if method == "initialize" else self.phase
            raise


@mutant("HELLO-10")
class NeedsEveryLimit(Healthy):
    """Reads each limit of the hello, there or not."""

    def greet(self, request_id: Any, params: Json) -> None:
        if set(self.limits) - set(params.get("limits", {})):
            self.refuse(request_id, Refusal("InvalidParams", "limits is not complete"))
        else:
            super().greet(request_id, params)


@mutant("HELLO-10")
class MeansNoLimitByZero(Healthy):
    """Answers 0 where it has no ceiling."""

    def hello(self, params: Json) -> Json:
        hello = super().hello(params)
        return {**hello, "limits": {**hello["limits"], "creditBytes": 0}}


@mutant("HELLO-11")
class KnowsEveryMember(Healthy):
    """Refuses a hello with a member that it does not know."""

    def greet(self, request_id: Any, params: Json) -> None:
        if set(params) - {"protocolVersions", "host", "storeId", "stateDir", "limits", "features", "_meta"}:
            self.refuse(request_id, Refusal("InvalidParams", "an unknown member"))
        else:
            super().greet(request_id, params)


@mutant("HELLO-11", "HELLO-2")
class FearsNewVersions(Healthy):
    """Refuses a host that speaks a newer version too."""

    def greet(self, request_id: Any, params: Json) -> None:
        if max(params["protocolVersions"]) > max(VERSIONS):
            params = {**params, "protocolVersions": []}
        super().greet(request_id, params)


@mutant("HELLO-12")
class EndsAtAWrongHello(Healthy):
    """Ends when the hello does not fit."""

    def admit(self, request_id: Any, method: str, params: Any) -> None:
        try:
            super().admit(request_id, method, params)
        except Refusal:
            if method == "initialize":
                sys.exit("this is no hello")
            raise


@mutant("HELLO-12")
class TakesAnyHello(Healthy):
    """Looks only at the versions of a hello."""

    def admit(self, request_id: Any, method: str, params: Any) -> None:
        if method == "initialize":
            params["storeId"] = str(params.get("storeId"))
        super().admit(request_id, method, params)


@mutant("HELLO-20")
class WritesAsItReads(Healthy):
    """Writes frames as long as it may read itself."""

    def greet(self, request_id: Any, params: Json) -> None:
        super().greet(request_id, params)
        self.limits["frameBytes"] = self.own_limits["frameBytes"]


@mutant("HELLO-20")
class ReadsAsItWrites(Healthy):
    """Reads frames only as long as the host may read."""

    def greet(self, request_id: Any, params: Json) -> None:
        super().greet(request_id, params)
        self.own_limits = self.limits


@mutant("HELLO-21")
class EndsAtAnEarlyCancel(Healthy):
    """Ends when it is told to cancel something before it was greeted."""

    def take_notification(self, method: str, params: Any) -> None:
        if method == "cancel" and self.phase == "new":
            os._exit(1)
        super().take_notification(method, params)


@mutant("HELLO-21")
class AnswersEarlyNotifications(Healthy):
    """Answers a notification that comes before it serves."""

    def take_notification(self, method: str, params: Any) -> None:
        if method != "initialized" and self.phase != "serving":
            self.refuse(None, Refusal("NotInitialized", f"{method:.60} before the hello was done"))
        super().take_notification(method, params)


# ------------------------------------------------------------------ ready


class Ready(Healthy):
    """Becomes ready in a way of its own."""

    def notify(self, method: str, params: Json) -> None:
        if method == "ready":
            self.become_ready()
        else:
            super().notify(method, params)

    def become_ready(self) -> None:
        """Tell the host, or do not."""


@mutant("HELLO-13")
class IsNeverReady(Ready):
    """Serves without ever saying that it is ready."""


@mutant("HELLO-13")
class IsReadyTwice(Ready):
    """Says that it is ready, and says so again."""

    def become_ready(self) -> None:
        super(Ready, self).notify("ready", {})
        super(Ready, self).notify("ready", {})


@mutant("HELLO-13")
class IsReadyAtOnce(Ready):
    """Says that it is ready with the answer to the hello."""

    def greet(self, request_id: Any, params: Json) -> None:
        super().greet(request_id, params)
        super(Ready, self).notify("ready", {})


@mutant("HELLO-13")
class FailsWithoutACode(Ready):
    """Notifies `failed` and ends with exit code 0."""

    def become_ready(self) -> None:
        super(Ready, self).notify("failed", {"message": "no account"})
        os._exit(0)


@mutant("HELLO-14")
class IsReadyLate(Ready):
    """Answers calls before it says that it is ready."""

    def become_ready(self) -> None:
        threading.Timer(0.5, super(Ready, self).notify, ("ready", {})).start()


@mutant("HELLO-14")
class RefusesCallsUntilReady(Ready):
    """Refuses a call that comes before it is ready."""

    is_ready = False

    def become_ready(self) -> None:
        def later() -> None:
            super(Ready, self).notify("ready", {})
            self.is_ready = True

        threading.Timer(0.2, later).start()

    def admit(self, request_id: Any, method: str, params: Any) -> None:
        if self.phase == "serving" and not self.is_ready and method not in ("ping", "shutdown"):
            raise Refusal("Unavailable", "not ready yet", retry="later")
        super().admit(request_id, method, params)


@mutant("HELLO-15/frame")
class SpeaksFirst(Healthy):
    """Says that it is ready before it was spoken to."""

    def main(self) -> None:
        os.write(1, b'{"jsonrpc":"2.0","method":"ready","params":{}}\n')
        super().main()


@mutant("HELLO-15/silence")
class HasABanner(Healthy):
    """Starts with a banner."""

    def main(self) -> None:
        print("healthy, version 1", flush=True)
        super().main()


@mutant("HELLO-16")
class ImportsBeforeTheHello(Healthy):
    """Imports for seconds before it answers the hello."""

    def greet(self, request_id: Any, params: Json) -> None:
        time.sleep(3)
        super().greet(request_id, params)


# ------------------------------------------------------------------ what is declared


@mutant("HELLO-6")
class HidesAMandatoryMethod(Healthy):
    """Serves `probe` and does not list it."""

    def hello(self, params: Json) -> Json:
        return {**super().hello(params), "supportedMethods": [name for name in self.methods if name != "probe"]}


@mutant("HELLO-6")
class ListsMethodsOfItsOwn(Healthy):
    """Lists a method of its own among those of the protocol."""

    def hello(self, params: Json) -> Json:
        return {**super().hello(params), "supportedMethods": [*self.methods, "restartSandbox"]}


@mutant("HELLO-7")
class ServesAGroupInPart(Healthy):
    """Starts processes and never ends them."""

    methods = tuple(name for name in Healthy.methods if name != "signalProcess")


@mutant("HELLO-8")
class HasNoName(Healthy):
    """Leaves its name empty."""

    name = ""


@mutant("HELLO-8")
class SendsItsSchemaAsText(Healthy):
    """Sends the schema of its config as a string."""

    def hello(self, params: Json) -> Json:
        hello = super().hello(params)
        return {**hello, "provider": {**hello["provider"], "configSchema": '{"type": "object"}'}}


@mutant("HELLO-9")
class HasAFeatureWithoutPrefix(Healthy):
    """Lists a word of its own as a feature."""

    def hello(self, params: Json) -> Json:
        return {**super().hello(params), "features": ["snapshots"]}


@mutant("HELLO-24")
class AdvertisesTooMuch(Healthy):
    """Advertises processes and does not know them."""

    def admit(self, request_id: Any, method: str, params: Any) -> None:
        if method == "waitProcess":
            raise Refusal("MethodNotFound", "this is still to be written")
        super().admit(request_id, method, params)


@mutant("MSG-10")
class SaysInternalToUnknownMethods(Healthy):
    """Answers a method that it does not know with Internal."""

    def admit(self, request_id: Any, method: str, params: Any) -> None:
        try:
            super().admit(request_id, method, params)
        except Refusal as refusal:
            if refusal.condition == "MethodNotFound":
                raise Refusal("Internal", "AttributeError", dispatched="no") from None
            raise


@mutant("MSG-10")
class DoubtsThatNothingHappened(Healthy):
    """Says of an unknown method that something may have happened."""

    def refuse(self, request_id: Any, refusal: Refusal) -> None:
        if refusal.condition == "MethodNotFound":
            refusal.data["dispatched"] = "unknown"
        super().refuse(request_id, refusal)


@mutant("MSG-10")
class KnowsNotificationsFromRequests(Healthy):
    """Answers a request that is named like a notification with InvalidRequest."""

    def admit(self, request_id: Any, method: str, params: Any) -> None:
        if method == "cancel":
            raise Refusal("InvalidRequest", "this is a notification")
        super().admit(request_id, method, params)


@mutant("CAP-1")
class KillsInAWayOfItsOwn(Healthy):
    """Declares a value of `kill` that the schema does not have."""

    capabilities = {**Healthy.capabilities, "kill": "sigkill"}  # noqa: RUF012 - read only


@mutant("CAP-1")
class AllowsEgressInAWayOfItsOwn(Healthy):
    """Declares a grant of egress that the schema does not have."""

    capabilities = {**Healthy.capabilities, "egress": ["all", "intranet"]}  # noqa: RUF012 - read only


@mutant("EVO-4", "HELLO-6")
class AdvertisesAReservedName(Healthy):
    """Advertises a name that a later version will use."""

    methods = (*Healthy.methods, "submitTask")


@mutant("EVO-4", "MSG-10")
class ServesAReservedName(Healthy):
    """Serves a reserved name, though it does not advertise it."""

    def admit(self, request_id: Any, method: str, params: Any) -> None:
        if method != "getTask":
            super().admit(request_id, method, params)

    def handle(self, call: Call) -> Json:
        return {} if call.method == "getTask" else super().handle(call)
