"""Exchange where replicas sent prompts, through a table that no crash has to survive.

Rows are of all tenants (their tenant is the nil one), and hold keyed digests and counts only. They
are read within seconds, and soon removed by a later exchange of any replica.
"""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING, Final, NamedTuple

from gateway.store.postgres.statements import Statement
from gateway.store.schema import EVERYONE

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gateway.store.postgres.database import Database

FRESH_S: Final = 10.0
"""Older ones are not read: what they tell is over."""
KEPT_S: Final = 30.0
MESSAGES_MAX: Final = 256
"""Read at once."""
CLEANED_EVERY: Final = 16
"""Number of exchanges of which one, on average, removes old placements."""

_EXCHANGE: Final = Statement("""
WITH told AS (
    INSERT INTO placements (tenant_id, replica, number, at, load, entries)
    VALUES (CAST(:nobody AS uuid), CAST(:replica AS text), CAST(:number AS bigint),
            clock_timestamp(), CAST(:load AS bytea), CAST(:entries AS bytea))
)
SELECT one.replica, one.number,
       CAST(extract(epoch FROM clock_timestamp() - one.at) AS double precision) AS age_s,
       one.load, one.entries
FROM placements AS one
LEFT JOIN unnest(CAST(:replicas AS text[]), CAST(:numbers AS bigint[])) AS seen (replica, number)
       ON seen.replica = one.replica
WHERE one.tenant_id = :nobody AND one.replica <> CAST(:replica AS text)
  AND one.at > clock_timestamp() - CAST(:fresh AS double precision) * interval '1 second'
  AND one.number > coalesce(seen.number, 0)
ORDER BY one.at DESC
LIMIT :messages_max
""")
_CLEAN: Final = Statement("""
DELETE FROM placements
WHERE tenant_id = :nobody
  AND at < clock_timestamp() - CAST(:kept AS double precision) * interval '1 second'
""")
_random: Final = Random()  # noqa: S311 - spreads load, no secret


class PostedPlacements(NamedTuple):
    """Message of a replica, its `number`th, sent `age_s` ago."""

    replica: str
    number: int
    age_s: float
    load: bytes
    entries: bytes


async def exchange(
    database: Database,
    replica: str,
    number: int,
    load: bytes,
    entries: bytes,
    seen: Mapping[str, int],
) -> list[PostedPlacements]:
    """Leave a message, and read recent ones of other replicas with numbers above those `seen`.

    Raises `StoreError`.
    """
    parameters = {
        "nobody": EVERYONE,
        "replica": replica,
        "number": number,
        "load": load,
        "entries": entries,
        "replicas": list(seen),
        "numbers": list(seen.values()),
        "fresh": FRESH_S,
        "messages_max": MESSAGES_MAX,
    }
    async with database.runs_transaction(durable=False) as connection:
        if _random.randrange(CLEANED_EVERY) == 0:
            await connection.execute(_CLEAN, {"nobody": EVERYONE, "kept": KEPT_S})
        rows = await connection.execute(_EXCHANGE, parameters)
        return [PostedPlacements(*row) for row in rows]
