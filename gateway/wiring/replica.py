"""What generates, records, takes over and follows responses: one replica, without its HTTP."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from gateway.engine.archive import Archive, Ownership
from gateway.engine.observer import Observer
from gateway.engine.supervisor import Supervisor
from gateway.engine.turn import Engine
from gateway.eventlog.feed import Feed
from gateway.eventlog.live_log import LiveLogRegistry
from gateway.eventlog.log_batches import Flusher
from gateway.eventlog.log_watcher import LogWatcher
from gateway.eventlog.log_writer import LogWriter
from gateway.eventlog.notifications import Notifier
from gateway.replication.durable_runs import DurableRuns, RunDependencies
from gateway.replication.lease_keeper import LeaseKeeper
from gateway.replication.orphan_reaper import OrphanReaper
from gateway.replication.scheduler import Scheduler
from gateway.store import claims, flushes, notifications, remote_logs
from gateway.store.notifications import Listener, Notice
from gateway.wiring import bounds
from gateway.wiring.foundation import housekeeping
from gateway.wiring.notices import Switchboard

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Coroutine, Sequence
    from typing import Any
    from uuid import UUID

    from gateway.settings import Settings
    from gateway.wiring.foundation import Foundation


@dataclass(frozen=True, slots=True)
class Replica:
    """`helpers` run as long as the process; none of them ends or raises by itself."""

    dependencies: RunDependencies
    runs: DurableRuns
    keeper: LeaseKeeper
    feed: Feed
    scheduler: Scheduler
    notifier: Notifier
    helpers: Sequence[Callable[[], Coroutine[Any, Any, None]]]

    @classmethod
    def of(cls, base: Foundation) -> Replica:
        """Connects to nothing."""
        settings, database, metrics = base.settings, base.database, base.metrics
        keeper = LeaseKeeper(
            partial(
                claims.heartbeat, base.lifeline, base.owner, lease_s=settings.background.lease_s
            ),
            partial(claims.heads, base.lifeline),
            bounds.timing(settings),
            metrics,
        )
        notifier = Notifier(partial(notifications.notify, base.notices))
        told = notifier if settings.database.listen else None
        watcher = _tails(base, told)
        switchboard = Switchboard(watcher, keeper, told, metrics)
        dependencies = _workplace(base, keeper, switchboard, notifier)
        runs = DurableRuns(dependencies, claimed_max=settings.background.running_max)
        scheduler = Scheduler(
            database, runs, keeper, bounds.appetite(settings), owner=base.owner, metrics=metrics
        )
        switchboard.when_there_is_work(scheduler.wake)
        runs.when_one_ends(scheduler.one_ended)
        reaper = OrphanReaper(
            database,
            dependencies.archive,
            keeper,
            attempts_max=settings.background.attempts_max,
        )
        return cls(
            dependencies=dependencies,
            runs=runs,
            keeper=keeper,
            feed=Feed(
                dependencies.live_logs,
                watcher,
                partial(flushes.read, database),
                base.new_fold_for,
                limits=bounds.feed_limits(settings),
                followers=metrics.followers,
            ),
            scheduler=scheduler,
            notifier=notifier,
            helpers=(
                dependencies.writer.run,
                dependencies.archive.run,
                keeper.run,
                watcher.run,
                scheduler.run,
                reaper.run,
                housekeeping(settings, database).run,
                *_telling(settings, notifier, switchboard),
            ),
        )


def _tails(base: Foundation, notifier: Notifier | None) -> LogWatcher:
    """`notifier` None: nobody is told of anything."""

    def follow(responses: Collection[UUID]) -> None:
        if notifier is not None:
            notifier.announce(Notice("follow", tuple(responses)))

    return LogWatcher(
        partial(remote_logs.look, base.notices),
        interval_s=base.settings.journal.tail_poll_s,
        follow=follow,
    )


def _workplace(
    base: Foundation, keeper: LeaseKeeper, switchboard: Switchboard, notifier: Notifier
) -> RunDependencies:
    settings, database = base.settings, base.database
    archive = Archive(
        database,
        base.formats.of,
        base.new_fold_for,
        Ownership(
            owner=base.owner,
            lease_s=settings.background.lease_s,
            commit_wait_s=settings.database.commit_wait_s,
            claim_wait_s=settings.limits.request_timeout_s,
        ),
        announce=switchboard.announce,
        metrics=base.metrics,
    )
    return RunDependencies(
        engine=Engine(
            tokens=base.pool,
            archive=archive,
            lease_keeper=keeper,
            observer=Observer(base.metrics),
            format_of=base.formats.of,
            threads=base.threads,
            alive_interval_s=settings.stream.keepalive_event_s,
            run_time_max_s=settings.limits.request_timeout_s,
            hops=bounds.hop_policy(settings),
            guard_limits=bounds.steering(settings),
        ),
        archive=archive,
        supervisor=Supervisor(
            in_flight_max=settings.limits.responses_in_flight_max,
            release=partial(claims.release, database),
            announce=switchboard.announce,
        ),
        writer=_writer(base, notifier),
        live_logs=LiveLogRegistry(),
        new_fold_for=base.new_fold_for,
        reader_events_max=settings.stream.reader_events_max,
    )


def _writer(base: Foundation, notifier: Notifier) -> LogWriter:
    settings = base.settings

    def committed(responses: Collection[UUID]) -> None:
        if settings.database.listen:
            notifier.committed(responses)

    flusher = Flusher(base.journal, base.owner)
    return LogWriter(
        flusher.append,
        flusher.heads,
        bounds.writer_bounds(settings),
        metrics=base.metrics,
        committed=committed,
        flusher=flusher,
    )


def _telling(
    settings: Settings, notifier: Notifier, switchboard: Switchboard
) -> list[Callable[[], Coroutine[Any, Any, None]]]:
    """Replicas that do not listen do not speak either: they are configured alike."""
    if not settings.database.listen:
        return []
    url = settings.database.listen_url
    listener = Listener(
        url.get_secret_value() if url is not None else settings.database_url,
        connect_timeout_s=settings.database.connect_timeout_s,
        retry_pause_s=bounds.LISTEN_PAUSE_S,
    )
    return [notifier.run, partial(listener.run, switchboard.hear, switchboard.missed)]
