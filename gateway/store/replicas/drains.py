"""Backends that operators have taken out of use, and what replicas tell of them.

Rows are of all tenants (their tenant is the nil one): names and counts, nothing of any request.
"""

from __future__ import annotations

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

FRESH_S: Final = 30.0
"""A report that is older is of a replica that is gone."""

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
_NAMES: Final = Statement("""
SELECT name FROM backend_drains WHERE tenant_id = :nobody
""")
_REPORT: Final = Statement("""
INSERT INTO drain_reports (tenant_id, name, replica, at, in_flight)
SELECT CAST(:nobody AS uuid), told.name, CAST(:replica AS text), clock_timestamp(), told.in_flight
FROM unnest(CAST(:names AS text[]), CAST(:counts AS integer[])) AS told (name, in_flight)
ON CONFLICT (tenant_id, name, replica)
DO UPDATE SET at = excluded.at, in_flight = excluded.in_flight
""")
_REPORTS: Final = Statement("""
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
    """A backend that gets nothing new, since when, and who said so."""

    name: str
    drained_at: datetime
    drained_by: str


async def drain(database: Database, name: str, *, by: str, author: Author = COMMAND_LINE) -> bool:
    """Take a backend out of use, as the owner of the tables. Return False if it was already."""
    parameters = {"nobody": EVERYONE, "name": name, "drained_by": by}
    async with database.owner_transaction() as connection:
        is_new = bool(await connection.count(_DRAIN, parameters))
        if is_new:
            # What replicas told of another time when it was drained says nothing of this one.
            await connection.execute(_FORGET, {"nobody": EVERYONE, "name": name})
            event = author.event("harmony.backend.drained", name, data={"by": by})
            await audit_log.record(connection, None, event)
        return is_new


async def undrain(database: Database, name: str, author: Author = COMMAND_LINE) -> bool:
    """Put a backend to use again, as the owner of the tables.

    Return False if it was not drained.
    """
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
    """Return the names of drained backends. Raises `StoreError`."""
    async with database.runs_transaction(durable=False) as connection:
        return list(await connection.scalars(_NAMES, {"nobody": EVERYONE}))


async def report(database: Database, replica: str, in_flight: Mapping[str, int]) -> None:
    """Record the number of requests under way at these drained backends. Raises `StoreError`."""
    parameters = {
        "nobody": EVERYONE,
        "replica": replica,
        "names": list(in_flight),
        "counts": list(in_flight.values()),
    }
    async with database.runs_transaction(durable=False) as connection:
        await connection.execute(_REPORT, parameters)


async def reports(database: Database) -> list[Row]:
    """Return the recent reports on drained backends: `name`, `replica`, requests `in_flight`."""
    parameters = {"nobody": EVERYONE, "fresh": FRESH_S}
    async with database.runs_transaction() as connection:
        return await connection.execute(_REPORTS, parameters)


async def loads(database: Database, *, fresh_s: float) -> dict[str, bytes]:
    """Return each replica's last report on the load of backends, by replica (see `placements`)."""
    parameters = {"nobody": EVERYONE, "fresh": fresh_s}
    async with database.runs_transaction() as connection:
        rows = await connection.execute(_LOADS, parameters)
        return {row.replica: row.load for row in rows}
