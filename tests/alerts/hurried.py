"""The gateway whose jobs come more often: `python -m tests.alerts.hurried` is `python -m gateway`.

What it does by the quarter of a minute or by the hour it does `HURRY` times as often, as alerts on
such figures are shortened, too.
"""

from __future__ import annotations

from typing import Final

from gateway.__main__ import main
from gateway.ledger import sinks
from gateway.ledger.jobs import Adding, Reconciliation
from gateway.replication.storage_meter import StorageMeter

HURRY: Final = 40
JOBS: Final = (Adding, Reconciliation, sinks.Delivery, StorageMeter)


def hurry() -> None:
    """Raise an error if something has another name now."""
    for job in JOBS:
        defaults = job.__init__.__kwdefaults__
        assert defaults is not None
        defaults["interval_s"] /= HURRY
    sinks.PAUSE_MAX_S /= HURRY  # type: ignore[misc]


if __name__ == "__main__":
    hurry()
    main()
