"""Reports of replicas about backends: where they sent prompts, and which backends are drained.

Rows belong to the nil tenant and hold no content of requests.
"""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING, Final, NamedTuple

from gateway.audit import COMMAND_LINE
from gateway.store import audit_log
from gateway.store.postgres.statements import Statement
from gateway.store.schema import EVERYONE

if TYPE_CHECKING:
    from collections.abc import Mapping
    from datetime import datetime

    from gateway.audit import Author
    from gateway.store.postgres.database import Database, Row

PLACEMENTS_FRESH_S: Final = 10.0
PLACEMENTS_KEPT_S: Final = 30.0
MESSAGES_MAX: Final = 256
CLEANED_EVERY: Final = 16
"""Exchanges of which one, on average, removes old placements."""

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
    replica: str
    number: int
    age_s: float
    load: bytes
    entries: bytes


async def exchange_placements(
    database: Database,
    replica: str,
    number: int,
    load: bytes,
    entries: bytes,
    seen: Mapping[str, int],
) -> list[PostedPlacements]:
    """Leave a message, and read recent ones of other replicas, newer than those `seen`."""
    parameters = {
        "nobody": EVERYONE,
        "replica": replica,
        "number": number,
        "load": load,
        "entries": entries,
        "replicas": list(seen),
        "numbers": list(seen.values()),
        "fresh": PLACEMENTS_FRESH_S,
        "messages_max": MESSAGES_MAX,
    }
    async with database.runs_transaction(durable=False) as connection:
        if _random.randrange(CLEANED_EVERY) == 0:
            await connection.execute(_CLEAN, {"nobody": EVERYONE, "kept": PLACEMENTS_KEPT_S})
        rows = await connection.execute(_EXCHANGE, parameters)
        return [PostedPlacements(*row) for row in rows]


DRAINED_FRESH_S: Final = 30.0
"""Age from which a report is of a replica that is gone."""

_DRAIN: Final = Statement("""
INSERT INTO backend_drains (tenant_id, name, drained_at, drained_by)
VALUES (:nobody, CAST(:name AS text), clock_timestamp(), CAST(:drained_by AS text))
ON CONFLICT (tenant_id, name) DO NOTHING
""")
_UNDRAIN: Final = Statement("""
DELETE FROM backend_drains WHERE tenant_id = :nobody AND name = CAST(:name AS text)
""")
_FORGET: Final = Statement("""
DELETE FROM drain_reports WHERE tenant_id = :nobody AND name = CAST(:name AS text)
""")
_DRAINS: Final = Statement("""
SELECT name, drained_at, drained_by FROM backend_drains WHERE tenant_id = :nobody ORDER BY name
""")
_REPORT_DRAINED: Final = Statement("""
INSERT INTO drain_reports (tenant_id, name, replica, at, in_flight)
SELECT CAST(:nobody AS uuid), told.name, CAST(:replica AS text), clock_timestamp(), told.in_flight
FROM unnest(CAST(:names AS text[]), CAST(:counts AS integer[])) AS told (name, in_flight)
ON CONFLICT (tenant_id, name, replica)
DO UPDATE SET at = excluded.at, in_flight = excluded.in_flight
""")
_DRAIN_REPORTS: Final = Statement("""
SELECT name, replica, in_flight FROM drain_reports
WHERE tenant_id = :nobody
  AND at > clock_timestamp() - CAST(:fresh AS double precision) * interval '1 second'
""")
_LOADS: Final = Statement("""
SELECT DISTINCT ON (replica) replica, load FROM placements
WHERE tenant_id = :nobody
  AND at > clock_timestamp() - CAST(:fresh AS double precision) * interval '1 second'
ORDER BY replica, number DESC
""")


class Drain(NamedTuple):
    name: str
    drained_at: datetime
    drained_by: str


async def drain(database: Database, name: str, *, by: str, author: Author = COMMAND_LINE) -> bool:
    parameters = {"nobody": EVERYONE, "name": name, "drained_by": by}
    async with database.owner_transaction() as connection:
        is_new = bool(await connection.count(_DRAIN, parameters))
        if is_new:
            # Remove the reports of an earlier drain.
            await connection.execute(_FORGET, {"nobody": EVERYONE, "name": name})
            event = author.event("harmony.backend.drained", name, data={"by": by})
            await audit_log.record(connection, None, event)
        return is_new


async def undrain(database: Database, name: str, author: Author = COMMAND_LINE) -> bool:
    async with database.owner_transaction() as connection:
        was_drained = await connection.count(_UNDRAIN, {"nobody": EVERYONE, "name": name})
        await connection.execute(_FORGET, {"nobody": EVERYONE, "name": name})
        if was_drained:
            await audit_log.record(
                connection, None, author.event("harmony.backend.undrained", name)
            )
        return bool(was_drained)


async def drains(database: Database) -> list[Drain]:
    async with database.runs_transaction() as connection:
        return [Drain(*row) for row in await connection.execute(_DRAINS, {"nobody": EVERYONE})]


async def drained(database: Database) -> list[str]:
    return [one.name for one in await drains(database)]


async def report_drained(database: Database, replica: str, in_flight: Mapping[str, int]) -> None:
    parameters = {
        "nobody": EVERYONE,
        "replica": replica,
        "names": list(in_flight),
        "counts": list(in_flight.values()),
    }
    async with database.runs_transaction(durable=False) as connection:
        await connection.execute(_REPORT_DRAINED, parameters)


async def drain_reports(database: Database) -> list[Row]:
    parameters = {"nobody": EVERYONE, "fresh": DRAINED_FRESH_S}
    async with database.runs_transaction() as connection:
        return await connection.execute(_DRAIN_REPORTS, parameters)


async def loads(database: Database, *, fresh_s: float) -> dict[str, bytes]:
    parameters = {"nobody": EVERYONE, "fresh": fresh_s}
    async with database.runs_transaction() as connection:
        rows = await connection.execute(_LOADS, parameters)
        return {row.replica: row.load for row in rows}
