"""The numbers of the protocol: every ceiling and every bound of a wait, each with its reason.

All are defaults; a host sends the ones in force in its hello, a worker answers with the ceilings that it can keep,
and the smaller one holds.
"""

from __future__ import annotations

from msgspec import Struct


class Limits(Struct, frozen=True, kw_only=True, rename="camel"):
    """What host and worker promise each other; sent whole by the host, ceilings only matter in the answer."""

    # ceilings
    frame_bytes: int = 16 * 1024 * 1024
    """Longest line, without its line feed. Large enough for any result; counted while reading."""
    depth: int = 64
    """Deepest nesting of arrays and objects. No message of the protocol needs more than 10."""
    in_flight: int = 1024
    """Requests open at once, kept by the host."""
    credit_bytes: int = 1024 * 1024
    """Output that a worker may send ahead of the consumer, for each stream of each process."""
    chunk_bytes: int = 128 * 1024
    """Largest piece of output in one notification, so that control messages can overtake it."""
    log_line_bytes: int = 64 * 1024
    """A longer line on stderr is taken in pieces."""
    junk_bytes: int = 64 * 1024
    """What may stand on stdout before the hello (a runtime's banner) without ending the worker."""

    # waits, in milliseconds
    heartbeat_ms: int = 5_000
    """Between pings of an otherwise quiet host."""
    wedge_ms: int = 30_000
    """Without any answer to a ping for so long, a worker counts as wedged."""
    cancel_grace_ms: int = 5_000
    """From a cancel to the moment when the host tells its caller, answered or not."""
    host_silence_ms: int = 60_000
    """A worker that heard nothing for so long takes its host for dead. Twelve heartbeats."""
    drain_ms: int = 5_000
    """What runs may finish for so long after a shutdown or an end of input."""
    orphan_grace_ms: int = 30_000
    """A sandbox on the worker's machine survives its worker for so long, so that a new one can attach."""

    def __post_init__(self) -> None:
        for name, wire_name in zip(self.__struct_fields__, self.__struct_encode_fields__, strict=True):
            least = 0 if name.endswith("_ms") or name == "junk_bytes" else 1
            if getattr(self, name) < least:
                raise ValueError(f"limits.{wire_name} must be at least {least}")


DEFAULTS = Limits()


def agree(host: Limits, worker: Limits) -> Limits:
    """The limits in force: the smaller of each ceiling, and the host's waits."""
    return Limits(
        frame_bytes=min(host.frame_bytes, worker.frame_bytes),
        depth=min(host.depth, worker.depth),
        in_flight=min(host.in_flight, worker.in_flight),
        credit_bytes=min(host.credit_bytes, worker.credit_bytes),
        chunk_bytes=min(host.chunk_bytes, worker.chunk_bytes),
        log_line_bytes=host.log_line_bytes,
        junk_bytes=host.junk_bytes,
        heartbeat_ms=host.heartbeat_ms,
        wedge_ms=host.wedge_ms,
        cancel_grace_ms=host.cancel_grace_ms,
        host_silence_ms=host.host_silence_ms,
        drain_ms=host.drain_ms,
        orphan_grace_ms=host.orphan_grace_ms,
    )
