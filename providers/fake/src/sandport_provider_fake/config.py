"""The provider's config: how the vendor behaves, and which faults are ordered of it."""

from __future__ import annotations

from typing import Literal, get_args

from sandport_sdk.v1 import Config

from .errors import BY_NAME

Point = Literal[
    "hello",
    "ready",
    "close",
    "call.before",
    "call.before-answer",
    "validate.before",
    "validate.before-answer",
    "probe.before",
    "probe.before-answer",
    "acquire.before",
    "acquire.after-record",
    "acquire.after-files",
    "acquire.before-answer",
    "attach.before",
    "attach.before-answer",
    "list.before",
    "list.before-answer",
    "destroy.before",
    "destroy.half",
    "destroy.before-answer",
    "execute.before",
    "execute.started",
    "execute.before-answer",
    "start.before",
    "start.before-answer",
    "write.before",
    "write.before-answer",
    "signal.before",
    "signal.before-answer",
    "wait.before",
    "wait.before-answer",
    "sync-in.before",
    "sync-in.before-answer",
    "sync-out.before",
    "sync-out.before-answer",
]
"""Where a fault can happen; `call.…` is every call."""

POINTS: tuple[Point, ...] = get_args(Point)


HostileMember = Literal["absolute", "dot-dot", "link", "hard-link", "device", "duplicate", "setuid"]
"""What an archive can hold that must not come out of a sandbox; see `hostile`."""


class Only(Config, frozen=True, kw_only=True):
    """What a fault is limited to; what is left empty limits nothing."""

    sandbox_id: str = ""
    method: str = ""
    """By its name on the wire, for the points `call.…`."""


class Fault(Config, frozen=True, kw_only=True, tag_field="action"):
    """What every order says: where, how often, for whom."""

    point: Point
    times: int = 1
    """How often it happens, over all workers of the vendor; 0 for every time."""
    after: int = 0
    """It does not happen the first so many times that the point is passed."""
    probability: float = 1.0
    """Of each pass; what comes out follows from the seed and the number of the pass."""
    only: Only = Only()
    id: str = ""
    """What its count is kept under; by default what it says, so that two equal orders count together."""

    def __post_init__(self) -> None:
        if self.times < 0 or self.after < 0:
            raise ValueError("times and after must not be negative")
        if not 0 <= self.probability <= 1:
            raise ValueError("probability runs from 0 to 1")
        allowed = self.fits()
        if allowed and not any(self.point == point or self.point.endswith(point) for point in allowed):
            raise ValueError(f"this action cannot happen at {self.point!r}; it can at {', '.join(allowed)}")

    def fits(self) -> tuple[str, ...]:
        """The points where it can happen, or how their names end; nothing where that is everywhere."""
        return ()


class Late(Fault, frozen=True, kw_only=True, tag="late"):
    """It takes so much longer."""

    by_s: float
    clock: Literal["real", "vendor"] = "real"
    """Whose seconds; the vendor's virtual ones go on only when somebody advances them."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.by_s < 0:
            raise ValueError("by_s must not be negative")


class LoseAnswer(Fault, frozen=True, kw_only=True, tag="lose-answer"):
    """The vendor's answer never comes. The worker waits for it until the host cancels; what was done stays done."""


class Hang(Fault, frozen=True, kw_only=True, tag="hang"):
    """The call never ends, and takes no notice of a cancel; the worker answers everything else."""


class Freeze(Fault, frozen=True, kw_only=True, tag="freeze"):
    """The whole worker stops (SIGSTOP)."""


class Crash(Fault, frozen=True, kw_only=True, tag="crash"):
    """The worker is killed (SIGKILL)."""


class Exit(Fault, frozen=True, kw_only=True, tag="exit"):
    """The worker exits at once."""

    code: int = 1


class Throttle(Fault, frozen=True, kw_only=True, tag="throttle"):
    """RateLimited."""

    retry_after_ms: int | None = None

    def fits(self) -> tuple[str, ...]:
        """Calls."""
        return _CALLS


class Quota(Fault, frozen=True, kw_only=True, tag="quota"):
    """QuotaExceeded."""

    def fits(self) -> tuple[str, ...]:
        """Calls."""
        return _CALLS


class Error(Fault, frozen=True, kw_only=True, tag="error"):
    """Any error of the wire."""

    condition: str = "Unavailable"
    message: str = "ordered"
    dispatched: Literal["no", "yes", "unknown"] | None = None
    """By default `no` where nothing was done yet, else `unknown`."""
    retry: Literal["now", "later", "never"] | None = None
    """By default what is usual for the condition."""
    retry_after_ms: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.condition not in BY_NAME:
            raise ValueError(f"{self.condition!r} is no condition of the wire; they are {', '.join(BY_NAME)}")


class Truncate(Fault, frozen=True, kw_only=True, tag="truncate"):
    """Of each stream of a command, or of an archive, only the beginning arrives."""

    keep_bytes: int = 0
    tell: Literal["error", "dropped", "lie"] = "error"
    """What is said of it: Unavailable; a result that counts what was dropped, or of an archive what went; a result
    that claims it was sent."""

    def fits(self) -> tuple[str, ...]:
        """Commands, before their output is sent; archives, before they are."""
        return ("execute.before", "execute.started", "start.before", *_ARCHIVES)


class SlowStream(Fault, frozen=True, kw_only=True, tag="slow-stream"):
    """An archive goes through at so many bytes a second."""

    bytes_per_s: int

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.bytes_per_s <= 0:
            raise ValueError("bytes_per_s must be above 0")

    def fits(self) -> tuple[str, ...]:
        """Archives, before they are sent."""
        return _ARCHIVES


class HostileArchive(Fault, frozen=True, kw_only=True, tag="hostile-archive"):
    """Instead of what was asked for comes an archive whose members lead out, and some that are no files."""

    members: tuple[HostileMember, ...] = ()
    """Which; all where none is named."""

    def fits(self) -> tuple[str, ...]:
        """What comes out of a sandbox."""
        return ("sync-out.before",)


class Skew(Fault, frozen=True, kw_only=True, tag="skew"):
    """The times in the answer are wrong by so much."""

    by_s: float

    def fits(self) -> tuple[str, ...]:
        """Answers that hold times."""
        return ("acquire.before-answer", "attach.before-answer", "list.before-answer")


class HalfCreate(Fault, frozen=True, kw_only=True, tag="half-create"):
    """The sandbox is there and cannot be used: it has no files, and the create fails without saying so."""

    def fits(self) -> tuple[str, ...]:
        """Between the record and the files."""
        return ("acquire.after-record",)


class Hide(Fault, frozen=True, kw_only=True, tag="hide"):
    """The sandbox is there, and no list shows it for so many seconds of the vendor's."""

    for_s: float
    scope: Literal["lists", "everything"] = "lists"
    """`everything`: the vendor also says "not found" to who asks for it by its id."""

    def fits(self) -> tuple[str, ...]:
        """Creates."""
        return ("acquire.before", "acquire.after-record", "acquire.after-files", "acquire.before-answer")


class StaleList(Fault, frozen=True, kw_only=True, tag="stale-list"):
    """The sandbox is gone, and lists show it for so many more seconds of the vendor's."""

    for_s: float

    def fits(self) -> tuple[str, ...]:
        """Ends, before the record goes."""
        return ("destroy.before", "destroy.half")


class Down(Fault, frozen=True, kw_only=True, tag="down"):
    """From now on everything is Unavailable, for so many seconds of the vendor's."""

    for_s: float

    def fits(self) -> tuple[str, ...]:
        """Calls."""
        return _CALLS


class DuplicateAnswer(Fault, frozen=True, kw_only=True, tag="duplicate-answer"):
    """The answer is written twice."""

    def fits(self) -> tuple[str, ...]:
        """Answers."""
        return (".before-answer",)


class GarbageLine(Fault, frozen=True, kw_only=True, tag="garbage-line"):
    """A line that is no message is written to the wire."""

    text: str = "this is no message"

    def __post_init__(self) -> None:
        super().__post_init__()
        if "\n" in self.text:
            raise ValueError("text must be one line")


class Print(Fault, frozen=True, kw_only=True, tag="print"):
    """The provider prints."""

    text: str = "printed on order"


_ARCHIVES = ("sync-in.before", "sync-out.before")
_CALLS = (".before", ".before-answer", ".after-record", ".after-files", ".half", ".started")

AnyFault = (
    Late
    | LoseAnswer
    | Hang
    | Freeze
    | Crash
    | Exit
    | Throttle
    | Quota
    | Error
    | Truncate
    | SlowStream
    | HostileArchive
    | Skew
    | HalfCreate
    | Hide
    | StaleList
    | Down
    | DuplicateAnswer
    | GarbageLine
    | Print
)
"""Every order; `action` says which."""


class Orders(Config, frozen=True, kw_only=True):
    """`faults.json`: orders that hold for every worker of the vendor."""

    faults: tuple[AnyFault, ...] = ()
    seed: int = 0


class FakeConfig(Config, frozen=True, kw_only=True):
    """How the vendor behaves towards the calls of one environment."""

    clock: Literal["real", "virtual"] = "real"
    """`virtual`: the vendor's time never moves by itself. The first environment that says so makes it so for all."""
    seed: int = 0
    """What comes out of probabilities."""
    list_delay_s: float = 0.0
    """For so many of the vendor's seconds no list shows a new sandbox."""
    max_sandboxes: int = 0
    """More are refused as QuotaExceeded; 0 for no limit."""
    max_in_flight_creates: int = 0
    """More at one time are refused as RateLimited; 0 for no limit."""
    requests_per_s: int = 0
    """More in one of the vendor's seconds are refused as RateLimited; 0 for no limit."""
    local_root: bool = False
    """Whether the host is told where the files are on this machine, so that it can copy trees directly. The sandbox
    stays the vendor's all the same: it does not end with its last worker."""
    sync: bool = True
    """Whether archives go through a socket; without, the group `sync` is in each lease's `without`."""
    faults: tuple[AnyFault, ...] = ()
    """Orders that hold for the calls of this environment."""

    def __post_init__(self) -> None:
        for name in ("list_delay_s", "max_sandboxes", "max_in_flight_creates", "requests_per_s"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} must not be negative")
