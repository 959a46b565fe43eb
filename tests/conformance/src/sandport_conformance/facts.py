"""What a worker says of itself in its hello, read without trusting it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from . import schema
from .declaration import Needs
from .outcomes import NotApplicable
from .schema import Json


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """The worker's declarations.

    Attributes:
        name: The provider's name.
        version: The provider's version.
        methods: `supportedMethods`.
        capabilities: As declared, the protocol's defaults for what is not.
        limits: The agreed ceilings: the smaller of what the kit offered and what the worker answered.
    """

    name: str = ""
    version: str = ""
    methods: tuple[str, ...] = ()
    capabilities: Json = field(default_factory=dict)
    limits: dict[str, int] = field(default_factory=schema.default_limits)

    @classmethod
    def of(cls, hello: object, offered: dict[str, int]) -> Facts:
        """What can be taken from an answer to `initialize`; members of a wrong form are left out."""
        answer = hello if isinstance(hello, dict) else {}
        provider = _dict(answer.get("provider"))
        methods = answer.get("supportedMethods")
        limits = {
            name: min(offered[name], value)
            for name, value in _dict(answer.get("limits")).items()
            if name in offered and isinstance(value, int) and schema.protocol()["limits"][name]["kind"] == "ceiling"
        }
        declared = schema.protocol()["$defs"]["Capabilities"]["properties"]
        defaults = {name: rule["default"] for name, rule in declared.items()}
        return cls(
            name=str(provider.get("name", "")),
            version=str(provider.get("version", "")),
            methods=tuple(m for m in methods if isinstance(m, str)) if isinstance(methods, list) else (),
            capabilities={**defaults, **_dict(answer.get("capabilities"))},
            limits={**offered, **limits},
        )

    @property
    def settle_s(self) -> float:
        """How long the provider says that a create, or an end, may take to show in its lists."""
        return int(self.capabilities.get("createSettleMs") or 0) / 1000

    def has_group(self, group: str) -> bool:
        """Whether an optional group is advertised, whole or in part."""
        return bool(set(schema.optional_groups()[group]) & set(self.methods))

    def require(self, needs: Needs, without: tuple[str, ...] = ()) -> None:
        """Raise NotApplicable where the worker does not declare what a check is about.

        Args:
            needs: The check's needs.
            without: What a lease takes away again.
        """
        for group in needs.groups:
            if not self.has_group(group):
                methods = ", ".join(schema.optional_groups()[group])
                raise NotApplicable(f"the worker does not advertise {methods}", group)
            if group in without:
                raise NotApplicable(f"the lease is without {group!r}", group)
        for name, values in needs.capabilities.items():
            declared = self.capabilities.get(name)
            if isinstance(declared, list):
                if not set(declared) & set(values):
                    raise NotApplicable(f"the capability {name} is {declared}, without {' or '.join(map(str, values))}")
            elif declared not in values:
                raise NotApplicable(f"the capability {name} is {declared!r}", name if values == (True,) else "")
            if name in without:
                raise NotApplicable(f"the lease is without {name!r}", name if values == (True,) else "")


def _dict(value: Any) -> Json:
    return value if isinstance(value, dict) else {}
