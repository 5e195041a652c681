"""The ledger's jobs of one process and database."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final

from gateway.ledger.jobs import Adding, Delivery, Reconciliation, again_and_again
from gateway.ledger.log_audit import LogAudit
from gateway.ledger.sinks import TIMEOUT_S, CloudEventsSink
from gateway.replication.retention import BATCH_ROWS_MAX, INTERVAL_S
from gateway.store.ledger.retention import remove_expired
from gateway.store.ledger.rollup import RollupTerms

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine
    from typing import Any

    from gateway.wiring.foundation import Foundation

LEASE_TIMEOUTS: Final = 4
"""How many times as long as one answer may take others wait for whoever exports."""


def ledger_jobs(base: Foundation) -> list[Callable[[], Coroutine[Any, Any, None]]]:
    """Return the jobs that run as long as the process; none of them raises."""
    database, metrics, ledger = base.database, base.metrics, base.settings.ledger
    removing = partial(remove_expired, database, ledger, rows_max=BATCH_ROWS_MAX)
    deliveries = (
        Delivery(
            database,
            CloudEventsSink(sink, source=ledger.source),
            holder=base.owner,
            lease_s=LEASE_TIMEOUTS * TIMEOUT_S,
            metrics=metrics,
        )
        for sink in ledger.sinks
    )
    return [
        adding(base).run,
        reconciliation(base).run,
        partial(again_and_again, removing, INTERVAL_S, "removing usage"),
        *(delivery.run for delivery in deliveries),
    ]


def adding(base: Foundation) -> Adding:
    """Return the job that adds up usage lines to sums."""
    terms = RollupTerms(minutes_s=base.settings.ledger.minutes_s)
    return Adding(base.database, terms, metrics=base.metrics)


def reconciliation(base: Foundation) -> Reconciliation:
    logs = LogAudit(base.database, base.new_fold_for)
    return Reconciliation(base.database, metrics=base.metrics, logs=logs)
