"""Workers that take the wrong things for messages, or answer what they should not."""

from __future__ import annotations

import json
import os
from typing import Any

from . import mutant
from .healthy import Healthy, Json
from .leases import Leases
from .programs import Program
from .refusals import Refusal

_ENVELOPE = {"jsonrpc", "id", "method", "params"}
_PATIENCE = 20


@mutant("MSG-3", "MSG-4", "MSG-5")
class DropsWhatIsNoMessage(Healthy):
    """Says nothing to JSON that is no message."""

    def refuse(self, request_id: Any, refusal: Refusal) -> None:
        if request_id is not None or refusal.condition != "InvalidRequest":
            super().refuse(request_id, refusal)


@mutant("MSG-3")
class TakesAnyVersion(Healthy):
    """Serves requests that are not JSON-RPC 2.0."""

    def parse(self, line: bytes) -> Any:
        message = super().parse(line)
        return {**message, "jsonrpc": "2.0"} if isinstance(message, dict) else message


@mutant("MSG-3")
class CallsEverythingUnparsable(Healthy):
    """Answers JSON that is no message as if it were no JSON."""

    def refuse(self, request_id: Any, refusal: Refusal) -> None:
        if refusal.condition == "InvalidRequest":
            refusal = Refusal("ParseFailed", refusal.message)
        super().refuse(request_id, refusal)


@mutant("MSG-4")
class ServesBatches(Healthy):
    """Serves what is in an array."""

    def receive(self, line: bytes) -> None:
        if not line.lstrip().startswith(b"["):
            super().receive(line)
            return
        for message in json.loads(line):
            super().receive(json.dumps(message).encode())


@mutant("MSG-5")
class TakesNullForZero(Healthy):
    """Serves a request whose id is null."""

    def parse(self, line: bytes) -> Any:
        message = super().parse(line)
        if isinstance(message, dict) and message.get("id", 0) is None:
            message["id"] = 0
        return message


@mutant("MSG-5")
class RoundsIds(Healthy):
    """Serves a request whose id is a fraction."""

    def parse(self, line: bytes) -> Any:
        message = super().parse(line)
        if isinstance(message, dict) and isinstance(message.get("id"), float):
            message["id"] = int(message["id"])
        return message


@mutant("MSG-7")
class AnswersUnknownNotifications(Healthy):
    """Answers a notification that it does not know."""

    def take_notification(self, method: str, params: Any) -> None:
        if method not in ("initialized", "cancel", "credit"):
            self.refuse(None, Refusal("MethodNotFound", f"{method:.60} is not known"))
        super().take_notification(method, params)


@mutant("MSG-7")
class AnswersBadNotifications(Healthy):
    """Answers a notification whose params are wrong."""

    def take_notification(self, method: str, params: Any) -> None:
        if not isinstance(params, dict):
            self.refuse(None, Refusal("InvalidParams", "params are an object"))
        super().take_notification(method, params)


@mutant("MSG-8")
class HoldsMessagesToAList(Healthy):
    """Refuses a message with members that it does not know."""

    def parse(self, line: bytes) -> Any:
        message = super().parse(line)
        if isinstance(message, dict) and set(message) - _ENVELOPE:
            raise ValueError("a member that is not known")
        return message


@mutant("MSG-8")
class HoldsParamsToAList(Healthy):
    """Refuses params with members that it does not know."""

    def admit(self, request_id: Any, method: str, params: Any) -> None:
        super().admit(request_id, method, params)
        if set(params) - {"config", "secrets", "sandboxId", "cursor", "_meta"} and method in ("ping", "validateConfig"):
            raise Refusal("InvalidParams", "a member that is not known")


@mutant("MSG-9")
class DiesOfUnknownNotifications(Healthy):
    """Ends where a notification comes that it does not know."""

    def take_notification(self, method: str, params: Any) -> None:
        if method not in ("initialized", "cancel", "credit"):
            os._exit(3)
        super().take_notification(method, params)


@mutant("MSG-19")
class NeedsParams(Healthy):
    """Refuses a request without params."""

    def take_request(self, message: Json) -> None:
        if "params" in message:
            super().take_request(message)
        else:
            self.refuse(message["id"], Refusal("InvalidParams", "there are no params"))


@mutant("MSG-19")
class PassesOverNotificationsWithoutParams(Healthy):
    """Ignores a notification without params."""

    def parse(self, line: bytes) -> Any:
        message = super().parse(line)
        if isinstance(message, dict) and "id" not in message and "params" not in message:
            message["method"] = "passed over"
        return message


@mutant("MSG-20")
class RefusesNull(Healthy):
    """Refuses null for a member that may be missing."""

    def admit(self, request_id: Any, method: str, params: Any) -> None:
        if isinstance(params, dict) and None in params.values():
            raise Refusal("InvalidParams", "null is no value")
        super().admit(request_id, method, params)


class LeasesOfUsers(Leases):
    """Takes null for the name of a user."""

    def launch(self, params: Json, name: str, *, keep_input: bool) -> Program:
        if "user" in params:
            raise Refusal("NotSupported", "commands run as the worker's own user")
        return super().launch(params, name, keep_input=keep_input)


@mutant("MSG-20/command")
class TakesNullForAUser(Healthy):
    """Refuses a command whose `user` is null."""

    leases_class = LeasesOfUsers


@mutant("MSG-22")
class HangsUpAfterManyFaults(Healthy):
    """Ends after twenty refused messages."""

    refused = 0

    def refuse(self, request_id: Any, refusal: Refusal) -> None:
        super().refuse(request_id, refusal)
        self.refused += 1
        if self.refused > _PATIENCE:
            os._exit(1)


@mutant("MSG-22")
class FallsSilentAfterManyFaults(Healthy):
    """Answers twenty refused messages, and no more."""

    refused = 0

    def refuse(self, request_id: Any, refusal: Refusal) -> None:
        self.refused += 1
        if self.refused <= _PATIENCE:
            super().refuse(request_id, refusal)
