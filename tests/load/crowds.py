"""Databases with many stored responses: copies of real ones, made in SQL."""

from __future__ import annotations

import asyncio
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit, urlunsplit

from gateway.store.migration.migrate import upgrade
from gateway.store.tables.ledger import usage
from gateway.store.tables.responses import messages, responses
from tests.fakes.gateway import gateway_settings, new_key
from tests.load import copying
from tests.load.asking import asking
from tests.load.systems import STORED, SYSTEMS

if TYPE_CHECKING:
    from collections.abc import Iterator
    from uuid import UUID

    from asyncpg import Connection, Record

    from tests.load.processes import Child
    from tests.load.stack import Stack

TENANTS: Final = 8
DAYS: Final = 28
"""All of them are within what is kept by default."""
TOKENS: Final = 24
READ_MAX: Final = 1000
# Ids begin with their time and are random behind it, as real ones (UUIDv7). One in eight responses
# belongs to the tenant that is measured.
_MAKE: Final = """
CREATE TEMPORARY TABLE made AS
SELECT CASE WHEN n % $2 = 0 THEN $1::uuid ELSE md5((n % $2)::text)::uuid END AS tenant_id, at,
       CAST(lpad(to_hex(floor(extract(epoch FROM at) * 1000)::bigint), 12, '0') || '7'
            || substr(md5(n::text), 1, 3) || 'a' || substr(md5(n::text), 4, 15) AS uuid) AS id
FROM (
    SELECT n, now() - make_interval(days => $4) * (1 - n / $3::float8) AS at
    FROM generate_series(0, $3 - 1) AS n
) AS numbered
"""
_SOME: Final = """
SELECT id FROM responses WHERE tenant_id = $1 AND id <> $2 ORDER BY random() LIMIT $3
"""


@dataclass(frozen=True, slots=True)
class Crowd:
    """A gateway on a database of its own; `stack` asks that one. `ids` are some of its tenant's
    responses, in no order."""

    stack: Stack
    child: Child
    ids: tuple[UUID, ...]


@contextmanager
def crowd(stack: Stack, count: int) -> Iterator[Crowd]:
    """One with `count` responses of `TENANTS` tenants, created over `DAYS` days; gone at the end.

    Each is the copy of a short one that the gateway stored, with its items and its usage line.
    """
    name = f"crowd_{count}"
    copying.execute(stack.database_url, (f"CREATE DATABASE {name}",))
    try:
        own = replace(stack, database_url=_database(stack.database_url, name))
        asyncio.run(upgrade(own.database_url))
        own.key = asyncio.run(new_key(gateway_settings(own.database_url, []), "load"))
        with own.fresh("gateway") as child:
            with asking(child.port, own.key) as client:
                body = SYSTEMS[STORED].body(TOKENS, streamed=False)
                client.ask(client.request("POST", SYSTEMS[STORED].path, body))
            yield Crowd(own, child, filled(own.database_url, count))
    finally:
        copying.execute(stack.database_url, (f"DROP DATABASE {name} WITH (FORCE)",))


def filled(url: str, count: int) -> tuple[UUID, ...]:
    """Copies of the only response there is; ids of some of the tenant's."""

    async def fill(connection: Connection[Record]) -> tuple[UUID, ...]:
        tenant = await copying.tenant_id(connection)
        template = await connection.fetchval("SELECT id FROM responses")
        # Nobody has to look for the parents of rows that were made with them.
        await connection.execute("SET session_replication_role = replica")
        await connection.execute("SET synchronous_commit = off")
        await connection.execute(_MAKE, tenant, TENANTS, count, DAYS)
        for statement in _copies():
            await connection.execute(statement, template)
        await _settle(connection)
        rows = await connection.fetch(_SOME, tenant, template, READ_MAX)
        return tuple(row["id"] for row in rows)

    return copying.on_database(url, fill)


def _copies() -> Iterator[str]:
    """What fills each table. `$1` is the response that is copied."""
    times = dict.fromkeys(("created_at", "root_created_at", "completed_at", "at"), "made.at")
    owner = {"tenant_id": "made.tenant_id", **times}
    yield copying.copy_of(responses, "id", {"id": "made.id", **owner})
    items = {"response_id": "made.id", "item_id": copying.ITEM_ID, **owner}
    yield copying.copy_of(messages, "response_id", items)
    yield copying.copy_of(usage, "response_id", {"response_id": "made.id", **owner})


async def _settle(connection: Connection[Record]) -> None:
    """So that nothing that is left from filling is done while something is measured."""
    for table in (responses, messages, usage):
        await connection.execute(f"VACUUM (ANALYZE) {table.name}")
    await connection.execute("CHECKPOINT")


def _database(url: str, name: str) -> str:
    """The URL of another database of the same server."""
    return urlunsplit(urlsplit(url)._replace(path=f"/{name}"))
