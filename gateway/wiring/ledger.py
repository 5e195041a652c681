"""The ledger's jobs of one process and database."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from gateway.ledger.jobs import Adding, Delivery, Reconciliation, again_and_again
from gateway.ledger.log_audit import LogAudit
from gateway.ledger.sinks import CloudEventsSink, SinkTarget
from gateway.store.ledger.retention import LedgerRetention, remove_expired
from gateway.store.ledger.rollup import RollupTerms

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine
    from typing import Any

    from gateway.engine.row_mapping import NewFoldFor
    from gateway.settings import Settings
    from gateway.settings.ledger import Sink as SinkSettings
    from gateway.store.postgres.database import Database
    from gateway.telemetry.metrics import Metrics

LEASE_TIMEOUTS = 4
"""How many times as long as one answer may take others wait for whoever exports."""


def ledger_jobs(
    settings: Settings,
    database: Database,
    metrics: Metrics,
    *,
    owner: str,
    new_fold_for: NewFoldFor,
) -> list[Callable[[], Coroutine[Any, Any, None]]]:
    """What runs as long as the process; none of it raises."""
    ledger = settings.ledger
    keep = ledger.fill(LedgerRetention)
    removing = partial(remove_expired, database, keep, rows_max=settings.retention.batch_rows_max)
    jobs: list[Callable[[], Coroutine[Any, Any, None]]] = [
        adding(settings, database, metrics).run,
        reconciliation(settings, database, metrics, new_fold_for).run,
        partial(again_and_again, removing, settings.retention.interval_s, "removing usage"),
    ]
    jobs += [
        Delivery(
            database,
            sink_of(settings, sink),
            holder=owner,
            lines_max=sink.lines_max,
            interval_s=sink.interval_s,
            lease_s=LEASE_TIMEOUTS * sink.timeout_s,
            metrics=metrics,
        ).run
        for sink in ledger.sinks
    ]
    return jobs


def adding(settings: Settings, database: Database, metrics: Metrics) -> Adding:
    """The job that adds usage lines up to sums."""
    ledger = settings.ledger
    terms = RollupTerms(lines_max=ledger.rollup_lines_max, minutes_s=ledger.minutes_s)
    return Adding(database, terms, interval_s=ledger.rollup_interval_s, metrics=metrics)


def reconciliation(
    settings: Settings, database: Database, metrics: Metrics, new_fold_for: NewFoldFor
) -> Reconciliation:
    """What holds lines against responses, logs and sums."""
    ledger = settings.ledger
    return Reconciliation(
        database,
        interval_s=ledger.reconcile_interval_s,
        back_s=ledger.reconcile_back_s,
        metrics=metrics,
        logs=LogAudit(database, new_fold_for, responses_max=ledger.reconcile_logs_max),
    )


def sink_of(settings: Settings, sink: SinkSettings) -> CloudEventsSink:
    """The sink that these settings describe."""
    target = SinkTarget(
        name=sink.name,
        url=sink.url,
        secret=sink.secret.get_secret_value() if sink.secret else None,
        timeout_s=sink.timeout_s,
        customers=sink.customers,
    )
    return CloudEventsSink(target, source=settings.ledger.source)
