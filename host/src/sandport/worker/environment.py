"""The variables that a worker may see: an allow-list, and what the operator grants.

A host runs with master keys in its environment; a worker needs none of them unless somebody said so.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping

ALLOWED = frozenset(
    {
        "PATH",
        "HOME",
        "TZ",
        "LANG",
        "LANGUAGE",
        "HTTP_PROXY",
        "HTTPS_PROXY",
        "NO_PROXY",
        "ALL_PROXY",
        "http_proxy",
        "https_proxy",
        "no_proxy",
        "all_proxy",
        "SSL_CERT_FILE",
        "SSL_CERT_DIR",
        "REQUESTS_CA_BUNDLE",
        "CURL_CA_BUNDLE",
        "NODE_EXTRA_CA_CERTS",
    }
)
"""Where programs are, who runs them, language and time zone, and how the network is reached."""

TOKEN = "SANDPORT_WORKER_TOKEN"
"""Marks a worker and everything it starts, so that survivors can be found."""


def allowed(name: str) -> bool:
    """Whether a variable goes to every worker."""
    return name in ALLOWED or name.startswith("LC_")


def worker_environment(
    environ: Mapping[str, str], *, granted: Iterable[str], settings: Mapping[str, str], token: str
) -> dict[str, str]:
    """A worker's whole environment; the later of these wins: allow-list, grants, settings of the provider.

    Args:
        environ: The host's own environment.
        granted: Names that the operator grants this provider from it.
        settings: Values that the configuration sets for this provider.
        token: The marker of this worker.
    """
    env = {name: value for name, value in environ.items() if allowed(name)}
    env.update((name, environ[name]) for name in granted if name in environ)
    env.update(settings)
    env[TOKEN] = token
    return env


def withheld(environ: Mapping[str, str], wanted: Iterable[str], given: Container[str]) -> tuple[str, ...]:
    """Variables that the provider reads, the host has, and the worker did not get."""
    return tuple(name for name in wanted if name in environ and name not in given)


def grant_line(provider: str, names: Iterable[str]) -> str:
    """What sandport.toml has to say so that these are not withheld."""
    quoted = ", ".join(f'"{name}"' for name in names)
    return f"[providers.{provider}] env = [{quoted}]"
