"""Do statements that run all the time find their rows by index, however many there are?"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest
from starlette.datastructures import QueryParams

from gateway import ids
from gateway.admin import responses as admin_responses
from gateway.retention import sweep
from gateway.store import (
    claim_order,
    claims,
    conversations,
    events,
    flushes,
    messages,
    remote_logs,
    responses,
)
from gateway.store.postgres.statements import Statement
from gateway.store.schema import EVERYONE
from gateway.store.tools import web_pages
from tests.conftest import new_tenant, opened
from tests.fakes.stored import CREATED

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from gateway.store.postgres.database import Database
    from gateway.tenancy import TenantId
    from tests.fakes.postgres import PostgresServer

RESPONSES = """
INSERT INTO responses (tenant_id, id, key_id, status, model, background, stored, durable,
                       created_at, root_created_at, request, fold_version)
SELECT tenants.id, gen_random_uuid(), tenants.id, status, 'm', true, true, true, now(), now(),
       '', 1
FROM tenants, (SELECT 'completed' AS status FROM generate_series(1, 4000)
               UNION ALL SELECT 'queued' FROM generate_series(1, 10)
               UNION ALL SELECT 'in_progress' FROM generate_series(1, 10)) AS rows
"""
EVENTS = """
INSERT INTO events (tenant_id, response_id, first_entry, day, epoch, entry_count, entries)
SELECT tenant_id, responses.id, number, day, 1, 1, '.'
FROM responses, generate_series(0, 9) AS number,
     (VALUES (DATE '2026-11-20'), (DATE '2026-11-21')) AS days (day)
WHERE status <> 'completed' OR random() < 0.1
"""
PARTITIONS = [
    f"CREATE TABLE events_2026_11_{day} PARTITION OF events"
    f" FOR VALUES FROM ('2026-11-{day}') TO ('2026-11-{day + 1}')"
    for day in (20, 21)
]
KEYS = """
INSERT INTO idempotency_keys (tenant_id, key_hash, fingerprint, response_id, created_at)
SELECT tenant_id, sha256(id::text::bytea), '', id, now() FROM responses
"""

WRITERS = """
INSERT INTO writers (tenant_id, owner, fence, number, used_at)
SELECT id, 'process ' || process, 1, 10, now()
FROM (SELECT id FROM tenants UNION ALL SELECT gen_random_uuid() FROM generate_series(1, 50)) AS of,
     generate_series(1, 40) AS process
"""
FLUSHES = """
INSERT INTO flushes (tenant_id, owner, number, members, entries)
SELECT tenant_id, owner, of_it, decode(repeat('00', 36), 'hex'), ''
FROM writers, generate_series(1, number) AS of_it
"""
CONVERSATIONS = """
INSERT INTO conversations (tenant_id, id, created_at, metadata)
SELECT tenant_id, id, now(), '' FROM responses
"""
ITEMS = """
INSERT INTO {table} (tenant_id, {holder}, position, kind, item_id, complete, item{columns})
SELECT tenant_id, id, number, 'message', (id::text || number)::bytea, true, '{{}}'{values}
FROM responses, generate_series(0, 9) AS number
"""
PAGES = """
INSERT INTO tool_pages (tenant_id, key, asked, url, title, text, links, fetched_at)
SELECT tenant_id, sha256(id::text::bytea), sha256(id::text::bytea), '', '', '', '', now()
FROM responses
"""
ALL_ITEMS = [
    ITEMS.format(table="conversation_items", holder="conversation_id", columns="", values=""),
    ITEMS.format(
        table="messages", holder="response_id", columns=", is_output", values=", number > 4"
    ),
]


@dataclass(frozen=True, slots=True)
class Filled:
    """A database with thousands of rows, of which few are running."""

    database: Database
    tenant: TenantId


@pytest.fixture(scope="module")
async def filled(postgres: PostgresServer, template: str) -> AsyncIterator[Filled]:
    name = await postgres.create(template)
    async with opened(postgres.database_url(name)) as database:
        tenant = await new_tenant(database)
        await new_tenant(database)
        rows = [RESPONSES, EVENTS, KEYS, WRITERS, FLUSHES, CONVERSATIONS, PAGES, *ALL_ITEMS]
        for statement in [*PARTITIONS, *rows, "ANALYZE"]:
            await postgres.execute(statement, database=name)
        yield Filled(database, tenant)
    await postgres.drop(name)


async def plan(
    filled: Filled, statement: Statement, parameters: dict[str, Any], *, in_bulk: bool = False
) -> str:
    """The plan in the role that the statement runs in."""
    of_one = {"tenant", "id"} & set(parameters)
    entered = (
        filled.database.transaction(filled.tenant)
        if of_one and not in_bulk
        else filled.database.runs_transaction(in_bulk=in_bulk)
    )
    async with entered as connection:
        lines = await connection.scalars(Statement(f"EXPLAIN {statement.text}"), parameters)
        return "\n".join(lines)


def columns(filled: Filled, number: int) -> dict[str, Any]:
    return {
        "tenants": [filled.tenant] * number,
        "responses": [ids.new_uuid() for _ in range(number)],
        "epochs": [1] * number,
    }


def array_of(word: str, number: int) -> str:
    return f"{{{','.join([word] * number)}}}"


CLAIM = {
    "owner": "me",
    "lease_s": 10.0,
    "attempts_max": 4,
    "tenant_running_max": 64,
    "fold_versions": [1],
    "late_fold_versions": [2],
    "late_s": 30.0,
    "promotion_s": 300.0,
    "expected": 2048.0,
    "everyone": EVERYONE,
    "row_limit": 100,
    "take_over": True,
    "away": [],
}
OF_KEYS = {"tenants": [EVERYONE] * 8, "keys": [EVERYONE] * 8, "numbers": [4] * 8}
SWEEP = {"attempts_max": 4, "fold_versions": [1], "orphan_s": 3600.0, "row_limit": 100, "away": []}
READ = {
    "day": CREATED.date(),
    "from_entry": 3,
    "bytes_max": 1000,
    "row_bytes": 20,
    "row_limit": 50,
    "short_bytes": 64,
}
NUMBERS = ("epochs", "firsts", "counts", "places", "sizes")
KEYS_OF_HEADS = ("tenants", "responses")
KEY = {"key_hash": b"hash", "ttl_s": 600.0}


def no_table_is_scanned(found: str) -> bool:
    """But for those that are small, or empty here."""
    return not re.search(r"Seq Scan on (?!tenants|limits|api_keys|background_shares)", found)


def rows_are_found_one_by_one(found: str) -> bool:
    return no_table_is_scanned(found) and "Join Filter" not in found and "Bitmap" not in found


@pytest.mark.parametrize(
    ("statement", "parameters", "indexes"),
    [
        (claims._BEGUN, CLAIM, ("ix_responses_generated",)),
        (claims._QUEUED_KEYS, CLAIM, ("ix_responses_queued",)),
        (claims._WAITING, CLAIM | OF_KEYS, ("ix_responses_queued",)),
        (claims._WORK, CLAIM, ("ix_responses_queued", "ix_responses_generated")),
        (claims._ABANDONED, SWEEP, ("ix_responses_running",)),
    ],
    ids=["begun", "keys", "waiting", "work", "abandoned"],
)
async def test_running_responses_are_found_among_all_by_their_own_index(
    filled: Filled, statement: Statement, parameters: dict[str, Any], indexes: tuple[str, ...]
) -> None:
    found = await plan(filled, statement, parameters)
    assert all(name in found for name in indexes)
    assert no_table_is_scanned(found)


CROWD = """
INSERT INTO responses (tenant_id, id, key_id, status, model, background, stored, durable,
                       created_at, root_created_at, request, fold_version)
SELECT md5('tenant ' || tenant)::uuid, gen_random_uuid(), md5(tenant || '/' || key)::uuid,
       'queued', 'm', true, true, true, now(), now(), '', 1
FROM generate_series(1, 100) AS tenant, generate_series(1, 4) AS key,
     generate_series(1, CASE tenant WHEN 1 THEN 2600 ELSE 100 END)
"""
CROWDED = """
INSERT INTO tenants (id, name, created_at)
SELECT md5('tenant ' || tenant)::uuid, 'crowd ' || tenant, now()
FROM generate_series(1, 100) AS tenant
"""


@pytest.mark.slow
async def test_a_claim_reads_few_of_50_000_that_are_queued(
    postgres: PostgresServer, template: str
) -> None:
    name = await postgres.create(template)
    async with opened(postgres.database_url(name)) as database:
        for statement in (CROWDED, CROWD, "ANALYZE"):
            await postgres.execute(statement, database=name)
        async with database.runs_transaction() as connection:
            rows = await connection.execute(claims._QUEUED_KEYS, CLAIM)
            keys = [claim_order.QueuedKey(*row) for row in rows]
            places = claim_order.FreePlaces(keys, (), ())
            columns = zip(*claim_order.keys_to_read(keys, places, limit=32), strict=True)
            of_keys = dict(zip(OF_KEYS, columns, strict=True))
            found = ""
            for step in (claims._BEGUN, claims._QUEUED_KEYS, claims._WAITING):
                text = f"EXPLAIN (ANALYZE, TIMING OFF) {step.text}"
                found += "\n".join(await connection.scalars(Statement(text), CLAIM | of_keys))
    await postgres.drop(name)
    assert no_table_is_scanned(found)
    read = re.findall(r"Scan using \w+ on responses.*actual rows=([\d.]+) loops=(\d+)", found)
    assert len(read) >= 4
    assert 32 <= sum(float(rows) * int(loops) for rows, loops in read) < 2_500


@pytest.mark.parametrize("number", [1, 64])
async def test_heads_and_leases_of_many_are_found_by_key(filled: Filled, number: int) -> None:
    of_many = columns(filled, number)
    asked = {name: of_many[name] for name in ("tenants", "responses")}
    lease = {"owner": "me", "lease_s": 10.0}
    for statement, parameters in (
        (claims._HEADS, asked),
        (claims._HEARTBEAT, of_many | lease),
        (claims._RELEASE, of_many),
        (claims._CLAIM, asked | lease),
    ):
        found = await plan(filled, statement, parameters)
        assert rows_are_found_one_by_one(found), found


async def test_an_append_finds_its_heads_by_key(filled: Filled) -> None:
    number = 64
    words = {name: array_of("1", number) for name in NUMBERS}
    ids_of = {name: array_of(ids.new_uuid().hex, number) for name in KEYS_OF_HEADS}
    days = array_of(str(CREATED.date()), number)
    sent = words | ids_of | {"days": days, "entries": b"." * number}
    found = await plan(filled, events._APPEND, sent, in_bulk=True)
    assert no_table_is_scanned(found), found
    assert "Join Filter" not in found, found


async def test_flushes_are_found_by_key_among_those_of_many_processes(filled: Filled) -> None:
    mine: dict[str, Any] = {"owner": "process 7"}
    of_many = columns(filled, 64)
    tenants = {"tenants": [filled.tenant]}
    writers = tenants | {"owners": ["process 7"]}
    of_one: dict[str, Any] = {"tenant": filled.tenant}
    row = {"fence": 1, "members": b"", "entries": b""}
    moved = {"days": [CREATED.date()] * 64, "firsts": [1] * 64, "counts": [1] * 64}
    statements: list[tuple[Statement, dict[str, Any]]] = [
        (flushes._CUT_OFF, writers),
        (flushes._ROWS, writers),
        (flushes._SETTLE, of_many | moved | {"entries": [b"."] * 64}),
        (flushes._HELD, tenants | mine | {"but": [ids.new_uuid()]}),
        (flushes._FENCES, tenants | mine),
        (flushes._PRUNE, tenants | mine | {"needed": [5]}),
        (remote_logs._NEW, writers | {"numbers": [5]}),
        (flushes._ONE, of_one | {"id": ids.new_uuid()}),
        (flushes._TAIL, of_one | {"id": ids.new_uuid()}),
        (flushes._OF_ONE, of_one | {"id": ids.new_uuid().bytes}),
        (flushes._REPLACE, of_one | mine | {"number": 1, "members": b"", "entries": b""}),
    ]
    for statement, parameters in statements:
        found = await plan(filled, statement, parameters)
        assert no_table_is_scanned(found), found
    found = await plan(filled, flushes._ADD, of_one | mine | row, in_bulk=True)
    assert "pk_writers" in found, found


async def test_heads_and_rows_of_many_that_are_followed_are_found_by_key(filled: Filled) -> None:
    of_many = columns(filled, 64)
    asked = {name: of_many[name] for name in KEYS_OF_HEADS}
    known = {"days": [CREATED.date()] * 64, "known": [3] * 64, "row_bytes_max": 99, "rows_max": 4}
    for in_bulk in (False, True):
        found = await plan(filled, remote_logs._HEADS, asked | known, in_bulk=in_bulk)
        # Which partition it is comes out for each of them; this one is empty.
        found = found.replace("Seq Scan on events_default", "")
        assert no_table_is_scanned(found), found
        assert "Join Filter" not in found, found


async def test_a_log_is_read_by_key_from_the_partition_of_its_day(filled: Filled) -> None:
    of_one = {"tenant": filled.tenant, "response": ids.new_uuid()}
    for statement in (events._READ_PIECE, events._READ):
        found = await plan(filled, statement, READ | of_one)
        assert "events_2026_11_20_pkey" in found
        assert no_table_is_scanned(found)
        assert "events_2026_11_21" not in found
        assert "events_default" not in found


async def test_keys_and_queues_of_a_tenant_are_found_by_index(filled: Filled) -> None:
    of_tenant = {"tenant": filled.tenant}
    found = await plan(filled, responses._FIND_KEY, KEY | of_tenant)
    assert "pk_idempotency_keys" in found
    found = await plan(filled, responses._COUNT_QUEUED, of_tenant | {"queued_max": 1000})
    assert "ix_responses_queued" in found


async def test_items_of_responses_and_conversations_are_found_by_index(filled: Filled) -> None:
    of_tenant: dict[str, Any] = {"tenant": filled.tenant}
    one = of_tenant | {"conversation": ids.new_uuid()}
    chain = of_tenant | {"response": ids.new_uuid(), "depth_max": 1000, "row_limit": 6000}
    some: dict[str, Any] = {"row_limit": 6000, "with_all": False, "with_tool_lists": False}
    some |= {"repeated": [b"item"]}
    page = {"after": b"item", "row_limit": 21, "with_includable": True}
    digests = {"digests": [b"d" * 32] * 3}
    item = {"item": b"item"}
    statements: list[tuple[Statement, dict[str, Any]]] = [
        (messages._HISTORY, chain | some),
        *((each, chain | page) for each in messages._LISTS.values()),
        (messages._INCLUDABLE, of_tenant | {"response": ids.new_uuid()}),
        (messages._FIND, of_tenant | digests),
        (conversations._CONTENTS, one | some),
        (conversations._APPEND, one | {"response": ids.new_uuid()}),
        (conversations._FIND_ITEMS, one | digests),
        (conversations._FIND_ITEM, one | item),
        (conversations._DELETE_ITEM, one | item),
        *((each, one | page) for each in conversations._LISTS.values()),
    ]
    for statement, parameters in statements:
        found = await plan(filled, statement, parameters)
        assert no_table_is_scanned(found), found
        wide = re.findall(r"Index Cond: \(tenant_id = [^ ]*\)$", found, re.MULTILINE)
        assert not wide, found


async def test_responses_of_all_tenants_are_found_by_key(filled: Filled) -> None:
    searched = admin_responses._parameters(QueryParams({"model": "m"})) | {"rows_max": 21}
    for statement, parameters, condition in (
        (admin_responses._SEARCH, searched, "(id >"),
        (admin_responses._FIND, {"id": ids.new_uuid()}, "(id ="),
    ):
        explained = Statement(f"EXPLAIN {statement.text}")
        async with filled.database.runs_transaction() as connection:
            found = "\n".join(await connection.scalars(explained, parameters))
        assert no_table_is_scanned(found), found
        assert f"Index Cond: ((tenant_id = t.id) AND {condition}" in found, found


async def test_pages_are_found_by_index(filled: Filled) -> None:
    of_one: dict[str, Any] = {"tenant": filled.tenant}
    key = {"key": b"k" * 32}
    statements: list[tuple[Statement, dict[str, Any], str]] = [
        (web_pages._GET_PAGE, of_one | key, "pk_tool_pages"),
        (
            web_pages._FIND_PAGE,
            of_one | {"asked": b"a" * 32, "age_max_s": 600.0},
            "tenant_id_asked",
        ),
        (
            sweep._DELETE_EXPIRED["tool_pages"][0],
            {"response_s": 86_400, "rows_max": 100},
            "fetched_at",
        ),
    ]
    for statement, parameters, index in statements:
        found = await plan(filled, statement, parameters)
        assert no_table_is_scanned(found), found
        assert index in found


async def test_histories_are_found_by_key_under_the_one_plan_of_a_session(filled: Filled) -> None:
    of_tenant = {
        "tenant": filled.tenant,
        "row_limit": 20,
        "with_all": False,
        "with_tool_lists": False,
        "repeated": [b"item"],
    }
    chain = of_tenant | {"response": ids.new_uuid(), "depth_max": 10}
    one = of_tenant | {"conversation": ids.new_uuid()}
    for statement, parameters in ((messages._HISTORY, chain), (conversations._CONTENTS, one)):
        async with filled.database.bulk_transaction(filled.tenant) as connection:
            explained = Statement(f"EXPLAIN {statement.text}")
            found = "\n".join(await connection.scalars(explained, parameters))
        assert rows_are_found_one_by_one(found), found
        assert not re.findall(r"Index Cond: \(tenant_id = [^ ]*\)$", found, re.MULTILINE), found
