"""Everything the database holds of responses, read as the superuser, past all of the product."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from typing import TYPE_CHECKING, Any, Final

import asyncpg

from tests.chaos.history import Record, StoredEntries, UsageLine

if TYPE_CHECKING:
    from uuid import UUID

_RESPONSES: Final = """
SELECT id AS uuid, status, durable, background, epoch, next_entry, request, body,
       extract(epoch FROM created_at)::bigint AS created_at
FROM responses
"""
_EVENTS: Final = """
SELECT response_id, first_entry, entry_count, epoch, entries FROM events ORDER BY first_entry
"""
_USAGE: Final = """
SELECT response_id, input_tokens, output_tokens, recomputed_tokens FROM usage
"""
_RUNNING: Final = "SELECT count(*) FROM responses WHERE status IN ('queued', 'in_progress')"
STEP_S: Final = 0.05


async def records(url: str) -> dict[UUID, Record]:
    """All responses, as of one snapshot."""
    connection = await asyncpg.connect(url)
    try:
        async with connection.transaction(isolation="repeatable_read", readonly=True):
            responses = await connection.fetch(_RESPONSES)
            logs = _grouped(await connection.fetch(_EVENTS), StoredEntries)
            usage = _grouped(await connection.fetch(_USAGE), UsageLine)
    finally:
        await connection.close()
    return {
        row["uuid"]: Record(**row, log=tuple(logs[row["uuid"]]), usage=tuple(usage[row["uuid"]]))
        for row in responses
    }


async def until_all_ended(url: str, timeout_s: float) -> bool:
    """Whether every response has ended within `timeout_s`."""
    connection = await asyncpg.connect(url)
    try:
        async with asyncio.timeout(timeout_s):
            while True:
                if not await connection.fetchval(_RUNNING):
                    return True
                await asyncio.sleep(STEP_S)
    except TimeoutError:
        return False
    finally:
        await connection.close()


def _grouped(rows: list[Any], make: Any) -> defaultdict[UUID, list[Any]]:
    """Rows whose first column is the response, the others the fields of `make`."""
    groups: defaultdict[UUID, list[Any]] = defaultdict(list)
    for response, *fields in rows:
        groups[response].append(make(*fields))
    return groups
