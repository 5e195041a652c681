"""The ledger's jobs of one process and database."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final

from gateway.ledger.jobs import Adding, Delivery, Reconciliation, again_and_again
from gateway.ledger.log_audit import LogAudit
from gateway.ledger.sinks import CloudEventsSink, SinkTarget
from gateway.retention.sweep import BATCH_ROWS_MAX, INTERVAL_S, remove_expired
from gateway.store.ledger.rollup import RollupTerms

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine
    from typing import Any

    from gateway.engine.row_mapping import NewFoldFor
    from gateway.settings import Settings
    from gateway.settings.ledger import Sink as SinkSettings
    from gateway.store.postgres.database import Database
    from gateway.telemetry.metrics import Metrics

SINK_TIMEOUT_S: Final = 30.0
"""That one answer of a sink may take."""
LEASE_TIMEOUTS: Final = 4
"""How many times as long as one answer may take others wait for whoever exports."""


def ledger_jobs(
    settings: Settings,
    database: Database,
    metrics: Metrics,
    *,
    owner: str,
    new_fold_for: NewFoldFor,
) -> list[Callable[[], Coroutine[Any, Any, None]]]:
    """Return the jobs that run as long as the process; none of them raises."""
    ledger = settings.ledger
    removing = partial(remove_expired, database, ledger, rows_max=BATCH_ROWS_MAX)
    jobs: list[Callable[[], Coroutine[Any, Any, None]]] = [
        adding(settings, database, metrics).run,
        reconciliation(database, metrics, new_fold_for).run,
        partial(again_and_again, removing, INTERVAL_S, "removing usage"),
    ]
    jobs += [
        Delivery(
            database,
            sink_of(settings, sink),
            holder=owner,
            lease_s=LEASE_TIMEOUTS * SINK_TIMEOUT_S,
            metrics=metrics,
        ).run
        for sink in ledger.sinks
    ]
    return jobs


def adding(settings: Settings, database: Database, metrics: Metrics) -> Adding:
    """Return the job that adds up usage lines to sums."""
    ledger = settings.ledger
    terms = RollupTerms(minutes_s=ledger.minutes_s)
    return Adding(database, terms, metrics=metrics)


def reconciliation(
    database: Database, metrics: Metrics, new_fold_for: NewFoldFor
) -> Reconciliation:
    return Reconciliation(
        database,
        metrics=metrics,
        logs=LogAudit(database, new_fold_for),
    )


def sink_of(settings: Settings, sink: SinkSettings) -> CloudEventsSink:
    target = SinkTarget(
        name=sink.name,
        url=sink.url,
        secret=sink.secret.get_secret_value() if sink.secret else None,
        timeout_s=SINK_TIMEOUT_S,
        customers=sink.customers,
    )
    return CloudEventsSink(target, source=settings.ledger.source)
