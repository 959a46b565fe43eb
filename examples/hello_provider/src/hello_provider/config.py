"""What a user may set for a sandbox."""

from __future__ import annotations

from sandport_sdk.v1 import Config


class HelloConfig(Config, frozen=True, kw_only=True):
    """The environment's `config`. A key is a member; one without a default must be given."""

    path: str = "/usr/local/bin:/usr/bin:/bin"
    """Where commands are looked for."""
