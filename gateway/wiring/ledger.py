"""The ledger's jobs of one process and database."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from gateway.ledger.jobs import Adding, Reconciliation, again_and_again
from gateway.ledger.sinks import CloudEventsSink, Delivery
from gateway.retention.sweep import BATCH_ROWS_MAX, INTERVAL_S, remove_expired

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine
    from typing import Any

    from gateway.settings import Settings
    from gateway.store.postgres.database import Database
    from gateway.telemetry.metrics import Metrics
    from gateway.wiring.foundation import Foundation


def ledger_jobs(base: Foundation) -> list[Callable[[], Coroutine[Any, Any, None]]]:
    """Return the jobs that run as long as the process; none of them raises."""
    settings, database, metrics = base.settings, base.database, base.metrics
    removing = partial(remove_expired, database, settings.ledger, rows_max=BATCH_ROWS_MAX)
    sinks = [CloudEventsSink(sink, source=settings.ledger.source) for sink in settings.ledger.sinks]
    return [
        adding(settings, database, metrics).run,
        Reconciliation(database, metrics=metrics).run,
        partial(again_and_again, removing, INTERVAL_S, "removing usage"),
        *(Delivery(database, sink, holder=base.owner, metrics=metrics).run for sink in sinks),
    ]


def adding(settings: Settings, database: Database, metrics: Metrics) -> Adding:
    # The job that adds up usage lines to sums.
    return Adding(database, minutes_s=settings.ledger.minutes_s, metrics=metrics)
