"""The gateway with the fence torn out: a test build that shows what the fence is for.

The statements that append to the log take whatever comes, wherever the log ends, whoever it is
from; and nobody looks whether a claim is still held, which would often keep an owner that wakes up
from writing, by luck. All else is the product: `python -m tests.chaos.unfenced` is
`python -m gateway`.
"""

from __future__ import annotations

from typing import Any, Final

from gateway.__main__ import main
from gateway.replication.lease_keeper import LeaseKeeper
from gateway.store import events, flushes
from gateway.store.postgres.statements import Statement

UNFENCED: Final = """
WITH held AS (
    SELECT sent.tenant_id, sent.response_id, sent.epoch, sent.day, head.next_entry AS first_entry,
           sent.entry_count, substring(CAST(:entries AS bytea) FROM place + 1 FOR size) AS entries
    FROM unnest(
        CAST(CAST(:tenants AS text) AS uuid[]), CAST(CAST(:responses AS text) AS uuid[]),
        CAST(CAST(:epochs AS text) AS integer[]), CAST(CAST(:days AS text) AS date[]),
        CAST(CAST(:firsts AS text) AS integer[]), CAST(CAST(:counts AS text) AS integer[]),
        CAST(CAST(:places AS text) AS integer[]), CAST(CAST(:sizes AS text) AS integer[])
    ) AS sent (tenant_id, response_id, epoch, day, first_entry, entry_count, place, size)
    JOIN responses AS head ON head.tenant_id = sent.tenant_id AND head.id = sent.response_id
    ORDER BY head.tenant_id, head.id
    FOR NO KEY UPDATE OF head
), moved AS (
    UPDATE responses AS head SET next_entry = held.first_entry + held.entry_count
    FROM held
    WHERE head.tenant_id = held.tenant_id AND head.id = held.response_id
    RETURNING held.*
), added AS (
    INSERT INTO events (tenant_id, response_id, epoch, day, first_entry, entry_count, entries)
    SELECT tenant_id, response_id, epoch, day, first_entry, entry_count, entries FROM moved
)
SELECT unknown.id
FROM unnest(CAST(CAST(:responses AS text) AS uuid[])) AS unknown (id)
WHERE unknown.id NOT IN (SELECT response_id FROM moved)
"""


UNFENCED_FLUSH: Final = flushes._ADD.text.replace(
    "AND fence = CAST(:fence AS bigint)", "AND CAST(:fence AS bigint) IS NOT NULL"
)


async def _look_away(_keeper: LeaseKeeper, _suspects: object) -> None:
    """In place of abandoning the runs whose claim is lost."""


TORN_OUT: Final[tuple[tuple[Any, str, Any], ...]] = (
    (events, "_APPEND", Statement(UNFENCED)),
    (flushes, "_ADD", Statement(UNFENCED_FLUSH)),
    (LeaseKeeper, "_check", _look_away),
)
"""What is replaced, by its place and name, and by what."""


def tear_out() -> None:
    """Replace the product's own. Raises `AttributeError` when something has another name now."""
    for owner, name, other in TORN_OUT:
        getattr(owner, name)
        setattr(owner, name, other)


if __name__ == "__main__":
    tear_out()
    main()
