"""`sandport leases show`."""

from __future__ import annotations

import os
import time
from typing import Any

import msgspec
from msgspec import Raw

from sandport.home import home_path
from sandport.lease.info import info_of
from sandport.lease.view import HostProcess, LeaseView, lease_view, process_of
from sandport.store.records import Receipt

from .answers import answered
from .lease_facts import facts_of, pending_text, process_text
from .listing import put_json, put_lines
from .messages import unicode_text
from .moments import iso, now_ms, span

_IDS = ("run", "tenant", "principal", "workspace", "work_item", "workload")


def show_one(which: str, *, as_json: bool) -> int:
    """Print everything about one lease; always 0."""
    with answered(as_json=as_json):
        root, now = home_path(os.environ), now_ms()
        found = lease_view(root, which, now_ms=now)
        if as_json:
            put_json(_object(found))
        else:
            known: dict[str, HostProcess] = {}
            for receipt in found.receipts:
                if receipt.instance and receipt.instance not in known:
                    known[receipt.instance] = process_of(root, receipt.instance)
            put_lines(_lines(found, known, now))
    return 0


def _object(found: LeaseView) -> dict[str, Any]:
    sandbox, lease = found.sandbox, found.lease
    return {
        "lease": facts_of(info_of(found)),
        "sandbox": {
            "id": sandbox.id,
            "state": sandbox.state,
            "generation": sandbox.generation,
            "provider": sandbox.provider,
            "providerVersion": sandbox.provider_version,
            "handle": sandbox.handle,
            "config": Raw(sandbox.config),
            "secrets": sorted(sandbox.secrets),
            "env": sorted(lease.env),
            "createdAt": iso(sandbox.created_at_ms),
            "changedAt": iso(sandbox.changed_at_ms),
            "expiresAt": iso(sandbox.expires_at_ms),
        },
        "uses": [
            {"process": user, "since": iso(use.since_ms), "count": use.count}
            for use, user in zip(found.uses, found.users, strict=True)
        ],
        "receipts": [
            {
                "at": iso(receipt.at_ms),
                "what": receipt.what,
                "detail": unicode_text(receipt.detail),
                "instance": receipt.instance,
            }
            for receipt in found.receipts
        ],
    }


def _lines(found: LeaseView, known: dict[str, HostProcess], now: int) -> list[str]:
    lease, sandbox, info = found.lease, found.sandbox, info_of(found)
    facts: list[tuple[str, str]] = [
        ("lease", lease.id),
        ("name", lease.name or ""),
        ("state", info.state + (f" ({lease.reason})" if lease.reason else "")),
        ("provider", f"{sandbox.provider} {sandbox.provider_version}".strip()),
        ("environment", lease.environment),
        *((label.replace("_", " "), getattr(lease, label) or "") for label in _IDS),
        ("sandbox", f"{sandbox.id}, {sandbox.state}, generation {lease.generation} of {sandbox.generation}"),
        ("handle", sandbox.handle or ""),
        ("config", msgspec.json.format(sandbox.config, indent=0).decode()),
        ("secrets", ", ".join(sorted(sandbox.secrets))),
        ("variables", ", ".join(sorted(lease.env))),
        ("requested", _ago(lease.requested_at_ms, now)),
        ("ended", _ago(lease.ended_at_ms, now)),
        ("expires", _expires(sandbox.expires_at_ms, now) if found.current and sandbox.state != "gone" else ""),
        ("owner", process_text(found.owner) if found.owner is not None else ""),
        *(
            ("in use by", f"{process_text(user)} since {_ago(use.since_ms, now)}")
            for use, user in zip(found.uses, found.users, strict=True)
        ),
        ("pending", pending_text(info, now)),
        ("last error", sandbox.last_error if found.pending is not None else ""),
    ]
    width = max(len(label) for label, _ in facts)
    lines = [f"{label.ljust(width)}  {text}" for label, text in facts if text]
    return [*lines, "", "what was done to the sandbox:", *(_receipt(receipt, known) for receipt in found.receipts)]


def _receipt(receipt: Receipt, known: dict[str, HostProcess]) -> str:
    moment = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(receipt.at_ms / 1000))
    by = f"by {process_text(known[receipt.instance])}" if receipt.instance else ""
    return "  ".join(part for part in (moment, receipt.what.ljust(14), receipt.detail, by) if part)


def _ago(ms: int | None, now: int) -> str:
    return "" if ms is None else f"{iso(ms)} ({span(now - ms)} ago)"


def _expires(ms: int | None, now: int) -> str:
    if ms is None:
        return "never, as far as its provider says"
    return f"{iso(ms)} ({f'in {span(ms - now)}' if ms > now else 'over'})"
