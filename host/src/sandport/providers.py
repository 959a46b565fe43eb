"""The providers of a host: which there are, what a name stands for, and how a worker of each is started."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from sandport_protocol import versions
from sandport_protocol.limits import Limits
from sandport_protocol.v1 import InitializeParams, PeerInfo

from . import __version__
from .configuration import Configuration, EnvironmentSettings, ProviderSettings
from .discovery import Discovery, discover, how_to_get, worker_command
from .errors import EnvironmentUnknown
from .nearest import nearest
from .worker.launch import WorkerCommand
from .worker.supervisor import Supervisor, WorkerKey, worker_key

if TYPE_CHECKING:
    from msgspec import Raw

    from .home import Home
    from .log import Log


class Providers:
    """What is installed, looked for once, and what is configured.

    Args:
        configuration: What is configured.
        home: Where each has its state.
        environ: What workers get their variables from.
        log: Where supervisors write.
        instance: The host's id, which its workers carry.
    """

    def __init__(
        self, configuration: Configuration, home: Home, *, environ: Mapping[str, str], log: Log, instance: str
    ) -> None:
        self._configuration = configuration
        self._home = home
        self._environ = environ
        self._log = log
        self._instance = instance
        self._scan: Discovery | None = None

    def names(self) -> tuple[str, ...]:
        """Every provider that is installed or configured, sorted."""
        installed = {provider.name for provider in self._found().providers}
        return tuple(sorted(installed | set(self._configuration.providers)))

    def _found(self) -> Discovery:
        if self._scan is None:
            self._scan = discover()
        return self._scan

    def settings(self, provider: str) -> ProviderSettings:
        """What is configured for it."""
        return self._configuration.providers.get(provider, ProviderSettings())

    def resolved(self, environment: str) -> EnvironmentSettings:
        """The provider, its config and its variables that a name stands for.

        Raises:
            EnvironmentUnknown: It is the name of neither an environment nor a provider.
        """
        stored = self._configuration.environments.get(environment)
        if stored is not None:
            return stored
        if environment in self.names():
            return EnvironmentSettings(provider=environment)
        known = (*self._configuration.environments, *self.names())
        raise EnvironmentUnknown(
            f"there is no environment or provider {environment!r}{nearest(environment, known)}; "
            f"there are: {', '.join(known) or 'none'}" + how_to_get(environment)
        )

    # -------------------------------------------------------------- workers

    def key(self, provider: str, tenant: str | None) -> WorkerKey:
        """Whose worker serves this tenant."""
        return worker_key(provider, tenant, self.settings(provider).isolation)

    def supervisor(self, key: WorkerKey, *, on_late: Callable[[str, Any, Raw | None], None]) -> Supervisor:
        """A supervisor of it that does not run yet.

        Args:
            key: Of whose worker.
            on_late: Told of results that came after their callers were told something else.

        Raises:
            ProviderUnknown, ProviderConflict: There is none of this name, or more than one.
        """
        provider, _ = key
        settings = self.settings(provider)
        return Supervisor(
            self._command(key, settings),
            self._hello(provider, settings.limits),
            environ=self._environ,
            timing=self._configuration.host.timing,
            log=self._log,
            on_late=on_late,
            instance=self._instance,
            root=self._home.root,
        )

    def _command(self, key: WorkerKey, settings: ProviderSettings) -> WorkerCommand:
        provider, tenant = key
        argv = settings.command
        if not argv:
            argv = worker_command(self._found().find(provider, configured=self._configuration.providers))
        return WorkerCommand(provider=provider, tenant=tenant, argv=argv, granted_env=settings.env)

    def _hello(self, provider: str, limits: Limits) -> InitializeParams:
        return InitializeParams(
            protocol_versions=versions.SUPPORTED,
            host=PeerInfo(name="sandport", version=__version__),
            store_id=self._home.store_id,
            state_dir=str(self._home.state_dir(provider)),
            limits=limits,
        )
