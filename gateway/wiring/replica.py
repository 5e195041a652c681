"""Replica without its HTTP: it generates, records, takes over and follows responses."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from gateway.engine.archive import Archive, Ownership
from gateway.engine.engine import Engine, RunningCalls
from gateway.engine.failover import HopPolicy
from gateway.engine.observer import Observer
from gateway.engine.output_guard import GuardLimits
from gateway.engine.supervisor import Supervisor
from gateway.entries import FOLD_VERSION, TOOLS_FOLD_VERSION
from gateway.eventlog.feed import Feed, FeedLimits
from gateway.eventlog.live_log import LiveLogRegistry
from gateway.eventlog.log_batches import Flusher
from gateway.eventlog.log_watcher import LogWatcher
from gateway.eventlog.log_writer import FLUSH_INTERVAL_S, LogWriter, WriterBounds
from gateway.eventlog.notifications import Notifier
from gateway.ledger.jobs import Adding, Reconciliation
from gateway.ledger.sinks import CloudEventsSink, Delivery
from gateway.replication.alert_delivery import AlertDelivery, Mail, Webhook
from gateway.replication.durable_runs import DurableRuns, RunDependencies
from gateway.replication.lease_keeper import LeaseKeeper, LeaseTiming
from gateway.replication.limiter import Limiter, LimitStore, LimitTiming
from gateway.replication.snapshots import Snapshots
from gateway.replication.storage_meter import StorageMeter
from gateway.replication.takeover_scheduler import ClaimLimits, OrphanReaper, TakeoverScheduler
from gateway.retention.sweep import BATCH_ROWS_MAX, INTERVAL_S, Housekeeping, remove_expired
from gateway.retention.tenant_data import TenantData
from gateway.services.audit_logs import AuditLogs
from gateway.services.tenant_encryption import Resealing
from gateway.store import backend_reports, claims, flushes, notices, remote_logs
from gateway.store.claims import ClaimTerms
from gateway.store.limits import counters, key_terms
from gateway.store.notices import Listener, Notice
from gateway.store.periodic import run_periodically
from gateway.store.postgres.database import CONNECT_TIMEOUT_S
from gateway.store.tenant_keys import TenantKeys
from gateway.telemetry.logs import EventLog
from gateway.tools.egress.network_policy import NetworkPolicy, host_and_port_of
from gateway.tools.egress.transport import EgressLimits, client
from gateway.upstreams.admission.slots import BACKGROUND_PROMOTION_S
from gateway.upstreams.backend_sources import Drains
from gateway.upstreams.routing.exchange import Exchange
from gateway.wiring.tool_rooms import Rooms

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Coroutine, Sequence
    from uuid import UUID

    from gateway.replication.alert_delivery import AlertChannel
    from gateway.settings import Settings
    from gateway.settings.sections import Alerts, Model
    from gateway.telemetry.metrics import Metrics
    from gateway.wiring.foundation import Foundation


ANSWER_BYTES_MAX: Final = 64 * 1024
"""Bytes of a webhook's answer."""
CALLS_WAIT_S: Final = 30.0
"""Seconds that an ending process waits for calls that must not be run twice."""
LISTEN_PAUSE_S: Final = 1.0
CLAIM_INTERVAL_S: Final = 0.5
"""Seconds between two polls for work without a notice."""
QUIET_INTERVALS: Final = 5
"""Multiple of `CLAIM_INTERVAL_S` while there is no work, where replicas announce it."""

_log = EventLog(__name__)


class NotificationRouter:
    """Router of notices between this process and other replicas.

    It never waits. A notice that is lost costs time only: polling finds all that it tells.
    """

    def __init__(
        self,
        watcher: LogWatcher,
        lease_keeper: LeaseKeeper,
        notifier: Notifier | None,
        metrics: Metrics,
    ) -> None:
        # Without a `notifier` other replicas get no notices.
        self._watcher = watcher
        self._lease_keeper = lease_keeper
        self._notifier = notifier
        self._metrics = metrics
        self.wake: Callable[[], None] | None = None
        """Set later: the scheduler is built from parts that announce."""

    def announce(self, notice: Notice) -> None:
        self._pass_on(notice)
        if self._notifier is not None:
            self._notifier.announce(notice)

    def on_notice(self, notice: Notice) -> None:
        self._metrics.notice_heard(notice.kind)
        if notice.kind != "follow":
            self._pass_on(notice)
        elif self._notifier is not None:
            self._notifier.followed(notice.responses)

    def on_gap(self) -> None:
        """Assume anything may have happened: notices of other replicas may be lost."""
        self._watcher.poll_all()
        if self.wake is not None:
            self.wake()

    def _pass_on(self, notice: Notice) -> None:
        self._watcher.poll_soon(notice.responses)
        if notice.kind == "ended":
            self._lease_keeper.ended(notice.responses)
        if notice.kind == "work" and self.wake is not None:
            self.wake()


@dataclass(frozen=True, slots=True)
class Replica:
    """Parts of one replica. `helpers` never raise; they run as long as the process, but the
    takeover scheduler ends when that drains.
    """

    dependencies: RunDependencies
    runs: DurableRuns
    lease_keeper: LeaseKeeper
    feed: Feed
    scheduler: TakeoverScheduler
    notifier: Notifier
    rooms: Rooms
    drains: Drains
    limiter: Limiter
    snapshots: Snapshots
    helpers: Sequence[Callable[[], Coroutine[Any, Any, None]]]

    @classmethod
    def of(cls, base: Foundation) -> Replica:
        settings, database, metrics = base.settings, base.database, base.metrics
        lease_keeper = LeaseKeeper(
            partial(
                claims.heartbeat, base.lifeline, base.owner, lease_s=settings.background.lease_s
            ),
            partial(claims.heads, base.lifeline),
            LeaseTiming(settings.background.lease_s, settings.background.heartbeat_s),
            metrics,
        )
        notifier = Notifier(partial(notices.notify, base.notices))
        listening_notifier = notifier if settings.database.listen else None
        watcher = _watcher(base, listening_notifier)
        router = NotificationRouter(watcher, lease_keeper, listening_notifier, metrics)
        rooms, drained = Rooms(base), _drains(base)
        limiter = _limiter(base)
        dependencies = _dependencies(base, lease_keeper, router, notifier, rooms, limiter)
        admission = base.pool.admission
        runs = DurableRuns(
            dependencies,
            claimed_max=settings.background.running_max,
            claimable=None if admission is None else lambda: admission.claimable,
        )
        scheduler = TakeoverScheduler(
            database,
            runs,
            lease_keeper,
            claim_limits(settings, has_tools=rooms.executor is not None),
            owner=base.owner,
            metrics=metrics,
        )
        snapshots = _snapshots(base, dependencies)
        router.wake = scheduler.wake
        runs.when_one_ends = scheduler.run_ended
        reaper = OrphanReaper(
            database,
            dependencies.archive,
            lease_keeper,
            attempts_max=settings.background.attempts_max,
        )
        return cls(
            dependencies=dependencies,
            runs=runs,
            lease_keeper=lease_keeper,
            feed=_feed(base, dependencies, watcher),
            scheduler=scheduler,
            notifier=notifier,
            rooms=rooms,
            drains=drained,
            limiter=limiter,
            snapshots=snapshots,
            helpers=(
                dependencies.writer.run,
                dependencies.archive.run,
                lease_keeper.run,
                watcher.run,
                scheduler.run,
                reaper.run,
                limiter.run,
                partial(runs.charges.run, partial(claims.heads, database)),
                *_listening(settings, notifier, router),
                *_exchanging(base),
                drained.run,
                *([] if settings.admin.port is None else [snapshots.run]),
                *([rooms.run] if rooms.executor is not None else []),
                *_accounting(base),
            ),
        )


def _snapshots(base: Foundation, dependencies: RunDependencies) -> Snapshots:
    return Snapshots(
        base.notices,
        base.owner,
        dependencies.supervisor,
        dependencies.engine.observer,
        base.pool,
        base.metrics,
    )


def _feed(base: Foundation, dependencies: RunDependencies, watcher: LogWatcher) -> Feed:
    return Feed(
        dependencies.live_logs,
        watcher,
        partial(flushes.read, base.database),
        base.new_fold_for,
        limits=FeedLimits(),
        followers=base.metrics.followers,
    )


def _accounting(base: Foundation) -> list[Callable[[], Coroutine[Any, Any, None]]]:
    settings, database, metrics = base.settings, base.database, base.metrics
    tenant_keys = None if base.keys is None else TenantKeys(base.keys)
    return [
        *_alerting(base),
        StorageMeter(database, base.counters, metrics).run,
        Housekeeping(database, settings.retention).run,
        AuditLogs(database).run,
        TenantData(database, tenant_keys).run,
        *_resealing(base, tenant_keys),
        *_ledger_jobs(base),
    ]


def _ledger_jobs(base: Foundation) -> list[Callable[[], Coroutine[Any, Any, None]]]:
    ledger, database, metrics = base.settings.ledger, base.database, base.metrics
    removing = partial(remove_expired, database, ledger, rows_max=BATCH_ROWS_MAX)
    failure = "removing usage failed, will be tried again"
    sinks = [CloudEventsSink(sink, source=ledger.source) for sink in ledger.sinks]
    return [
        Adding(database, minutes_s=ledger.minutes_s, metrics=metrics).run,
        Reconciliation(database, metrics=metrics).run,
        partial(run_periodically, removing, INTERVAL_S, _log.warning, failure, at_once=True),
        *(Delivery(database, sink, holder=base.owner, metrics=metrics).run for sink in sinks),
    ]


def _resealing(
    base: Foundation, tenant_keys: TenantKeys | None
) -> list[Callable[[], Coroutine[Any, Any, None]]]:
    return [] if tenant_keys is None else [Resealing(base.database, tenant_keys).run]


def claim_limits(settings: Settings, *, has_tools: bool) -> ClaimLimits:
    # A process without hosted tools leaves responses that may use tools to others for a while.
    background = settings.background
    without: dict[str, Any] = {
        "fold_versions": (FOLD_VERSION,),
        "late_fold_versions": (TOOLS_FOLD_VERSION,),
    }
    quiet_intervals = QUIET_INTERVALS if settings.database.listen else 1
    return ClaimLimits(
        background.fill(
            ClaimTerms, promotion_s=BACKGROUND_PROMOTION_S, **({} if has_tools else without)
        ),
        interval_s=CLAIM_INTERVAL_S,
        quiet_s=quiet_intervals * CLAIM_INTERVAL_S,
    )


def _watcher(base: Foundation, notifier: Notifier | None) -> LogWatcher:
    # With a `notifier`, other replicas learn which logs are followed.
    def follow(responses: Collection[UUID]) -> None:
        if notifier is not None:
            notifier.announce(Notice("follow", tuple(responses)))

    return LogWatcher(partial(remote_logs.poll, base.notices), follow=follow)


def _continues_preambles(
    models: Sequence[Model], parent_of: Callable[[str], str | None]
) -> Callable[[str], bool]:
    configured = {model.id: model.continue_preambles for model in models}

    def continues(model: str) -> bool:
        return configured.get(model, configured.get(parent_of(model) or "", True))

    return continues


def _dependencies(
    base: Foundation,
    lease_keeper: LeaseKeeper,
    router: NotificationRouter,
    notifier: Notifier,
    rooms: Rooms,
    limiter: Limiter,
) -> RunDependencies:
    settings, database = base.settings, base.database
    calls = RunningCalls()
    flusher = Flusher(base.journal, base.owner)
    archive = Archive(
        database,
        base.new_fold_for,
        Ownership(
            owner=base.owner,
            lease_s=settings.background.lease_s,
            commit_wait_s=settings.database.commit_wait_s,
            claim_wait_s=settings.limits.request_timeout_s,
        ),
        announce=router.announce,
        metrics=base.metrics,
        sealer=base.sealer,
        approval_key=settings.mcp_identity_key,
        adopt_charge=limiter.gates.adopt,
    )
    return RunDependencies(
        adopt_charge=limiter.gates.adopt,
        engine=Engine(
            tokens=base.pool,
            archive=archive,
            lease_keeper=lease_keeper,
            observer=Observer(base.metrics, base.tracing),
            format_of=base.formats.for_model,
            threads=base.executor,
            alive_interval_s=settings.stream.keepalive_event_s,
            run_time_max_s=settings.limits.request_timeout_s,
            tools=None if rooms.executor is None else rooms.executor.session,
            ask_approval=rooms.ask_approval,
            replica=archive.ownership.owner,
            calls=calls,
            hops=settings.upstream.fill(HopPolicy),
            guard_limits=settings.generation.fill(GuardLimits),
            continues_preambles=_continues_preambles(settings.models, base.pool.parent_of),
        ),
        archive=archive,
        supervisor=Supervisor(
            in_flight_max=settings.limits.responses_in_flight_max,
            release=partial(claims.release, database),
            announce=router.announce,
            calls=calls,
            calls_wait_s=CALLS_WAIT_S,
        ),
        writer=LogWriter(
            flusher,
            WriterBounds(flush_interval_s=FLUSH_INTERVAL_S),
            metrics=base.metrics,
            # Without listeners no follower of a log is known, and no notice is sent.
            committed=notifier.committed,
        ),
        live_logs=LiveLogRegistry(),
        new_fold_for=base.new_fold_for,
    )


def _limiter(base: Foundation) -> Limiter:
    database = base.counters
    return Limiter(
        LimitStore(
            partial(counters.exchange, database, base.owner),
            partial(key_terms.valid_prices, database),
            partial(counters.forget, database),
            partial(counters.read, database, base.owner),
        ),
        base.metrics,
        base.settings.rate_limits.fill(LimitTiming),
    )


def _alerting(base: Foundation) -> list[Callable[[], Coroutine[Any, Any, None]]]:
    channels = alert_channels(base.settings.alerts)
    return [AlertDelivery(base.counters, channels).run] if channels else []


def alert_channels(settings: Alerts) -> list[AlertChannel]:
    """Return the configured channels. The operator's URL may lead anywhere."""
    channels: list[AlertChannel] = []
    if settings.webhook_url:
        policy = NetworkPolicy(hosts=frozenset({host_and_port_of(settings.webhook_url)}))
        limits = EgressLimits(body_bytes_max=ANSWER_BYTES_MAX, connections_max=4)
        http = client(policy, limits)
        channels.append(Webhook(settings.webhook_url, settings.signing_key, http))
    if settings.smtp.host:
        channels.append(Mail(settings.smtp))
    return channels


def _exchanging(base: Foundation) -> list[Callable[[], Coroutine[Any, Any, None]]]:
    # With a single backend there are no placements to exchange; a reload may bring more.
    if base.pool.router is None:
        return []
    is_discovering = bool(base.settings.discovery)
    board = partial(backend_reports.exchange_placements, base.notices, base.owner)
    exchange = Exchange(
        base.pool.router, board, is_needed=lambda: is_discovering or len(base.pool.in_flight()) > 1
    )
    return [exchange.run]


def _drains(base: Foundation) -> Drains:
    return Drains(
        base.pool,
        partial(backend_reports.drained, base.notices),
        partial(backend_reports.report_drained, base.notices, base.owner),
        metrics=base.metrics,
    )


def _listening(
    settings: Settings, notifier: Notifier, router: NotificationRouter
) -> list[Callable[[], Coroutine[Any, Any, None]]]:
    # Replicas are configured alike: one that does not listen does not notify either.
    if not settings.database.listen:
        return []
    url = settings.database.listen_url
    listener = Listener(
        url.get_secret_value() if url is not None else settings.database_url,
        connect_timeout_s=CONNECT_TIMEOUT_S,
        retry_pause_s=LISTEN_PAUSE_S,
    )
    return [notifier.run, partial(listener.run, router.on_notice, router.on_gap)]
