"""The wire between a Sandport host and a worker: messages, framing, states and errors, without any input or output.

`HostConnection` and `WorkerConnection` are the two sides; `v1` has the params and results, `errors` the one tree of
exceptions that both sides raise, `methods` the table of what exists. SPEC.md is the same in prose, `schema/v1.json`
the same for other languages.
"""

__all__ = ("__version__",)

__version__ = "0.1.0"
"""Of this distribution; the protocol's own version is a number of its own (`versions.SUPPORTED`)."""
