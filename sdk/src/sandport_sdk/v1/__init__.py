"""Everything that the author of a provider imports.

```python
from sandport_sdk.v1 import Capabilities, Config, Provider, errors, types


class MyConfig(Config, frozen=True, kw_only=True):
    image: str


class MyProvider(Provider):
    name = "mycloud"
    version = "0.1.0"
    Config = MyConfig
    capabilities = Capabilities(kill="tree", expiry="vendor")

    async def acquire_lease(self, params, call):
        config = self.config_of(params)
        ...
        return types.LeaseResult(handle=..., working_directory="/work")
```

Its `__main__` is one line below an import: `from sandport_sdk.worker import serve` and
`serve("my_provider.provider:MyProvider")`.
"""

from __future__ import annotations

from sandport_protocol import errors
from sandport_protocol import v1 as types
from sandport_protocol.capabilities import Capabilities
from sandport_protocol.limits import Limits
from sandport_protocol.octets import B64, Octets, pack, unpack
from sandport_protocol.v1 import PeerInfo
from sandport_sdk.config import Config, SecretRef

from .call import Call, Cancellation
from .provider import Provider, Session, extension

__all__ = [
    "Provider",
    "Session",
    "Call",
    "Cancellation",
    "Config",
    "SecretRef",
    "Capabilities",
    "extension",
    "types",
    "errors",
    "Limits",
    "PeerInfo",
    "Octets",
    "B64",
    "pack",
    "unpack",
]
