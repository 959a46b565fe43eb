"""Rows as SQLite holds them, and as the host does."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from .records import LeaseRow, Receipt, SandboxRow, Use

Values = tuple[Any, ...]
"""What the database takes and gives: text, integers, bytes and None."""

SANDBOX: Final = SandboxRow.__struct_fields__
LEASE: Final = LeaseRow.__struct_fields__
USE: Final = Use.__struct_fields__
RECEIPT: Final = Receipt.__struct_fields__

SANDBOX_COLUMNS: Final = ", ".join(SANDBOX)
LEASE_COLUMNS: Final = ", ".join(LEASE)
USE_COLUMNS: Final = "lease.id, instance, since_ms, count"
"""For `use JOIN lease ON lease.key = lease_key`."""
RECEIPT_COLUMNS: Final = "sandbox.id, receipt.generation, at_ms, what, detail, instance"
"""For `receipt JOIN sandbox ON sandbox.key = sandbox_key`."""

_SECRETS: Final = SANDBOX.index("secrets")
_ENV: Final = LEASE.index("env")
_KEPT: Final = LEASE.index("kept")

# MessagePack and not JSON: a variable may hold any bytes, and must come back as what it was.
_pack = msgspec.msgpack.Encoder().encode
_secrets = msgspec.msgpack.Decoder(dict[str, str]).decode
# Its text and its bytes are told apart by the format; a decoder with a type refuses such a union.
_env = msgspec.msgpack.Decoder().decode
EMPTY: Final = _pack({})
"""No secrets, or no variables, as they are written."""


def _bytes(value: object) -> bytes:
    if not isinstance(value, bytes):
        raise msgspec.DecodeError(f"bytes were expected, not {type(value).__name__}")
    return value


def marks(columns: tuple[str, ...]) -> str:
    """One place-holder for each."""
    return ", ".join("?" * len(columns))


def sandbox_values(row: SandboxRow, now_ms: int) -> Values:
    """What to insert, written now."""
    return (
        row.id,
        row.generation,
        row.state,
        row.provider,
        row.provider_version,
        row.environment,
        row.config,
        _pack(row.secrets) if row.secrets else EMPTY,
        row.tenant,
        row.handle,
        row.lease_result,
        row.owner,
        row.settle_ms,
        row.quiet_since_ms,
        now_ms,
        now_ms,
        row.expires_at_ms,
        row.attempts,
        row.due_at_ms,
        row.last_error,
    )


def lease_values(row: LeaseRow, now_ms: int) -> Values:
    """What to insert, written now; it is active since now if it is active."""
    return (
        row.id,
        row.sandbox_id,
        row.generation,
        row.state,
        row.reason,
        row.environment,
        row.name,
        int(row.kept),
        row.owner,
        row.run,
        row.tenant,
        row.principal,
        row.workspace,
        row.work_item,
        row.workload,
        _pack(row.env) if row.env else EMPTY,
        now_ms,
        now_ms if row.state == "active" else None,
        None,
    )


def sandbox_row(values: Values) -> SandboxRow:
    """What was selected with SANDBOX_COLUMNS."""
    members = dict(zip(SANDBOX, values, strict=True))
    members["secrets"] = _secrets(_bytes(values[_SECRETS]))
    return SandboxRow(**members)


def lease_row(values: Values) -> LeaseRow:
    """What was selected with LEASE_COLUMNS."""
    members = dict(zip(LEASE, values, strict=True))
    members["env"] = _env(_bytes(values[_ENV]))
    members["kept"] = bool(values[_KEPT])
    return LeaseRow(**members)


def use_row(values: Values) -> Use:
    """What was selected with USE_COLUMNS."""
    return Use(**dict(zip(USE, values, strict=True)))


def receipt_row(values: Values) -> Receipt:
    """What was selected with RECEIPT_COLUMNS."""
    return Receipt(**dict(zip(RECEIPT, values, strict=True)))
