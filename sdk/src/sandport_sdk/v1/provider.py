"""What a provider is: a class with one method for each method of the wire, checked when it is defined."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar, get_args, get_origin, get_type_hints

from msgspec import Raw, Struct, convert

from sandport_protocol import codec
from sandport_protocol.capabilities import (
    RESERVED_GROUPS,
    Capabilities,
    incomplete_groups,
    missing_mandatory,
)
from sandport_protocol.limits import DEFAULTS, Limits
from sandport_protocol.methods import METHODS
from sandport_protocol.v1 import PeerInfo, ValidateConfigParams, ValidateConfigResult
from sandport_sdk.config import Config as _Config
from sandport_sdk.config import decode, issues, nearest

if TYPE_CHECKING:
    from pathlib import Path
    from typing import Protocol

    from sandport_sdk.v1.call import Call

    class _HasConfig(Protocol):
        @property
        def config(self) -> Raw: ...


_F = TypeVar("_F", bound=Callable[..., Any])

_SESSION = tuple(name for name, method in METHODS.items() if method.group == "session")
_MARK = "_sandport_extension"
_FACTS = ("name", "version", "display_name", "Config", "capabilities", "wants_env")


def snake(name: str) -> str:
    """`acquireLease` as a Python method is called: `acquire_lease`."""
    return "".join("_" + letter.lower() if letter.isupper() else letter for letter in name)


_WIRE_NAMES = {snake(name): name for name, method in METHODS.items() if method.group != "session"}
_DRAFTS = {snake(name): name for members in RESERVED_GROUPS.values() for name in members if name not in METHODS}


class Session:
    """The connection that a provider serves; there is one in the life of a worker.

    Attributes:
        store_id: The host's store; write it on every resource that you create, beside the sandbox id.
        host: Name and version of the host.
        limits: The limits in force.
    """

    def __init__(
        self,
        store_id: str,
        state_dir: str | Path,
        *,
        host: PeerInfo | None = None,
        limits: Limits = DEFAULTS,
    ) -> None:
        self.store_id = store_id
        self.host = PeerInfo(name="", version="") if host is None else host
        self.limits = limits
        self._state_dir = str(state_dir)

    @property
    def state_dir(self) -> Path:
        """A directory (0700) of this provider and store, for what must survive the worker."""
        from pathlib import Path

        return Path(self._state_dir)


def extension(name: str) -> Callable[[_F], _F]:
    """Serve a method of your own, `x-<provider>/<name>`: any JSON in, any JSON out.

    The name is listed in the hello's `features`. The handler is called like any other: `(self, params, call)`.

    Raises:
        ValueError: The name does not have that form.
    """
    head, slash, tail = name.partition("/")
    if not (head.startswith("x-") and len(head) > 2 and slash and tail):
        raise ValueError(f"{name!r} is no name for an extension; it is x-<provider>/<name>")

    def mark(function: _F) -> _F:
        setattr(function, _MARK, name)
        return function

    return mark


class Handler(Struct, frozen=True):
    """How one wire method is served."""

    name: str
    attribute: str
    params: type[Any]
    result: type[Any] | None
    """None where any JSON will do."""
    threaded: bool
    """A plain `def`: it runs in a thread."""


class Provider:
    """Derive from this, define the methods that you serve, and pass `module:Class` to `sandport_sdk.worker.serve`.

    A method of the wire is a method of the class: `acquireLease` is `async def acquire_lease(self, params, call)`. What
    is defined is advertised. The mandatory ones must be there, an optional group as a whole or not at all; the class
    statement raises TypeError otherwise. `class Base(Provider, abstract=True)` is for bases that serve nothing yet.

    A handler is `async def`, or a plain `def`, which runs in a thread. It returns the method's result struct or raises
    one of `errors`; anything else that it raises reaches the host as Internal and the log as a traceback. It is called
    with params that were checked.

    Attributes:
        name: The provider's name: what users write, and the `<provider>` of its extensions.
        version: The provider's version.
        display_name: For people; the name where it is empty.
        Config: The struct of the provider's config, derived from `Config`.
        capabilities: What the provider can do; the conformance kit checks it.
        wants_env: Variables that the provider reads, so that a host can say which of them it withheld.
        session: The connection that is served.
    """

    name: ClassVar[str] = ""
    version: ClassVar[str] = ""
    display_name: ClassVar[str] = ""
    Config: ClassVar[type[_Config]] = _Config
    capabilities: ClassVar[Capabilities] = Capabilities()
    wants_env: ClassVar[tuple[str, ...]] = ()

    prepare: ClassVar[Callable[..., Awaitable[None] | None] | None] = None
    """Optional, `async def` or `def` (then in a thread): import and open what is slow. Called after the hello; calls
    wait for it, pings do not. What it raises ends the worker, and the host is told."""
    close: ClassVar[Callable[..., Awaitable[None] | None] | None] = None
    """Optional, `async def` or `def`: called once at the end, when no handler runs any more, whether `prepare` worked
    or not. Do what takes time here: once the host has its answer to `shutdown`, it may kill the worker."""

    abstract: ClassVar[bool] = True
    """Whether the class is only there to be derived from."""
    handlers: ClassVar[Mapping[str, Handler]] = {}
    """How each wire method is served, by its name on the wire; made from the class."""

    def __init__(self, session: Session) -> None:
        """Called at the hello, which waits for it: keep it quick, leave what is slow to `prepare`."""
        self.session = session

    def __init_subclass__(cls, *, abstract: bool = False, **rest: Any) -> None:
        """Check the class.

        Raises:
            TypeError: What is wrong with it, all of it.
        """
        super().__init_subclass__(**rest)
        handlers = {handler.name: handler for handler in _find_handlers(cls)}
        faults = [*_misspelt(cls), *_misshapen(cls, handlers)]
        if not abstract:
            faults += [*_missing(handlers), *_misdeclared(cls)]
        if faults:
            raise TypeError(f"{cls.__module__}.{cls.__qualname__}: " + "; ".join(faults))
        cls.abstract = abstract
        cls.handlers = handlers

    def config_of(self, params: _HasConfig) -> Any:
        """The config of a call, as an instance of `Config`.

        Raises:
            errors.ConfigInvalid: It does not fit; `detail.field` has the dotted path of the key.
        """
        return decode(self.Config, params.config)

    async def validate_config(self, params: ValidateConfigParams, call: Call) -> ValidateConfigResult:
        """Answer the config with its defaults filled in, or what is wrong with it; override to look further."""
        if found := issues(self.Config, params.config):
            return ValidateConfigResult(issues=found)
        config = decode(self.Config, params.config)
        codec.refuse_non_finite(config)
        return ValidateConfigResult(config=Raw(codec.encode(config)))


_OWN = frozenset(name for name in vars(Provider) if not name.startswith("_"))


def _find_handlers(cls: type[Provider]) -> list[Handler]:
    found = []
    for attribute, name in _WIRE_NAMES.items():
        function = getattr(cls, attribute, None)
        if function is not None:
            method = METHODS[name]
            found.append(Handler(name, attribute, method.params, method.result, _threaded(function)))
    for attribute, function in _members(cls).items():
        if extension_name := getattr(function, _MARK, None):
            found.append(Handler(extension_name, attribute, object, None, _threaded(function)))
    return found


def _members(cls: type) -> dict[str, Any]:
    """Every attribute as it stands in the class or in the base that it comes from."""
    return {name: value for base in reversed(cls.__mro__) for name, value in vars(base).items()}


def _threaded(function: Any) -> bool:
    return not inspect.iscoroutinefunction(function)


def _missing(handlers: Mapping[str, Handler]) -> list[str]:
    names = {*handlers, *_SESSION}
    faults = []
    if missing := missing_mandatory(names):
        faults.append("these methods are missing: " + ", ".join(map(snake, missing)))
    for group, members in incomplete_groups(names).items():
        missing_here = ", ".join(map(snake, members))
        faults.append(f"the group {group!r} is served as a whole or not at all; missing: {missing_here}")
    return faults


def _misdeclared(cls: type[Provider]) -> list[str]:
    """Attributes that are not what the hello needs; an author's class may hold anything, whatever is declared."""
    facts: Mapping[str, Any] = {name: getattr(cls, name) for name in _FACTS}
    faults = [f"{name!r} must be a text" for name in ("name", "version") if not _is_text(facts[name])]
    if not isinstance(facts["display_name"], str):
        faults.append("'display_name' must be a text")
    if not (isinstance(facts["Config"], type) and issubclass(facts["Config"], Struct)):
        faults.append("'Config' must be a class derived from sandport_sdk.v1.Config")
    if not isinstance(facts["capabilities"], Capabilities):
        faults.append("'capabilities' must be Capabilities(...)")
    else:
        faults += _untold(facts["capabilities"])
    if not (isinstance(facts["wants_env"], tuple) and all(map(_is_text, facts["wants_env"]))):
        faults.append("'wants_env' must be a tuple of names")
    return faults


def _untold(capabilities: Capabilities) -> list[str]:
    """Capabilities with values that the wire has no words for, each with those that it has."""
    try:
        codec.read_as(Capabilities, codec.encode(capabilities))
    except (TypeError, ValueError):
        kinds = get_type_hints(Capabilities)
    else:
        return []
    faults = []
    for name, kind in kinds.items():
        value = getattr(capabilities, name)
        try:
            convert(value, kind, strict=True)
        except ValueError:
            several = get_origin(kind) is tuple
            words = get_args(get_args(kind)[0] if several else kind)
            allowed = ", ".join(map(repr, words)) or kind.__name__
            must = "be a tuple with some of" if several else "be one of" if words else "be of type"
            faults.append(f"'capabilities': {name}={value!r} must {must} {allowed}")
    return faults


def _is_text(value: object) -> bool:
    return isinstance(value, str) and bool(value)


def _misspelt(cls: type[Provider]) -> list[str]:
    """Public methods of the class itself that look like one of ours: they would never be called."""
    known = {*_WIRE_NAMES, *_OWN}
    faults = []
    for attribute, value in vars(cls).items():
        if attribute in _DRAFTS:
            faults.append(f"{attribute!r}: {_DRAFTS[attribute]} is a draft that this version does not serve")
            continue
        if attribute.startswith("_") or attribute in known or not inspect.isroutine(value) or hasattr(value, _MARK):
            continue
        if meant := nearest(attribute, (*_WIRE_NAMES, "prepare", "close"), likeness=0.8):
            faults.append(f"{attribute!r} looks like {meant!r} misspelt (a helper's name begins with an underscore)")
    return faults


def _misshapen(cls: type[Provider], handlers: Mapping[str, Handler]) -> list[str]:
    """Handlers that cannot be called as they will be."""
    wanted: dict[str, tuple[str, ...]] = {handler.attribute: ("params", "call") for handler in handlers.values()}
    wanted |= {name: () for name in ("prepare", "close") if getattr(cls, name) is not None}
    faults = []
    members = _members(cls)
    for attribute, parameters in wanted.items():
        code = getattr(members[attribute], "__code__", None)
        if code is None or code.co_flags & inspect.CO_VARARGS:
            continue  # a decorator's or a built-in's: only the call can tell
        if code.co_argcount != len(parameters) + 1:
            faults.append(f"{attribute!r} must take ({', '.join(('self', *parameters))})")
    return faults
