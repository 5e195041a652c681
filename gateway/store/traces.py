"""Traces that agents report of their runs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from gateway.store.packing import pack_text, unpack_text
from gateway.store.postgres.statements import Statement

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime
    from uuid import UUID

    from gateway.protocol.trace_records import TraceKind, TraceRecord
    from gateway.store.postgres.database import Database
    from gateway.tenancy import TenantId


@dataclass(frozen=True, slots=True)
class StoredRecord:
    kind: TraceKind
    record_id: str
    response: UUID | None
    received_at: datetime
    json: bytes


_PUT: Final = Statement("""
INSERT INTO traces
    (tenant_id, key, kind, trace_id, record_id, response_id, received_at, record)
SELECT :tenant, key, kind, trace_id, record_id, response_id, now(), record
FROM unnest(
    CAST(:keys AS bytea[]), CAST(:kinds AS text[]), CAST(:trace_ids AS bytea[]),
    CAST(:record_ids AS bytea[]), CAST(:response_ids AS uuid[]), CAST(:records AS bytea[])
) AS sent (key, kind, trace_id, record_id, response_id, record)
ON CONFLICT (tenant_id, key) DO UPDATE
SET response_id = excluded.response_id, received_at = excluded.received_at,
    record = excluded.record
""")
_OF_TRACE: Final = Statement("""
SELECT key, kind, record_id, response_id, received_at, record FROM traces
WHERE tenant_id = :tenant AND sha256(trace_id) = sha256(CAST(:trace_id AS bytea))
ORDER BY kind DESC, received_at, key
LIMIT :rows_max
""")


async def put(database: Database, tenant_id: TenantId, records: Sequence[TraceRecord]) -> None:
    """Store records, whose keys must differ, each replacing the one with the same key.

    They are written in the order of keys, so that two writers cannot deadlock.
    """
    ordered = sorted(records, key=lambda record: record.key)
    rows = {
        "tenant": tenant_id,
        "keys": [record.key for record in ordered],
        "kinds": [record.kind for record in ordered],
        "trace_ids": [pack_text(record.trace_id) for record in ordered],
        "record_ids": [pack_text(record.record_id) for record in ordered],
        "response_ids": [record.response for record in ordered],
    }
    async with database.transaction(tenant_id) as connection:
        cipher = connection.cipher(tenant_id)
        rows["records"] = [
            cipher.seal(record.json, "traces.record", record.key) for record in ordered
        ]
        await connection.execute(_PUT, rows)


async def read(
    database: Database, tenant_id: TenantId, trace_id: str, *, rows_max: int
) -> list[StoredRecord]:
    wanted = {"tenant": tenant_id, "trace_id": pack_text(trace_id), "rows_max": rows_max}
    async with database.transaction(tenant_id) as connection:
        rows = await connection.execute(_OF_TRACE, wanted)
        cipher = connection.cipher(tenant_id)
    return [
        StoredRecord(
            row.kind,
            unpack_text(row.record_id),
            row.response_id,
            row.received_at,
            cipher.open(row.record, "traces.record", row.key),
        )
        for row in rows
    ]
