"""What backends say to have generated, by the hour, beside what replicas have received of them.

Rows are under the nil tenant: tokens of a backend are those of all tenants together.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from gateway.metering import CounterReading
from gateway.store.ledger import cursors
from gateway.store.postgres.statements import Statement
from gateway.store.schema import EVERYONE

if TYPE_CHECKING:
    from collections.abc import Collection
    from datetime import datetime

    from gateway.metering import BackendTally
    from gateway.store.postgres.database import Connection, Database

TOLERATED_SHARE: Final = 0.01
TOLERATED_TOKENS: Final = 1_000
"""More than that, of an hour and beside the share, and somebody else has used the backend: what is
broken off is generated for a moment longer, and what a killed replica received nobody knows.
"""
_LOCK: Final = "backends"

_LAST: Final = Statement(f"""
SELECT DISTINCT ON (backend) backend, reading, epoch FROM backend_tokens
WHERE tenant_id = '{EVERYONE}' AND backend = ANY (CAST(:names AS text[])) AND reading IS NOT NULL
ORDER BY backend, at DESC
""")  # noqa: S608 - constants only
_ADD: Final = Statement(f"""
INSERT INTO backend_tokens AS known
    (tenant_id, backend, at, received, generated, reading, epoch)
SELECT '{EVERYONE}', told.backend, date_trunc('hour', now(), 'UTC'), told.received,
       told.generated, told.reading, told.epoch
FROM unnest(
    CAST(:backends AS text[]), CAST(:received AS bigint[]), CAST(:generated AS bigint[]),
    CAST(:readings AS bigint[]), CAST(:epochs AS bigint[])
) AS told (backend, received, generated, reading, epoch)
ON CONFLICT (tenant_id, backend, at) DO UPDATE
SET received = known.received + excluded.received,
    generated = coalesce(known.generated + excluded.generated, known.generated, excluded.generated),
    reading = coalesce(excluded.reading, known.reading),
    epoch = CASE WHEN excluded.reading IS NULL THEN known.epoch ELSE excluded.epoch END
""")  # noqa: S608 - constants only
_HOURS: Final = f"""
FROM backend_tokens
WHERE tenant_id = '{EVERYONE}' AND generated IS NOT NULL
  AND at >= date_trunc('hour', now() - make_interval(secs => :back_s), 'UTC')
  AND at < date_trunc('hour', now(), 'UTC')
"""
_BEYOND: Final = Statement(f"""
SELECT backend, at, generated, received {_HOURS}
  AND generated > received + greatest({TOLERATED_SHARE} * received, {TOLERATED_TOKENS})
ORDER BY at, backend
LIMIT :rows_max
""")
_TOTAL: Final = Statement(f"""
SELECT CAST(coalesce(sum(generated), 0) AS bigint) AS generated,
       CAST(coalesce(sum(received), 0) AS bigint) AS received,
       (SELECT CAST(coalesce(sum(output_tokens + voided_tokens), 0) AS bigint) FROM usage_hours
        WHERE at IN (SELECT at {_HOURS})) AS metered
{_HOURS}
""")  # noqa: S608 - constants only


class BackendHour(NamedTuple):
    """An hour in which a backend has generated more tokens than replicas have received of it."""

    backend: str
    hour: datetime
    generated: int
    received: int


class FleetTokens(NamedTuple):
    """Tokens of the hours that are over, of backends that tell: as these count, as replicas did,
    and as lines of usage have them (output, and what was taken back).
    """

    generated: int = 0
    received: int = 0
    metered: int = 0


NO_TOKENS: Final = FleetTokens()


async def add(database: Database, tallies: Collection[BackendTally]) -> bool:
    """Add what came of backends, each named once, to this hour. False: another process does the
    same just now, and nothing is added. Raises `StoreUnavailable`.
    """
    async with database.runs_transaction() as connection:
        if not await cursors.try_lock(connection, _LOCK):
            return False
        names = [one.backend for one in tallies]
        last = {
            row.backend: CounterReading(row.reading, row.epoch)
            for row in await connection.execute(_LAST, {"names": names})
        }
        followed = [
            (None, None) if one.reading is None else one.reading.follow(last.get(one.backend))
            for one in tallies
        ]
        readings = [reading for _, reading in followed]
        told = {
            "backends": names,
            "received": [one.received for one in tallies],
            "generated": [more for more, _ in followed],
            "readings": [None if one is None else one.tokens for one in readings],
            "epochs": [None if one is None else one.epoch for one in readings],
        }
        await connection.execute(_ADD, told)
        return True


async def compare(
    connection: Connection, *, back_s: float, rows_max: int
) -> tuple[tuple[BackendHour, ...], FleetTokens]:
    """Hours of the last `back_s` seconds of backends whose tokens did not all come here, and the
    sums of all.
    """
    beyond = await connection.execute(_BEYOND, {"back_s": back_s, "rows_max": rows_max})
    total = (await connection.execute(_TOTAL, {"back_s": back_s})).one()
    return tuple(BackendHour(*row) for row in beyond), FleetTokens(*total)
