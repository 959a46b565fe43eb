"""The host: the one object that an embedder opens. It owns the workers; leases are blocks inside it."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator, Coroutine, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from msgspec import Raw, Struct

from sandport_protocol import codec, versions
from sandport_protocol.limits import DEFAULTS, Limits
from sandport_protocol.v1 import (
    AcquireLeaseParams,
    Egress,
    InitializeParams,
    InitializeResult,
    PeerInfo,
    new_sandbox_id,
)

from . import __version__
from .acquire import acquire, end_by_id
from .closing import finished
from .command import LONGEST_S
from .configuration import Configuration, ProviderSettings, load, overridden
from .discovery import Discovery, discover, worker_command
from .errors import EnvironmentUnknown, ProviderUnknown, SandportError, UsageError
from .home import Home
from .lease_request import LeaseRequest
from .log import Log
from .nearest import nearest
from .numbers import Timing
from .sandbox import Sandbox
from .worker.environment import withheld
from .worker.launch import WorkerCommand
from .worker.supervisor import Supervisor

LEASE_S = 3600.0
"""A lease lasts an hour unless asked otherwise (protocol: Numbers)."""


class ProviderFacts(Struct, frozen=True, kw_only=True):
    """What a provider says of itself, and what it was not given."""

    name: str
    hello: InitializeResult
    withheld: tuple[str, ...]
    """Variables that it reads, this process has, and its worker did not get."""


class Host:
    """Leases sandboxes through providers; open it with `Host.open`.

    Everything that it starts ends with its block: workers are stopped, none outlives it.
    """

    def __init__(
        self,
        configuration: Configuration,
        home: Home,
        *,
        environ: Mapping[str, str],
        log: Log,
    ) -> None:
        self.configuration = configuration
        self.home = home
        self._tasks: set[asyncio.Task[None]] = set()
        self._environ = environ
        self._log = log
        self._timing: Timing = configuration.host.timing
        self._scan: Discovery | None = None
        self._supervisors: dict[str, Supervisor] = {}
        self._sandboxes: dict[str, Sandbox] = {}
        self._failures: list[BaseException] = []
        self._closing = False

    @staticmethod
    @contextlib.asynccontextmanager
    async def open(
        config: str | Path | Configuration | None = None,
        *,
        home: str | Path | None = None,
        environ: Mapping[str, str] | None = None,
        log: Log | None = None,
    ) -> AsyncIterator[Host]:
        """A host for the length of the block.

        Args:
            config: A sandport.toml, or what `sandport.configuration.load` returned; by default the files in force.
            home: Where state is kept; by default `$SANDPORT_HOME` or the platform's state directory.
            environ: The environment to read; by default the process's.
            log: Where records go; by default structlog, or the standard library's logging where that is not
                configured.

        Raises:
            ConfigurationInvalid: A file has a fault; nothing was started.

        Cancel: stops every worker, each wait of it bounded.
        """
        environ = dict(os.environ) if environ is None else dict(environ)
        configuration = config if isinstance(config, Configuration) else load(config, environ=environ)
        place = Home.open(None if home is None else Path(home), environ)
        host = Host(configuration, place, environ=environ, log=log or Log())
        try:
            yield host
        finally:
            await finished(host._close())

    # The tasks are the host's own and no task group of the block's: a cancel around the block must reach the leases in
    # it before it reaches the workers that end them, and the block may be left from another task than it was entered.

    def _spawn(self, work: Coroutine[Any, Any, None], name: str) -> None:
        task = asyncio.get_running_loop().create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._done)

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._log("critical", f"{task.get_name()} failed: {error!r}")
            self._failures.append(error)

    async def _close(self) -> None:
        self._closing = True
        while self._tasks:
            for task in self._tasks:
                task.cancel()
            await asyncio.wait(self._tasks)
        if self._failures:
            raise self._failures[0]

    # -------------------------------------------------------------- providers

    def provider_names(self) -> tuple[str, ...]:
        """Every provider that is installed or configured, sorted; nothing is started."""
        installed = {provider.name for provider in self._found().providers}
        return tuple(sorted(installed | set(self.configuration.providers)))

    def _found(self) -> Discovery:
        if self._scan is None:
            self._scan = discover()
        return self._scan

    async def describe(self, provider: str) -> ProviderFacts:
        """The hello of a provider's worker, which is started if need be.

        Raises:
            ProviderUnknown, ProviderConflict: There is none of this name, or more than one.
            WorkerStartFailed: It does not come up; the message has the end of its log.
        """
        worker = await self._supervisor(provider).worker()
        return ProviderFacts(
            name=provider,
            hello=worker.hello,
            withheld=withheld(self._environ, worker.hello.wants_env, worker.process.given_env),
        )

    def _supervisor(self, provider: str) -> Supervisor:
        if self._closing:
            raise UsageError("the host is closed")
        supervisor = self._supervisors.get(provider)
        if supervisor is None:
            settings = self.configuration.providers.get(provider, ProviderSettings())
            command = self._command(provider, settings)
            supervisor = Supervisor(
                command,
                self._hello(provider, settings.limits),
                environ=self._environ,
                timing=self._timing,
                log=self._log,
                on_late=partial(self._late, provider),
            )
            self._supervisors[provider] = supervisor
            self._spawn(supervisor.run(), f"sandport worker {provider}")
        return supervisor

    def _command(self, provider: str, settings: ProviderSettings) -> WorkerCommand:
        argv = settings.command
        if not argv:
            if conflict := self._found().conflict(provider):
                raise conflict
            entry = next((found for found in self._found().providers if found.name == provider), None)
            if entry is None:
                known = self.provider_names()
                raise ProviderUnknown(
                    f"no provider {provider!r} is installed or configured{nearest(provider, known)}; "
                    f"there are: {', '.join(known) or 'none'}"
                )
            argv = worker_command(entry)
        return WorkerCommand(provider=provider, argv=argv, granted_env=settings.env)

    def _hello(self, provider: str, limits: Limits = DEFAULTS) -> InitializeParams:
        return InitializeParams(
            protocol_versions=versions.SUPPORTED,
            host=PeerInfo(name="sandport", version=__version__),
            store_id=self.home.store_id,
            state_dir=str(self.home.state_dir(provider)),
            limits=limits,
        )

    # -------------------------------------------------------------- leases

    @contextlib.asynccontextmanager
    async def lease(
        self,
        environment: str,
        *,
        config: Mapping[str, Any] | None = None,
        env: Mapping[str, str] | None = None,
        run: str | None = None,
        tenant: str | None = None,
        principal: str | None = None,
        workspace: str | None = None,
        workload: str | None = None,
        ttl_s: float = LEASE_S,
        egress: Egress | None = None,
    ) -> AsyncIterator[Sandbox]:
        """A sandbox for the length of the block; it is destroyed at the end, whatever happened.

        Args:
            environment: The name of a configured environment, or of a provider.
            config: Laid over the environment's config for the provider.
            env: Variables of every command, over the environment's.
            run, tenant, principal, workspace: The embedder's own ids.
            workload: What kind of work it is, for the provider.
            ttl_s: Seconds after which the sandbox ends by itself, where the provider can see to that.
            egress: The network that it may reach; enforced exactly, or the lease fails.

        Raises:
            EnvironmentUnknown, ProviderUnknown: Nothing was started.
            WorkerStartFailed: The provider's worker does not come up.
            WireError: What the provider answered, e.g. ConfigInvalid, QuotaExceeded, NotSupported.

        Cancel: what was created is gone when this returns; bounded by the close grace.
        """
        request = self._request(
            environment,
            config=config or {},
            env=env or {},
            ids={"run": run, "tenant": tenant, "principal": principal, "workspace": workspace},
            workload=workload,
            ttl_s=ttl_s,
            egress=egress,
        )
        supervisor = self._supervisor(request.provider)
        sandbox = await acquire(request, supervisor, timing=self._timing, log=self._log)
        self._sandboxes[sandbox.id] = sandbox
        try:
            yield sandbox
        finally:
            await sandbox.destroy()
            del self._sandboxes[sandbox.id]

    def _request(
        self,
        environment: str,
        *,
        config: Mapping[str, Any],
        env: Mapping[str, str],
        ids: dict[str, str | None],
        workload: str | None,
        ttl_s: float,
        egress: Egress | None,
    ) -> LeaseRequest:
        if not 0 < ttl_s <= LONGEST_S:
            raise UsageError(f"ttl_s is {ttl_s}; give seconds above 0 and up to {LONGEST_S:g}")
        stored = self.configuration.environments.get(environment)
        if stored is not None:
            provider, base, variables = stored.provider, stored.config, stored.env
        elif environment in self.provider_names():
            provider, base, variables = environment, {}, {}
        else:
            known = (*self.configuration.environments, *self.provider_names())
            raise EnvironmentUnknown(
                f"there is no environment or provider {environment!r}{nearest(environment, known)}; "
                f"there are: {', '.join(known) or 'none'}"
            )
        return LeaseRequest(
            sandbox_id=new_sandbox_id(os.urandom(17)),
            provider=provider,
            environment=environment,
            config=Raw(codec.encode(overridden(base, config))),
            secrets={},
            env={**variables, **env},
            egress=egress,
            workload=workload,
            ttl_s=ttl_s,
            **ids,
        )

    def _late(self, provider: str, method: str, params: Struct, result: Raw | None) -> None:
        """A create that succeeded after its caller was told otherwise: undo it."""
        if not isinstance(params, AcquireLeaseParams) or result is None:
            return
        if self._closing:
            self._log(
                "error", "a sandbox may be left: its create succeeded while the host closed", sandbox=params.sandbox_id
            )
        else:
            self._log("warning", "a create succeeded after its lease was given up", sandbox=params.sandbox_id)
            self._spawn(self._end_late(provider, params), f"sandport clean-up {params.sandbox_id}")

    async def _end_late(self, provider: str, params: AcquireLeaseParams) -> None:
        try:
            await end_by_id(params, await self._supervisor(provider).worker(), timing=self._timing)
        except SandportError as error:
            self._log("error", f"a sandbox may be left: {error}", sandbox=params.sandbox_id)

    # -------------------------------------------------------------- leaving at once

    def abandon(self) -> None:
        """Leave without waiting: every worker is told to destroy what it holds, and then that nobody listens any more.

        The workers finish that by themselves; the process may exit right after this.
        """
        self._closing = True
        for sandbox in self._sandboxes.values():
            sandbox.request_destroy()
        for supervisor in self._supervisors.values():
            worker = supervisor.current
            if worker is not None:
                worker.let_go()
