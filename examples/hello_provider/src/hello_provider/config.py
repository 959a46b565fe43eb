"""What a user may set for a sandbox."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from sandport_sdk.v1 import Config


class HelloConfig(Config, frozen=True, kw_only=True):
    """The environment's `config`. A key is a member; one without a default must be given."""

    path: Annotated[str, Meta(description="Where commands are looked for.")] = "/usr/local/bin:/usr/bin:/bin"
