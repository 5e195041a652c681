"""Snapshots of replicas while somebody looks: counts and ids, nothing of any request."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from gateway.store.postgres.statements import Statement
from gateway.store.schema import EVERYONE

if TYPE_CHECKING:
    from gateway.store.postgres.database import Database

FRESH_S: Final = 5.0
"""Age from which a snapshot is of a replica that is gone, or in trouble."""
KEPT_S: Final = 3600.0
_LOOK: Final = """
SELECT coalesce(bool_or(watched_until > clock_timestamp()), false) FROM replica_snapshots
WHERE tenant_id = :nobody
"""
_IS_WATCHED: Final = Statement(_LOOK)
# The statement that it begins does not see what it writes.
_WRITE: Final = """
WITH own AS (
    INSERT INTO replica_snapshots (tenant_id, replica, at, watched_until, body)
    VALUES (:nobody, CAST(:replica AS text), clock_timestamp(),
            clock_timestamp() + CAST(:watched_s AS double precision) * interval '1 second', :body)
    ON CONFLICT (tenant_id, replica) DO UPDATE SET at = excluded.at, body = excluded.body,
        watched_until = greatest(excluded.watched_until, replica_snapshots.watched_until)
)
"""
_POST: Final = Statement(_WRITE + _LOOK)
_EXCHANGE: Final = Statement(f"""{_WRITE}
SELECT replica, CAST(extract(epoch FROM clock_timestamp() - at) AS double precision) AS age_s, body
FROM replica_snapshots
WHERE tenant_id = :nobody AND replica <> CAST(:replica AS text)
  AND at > clock_timestamp() - CAST(:fresh_s AS double precision) * interval '1 second'
ORDER BY replica
""")  # noqa: S608 - constants only
_CLEAN: Final = Statement("""
DELETE FROM replica_snapshots
WHERE tenant_id = :nobody
  AND at < clock_timestamp() - CAST(:kept_s AS double precision) * interval '1 second'
""")


class PostedSnapshot(NamedTuple):
    replica: str
    age_s: float
    body: bytes


async def is_watched(database: Database) -> bool:
    async with database.runs_transaction(durable=False, in_bulk=True) as connection:
        watched: bool = await connection.scalar(_IS_WATCHED, {"nobody": EVERYONE})
    return watched


async def post(database: Database, replica: str, body: bytes) -> bool:
    own = {"nobody": EVERYONE, "replica": replica, "body": body, "watched_s": None}
    async with database.runs_transaction(durable=False, in_bulk=True) as connection:
        watched: bool = await connection.scalar(_POST, own)
    return watched


async def exchange(
    database: Database, replica: str, body: bytes, *, watched_s: float
) -> list[PostedSnapshot]:
    """Write a replica's snapshot and return the others'. They write theirs for `watched_s` from
    now.
    """
    own = {"nobody": EVERYONE, "replica": replica, "body": body, "watched_s": watched_s}
    async with database.runs_transaction(durable=False, in_bulk=True) as connection:
        rows = await connection.execute(_EXCHANGE, {**own, "fresh_s": FRESH_S})
    return [PostedSnapshot(*row) for row in rows]


async def clean(database: Database) -> None:
    # What replicas left that are long gone.
    async with database.runs_transaction(durable=False) as connection:
        await connection.execute(_CLEAN, {"nobody": EVERYONE, "kept_s": KEPT_S})
