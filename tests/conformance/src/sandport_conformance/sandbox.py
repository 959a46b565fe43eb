"""A sandbox under test, and the commands that run in it."""

from __future__ import annotations

import base64
from dataclasses import dataclass, field
from typing import Any

from .messages import Message
from .outcomes import Failed
from .schema import Json
from .session import Id, Session


@dataclass(slots=True, kw_only=True)
class Stream:
    """What came of one output stream, joined from its `output` notifications."""

    data: bytearray = field(default_factory=bytearray)
    end: str | None = None
    pieces: list[int] = field(default_factory=list)
    """The size of each piece."""


@dataclass(slots=True, kw_only=True)
class Live:
    """A command that was followed to its answer.

    Attributes:
        request_id: The request that the output belongs to.
        answer: The whole answer, result or error.
        streams: What came on each stream, by name.
    """

    request_id: Id
    answer: Message
    streams: dict[str, Stream]

    @property
    def result(self) -> Json:
        """The result; the check fails where the answer is an error."""
        if "result" not in self.answer.body:
            raise Failed(f"the command should have a result, but got {self.answer.body['error']!r:.300}")
        result: Json = self.answer.body["result"]
        return result

    def data(self, stream: str = "stdout") -> bytes:
        """Everything that came on a stream."""
        return bytes(self.streams[stream].data) if stream in self.streams else b""


class Sandbox:
    """A sandbox that a worker acquired or attached.

    Attributes:
        id: The id that the kit minted.
        lease: The lease result.
        session: The connection that knows it.
    """

    def __init__(self, session: Session, sandbox_id: str, lease: Json) -> None:
        self.session = session
        self.id = sandbox_id
        self.lease = lease

    @property
    def handle(self) -> str:
        """The provider's name for it."""
        return str(self.lease["handle"])

    def params(self, argv: list[str] | None = None, **members: Any) -> Json:
        """The params of a command in this sandbox; `stdin` of an `execute` may be given as bytes."""
        params: Json = {"sandboxId": self.id} if argv is None else {"sandboxId": self.id, "argv": argv}
        if isinstance(members.get("stdin"), bytes):
            members["stdin"] = base64.b64encode(members["stdin"]).decode()
        return params | members

    def start(self, argv: list[str] | None = None, **members: Any) -> Id:
        """Send an `execute` and come back at once with its id; members are the wire's own names."""
        return self.session.request("execute", self.params(argv, **members))

    def execute(self, argv: list[str] | None = None, **members: Any) -> Json:
        """Run a command to its end; its result, which must be one."""
        return self.session.result_of(self.start(argv, **members))

    def run_live(self, argv: list[str] | None = None, **members: Any) -> Live:
        """Run a command with live output, giving credit back as it comes in."""
        return self.follow(self.start(argv, live=True, **members))

    def follow(self, request_id: Id, *, give_credit: bool = True, timeout_s: float | None = None) -> Live:
        """Read the output of a request until its answer is there.

        Args:
            request_id: An `execute` with `live`, or a `waitProcess`.
            give_credit: Return each byte's credit as it is read.
            timeout_s: The longest wait for the answer.

        Raises:
            Failed: The answer does not come.
        """
        session = self.session
        looked_at = 0
        credited = 0

        def consume() -> bool:
            nonlocal looked_at, credited
            while looked_at < len(session.messages):
                message = session.messages[looked_at]
                looked_at += 1
                if message.answers(request_id):
                    return True
                size = output_size(message, request_id)
                if give_credit and size:
                    credited += size
                    session.notify("credit", {"id": request_id, "stream": message.params["stream"], "bytes": size})
            return False

        limit_s = timeout_s or session.patience_for(request_id)
        waited_s = 0.0 if session.pump(consume, limit_s) else limit_s
        return Live(
            request_id=request_id,
            answer=session.answer(request_id, timeout_s=session.times.moment_s, waited_s=waited_s),
            streams=streams_of(session, request_id),
        )

    def destroy(self) -> Json:
        """End it, in the session that knows it."""
        return self.session.call("destroyLease", {"sandboxId": self.id})


def output_size(message: Message, request_id: Id) -> int:
    """How many bytes of output of this request a message brings."""
    return len(output_of_message(message, request_id))


def output_of_message(message: Message, request_id: Id) -> bytes:
    """The output of this request that a message brings; none where it brings something else."""
    if message.kind != "notification" or message.method != "output" or message.params.get("id") != request_id:
        return b""
    return _bytes_of(message.params)


def streams_of(session: Session, request_id: Id) -> dict[str, Stream]:
    """What came so far on each stream of a request.

    Raises:
        Failed: A piece does not begin where the one before it ended, or comes after the end.
    """
    streams: dict[str, Stream] = {}
    for message in session.notifications("output"):
        params = message.params
        if params.get("id") != request_id:
            continue
        name = str(params.get("stream"))
        stream = streams.setdefault(name, Stream())
        data = _bytes_of(params)
        if stream.end is not None:
            raise Failed(f"{name} of request {request_id!r} has output after its end mark")
        if params.get("offset") != len(stream.data):
            raise Failed(f"a piece of {name} is said to begin at {params.get('offset')}, but at {len(stream.data)}")
        stream.data += data
        if data:
            stream.pieces.append(len(data))
        stream.end = params.get("end")
    return streams


def _bytes_of(params: Json) -> bytes:
    try:
        return base64.b64decode(params.get("data", ""), validate=True)
    except (ValueError, TypeError) as error:
        raise Failed(f"the data of an output notification is not base64: {params.get('data')!r:.80}") from error


def output_of(result: Json, stream: str = "stdout") -> bytes:
    """The kept bytes of a stream of a command that was not live."""
    kept = result.get(stream, {})
    return base64.b64decode(kept.get("data", "")) + base64.b64decode(kept.get("tail", ""))
