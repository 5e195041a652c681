"""Stored content under another key: rows are opened, and sealed with the key that seals now, or
made plain where none does.

A row that is written meanwhile is left alone: it is already as it should be. Flushes come first:
statements that cannot open their content move it to logs.

The process that reseals a tenant holds its row of `reseals` for a while, and moves its place with
each page, so any replica continues where another stopped.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date
from functools import partial
from typing import TYPE_CHECKING, Any, Final
from uuid import UUID

import orjson

from gateway.encryption.cipher import keys_of, keys_of_log
from gateway.errors import ContentSealed
from gateway.store import audit_log, flushes
from gateway.store.content import BOUND_BY, CONTENT, pages_by_key, place_of
from gateway.store.postgres.database import turn_to
from gateway.store.postgres.statements import Statement
from gateway.store.tables.columns import Kept, keys_of_table
from gateway.tenancy import TenantId

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gateway.audit import AuditEvent
    from gateway.encryption.cipher import ContentCipher
    from gateway.store.events import LogRow
    from gateway.store.postgres.database import Database, Row

    Place = tuple[Any, ...]
    FlushPlace = tuple[str, int]

_OPENED: Final = {Kept.SEALED, Kept.NAME, Kept.LOG}
SEALED: Final = {
    table: sealed
    for table, columns in CONTENT.items()
    # Flushes are rewritten under the locks of their writers.
    if table != "flushes"
    and (sealed := {column: how for column, how in columns.items() if how in _OPENED})
}
KEYS: Final = {table: keys_of_table(table) for table in SEALED}


@dataclass(frozen=True, slots=True)
class Resealed:
    """Result of a page. `last` is the key of its last row, None at the end; `lost` rows cannot be
    opened.
    """

    seen: int
    written: int
    last: Place | None
    lost: int = 0


def _write(table: str) -> Statement:
    columns = SEALED[table]
    changes = ", ".join(f"{name} = CAST(:new_{name} AS bytea)" for name in columns)
    where = [f"{name} = CAST(:{name} AS {kind})" for name, kind in KEYS[table].items()]
    where += [f"{name} IS NOT DISTINCT FROM CAST(:old_{name} AS bytea)" for name in columns]
    return Statement(
        f"UPDATE {table} SET {changes} WHERE tenant_id = :tenant AND {' AND '.join(where)}"  # noqa: S608
    )


# A process that moves parts of flushes holds these locks until its commit.
_LOCK_WRITERS: Final = Statement("""
SELECT owner FROM writers WHERE tenant_id = :tenant ORDER BY owner FOR NO KEY UPDATE
""")
_FLUSHES: Final = Statement("""
SELECT owner, number, members, entries FROM flushes
WHERE tenant_id = :tenant AND (owner, number) > (CAST(:owner AS text), CAST(:number AS bigint))
ORDER BY owner, number
LIMIT :rows_max
FOR NO KEY UPDATE
""")
_REWRITE: Final = Statement("""
UPDATE flushes SET members = :members, entries = :entries
WHERE tenant_id = :tenant AND owner = :owner AND number = :number
""")
_PAGES: Final = {
    table: pages_by_key(table, [*keys, *SEALED[table], *(["epoch"] if table == "events" else [])])
    for table, keys in KEYS.items()
}
_WRITES: Final = {table: _write(table) for table in KEYS}


async def reseal(
    database: Database, tenant_id: TenantId, table: str, *, after: Place | None, rows_max: int
) -> Resealed:
    """Reseal a page of a table, behind the row with the key `after`. Raises `ContentSealed`."""
    parameters: dict[str, Any] = {"tenant": tenant_id, "rows_max": rows_max}
    if after is not None:
        named = zip(KEYS[table], after, strict=True)
        parameters |= {f"after_{name}": value for name, value in named}
    await database.keyring.ready([tenant_id])
    async with database.owner_transaction() as connection:
        await turn_to(connection, tenant_id)
        statement = _PAGES[table][after is not None]
        rows: Sequence[Row] = await connection.execute(statement, parameters)
        cipher = connection.cipher(tenant_id)
        changes, lost = [], 0
        for row in rows:
            try:
                change = _change(cipher, table, row)
            except (ContentSealed, ValueError):
                lost += 1
                continue
            changes += [change] if change is not None else []
        if changes:
            of_tenant = {"tenant": tenant_id}
            await connection.execute(_WRITES[table], [change | of_tenant for change in changes])
    last = tuple(rows[-1][name] for name in KEYS[table]) if len(rows) == rows_max else None
    return Resealed(len(rows), len(changes), last, lost)


async def reseal_flushes(
    database: Database, tenant_id: TenantId, *, after: FlushPlace, rows_max: int
) -> tuple[int, FlushPlace | None]:
    """Reseal a page of the tenant's flushes, behind this owner and number.

    Return the number of rows written and the last one's place, None at the end. On return,
    processes that moved parts of these flushes have committed, so nothing read from a flush before
    it was resealed can enter a log later.
    """
    await database.keyring.ready([tenant_id])
    async with database.owner_transaction() as connection:
        await turn_to(connection, tenant_id)
        await connection.execute(_LOCK_WRITERS, {"tenant": tenant_id})
        owner, number = after
        place = {"tenant": tenant_id, "owner": owner, "number": number, "rows_max": rows_max}
        rows = await connection.execute(_FLUSHES, place)
        cipher, written = connection.cipher(tenant_id), 0
        for row in rows:
            change = partial(_resealed_part, cipher)
            members, entries = flushes.rewritten(row.members, row.entries, change)
            if entries != row.entries:
                written += 1
                of_row = {"tenant": tenant_id, "owner": row.owner, "number": row.number}
                new = {"members": members, "entries": entries}
                await connection.execute(_REWRITE, of_row | new)
    return written, (rows[-1].owner, rows[-1].number) if len(rows) == rows_max else None


def _resealed_part(cipher: ContentCipher, uuid: bytes, epoch: int, part: LogRow) -> bytes:
    try:
        if keys_of_log(part.entries) == {cipher.sealing}:
            return part.entries
        return _resealed_log(cipher, part.entries, uuid, epoch, part.first_entry)
    except (ContentSealed, ValueError):
        # It counts as lost once it is in the log.
        return part.entries


def _resealed_log(
    cipher: ContentCipher, stored: bytes, response: bytes, epoch: int, first_entry: int
) -> bytes:
    # Seal the whole row as one frame.
    entries = cipher.open_entries(stored, response)
    return cipher.seal_entries(entries, response, epoch, first_entry)


def keys_in(kept: Kept, value: bytes) -> frozenset[int]:
    # Other content than logs may begin with any byte, so only a log is parsed as frames.
    return keys_of_log(value) if kept is Kept.LOG else keys_of(value)


def _change(cipher: ContentCipher, table: str, row: Row) -> dict[str, Any] | None:
    # None: nothing in the row is under another key.
    columns = SEALED[table]
    stored = {name: row[name] for name in columns}
    if all(
        value is None or keys_in(columns[name], value) == {cipher.sealing}
        for name, value in stored.items()
    ):
        return None
    change: dict[str, Any] = {name: row[name] for name in KEYS[table]}
    bound_by = [row[name] for name in BOUND_BY[table]]
    for name, value in stored.items():
        change[f"old_{name}"] = value
        change[f"new_{name}"] = value
        if value is None:
            continue
        place = place_of(table, name)
        if columns[name] is Kept.LOG:
            change[f"new_{name}"] = _resealed_log(
                cipher, value, row["response_id"].bytes, row["epoch"], row["first_entry"]
            )
        else:
            opened = cipher.open(value, place, *bound_by)
            seal = cipher.seal_name if columns[name] is Kept.NAME else cipher.seal
            change[f"new_{name}"] = seal(opened, place, *bound_by)
    return change


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
    """Place of a pass, without a table its start. `written` counts rows of this pass, `total` of
    all.
    """

    table: str | None = None
    after: Place | None = None
    written: int = 0
    total: int = 0


def packed_place(place: Place | None) -> bytes | None:
    if place is None:
        return None
    return orjson.dumps([_spelled(one) for one in place])


def _spelled(one: Any) -> int | str:
    if isinstance(one, int):
        return one
    return one.hex() if isinstance(one, bytes) else str(one)


def unpacked_place(table: str, packed: bytes | None) -> Place | None:
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
    """Reserve a tenant's resealing towards the key `number`, unless it is done or another process
    has it.
    """
    wanted = {"tenant": tenant_id, "number": number, "hold_s": hold_s}
    async with database.owner_transaction() as connection:
        row = (await connection.execute(_TAKE, wanted)).one_or_none()
    if row is None:
        return None
    after = None if row.of_table is None else unpacked_place(row.of_table, row.place)
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
    async with database.owner_transaction() as connection:
        if await connection.scalar(_FINISH, {"tenant": tenant_id, "number": number}):
            await audit_log.record(connection, tenant_id, event)


async def finished(database: Database) -> dict[TenantId, int]:
    async with database.owner_transaction() as connection:
        rows = await connection.execute(_FINISHED)
    return {TenantId(row.tenant_id): row.number for row in rows}


async def state(database: Database, tenant_id: TenantId) -> str:
    async with database.owner_transaction() as connection:
        row = (await connection.execute(_STATE, {"tenant": tenant_id})).one_or_none()
    if row is None:
        return ""
    if row.finished_at is not None:
        when = row.finished_at.isoformat(timespec="seconds")
        return f"all content is under key {row.number} since {when}"
    place = row.of_table or "the beginning"
    return f"content is being brought under key {row.number}: at {place}, {row.total} rows written"
