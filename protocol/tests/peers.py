"""Both sides of a connection in any phase, reached the way a real one reaches it."""

from __future__ import annotations

import json
from typing import Any

from msgspec import Raw

from sandport_protocol import v1
from sandport_protocol.errors import ErrorObject, Internal
from sandport_protocol.events import ReplyDue, RequestReceived, WorkerEvent
from sandport_protocol.host_connection import HostConnection
from sandport_protocol.limits import Limits, agree
from sandport_protocol.methods import METHODS
from sandport_protocol.states import CLOSED, DRAINING, GREETING, NEGOTIATED, NEW, PHASES, SERVING, Phase
from sandport_protocol.worker_connection import WorkerConnection

OPEN_PHASES: list[Phase] = [phase for phase in PHASES if phase != CLOSED]
NOTHING = Raw(b"{}")
METHOD_NAMES = tuple(METHODS)


def host_hello(limits: Limits | None = None) -> v1.InitializeParams:
    return v1.InitializeParams(
        protocol_versions=(1,),
        host=v1.PeerInfo(name="sandport", version="0.1.0"),
        store_id="store",
        state_dir="/state",
        limits=limits or Limits(),
    )


def worker_hello(limits: Limits | None = None, *, version: int = 1) -> v1.InitializeResult:
    return v1.InitializeResult(
        protocol_version=version,
        provider=v1.ProviderInfo(name="fake", version="0.1.0"),
        supported_methods=METHOD_NAMES,
        limits=limits or Limits(),
    )


def host_in(phase: Phase, *, limits: Limits | None = None, worker_limits: Limits | None = None) -> HostConnection:
    """A host's side; in `greeting` its hello has id 1 and is open, later it has been answered."""
    host = HostConnection(limits or Limits())
    if phase == NEW:
        return host
    request_id, _ = host.send_request("initialize", host_hello(host.limits))
    if phase == GREETING:
        return host
    host.receive(frame({"id": request_id, "result": plain(worker_hello(worker_limits))}))
    if phase == NEGOTIATED:
        return host
    host.send_initialized()
    if phase == DRAINING:
        host.send_request("shutdown", v1.ShutdownParams())
    elif phase == CLOSED:
        host.crash()
    assert host.phase == phase
    return host


def worker_in(phase: Phase, *, limits: Limits | None = None, host_limits: Limits | None = None) -> WorkerConnection:
    """A worker's side; in `greeting` the hello has id "hello" and is open, in `draining` the shutdown is."""
    worker = WorkerConnection(limits or Limits())
    if phase == NEW:
        return worker
    worker.receive(frame({"id": "hello", "method": "initialize", "params": plain(host_hello(host_limits))}))
    if phase == GREETING:
        return worker
    worker.negotiated(METHOD_NAMES, agree(host_limits or Limits(), worker.limits))
    worker.send_result("hello", worker_hello(limits))
    if phase == NEGOTIATED:
        return worker
    worker.receive(frame({"method": "initialized"}))
    if phase == DRAINING:
        worker.receive(frame({"id": "shutdown", "method": "shutdown"}))
    elif phase == CLOSED:
        worker.close()
    assert worker.phase == phase
    return worker


def serving_pair() -> tuple[HostConnection, WorkerConnection]:
    """Both sides after the hello."""
    return host_in(SERVING), worker_in(SERVING)


def frame(members: dict[str, Any]) -> bytes:
    """A message as somebody else's JSON library writes it."""
    return json.dumps({"jsonrpc": "2.0", **members}).encode() + b"\n"


def plain(value: Any) -> Any:
    """A struct as plain JSON."""
    from msgspec.json import encode

    return json.loads(encode(value))


def request_ids(events: list[WorkerEvent]) -> list[int | str]:
    """The ids of the calls that a worker was asked to serve."""
    return [event.id for event in events if isinstance(event, RequestReceived)]


def replies(events: list[WorkerEvent]) -> list[dict[str, Any]]:
    """What the connection itself answered, decoded."""
    return [json.loads(event.frame) for event in events if isinstance(event, ReplyDue)]


def boom(message: str = "boom") -> ErrorObject:
    """An error of no particular kind."""
    return Internal(message).to_wire()
