"""A provider whose vendor's client takes long to import: it does that after the hello."""

from __future__ import annotations

from typing import Any

from tests.bench.echo_provider import EchoProvider


class HeavyProvider(EchoProvider):
    """The echo provider behind a heavy import."""

    name = "bench-heavy"

    def prepare(self) -> Any:
        """Import in a thread, so that pings are answered meanwhile."""
        import hypothesis

        self.client = hypothesis
