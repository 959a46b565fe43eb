"""Lease sandboxes for code execution through providers that run as processes of their own.

```python
from sandport import Host

async with Host.open() as host:
    async with host.lease("local") as sandbox:
        outcome = await sandbox.execute(["echo", "hello"])
        print(outcome.exit_code, outcome.stdout.decode())
```

Names are imported when they are first used: a program that only asks for `--help` pays for none of them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from sandport_protocol.v1 import Egress

    from .configuration import Configuration
    from .errors import SandportError
    from .host import Host, ProviderFacts
    from .lease.info import LeaseInfo
    from .outcome import Captured, Outcome
    from .process import Process
    from .sandbox import Sandbox
    from .sync import SyncResult

__all__ = [
    "Captured",
    "Configuration",
    "Egress",
    "Host",
    "LeaseInfo",
    "Outcome",
    "Process",
    "ProviderFacts",
    "Sandbox",
    "SandportError",
    "SyncResult",
    "__version__",
]

_HOMES = {
    "Captured": "sandport.outcome",
    "Configuration": "sandport.configuration",
    "Egress": "sandport_protocol.v1",
    "Host": "sandport.host",
    "LeaseInfo": "sandport.lease.info",
    "Outcome": "sandport.outcome",
    "Process": "sandport.process",
    "ProviderFacts": "sandport.host",
    "Sandbox": "sandport.sandbox",
    "SandportError": "sandport.errors",
    "SyncResult": "sandport.sync",
}


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'sandport' has no attribute {name!r}")
    import importlib

    return getattr(importlib.import_module(home), name)


def __dir__() -> list[str]:
    return sorted(__all__)
