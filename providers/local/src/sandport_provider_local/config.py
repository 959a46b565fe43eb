"""The provider's config."""

from __future__ import annotations

from typing import Literal

from sandport_sdk.v1 import Config, errors


class LocalConfig(Config, frozen=True, kw_only=True):
    """What a sandbox of this machine is made with."""

    isolation: Literal["require", "prefer", "none"] = "prefer"
    """Whether a boundary is drawn around it. There is none yet: `require` is refused, `prefer` and `none` mean a
    directory and its processes, with nothing that keeps them from the rest of the machine."""

    def check(self) -> None:
        """Refuse what cannot be had, before anything is created.

        Raises:
            NotSupported: The config requires isolation.
        """
        if self.isolation == "require":
            raise errors.NotSupported(
                "this provider has no isolation yet; set isolation to 'prefer' or 'none' where the code that runs "
                "is trusted",
                detail=errors.Detail(field="config.isolation"),
                dispatched="no",
            )
