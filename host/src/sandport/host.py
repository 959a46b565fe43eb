"""The host: the one object that an embedder opens. It owns the workers; leases are blocks inside it.

It is all that an embedder calls, each call with its promises; what they do is in `providers`, `lease` and `worker`.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import os
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import Raw, Struct

from sandport_protocol import codec
from sandport_protocol.methods import METHODS
from sandport_protocol.v1 import (
    AcquireLeaseParams,
    Egress,
    InitializeResult,
    ProbeParams,
    ProbeResult,
    ValidateConfigParams,
    ValidateConfigResult,
)

from .arguments import check_config, hold
from .clock import Clock, SystemClock
from .closing import finished
from .configuration import Configuration, load, overridden
from .errors import AuthenticationFailed, SandportError, UsageError
from .home import Home
from .instances import Instance
from .lease.authority import Authority
from .lease.book import Book
from .lease.clean_up import Attempted, OnDone
from .lease.deaths import KernelDeaths
from .lease.info import LeaseInfo, LeaseWord, leases_of
from .lease.recovery import IsRunLive
from .lease.request import asked, check_asked
from .lease.unknown import Account, Found, Unknown, end_unknown, find_unknown
from .log import Log
from .numbers import Timing
from .opening import begun, hung_in
from .providers import Providers
from .sandbox import Sandbox
from .secret_keys import refuse_secrets
from .store.sqlite import SqliteStore
from .store.store import Store
from .tasks import Tasks
from .witness import NO_LEASE_WITNESS
from .worker.environment import grant_line, withheld
from .worker.supervisor import Supervisor, WorkerKey

if TYPE_CHECKING:
    from .plugins import Plugins

LEASE_S = 3600.0
"""A lease lasts an hour unless asked otherwise (protocol: Numbers)."""


class ProviderFacts(Struct, frozen=True, kw_only=True):
    """What a provider says of itself, and what it was not given."""

    name: str
    """As in `lease`."""
    hello: InitializeResult
    """Versions, methods and abilities, as its worker declared them."""
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
        store: Store,
        instance: Instance,
        *,
        is_run_live: IsRunLive | None,
        environ: Mapping[str, str],
        clock: Clock,
        log: Log,
        plugins: Plugins | None = None,
    ) -> None:
        self.configuration = configuration
        self.home = home
        self._tasks = Tasks(log)
        self._environ = environ
        self._clock = clock
        self._log = log
        self._timing: Timing = configuration.host.timing
        self._instance = instance
        self._providers = Providers(configuration, home, environ=environ, log=log, instance=instance.id)
        self._supervisors: dict[WorkerKey, Supervisor] = {}
        self._sandboxes: dict[str, Sandbox] = {}
        self._closing = False
        self._plugins = plugins
        self._authority = Authority(plugins, store)
        witness = NO_LEASE_WITNESS
        if plugins is not None:
            from .lease.events import LeaseEvents

            witness = LeaseEvents(plugins, store, clock.now_ms)
        self._book = Book(
            store,
            instance.id,
            KernelDeaths(home.root),
            self._supervisor,
            is_run_live=is_run_live,
            timing=self._timing,
            delays=configuration.host.clean_up,
            clock=clock,
            log=log,
            witness=witness,
            state=os.fsencode(home.root),
        )

    @staticmethod
    @contextlib.asynccontextmanager
    async def open(
        config: str | Path | Configuration | None = None,
        *,
        home: str | Path | None = None,
        environ: Mapping[str, str] | None = None,
        is_run_live: IsRunLive | None = None,
        cleans_up: bool = True,
        clock: Clock | None = None,
        log: Log | None = None,
        plugins: Sequence[object] = (),
    ) -> AsyncIterator[Host]:
        """A host for the length of the block; it also cleans up what dead hosts of the same home left.

        Args:
            config: A sandport.toml, or what `sandport.configuration.load` returned; by default the files in force.
            home: Where state is kept; by default `$SANDPORT_HOME` or the platform's state directory.
            environ: The environment to read; by default the process's.
            is_run_live: Asked with the `run` of each lease whose process is dead, may be async: True lets the lease
                go on, for `attach`. By default such a lease ends.
            cleans_up: Whether it does so by itself; without, only `clean_up` does.
            clock: Whose time decides what is due in clean-up; the machine's by default.
            log: Where records go; by default structlog, or the standard library's logging where that is not
                configured.
            plugins: Objects with hooks for events, redaction and authorisation, or names of installed ones; called in
                this order, after those that the configuration names. See `sandport.hooks`.

        Raises:
            ConfigurationInvalid: A file has a fault; nothing was started.
            UsageError: A plugin is not installed, or cannot be used; nothing was started.
            HomeUnusable: The folder for state cannot be used; nothing was started.
            StoreUnusable: The journal cannot be opened; nothing was started.

        Cancel: ends what clean-up is at, and stops every worker, each wait of it bounded.
        """
        environ = dict(os.environ) if environ is None else dict(environ)
        configuration = config if isinstance(config, Configuration) else load(config, environ=environ)
        place = Home.open(None if home is None else Path(home), environ)
        clock = clock or SystemClock()
        log = log or Log()
        hooked = hung_in((*configuration.host.plugins, *plugins), log)
        instance = begun(place.root)
        try:
            store = await SqliteStore.open(place.journal, store_id=place.store_id, clock=clock)
            try:
                host = Host(
                    configuration,
                    place,
                    store,
                    instance,
                    is_run_live=is_run_live,
                    environ=environ,
                    clock=clock,
                    log=log if hooked is None else hooked.log,
                    plugins=hooked,
                )
                if cleans_up:
                    host._tasks.start(host._book.run(), "sandport clean-up")
                else:
                    host._book.passed.set()
                try:
                    yield host
                finally:
                    await finished(host._close())
            finally:
                await finished(store.aclose())
        finally:
            instance.close()

    async def _close(self) -> None:
        grace_s = self._timing.close_grace_s
        # What a dead host left is looked at once by whoever comes next, however short its own work is.
        passed = asyncio.ensure_future(self._book.passed.wait())
        await asyncio.wait((passed,), timeout=grace_s)
        passed.cancel()
        # Blocks that outlive the host's end here: nobody could end what they hold once its workers are gone. A failure
        # is logged by the book, and is for the next host.
        outlived = [sandbox.leave() for sandbox in self._sandboxes.values() if not sandbox.kept]
        await asyncio.gather(*outlived, return_exceptions=True)
        await self._book.finish(grace_s)
        self._closing = True
        self._book.clean_up.closing = True
        await self._tasks.end()
        # What is still under way has no worker any more, and ends with that.
        await self._book.finish()
        if self._plugins is not None:
            await self._plugins.finish()
        self._tasks.raise_failure()

    # -------------------------------------------------------------- providers

    def provider_names(self) -> tuple[str, ...]:
        """Every provider that is installed or configured, sorted; nothing is started."""
        return self._providers.names()

    async def describe(self, provider: str) -> ProviderFacts:
        """The hello of a provider's worker, which is started if need be.

        Raises:
            ProviderUnknown, ProviderConflict: There is none of this name, or more than one.
            WorkerStartFailed: It does not come up; the message has the end of its log.

        Repeat: answers from the same worker while it lives.
        Cancel: the worker, once it is asked for, comes up all the same and ends with the host.
        """
        hold(provider=provider)
        worker = await self._supervisor(provider).worker()
        return ProviderFacts(
            name=provider,
            hello=worker.hello,
            withheld=withheld(self._environ, worker.hello.wants_env, worker.process.given_env),
        )

    async def probe(self, environment: str, *, config: Mapping[str, Any] | None = None) -> ProbeResult:
        """What a provider finds where it looks at what its sandboxes need; nothing is created.

        Args:
            environment, config: As for `lease`.

        Returns:
            The checks, each with whether it is well, and what the provider cannot do with this config.

        Raises:
            EnvironmentUnknown, WorkerStartFailed: As for `lease`.
            WireError: What the provider answered, e.g. ConfigInvalid.

        Repeat: looks again.
        Cancel: stops looking.
        """
        hold(environment=environment, config=config)
        check_config(config or {})
        settings = self._providers.resolved(environment)
        params = ProbeParams(config=Raw(codec.encode(overridden(settings.config, config or {}))))
        workers = self._supervisor(settings.provider)
        client = (await workers.worker()).client
        try:
            return await client.call(METHODS["probe"], params, ProbeResult, deadline_s=self._timing.call_s)
        except AuthenticationFailed as error:
            self._say_grant(error, settings.provider, workers)
            raise

    async def validate(self, provider: str, config: Mapping[str, Any]) -> ValidateConfigResult:
        """What a provider says of a whole config; it touches nothing outside.

        Returns:
            Either `issues`, which each name a field, or the `config` with every default filled in.

        Raises:
            ProviderUnknown, ProviderConflict, WorkerStartFailed: As for `describe`.

        Repeat: answers the same.
        Cancel: nothing has happened.
        """
        hold(provider=provider, config=config)
        check_config(config)
        params = ValidateConfigParams(config=Raw(codec.encode(config)))
        client = (await self._supervisor(provider).worker()).client
        return await client.call(
            METHODS["validateConfig"], params, ValidateConfigResult, deadline_s=self._timing.call_s
        )

    def _supervisor(self, provider: str, tenant: str | None = None) -> Supervisor:
        self._refuse_closed()
        key = self._providers.key(provider, tenant)
        supervisor = self._supervisors.get(key)
        if supervisor is None:
            supervisor = self._providers.supervisor(key, on_late=self._late)
            self._supervisors[key] = supervisor
            self._tasks.start(supervisor.run(), f"sandport worker {provider}")
        return supervisor

    def _say_grant(self, error: SandportError, provider: str, workers: Supervisor) -> None:
        """Have the error of a worker without its credential say what was not handed to it."""
        if (worker := workers.current) is None:
            return
        missing = withheld(self._environ, worker.hello.wants_env, worker.process.given_env)
        if missing:
            line = grant_line(provider, (*self._providers.settings(provider).env, *missing))
            told = f"set here and withheld from its worker: {', '.join(missing)}"
            error.message += f"\n{told}\nto grant them, in sandport.toml: {line}"

    def _refuse_closed(self) -> None:
        if self._closing:
            raise UsageError("the host is closed; use it inside of its block, or open another")

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
        work_item: str | None = None,
        workload: str | None = None,
        ttl_s: float = LEASE_S,
        egress: Egress | None = None,
        keep: bool = False,
        name: str | None = None,
        on_lost: Callable[[str], None] | None = None,
    ) -> AsyncIterator[Sandbox]:
        """A sandbox for the length of the block; it is destroyed at the end, whatever happened, unless it is kept.

        Args:
            environment: The name of a configured environment, or of a provider.
            config: Laid over the environment's config for the provider.
            env: Variables of every command, over the environment's.
            run, tenant, principal, workspace, work_item: The embedder's own ids: which execution, who pays, who acts,
                which files, which task. Kept with the lease, told to hooks; each tenant has workers of its own.
                Each is one line of text.
            workload: What kind of work it is, for the provider.
            ttl_s: Seconds after which the sandbox ends by itself, where the provider can see to that.
            egress: The network that it may reach; enforced exactly, or the lease fails.
            keep: Let it outlive the block and this process; `attach` finds it again by `Sandbox.lease_id`, and
                `end_lease` ends it. `Sandbox.keep` says so later.
            name: Another way to find it; no other lease that has not ended may have it. Letters, digits, `.`, `_` and
                `-`, at most 63, the first a letter or a digit, and not what looks like a lease's id.
            on_lost: Told why, once, when the sandbox is found to be gone, or ended by another process.

        Raises:
            UsageError: An argument is of the wrong type, or makes no sense; nothing was started. Or the config names a
                secret, which this host does not supply; nothing was created or written.
            EnvironmentUnknown, ProviderUnknown, NameTaken: Likewise.
            NotAuthorised: A plugin refuses; nothing was started.
            StoreUnusable: The journal cannot take the intent; nothing was created.
            WorkerStartFailed: The provider's worker does not come up.
            WireError: What the provider answered, e.g. ConfigInvalid, QuotaExceeded, NotSupported.

        Cancel: what was created is gone when this returns; bounded by the close grace.
        """
        hold(
            environment=environment,
            config=config,
            env=env,
            run=run,
            tenant=tenant,
            principal=principal,
            workspace=workspace,
            work_item=work_item,
            workload=workload,
            ttl_s=ttl_s,
            egress=egress,
            keep=keep,
            name=name,
            on_lost=on_lost,
        )
        check_asked(ttl_s=ttl_s, name=name, env=env or {}, config=config or {})
        request = asked(
            environment,
            self._providers.resolved(environment),
            config=config or {},
            env=env or {},
            egress=egress,
            workload=workload,
            ttl_s=ttl_s,
            keep=keep,
            name=name,
            run=run,
            tenant=tenant,
            principal=principal,
            workspace=workspace,
            work_item=work_item,
        )
        await self._authority.lease(request)
        at_once = self._providers.settings(request.provider).creates_at_once
        workers = self._supervisor(request.provider, request.tenant)
        if len(request.config) > len(b"{}"):
            # Its schema is known from its worker alone, and what is written stays in the journal for long.
            worker = await workers.worker()
            refuse_secrets(request.provider, msgspec.json.decode(request.config), worker.hello)
        try:
            sandbox = await self._book.acquire(request, workers, at_once=at_once)
        except AuthenticationFailed as error:
            self._say_grant(error, request.provider, workers)
            raise
        self._sandboxes[sandbox.id] = sandbox
        try:
            with self._book.holding(sandbox, on_lost):
                yield sandbox
        finally:
            try:
                await finished(sandbox.leave())
            finally:
                del self._sandboxes[sandbox.id]

    @contextlib.asynccontextmanager
    async def attach(self, lease: str, *, on_lost: Callable[[str], None] | None = None) -> AsyncIterator[Sandbox]:
        """A lease that is there already, of this or another process, for the length of the block.

        While the block lasts no other process ends the lease without force; the block's end leaves it as it was.

        Args:
            lease: The lease's id, name, sandbox id, or the beginning of an id that only it has.
            on_lost: As for `lease`.

        Raises:
            UsageError: An argument is of the wrong type.
            LeaseUnknown: There is none.
            LeaseLost: It has ended, or its sandbox is gone.
            NotAuthorised: A plugin refuses; nothing was changed.
            Unavailable: Its sandbox cannot be reached now.

        Cancel: leaves the lease as it was.
        """
        hold(lease=lease, on_lost=on_lost)
        lease = await self._authority.act("attach", lease)
        async with self._book.attached(lease) as sandbox:
            with self._book.holding(sandbox, on_lost):
                yield sandbox

    async def leases(
        self,
        *,
        run: str | None = None,
        name: str | None = None,
        state: LeaseWord | None = None,
        ended: bool = False,
    ) -> tuple[LeaseInfo, ...]:
        """What `sandport leases` lists: the leases of this home, those of other processes too. It only reads.

        Args:
            run, name, state: Only those with exactly this.
            ended: Also leases that are over, as far as they are remembered; implied by the state `ended`.

        Returns:
            Those that have not ended, and those whose sandbox is not confirmed gone; the oldest first.

        Raises:
            UsageError: There is no such state, or the host is closed.
            StoreUnusable: The journal cannot be read.

        Repeat: reads again.
        Cancel: nothing has happened.
        """
        hold(run=run, name=name, state=state, ended=ended)
        self._refuse_closed()
        return await asyncio.to_thread(
            leases_of, self.home.root, now_ms=self._clock.now_ms(), run=run, name=name, state=state, ended=ended
        )

    async def end_lease(self, lease: str, *, reason: str = "ended by request", force: bool = False) -> Attempted:
        """End a lease and its sandbox, whoever asked for it.

        Args:
            lease: As for `attach`.
            reason: Kept with the lease.
            force: Also where another process uses it, which then finds it lost.

        Returns:
            `end` is `gone` once the provider confirmed it; with `later` the clean-up goes on with it.

        Raises:
            LeaseUnknown: There is none.
            InUse: Another process uses it; nothing was changed.
            NotAuthorised: A plugin refuses; nothing was changed.

        Repeat: confirms again.
        Cancel: goes on to the end, bounded; the cancel is raised then.
        """
        hold(lease=lease, reason=reason, force=force)
        lease = await self._authority.act("end", lease, reason=reason, force=force)
        return await finished(self._book.end(lease, reason=reason, force=force))

    async def clean_up(self, *, everything: bool = True, on_done: OnDone | None = None) -> tuple[Attempted, ...]:
        """Look after dead hosts of this store, and try once to end each sandbox that waits for it.

        The host does so by itself, at its start and whenever something is due.

        Args:
            everything: Also what is due later only.
            on_done: Told of each attempt, how many are done, and of how many.

        Returns:
            What came of each; empty where nothing waits.

        Repeat: tries what is left again.
        Cancel: what is under way goes on, bounded; the rest is left to the next look.
        """
        return await self._book.sweep(ahead_s=math.inf if everything else 0.0, on_done=on_done)

    async def find_unknown(self) -> Found:
        """Ask the vendors for sandboxes of this store of which no row knows; nothing is ended.

        Repeat: asks again.
        Cancel: nothing has happened.
        """
        accounts = [Account(name, None, b"{}") for name in self._providers.names()]
        accounts += [
            Account(stored.provider, None, codec.encode(stored.config))
            for stored in self.configuration.environments.values()
        ]
        return await find_unknown(
            self._book.store, self._supervisor, accounts, limits=self._book.limits, timing=self._timing
        )

    async def end_unknown(self, unknown: Unknown) -> Attempted:
        """End a sandbox that `find_unknown` found. A copy of this store may be using it: ask first.

        Raises:
            NotAuthorised: A plugin refuses; nothing was asked of the provider.

        Repeat: confirms again.
        """
        await self._authority.end_unknown(unknown)
        limits = self._book.limits
        return await end_unknown(unknown, self._supervisor, limits=limits, timing=self._timing, log=self._log)

    async def forget(self, sandbox_id: str, *, reason: str) -> None:
        """Take a sandbox for gone although nobody confirmed it; the reason is kept.

        Raises:
            Stale: There is no such sandbox, or it is gone.
            NotAuthorised: A plugin refuses; nothing was changed.
        """
        hold(sandbox_id=sandbox_id, reason=reason)
        await self._authority.forget(sandbox_id, reason=reason)
        await self._book.forget(sandbox_id, reason=reason)

    @property
    def store(self) -> Store:
        """The journal, for reading."""
        return self._book.store

    @property
    def instance(self) -> str:
        """This host's id among those that have the journal open."""
        return self._instance.id

    def _late(self, method: str, params: Struct, result: Raw | None) -> None:
        """A create that succeeded after its caller was told otherwise: undo it."""
        if isinstance(params, AcquireLeaseParams) and result is not None and not self._closing:
            self._book.late(params.sandbox_id)

    # -------------------------------------------------------------- leaving at once

    def abandon(self) -> None:
        """Leave without waiting: every worker is told to destroy what it holds, and then that nobody listens any more.

        The workers finish that by themselves; the process may exit right after this. The next host of this home finds
        in the journal what they did not.
        """
        self._closing = True
        for sandbox in self._sandboxes.values():
            if not sandbox.kept:
                sandbox.request_destroy()
        for supervisor in self._supervisors.values():
            worker = supervisor.current
            if worker is not None:
                worker.let_go()
