"""Progress of resealing tenants' content under their newest keys, and who continues it.

Each tenant has a row: the process that reseals holds it for a while, and moves its place with each
page. So any replica continues where another stopped, and no two do the same work.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date
from typing import TYPE_CHECKING, Any, Final
from uuid import UUID

import orjson

from gateway.store.governance import audit_log
from gateway.store.governance.resealing import KEYS
from gateway.store.postgres.statements import Statement
from gateway.tenancy import TenantId

if TYPE_CHECKING:
    from gateway.governance.audit import AuditEvent
    from gateway.store.governance.resealing import Place
    from gateway.store.postgres.database import Database

# A key that was made since begins anew.
_TAKE: Final = Statement("""
INSERT INTO reseals AS kept
    (tenant_id, number, written, total, begun_at, held_until)
VALUES (:tenant, :number, 0, 0, now(), now() + make_interval(secs => :hold_s))
ON CONFLICT (tenant_id) DO UPDATE SET
    number = excluded.number,
    held_until = excluded.held_until,
    of_table = CASE WHEN kept.number = excluded.number THEN kept.of_table END,
    place = CASE WHEN kept.number = excluded.number THEN kept.place END,
    written = CASE WHEN kept.number = excluded.number THEN kept.written ELSE 0 END,
    total = CASE WHEN kept.number = excluded.number THEN kept.total ELSE 0 END,
    begun_at = CASE WHEN kept.number = excluded.number THEN kept.begun_at ELSE now() END,
    finished_at = NULL
WHERE kept.held_until < now()
  AND (kept.number < excluded.number OR kept.number = excluded.number AND kept.finished_at IS NULL)
RETURNING kept.of_table, kept.place, kept.written, kept.total
""")
_MOVE: Final = Statement("""
UPDATE reseals SET of_table = :of_table, place = :place, written = :written, total = :total,
    held_until = now() + make_interval(secs => :hold_s)
WHERE tenant_id = :tenant AND number = :number
RETURNING true
""")
_FINISH: Final = Statement("""
UPDATE reseals SET finished_at = now(), held_until = now(), of_table = NULL, place = NULL
WHERE tenant_id = :tenant AND number = :number
RETURNING true
""")
_FINISHED: Final = Statement("""
SELECT tenant_id, number FROM reseals WHERE finished_at IS NOT NULL
""")
_STATE: Final = Statement("""
SELECT number, of_table, total, finished_at FROM reseals WHERE tenant_id = :tenant
""")


@dataclass(frozen=True, slots=True)
class ResealPlace:
    """Place of a pass: behind the row of `table` with the key `after`; without a table: at the
    start. `written` rows in this pass, and `total` in all.
    """

    table: str | None = None
    after: Place | None = None
    written: int = 0
    total: int = 0


def packed_place(place: Place | None) -> bytes | None:
    """Encode the key of a row as JSON, with bytes as hex."""
    if place is None:
        return None
    return orjson.dumps([_spelled(one) for one in place])


def _spelled(one: Any) -> int | str:
    if isinstance(one, int):
        return one
    return one.hex() if isinstance(one, bytes) else str(one)


def place_of(table: str, packed: bytes | None) -> Place | None:
    """Decode what `packed_place` made for a row of this table."""
    if packed is None:
        return None
    kinds = KEYS[table].values()
    return tuple(_value(kind, one) for kind, one in zip(kinds, orjson.loads(packed), strict=True))


def _value(kind: str, one: Any) -> Any:
    match kind:
        case "uuid":
            return UUID(one)
        case "bytea":
            return bytes.fromhex(one)
        case "date":
            return date.fromisoformat(one)
        case _:
            return one


async def take(
    database: Database, tenant_id: TenantId, number: int, *, hold_s: float
) -> ResealPlace | None:
    """Reserve a tenant's resealing towards the key `number` for `hold_s` seconds.

    Return None if it is done, or another process does it.
    """
    wanted = {"tenant": tenant_id, "number": number, "hold_s": hold_s}
    async with database.owner_transaction() as connection:
        row = (await connection.execute(_TAKE, wanted)).one_or_none()
    if row is None:
        return None
    after = None if row.of_table is None else place_of(row.of_table, row.place)
    return ResealPlace(row.of_table, after, row.written, row.total)


async def move(
    database: Database, tenant_id: TenantId, number: int, place: ResealPlace, *, hold_s: float
) -> bool:
    """Record the progress. Return False if a newer key has become the target."""
    wanted = {
        "tenant": tenant_id,
        "number": number,
        "of_table": place.table,
        "place": packed_place(place.after),
        "written": place.written,
        "total": place.total,
        "hold_s": hold_s,
    }
    async with database.owner_transaction() as connection:
        return bool(await connection.scalar(_MOVE, wanted))


async def finish(database: Database, tenant_id: TenantId, number: int, event: AuditEvent) -> None:
    """Record, also in the audit log, that everything is sealed under this key."""
    async with database.owner_transaction() as connection:
        if await connection.scalar(_FINISH, {"tenant": tenant_id, "number": number}):
            await audit_log.record(connection, tenant_id, event)


async def finished(database: Database) -> dict[TenantId, int]:
    """Return, by tenant, the number of the key that everything was last resealed under."""
    async with database.owner_transaction() as connection:
        rows = await connection.execute(_FINISHED)
    return {TenantId(row.tenant_id): row.number for row in rows}


async def state(database: Database, tenant_id: TenantId) -> str:
    """Describe the state for operators; empty before it has begun."""
    async with database.owner_transaction() as connection:
        row = (await connection.execute(_STATE, {"tenant": tenant_id})).one_or_none()
    if row is None:
        return ""
    if row.finished_at is not None:
        when = row.finished_at.isoformat(timespec="seconds")
        return f"all content is under key {row.number} since {when}"
    place = row.of_table or "the beginning"
    return f"content is being brought under key {row.number}: at {place}, {row.total} rows written"
