"""The life of a sandbox and of a lease, as tables; a store refuses every move that is not here.

```text
            creating         created            rest
(none) ─► intended ─► creating ─► leased ◄─────────────► idle        (reuse: generation + 1)
  request     │          │  │        │                     │
              │refused   │  │doubtful│ ending              │ ending
              │          │  ▼        ▼                     ▼
              │          │ doubtful ─► ending ◄────────────┘
              ▼          ▼    │ gone     │ gone
             gone ◄───────────┴──────────┘                           (forget: from anywhere)

(none) ─request─► requested ─created─► active ─► ended               (requested ─► ended where it came to nothing)
```

`intended` and `creating` differ in one thing: before `creating` is on disk the vendor was never asked, so an `intended`
row of a dead owner is refused without a look at the vendor.
"""

from __future__ import annotations

from typing import Final, Literal, get_args

from .records import LeaseState, SandboxState

SANDBOX_STATES: Final[tuple[SandboxState, ...]] = get_args(SandboxState)

Move = Literal[
    "request",
    "creating",
    "created",
    "refused",
    "doubtful",
    "ending",
    "gone",
    "seen",
    "failed",
    "claim",
    "use",
    "keep",
    "release",
    "rest",
    "reuse",
    "forget",
]
"""The methods of a store that change a row, by their names."""
ALL_MOVES: Final[tuple[Move, ...]] = get_args(Move)

MOVES: Final[dict[tuple[SandboxState | None, Move], SandboxState]] = {
    (None, "request"): "intended",
    ("intended", "creating"): "creating",
    ("creating", "created"): "leased",
    ("intended", "refused"): "gone",
    ("creating", "refused"): "gone",
    ("creating", "doubtful"): "doubtful",
    ("creating", "ending"): "ending",
    ("leased", "ending"): "ending",
    ("idle", "ending"): "ending",
    ("doubtful", "ending"): "ending",
    ("creating", "gone"): "gone",
    ("doubtful", "gone"): "gone",
    ("ending", "gone"): "gone",
    ("doubtful", "seen"): "doubtful",
    ("creating", "failed"): "creating",
    ("doubtful", "failed"): "doubtful",
    ("ending", "failed"): "ending",
    ("intended", "claim"): "intended",
    ("creating", "claim"): "creating",
    ("leased", "claim"): "leased",
    ("idle", "claim"): "idle",
    ("doubtful", "claim"): "doubtful",
    ("ending", "claim"): "ending",
    ("leased", "use"): "leased",
    ("intended", "keep"): "intended",
    ("creating", "keep"): "creating",
    ("leased", "keep"): "leased",
    ("leased", "release"): "leased",
    ("leased", "rest"): "idle",
    ("idle", "reuse"): "leased",
    ("intended", "forget"): "gone",
    ("creating", "forget"): "gone",
    ("leased", "forget"): "gone",
    ("idle", "forget"): "gone",
    ("doubtful", "forget"): "gone",
    ("ending", "forget"): "gone",
}
"""Where a move leads from which state; None is no row at all. What is not here raises Stale."""

LEASE_MOVES: Final[dict[tuple[LeaseState | None, Move], LeaseState]] = {
    (None, "request"): "requested",
    ("requested", "created"): "active",
    (None, "reuse"): "active",
    ("requested", "refused"): "ended",
    ("requested", "doubtful"): "ended",
    ("requested", "ending"): "ended",
    ("active", "ending"): "ended",
    ("requested", "gone"): "ended",
    ("requested", "forget"): "ended",
    ("active", "forget"): "ended",
    ("active", "rest"): "ended",
    ("active", "use"): "active",
    ("requested", "keep"): "requested",
    ("active", "keep"): "active",
    ("active", "release"): "active",
}
"""What a move does to the lease of the sandbox's generation, where there is one."""

CLEANED: Final[frozenset[SandboxState]] = frozenset({"intended", "creating", "ending", "doubtful"})
"""Where a row of which nobody takes care is clean-up's: all but what is kept, at rest or over."""


def states_for(move: Move) -> tuple[SandboxState, ...]:
    """The states that a move may start from, in the order of the table."""
    return tuple(state for state, name in MOVES if name == move and state is not None)
