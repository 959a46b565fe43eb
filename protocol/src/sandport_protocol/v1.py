"""Params and results of every method of protocol version 1, in the order of the specification.

Members are lowerCamelCase on the wire, snake_case here; bytes are base64; times are integer milliseconds. Unknown
members are ignored, so that a newer peer may add optional ones. Rules that a type cannot say stand in
`__post_init__`: a value that breaks one cannot be built on the sending side and is refused on the receiving one.

Why so long: it is a list, and who looks for a member of the wire looks in one place.
"""

from __future__ import annotations

import re
from typing import Literal

from msgspec import Raw, Struct, field

from .capabilities import Capabilities
from .limits import Limits
from .octets import Octets, unpack
from .ranges import check_ranges

SANDBOX_ID = re.compile(r"sp[a-z2-7]{26}")
"""`sp` and 26 base32 characters (130 bits): legal as a DNS label, a label value and a file name."""
PROCESS_ID = re.compile(r"[A-Za-z0-9_-]{1,64}")
VARIABLE_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
SOCKET_PATH_BYTES = 107
"""Longest path of a Unix socket: what the kernel's address holds, less the NUL that ends it."""

StreamName = Literal["stdout", "stderr", "pty"]
StreamEnd = Literal["seen", "heldOpen"]
"""`seen`: end of file was read. `heldOpen`: the command ended, a descendant still holds the stream."""
Ended = Literal["exited", "signalled", "timedOut", "outOfMemory"]
Tree = Literal["gone", "signalled", "unreachable"]
"""What a kill reached: everything, proven; the group that was made; or nothing that could be confirmed."""


def _no_members() -> Raw:
    return Raw(b"{}")


class Member(Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """Base of everything inside a message."""


class Meta(Member, frozen=True, kw_only=True):
    """`_meta` of a request: advice that no method depends on."""

    deadline_ms: int | None = None
    """Milliseconds that the host will wait; for the vendor's calls. Only the host decides that it is over."""
    traceparent: str | None = None


class Params(Member, frozen=True, kw_only=True):
    """Base of all params."""

    meta: Meta | None = field(default=None, name="_meta")


class Result(Member, frozen=True, kw_only=True):
    """Base of all results."""


# ------------------------------------------------------------------ hello


class PeerInfo(Member, frozen=True, kw_only=True):
    """Who speaks."""

    name: str
    version: str


class ProviderInfo(Member, frozen=True, kw_only=True):
    """Who answers, and what its configuration looks like."""

    name: str
    version: str
    display_name: str = ""
    config_schema: Raw = field(default_factory=_no_members)
    """JSON Schema of `config`; `format: "secret-ref"` marks a secret."""


class InitializeParams(Params, frozen=True, kw_only=True):
    """The host's hello."""

    protocol_versions: tuple[int, ...]
    host: PeerInfo
    store_id: str
    """Minted once per store; written on every resource beside the sandbox id."""
    state_dir: str
    """A directory (0700) of this provider and store, for what must survive the worker."""
    limits: Limits = Limits()
    features: tuple[str, ...] = ()


class InitializeResult(Result, frozen=True, kw_only=True):
    """The worker's hello."""

    protocol_version: int
    provider: ProviderInfo
    supported_methods: tuple[str, ...]
    capabilities: Capabilities = Capabilities()
    features: tuple[str, ...] = ()
    """Extension methods (`x-<provider>/...`) and optional behaviour."""
    limits: Limits = Limits()
    wants_env: tuple[str, ...] = ()
    """Variables that the provider reads, so that a host can say which ones it withheld."""


class PingParams(Params, frozen=True, kw_only=True):
    """Sent at every heartbeat, and whenever an answer may have been lost."""


class PingResult(Result, frozen=True, kw_only=True):
    """The ids that the worker has taken and not yet answered."""

    open: tuple[int | str, ...] = ()


class ShutdownParams(Params, frozen=True, kw_only=True):
    """Ask the worker to finish and end."""

    drain_ms: int = 5_000


class ShutdownResult(Result, frozen=True, kw_only=True):
    """Everything that takes time is done: the worker may be killed."""


# ------------------------------------------------------------------ config


class Issue(Member, frozen=True, kw_only=True):
    """One fault of a config."""

    field: str
    """Dotted path of the key, e.g. `config.network`."""
    message: str


class ValidateConfigParams(Params, frozen=True, kw_only=True):
    """Look at a config without touching anything outside."""

    config: Raw = field(default_factory=_no_members)
    secrets: dict[str, str] = {}


class ValidateConfigResult(Result, frozen=True, kw_only=True):
    """A config in its normal form, or what is wrong with it."""

    config: Raw = field(default_factory=_no_members)
    """The config with every default filled in; without secrets."""
    issues: tuple[Issue, ...] = ()
    """Empty when the config is good."""


class ProbeParams(Params, frozen=True, kw_only=True):
    """Find out whether sandboxes could be had, creating nothing."""

    config: Raw = field(default_factory=_no_members)
    secrets: dict[str, str] = {}


class ProbeCheck(Member, frozen=True, kw_only=True):
    """One thing that was looked at."""

    name: str
    ok: bool
    detail: str = ""


class ProbeResult(Result, frozen=True, kw_only=True):
    """What was looked at: credentials, reachability, quota, templates, versions."""

    checks: tuple[ProbeCheck, ...] = ()
    without: tuple[str, ...] = ()
    """Capabilities that this config takes away."""


# ------------------------------------------------------------------ leases


class Egress(Member, frozen=True, kw_only=True):
    """What network a sandbox may reach: everything, nothing, or what is listed."""

    mode: Literal["all", "none", "listed"]
    hosts: tuple[str, ...] = ()
    cidrs: tuple[str, ...] = ()


class AcquireLeaseParams(Params, frozen=True, kw_only=True):
    """Create one sandbox; the id serves this one create and is never sent twice."""

    sandbox_id: str
    config: Raw = field(default_factory=_no_members)
    secrets: dict[str, str] = {}
    egress: Egress | None = None
    """The grant; None where the embedder asks for nothing in particular."""
    workload: str | None = None
    ttl_ms: int
    keep: bool = False
    """The sandbox outlives its worker: only `destroyLease` or its expiry ends it."""

    def __post_init__(self) -> None:
        check_sandbox_id(self.sandbox_id)
        if self.ttl_ms <= 0:
            raise ValueError("ttlMs must be above 0")


class LeaseResult(Result, frozen=True, kw_only=True):
    """A sandbox that is there."""

    handle: str
    """The provider's name for it, enough to find it again from a new worker."""
    working_directory: Octets
    shell: Octets | None = None
    """Absolute path of a POSIX shell that is not a login shell; None where there is none."""
    egress: Egress | None = None
    """What is enforced; any difference from the grant is a failure of the acquire."""
    expires_at_ms: int | None = None
    """Unix time at which the sandbox ends by itself, attested by whoever ends it; None where nobody does."""
    without: tuple[str, ...] = ()
    """Capabilities that this sandbox lacks though the provider declares them."""
    max_processes: int | None = None
    """Commands that may run at once; None for no limit known."""
    local_root: Octets | None = None
    """Where the working directory is on the host's own machine, if it is; then the host copies files directly."""
    notes: tuple[str, ...] = ()
    """Facts for a person, e.g. that nothing isolates this sandbox."""

    def __post_init__(self) -> None:
        check_ranges(self)


class AttachLeaseParams(Params, frozen=True, kw_only=True):
    """Open a sandbox in this worker that another worker created."""

    sandbox_id: str
    handle: str
    config: Raw = field(default_factory=_no_members)
    secrets: dict[str, str] = {}
    keep: bool | None = None
    """From now on as `keep` of `acquireLease`; None leaves it as it was."""

    def __post_init__(self) -> None:
        check_sandbox_id(self.sandbox_id)


class AttachLeaseResult(Result, frozen=True, kw_only=True):
    """Only `gone` lets a host forget a sandbox."""

    state: Literal["attached", "gone", "unreachable"]
    lease: LeaseResult | None = None
    processes_lost: bool = False
    """The files are there, what ran is not (a reboot, a crash of the sandbox's init)."""


class ListLeasesParams(Params, frozen=True, kw_only=True):
    """Everything of this store that the vendor has, or one sandbox by its id."""

    config: Raw = field(default_factory=_no_members)
    secrets: dict[str, str] = {}
    sandbox_id: str | None = None
    cursor: str | None = None
    """`nextCursor` of the page before."""

    def __post_init__(self) -> None:
        if self.sandbox_id is not None:
            check_sandbox_id(self.sandbox_id)


class ListedLease(Member, frozen=True, kw_only=True):
    """One sandbox that the vendor has."""

    sandbox_id: str
    handle: str
    created_at_ms: int | None = None
    expires_at_ms: int | None = None

    def __post_init__(self) -> None:
        check_ranges(self)


class ListLeasesResult(Result, frozen=True, kw_only=True):
    """One page."""

    leases: tuple[ListedLease, ...] = ()
    next_cursor: str | None = None
    """None on the last page."""


class DestroyLeaseParams(Params, frozen=True, kw_only=True):
    """End a sandbox and everything in it."""

    sandbox_id: str

    def __post_init__(self) -> None:
        check_sandbox_id(self.sandbox_id)


class DestroyLeaseResult(Result, frozen=True, kw_only=True):
    """What was confirmed: it was ended now, or it was gone already."""

    state: Literal["destroyed", "gone"]


# ------------------------------------------------------------------ commands


class StreamResult(Member, frozen=True, kw_only=True):
    """What became of one output stream."""

    total_bytes: int = 0
    """Everything that was read from it, kept or not."""
    end: StreamEnd = "seen"
    data: bytes = b""
    """Only without live output: the bytes, or the head of them."""
    tail: bytes = b""
    """Only without live output: the last bytes, where the middle was dropped."""
    dropped_bytes: int = 0

    def __post_init__(self) -> None:
        check_ranges(self)


class CommandResult(Result, frozen=True, kw_only=True):
    """The end of a command, from its own status."""

    ended: Ended
    exit_code: int | None = None
    """The program's own exit code, 0 to 255; only with `exited`."""
    signal: int | None = None
    """The signal that ended it, 1 to 64; with `signalled`, and with `timedOut` where it is known."""
    core_dumped: bool = False
    tree: Tree | None = None
    """What a kill reached; None where nothing was killed."""
    stdout: StreamResult = StreamResult()
    stderr: StreamResult = StreamResult()
    duration_ms: int = 0
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.ended == "exited" and self.exit_code is None:
            raise ValueError("a command that exited has an exitCode")
        if self.ended != "exited" and self.exit_code is not None:
            raise ValueError("exitCode belongs to ended 'exited' only")
        if self.ended == "exited" and self.signal is not None:
            raise ValueError("a command that exited was not ended by a signal")
        if self.ended == "signalled" and self.signal is None:
            raise ValueError("a command that was ended by a signal names it")
        check_ranges(self)


class CommandParams(Params, frozen=True, kw_only=True):
    """What to run, and how; shared by `execute` and `startProcess`."""

    sandbox_id: str
    argv: tuple[Octets, ...] | None = None
    """Program and arguments, never through a shell. Exactly one of `argv` and `shell` is given."""
    shell: Octets | None = None
    """Text for the lease's shell."""
    cwd: Octets | None = None
    """Absolute, or relative to the working directory (the default)."""
    env: dict[str, Octets] = {}
    """Added to the sandbox's own variables."""
    user: str | None = None

    def __post_init__(self) -> None:
        check_sandbox_id(self.sandbox_id)
        if (self.argv is None) == (self.shell is None):
            raise ValueError("exactly one of argv and shell is needed")
        if self.argv is not None and (not self.argv or not unpack(self.argv[0])):
            raise ValueError("argv needs a program")
        for name in self.env:
            if not VARIABLE_NAME.fullmatch(name):
                raise ValueError(f"env: {name!r} is not a variable's name (letters, digits and _, no leading digit)")
        for what, values in (
            ("argv", self.argv or ()),
            ("shell", (self.shell,) if self.shell is not None else ()),
            ("cwd", (self.cwd,) if self.cwd is not None else ()),
            ("env", self.env.values()),
        ):
            for value in values:
                if "\0" in value if isinstance(value, str) else b"\0" in value.b64:
                    raise ValueError(f"{what}: a NUL byte cannot be passed to a program")


class ExecuteParams(CommandParams, frozen=True, kw_only=True):
    """Run a command to its end."""

    stdin: bytes = b""
    """All of its input; then the end."""
    timeout_ms: int | None = None
    live: bool = False
    """Send output while it runs; the result then has counts only."""
    output_limit_bytes: int = 1024 * 1024
    """Without live output: bytes kept of each stream, half of them head and half tail."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_command_bounds(self.timeout_ms, self.output_limit_bytes)


class ExecuteResult(CommandResult, frozen=True, kw_only=True):
    """The end of a command, and its output where it was not sent live."""


class PtySize(Member, frozen=True, kw_only=True):
    """A terminal's size, in characters."""

    columns: int
    rows: int


class StartProcessParams(CommandParams, frozen=True, kw_only=True):
    """Start a command and come back; its id is the host's."""

    process_id: str
    stdin: bool = False
    """Keep the input open for `writeProcess`; else it is empty and ended."""
    pty: PtySize | None = None
    timeout_ms: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        check_process_id(self.process_id)
        check_command_bounds(self.timeout_ms, 0)


class StartProcessResult(Result, frozen=True, kw_only=True):
    """It runs."""


class WriteProcessParams(Params, frozen=True, kw_only=True):
    """Give a process input; answered when its pipe took the bytes."""

    sandbox_id: str
    process_id: str
    data: bytes = b""
    end: bool = False
    """No more input after this."""

    def __post_init__(self) -> None:
        check_sandbox_id(self.sandbox_id)
        check_process_id(self.process_id)


class WriteProcessResult(Result, frozen=True, kw_only=True):
    """What the pipe took: all of it, or less where the process closed its input."""

    taken_bytes: int

    def __post_init__(self) -> None:
        check_ranges(self)


class SignalProcessParams(Params, frozen=True, kw_only=True):
    """Send a signal to the process's group, end everything that it started, or resize its terminal."""

    sandbox_id: str
    process_id: str
    signal: int | None = None
    """A signal's number, for the group."""
    kill: bool = False
    """End the process and all that it started; the result of the process then says `tree`."""
    resize: PtySize | None = None

    def __post_init__(self) -> None:
        check_sandbox_id(self.sandbox_id)
        check_process_id(self.process_id)
        if (self.signal is not None) + self.kill + (self.resize is not None) != 1:
            raise ValueError("exactly one of signal, kill and resize is needed")


class SignalProcessResult(Result, frozen=True, kw_only=True):
    """Whether the process was still there to take it."""

    delivered: bool


class StreamOffset(Member, frozen=True, kw_only=True):
    """Where to follow one stream from."""

    stream: StreamName
    offset: int


class WaitProcessParams(Params, frozen=True, kw_only=True):
    """Follow a process's output to its end and get its result; may be called again after it ended."""

    sandbox_id: str
    process_id: str
    from_offset: tuple[StreamOffset, ...] = ()
    """Streams that are not named are followed from 0."""

    def __post_init__(self) -> None:
        check_sandbox_id(self.sandbox_id)
        check_process_id(self.process_id)


class WaitProcessResult(CommandResult, frozen=True, kw_only=True):
    """The end of a process; counts only, its output was sent live."""


# ------------------------------------------------------------------ files


class SyncParams(Params, frozen=True, kw_only=True):
    """Between which socket and which path an archive runs; shared by `syncIn` and `syncOut`."""

    sandbox_id: str
    socket: str
    """Absolute path of a Unix stream socket of the host's, at most 107 bytes, made for this call; connect once."""
    path: Octets
    """Absolute, or relative to the working directory."""

    def __post_init__(self) -> None:
        check_sandbox_id(self.sandbox_id)
        check_socket(self.socket)
        path = unpack(self.path)
        if not path or b"\0" in path:
            raise ValueError("path must not be empty, and has no NUL byte")


class SyncInParams(SyncParams, frozen=True, kw_only=True):
    """Unpack the archive that the socket brings below a path of the sandbox."""


class SyncInResult(Result, frozen=True, kw_only=True):
    """All of the archive is in place."""

    bytes: int
    """What was read from the socket, to its end."""
    notes: tuple[str, ...] = ()
    """Facts for a person, e.g. what the unpacking program warned of."""

    def __post_init__(self) -> None:
        check_ranges(self)


class SyncOutParams(SyncParams, frozen=True, kw_only=True):
    """Send an archive of a path of the sandbox through the socket."""


class SyncOutResult(Result, frozen=True, kw_only=True):
    """The whole archive went through the socket."""

    bytes: int
    """What was written to the socket."""
    notes: tuple[str, ...] = ()
    """Facts for a person, e.g. what was left out, or changed while it was read."""

    def __post_init__(self) -> None:
        check_ranges(self)


# ------------------------------------------------------------------ notifications


class InitializedParams(Params, frozen=True, kw_only=True):
    """The hello is done; import what is heavy."""


class CancelParams(Params, frozen=True, kw_only=True):
    """Interrupt the handler of this request."""

    id: int | str


class CreditParams(Params, frozen=True, kw_only=True):
    """The consumer took bytes: so much more may be sent for this stream."""

    id: int | str
    """The `execute` or `waitProcess` that the output belongs to."""
    stream: StreamName
    bytes: int

    def __post_init__(self) -> None:
        if self.bytes <= 0:
            raise ValueError("bytes must be above 0")


class ReadyParams(Params, frozen=True, kw_only=True):
    """Calls are served from now on."""


class FailedParams(Params, frozen=True, kw_only=True):
    """The provider cannot serve; the worker ends."""

    message: str
    condition: str = "Internal"


class OutputParams(Params, frozen=True, kw_only=True):
    """A piece of output, or the end of a stream."""

    id: int | str
    stream: StreamName
    offset: int
    """Bytes of this stream before this piece."""
    data: bytes = b""
    end: StreamEnd | None = None
    """Set on the last message of a stream; `data` may be empty then."""


class ProgressParams(Params, frozen=True, kw_only=True):
    """How far a long call is."""

    id: int | str
    message: str = ""
    done: int | None = None
    total: int | None = None

    def __post_init__(self) -> None:
        check_ranges(self)


class SpanParams(Params, frozen=True, kw_only=True):
    """A finished span of the worker's own tracing."""

    id: int | str
    name: str
    started_at_ms: int
    duration_ms: int
    attributes: dict[str, str] = {}


# ------------------------------------------------------------------ checks


def check_sandbox_id(value: str) -> None:
    """Raise ValueError unless this is a sandbox id."""
    if not SANDBOX_ID.fullmatch(value):
        raise ValueError(f"sandboxId {value[:64]!r} is not 'sp' and 26 characters of a-z and 2-7")


def check_process_id(value: str) -> None:
    """Raise ValueError unless this is a process id."""
    if not PROCESS_ID.fullmatch(value):
        raise ValueError(f"processId {value[:64]!r} is not 1 to 64 letters, digits, - and _")


def check_socket(value: str) -> None:
    """Raise ValueError unless this can be the path of a Unix socket."""
    if not value.startswith("/") or "\0" in value:
        raise ValueError("socket must be an absolute path without a NUL byte")
    if len(value.encode()) > SOCKET_PATH_BYTES:
        raise ValueError(f"socket must not be longer than {SOCKET_PATH_BYTES} bytes")


def check_command_bounds(timeout_ms: int | None, output_limit_bytes: int) -> None:
    """Raise ValueError for a time-out or an output limit that means nothing."""
    if timeout_ms is not None and timeout_ms <= 0:
        raise ValueError("timeoutMs must be above 0")
    if output_limit_bytes < 0:
        raise ValueError("outputLimitBytes must not be negative")


def new_sandbox_id(entropy: bytes) -> str:
    """A sandbox id from at least 17 random bytes; the caller brings them, this package has no source of its own."""
    number = int.from_bytes(entropy, "big")
    if len(entropy) < 17:
        raise ValueError("17 random bytes are needed for 130 bits")
    letters = "abcdefghijklmnopqrstuvwxyz234567"
    return "sp" + "".join(letters[(number >> (5 * place)) & 31] for place in range(26))
