from __future__ import annotations

import inspect
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeAlias

import pytest

from gateway import ids
from gateway.errors import ClaimLost, ResourceNotFound, StoreError
from gateway.protocol.context_item import ConversationPlace
from gateway.protocol.conversation_bodies import Conversation
from gateway.protocol.pages import PageParams
from gateway.store import (
    claims,
    conversations,
    endings,
    events,
    messages,
    responses,
    tenants,
    usage_lines,
)
from gateway.store.postgres.database import Database
from gateway.store.postgres.statements import Statement
from gateway.store.responses import IdempotencyKey
from gateway.store.schema import APP_ROLE
from gateway.store.tables.columns import metadata
from gateway.store.tools import web_pages
from gateway.store.tools.web_pages import StoredPage
from tests.fakes.rows import add_rows, all_rows
from tests.fakes.stored import (
    COMPLETED,
    CREATED,
    TERMS,
    USAGE,
    durable_response,
    finished,
    item,
    new_response,
    store_turn,
)

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from uuid import UUID

    from gateway.store.endings import FinishedResponse
    from gateway.store.events import LogRow
    from gateway.store.responses import StoredResponse
    from gateway.tenancy import TenantId
    from tests.fakes.postgres import PostgresServer

Attack: TypeAlias = "Callable[[Database, TenantId, UUID], Awaitable[Any]]"


@pytest.fixture
def database(shared_database: Database) -> Database:
    return shared_database


async def write_over(database: Database, intruder: TenantId, uuid: UUID) -> None:
    end = finished(uuid, [item("planted")], body=b"planted")
    with pytest.raises(ClaimLost):
        await endings.finish(database, intruder, end)


async def conclude(database: Database, intruder: TenantId, uuid: UUID) -> object:
    end = finished(uuid, [item("planted")], body=b"planted")

    async def ending(stored: StoredResponse, log: list[LogRow]) -> FinishedResponse:
        return end

    return await endings.conclude(database, intruder, uuid, ending)


async def continue_from(database: Database, intruder: TenantId, uuid: UUID) -> list[str]:
    """A response of the intruder's that names a foreign parent."""
    child = await store_turn(database, intruder, "child", parent=uuid)
    page = await messages.input_items(database, intruder, child, PageParams(100))
    assert page is not None
    return [] if page.rows == [item("in-child").json] else ["a foreign item"]


async def queue_behind(database: Database, intruder: TenantId, uuid: UUID) -> dict[int, bool]:
    """Nobody waits behind the responses of others."""
    new = replace(durable_response(), owner="me", lease_s=9.0, queued_max=0, running_max=9)
    return await responses.queue_all(database, [(intruder, replace(new, parent=uuid))])


async def check_acceptance(database: Database, intruder: TenantId, uuid: UUID) -> None:
    """Neither the foreign key nor the foreign conversation is in the way, or there."""
    key = IdempotencyKey(uuid.bytes, b"print", 600)
    await responses.check(database, intruder, conversation=None, idempotency=key, queued_max=1)
    with pytest.raises(ResourceNotFound):
        await responses.check(
            database,
            intruder,
            conversation=ConversationPlace(uuid, 1),
            idempotency=None,
            queued_max=None,
        )


ATTACKS: dict[str, tuple[Attack, Any]] = {
    "conversations.create": (
        lambda db, who, uuid: conversations.create(
            db, who, Conversation(uuid, CREATED, {}), [item("held")]
        ),
        None,
    ),
    "conversations.load": (conversations.load, None),
    "conversations.set_metadata": (
        lambda db, who, uuid: conversations.set_metadata(db, who, uuid, {"planted": ""}),
        None,
    ),
    "conversations.delete_conversation": (conversations.delete_conversation, False),
    "conversations.find_items": (
        lambda db, who, uuid: conversations.find_items(db, who, uuid, ["held"]),
        {},
    ),
    "conversations.add_items": (
        lambda db, who, uuid: conversations.add_items(
            db, who, uuid, [item("planted")], items_max=9
        ),
        False,
    ),
    "conversations.delete_item": (
        lambda db, who, uuid: conversations.delete_item(db, who, uuid, "held"),
        None,
    ),
    "conversations.find_item": (
        lambda db, who, uuid: conversations.find_item(db, who, uuid, "held"),
        None,
    ),
    "conversations.list_items": (
        lambda db, who, uuid: conversations.list_items(db, who, uuid, PageParams(9, "held")),
        None,
    ),
    "conversations.read_contents": (
        lambda db, who, uuid: conversations.read_contents(db, who, uuid, items_max=9),
        None,
    ),
    "responses.check": (check_acceptance, None),
    "responses.load": (responses.load, None),
    "responses.state": (responses.state, None),
    "responses.delete": (responses.delete, False),
    "endings.finish": (write_over, None),
    "endings.conclude": (conclude, None),
    "endings.end_sealed": (endings.end_sealed, False),
    "endings.deposit": (
        lambda db, who, uuid: endings.deposit(
            db, who, finished(uuid, [item("x")], body=b"planted")
        ),
        False,
    ),
    "events.read": (
        lambda db, who, uuid: events.read(db, who, uuid, CREATED.date(), bytes_max=99),
        [],
    ),
    "responses.find_key": (
        lambda db, who, uuid: responses.find_key(db, who, uuid.bytes, ttl_s=600),
        None,
    ),
    "responses.load_secrets": (responses.load_secrets, None),
    "responses.insert": (continue_from, []),
    "messages.history": (
        lambda db, who, uuid: messages.history(db, who, uuid, depth_max=9, items_max=9),
        None,
    ),
    "messages.input_items": (
        lambda db, who, uuid: messages.input_items(db, who, uuid, PageParams(9, "in-secret")),
        None,
    ),
    "messages.includable": (messages.includable, {}),
    "messages.count_output": (messages.count_output, 0),
    "messages.find_items": (
        lambda db, who, uuid: messages.find_items(db, who, ["in-secret", "out-secret"]),
        {},
    ),
    "endings.finish_all": (
        lambda db, who, uuid: endings.finish_all(
            db, [(who, finished(uuid, [item("planted")], body=b"planted"))]
        ),
        {},
    ),
    "responses.insert_all": (
        lambda db, who, uuid: responses.insert_all(db, [(who, new_response(parent=uuid))]),
        {0: True},
    ),
    "responses.queue_all": (queue_behind, {0: True}),
    "usage_lines.record_all": (
        lambda db, who, uuid: usage_lines.record_all(
            db,
            [(who, usage_lines.UsageLine(uuid, ids.new_uuid(), "gpt-oss-20b", COMPLETED, USAGE))],
        ),
        None,
    ),
}


def test_every_store_function_of_a_tenant_is_attacked() -> None:
    found = {
        f"{module.__name__.rpartition('.')[2]}.{name}"
        for module in (*(conversations, endings, events, messages, responses, usage_lines),)
        for name, function in inspect.getmembers(module, inspect.iscoroutinefunction)
        if function.__module__ == module.__name__
        and (
            list(inspect.signature(function).parameters)[:2] == ["database", "tenant_id"]
            or name.endswith("_all")
        )
        and not name.startswith("_")
    }
    assert found == set(ATTACKS)


CLOSED = frozenset(
    {
        *("api_keys", "operator_keys", "placements", "backend_drains"),
        *("drain_reports", "spend", "alert_firings", "buckets", "limit_reports", "stored_bytes"),
        *("reseals", "background_shares", "replica_snapshots"),
    }
)
"""Tables of which tenants see nothing at all."""


async def everything_of(database: Database, tenant: TenantId) -> dict[str, list[Any]]:
    async with database.transaction(tenant) as connection:
        return {
            table: sorted(map(repr, await all_rows(connection, table)))
            for table in metadata.tables
            if table not in CLOSED
        }


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(ATTACKS))
async def test_a_foreign_response_is_as_good_as_unknown(
    database: Database, tenant: TenantId, other_tenant: TenantId, name: str
) -> None:
    uuid = await store_turn(database, tenant, "secret")
    running = durable_response(owner="owner")
    key = IdempotencyKey(running.uuid.bytes, b"print", 600)
    await responses.insert(database, tenant, replace(running, idempotency=key))
    for target in (uuid, running.uuid):
        made = Conversation(target, CREATED, {})
        await conversations.create(database, tenant, made, [item("held")])
    before = await everything_of(database, tenant)
    attack, nothing = ATTACKS[name]
    for target in (uuid, running.uuid):
        assert await attack(database, other_tenant, target) == nothing
    assert await everything_of(database, tenant) == before


SERVER = {
    "label": "crm", "url": "https://crm.example/mcp", "secret": "sealed", "trusted": True,
    "always_asks": False, "purposes": "mcp", "created_at": CREATED,
}  # fmt: skip
APPROVAL = {
    "request_id": b"mcpr_1", "digest": b"secret", "asked_at": CREATED, "expires_at": CREATED,
}  # fmt: skip


OF_KIND: dict[str, Any] = {
    "text": "secret",
    "text[]": ["secret"],
    "bytea": b"secret",
    "boolean": True,
    "timestamptz": CREATED,
    "date": CREATED.date(),
    "smallint": 1,
    "integer": 1,
    "bigint": 1,
    "xid8": 1,
}


def plain_row(table: str, tenant: TenantId, uuid: UUID) -> dict[str, Any]:
    """A row of a table whose columns may have any value of their kind; what may be null is not
    given.
    """
    needed = [column for column in metadata.tables[table].columns if not column.nullable]
    row = {column.name: OF_KIND.get(column.info["type"], uuid) for column in needed}
    return row | {"tenant_id": tenant}


async def fill_all_tables(database: Database, tenant: TenantId) -> None:
    uuid = await store_turn(database, tenant, "secret")
    await tenants.insert_key(
        database, tenants.NewKey(ids.new_uuid(), tenant, "key", "wxyz", ids.new_uuid().bytes)
    )
    of_tenant = {"tenant_id": tenant}
    project = of_tenant | {"id": tenant, "name": "Default project", "created_at": CREATED}
    account = of_tenant | {"project_id": tenant, "id": uuid, "name": "ci", "role": "member"}
    row = {"first_entry": 0, "day": CREATED.date(), "epoch": 0, "entry_count": 1, "entries": b"."}
    key = {"key_hash": uuid.bytes, "fingerprint": b"print", "created_at": CREATED}
    conversation = {"created_at": CREATED, "metadata": b"{}"}
    part = {"kind": "message", "item_id": b"x", "complete": True, "item": b"{}"}
    async with database.transaction(tenant) as connection:
        await add_rows(connection, "projects", project)
        await add_rows(connection, "service_accounts", account | {"created_at": CREATED})
        issuer = plain_row("identity_providers", tenant, uuid) | {"id": uuid}
        await add_rows(connection, "identity_providers", issuer | {"unnamed_bearer": False})
        rule = plain_row("federation_rules", tenant, uuid) | {"id": uuid, "provider_id": uuid}
        await add_rows(connection, "federation_rules", rule | {"service_account_id": uuid})
        of_response = of_tenant | {"response_id": uuid}
        await add_rows(connection, "events", of_response | row)
        await add_rows(connection, "idempotency_keys", of_response | key)
        await add_rows(connection, "run_secrets", of_response | {"sealed": b"secret"})
        called = {"ordinal": 0, "attempt": 1, "kind": "mcp", "server": b"s", "tool": b"t"}
        sizes = {"arguments_bytes": 1, "result_bytes": 1, "result_ids": 1, "duration_ms": 1}
        ending = {"arguments_hash": b"h", "outcome": "ok", "replica": "r", "at": CREATED}
        await add_rows(connection, "tool_calls", of_response | called | sizes | ending)
        await add_rows(connection, "conversations", of_tenant | conversation | {"id": uuid})
        place = {"conversation_id": uuid, "position": 0}
        await add_rows(connection, "conversation_items", of_tenant | part | place)
        times = {"created_at": CREATED, "last_active_at": CREATED, "expires_at": CREATED}
        container = {"id": uuid, "name": b"n", "idle_s": 1, "memory_bytes": 1, "epoch": 0}
        await add_rows(connection, "containers", of_tenant | container | times)
        file = {"id": uuid, "container_id": uuid, "name": b"n", "size_bytes": 1, "digest": b"d"}
        await add_rows(connection, "files", of_tenant | file | {"created_at": CREATED})
        chunk = {"file_id": uuid, "number": 0, "content": b"secret"}
        await add_rows(connection, "file_chunks", of_tenant | chunk)
        of_owner = {"owner": "owner", "number": 1}
        writer = {"fence": 1, "used_at": CREATED}
        flush = {"members": uuid.bytes + bytes(16), "entries": b"secret"}
    async with database.runs_transaction() as connection:
        await add_rows(connection, "writers", of_tenant | of_owner | writer)
        await add_rows(connection, "flushes", of_tenant | of_owner | flush)
    async with database.transaction(tenant) as connection:
        span = {"key": b"k", "kind": "span", "trace_id": b"t", "record_id": b"s", "record": b"{}"}
        await add_rows(connection, "traces", of_tenant | span | {"received_at": CREATED})
        await add_rows(connection, "mcp_servers", of_tenant | {"id": uuid} | SERVER)
        await add_rows(connection, "tool_approvals", of_tenant | APPROVAL)
        session = plain_row("console_sessions", tenant, uuid)
        await add_rows(connection, "console_sessions", session | {"hash": uuid.bytes})
        await add_rows(connection, "content_consents", plain_row("content_consents", tenant, uuid))
    async with database.runs_transaction() as connection:
        for table in (
            *("usage_hours", "usage_minutes", "usage_days", "usage_end_user_days", "usage_cursors"),
        ):
            await add_rows(connection, table, plain_row(table, tenant, uuid))
    async with database.owner_transaction() as connection:
        for table in ("limits", "budgets", "spend_alerts", "prices"):
            await add_rows(connection, table, plain_row(table, tenant, uuid))
    await web_pages.put_page(database, tenant, StoredPage("", "secret", "secret"), requested_url="")
    await web_pages.put_documents(
        database, tenant, [StoredPage("x:", "secret", "secret")], language="simple"
    )


@pytest.mark.slow
@pytest.mark.parametrize("table", sorted(metadata.tables))
async def test_without_a_where_clause_no_row_of_another_tenant_is_seen(
    database: Database, tenant: TenantId, other_tenant: TenantId, table: str
) -> None:
    await fill_all_tables(database, tenant)
    if table in CLOSED:
        with pytest.raises(StoreError, match="42501"):
            async with database.transaction(other_tenant) as connection:
                await all_rows(connection, table)
        return
    async with database.transaction(tenant) as connection:
        assert len(await all_rows(connection, table)) == 1 + (table == "messages")
    async with database.transaction(other_tenant) as connection:
        seen = await all_rows(connection, table)
    assert [row.id for row in seen] == ([other_tenant] if table == "tenants" else [])


async def test_without_a_where_clause_no_row_of_another_tenant_is_changed(
    database: Database, tenant: TenantId, other_tenant: TenantId
) -> None:
    await fill_all_tables(database, tenant)
    before = await everything_of(database, tenant)
    async with database.transaction(other_tenant) as connection:
        await connection.execute(Statement("UPDATE messages SET item = 'planted'"))
        for table in (
            *("messages", "idempotency_keys", "responses"),
            *("events", "conversation_items"),
            *("conversations", "traces", "tool_pages", "mcp_servers", "tool_approvals"),
            *("file_chunks", "files", "containers"),
        ):
            await connection.execute(Statement(f"DELETE FROM {table}"))
    assert await everything_of(database, tenant) == before


async def test_a_row_cannot_be_written_for_another_tenant(
    database: Database, tenant: TenantId, other_tenant: TenantId
) -> None:
    row = {"tenant_id": tenant, "id": ids.new_uuid(), "created_at": CREATED, "metadata": b""}
    with pytest.raises(StoreError, match="42501"):
        async with database.transaction(other_tenant) as connection:
            await add_rows(connection, "conversations", row)


async def test_without_a_tenant_nothing_is_seen(database: Database, tenant: TenantId) -> None:
    await fill_all_tables(database, tenant)
    async with database.owner_transaction() as connection:
        await connection.execute(Statement(f"SET LOCAL ROLE {APP_ROLE}"))
        for table in metadata.tables:
            if table not in CLOSED:
                assert await all_rows(connection, table) == []


async def test_nothing_of_a_tenant_stays_in_the_connection(
    database_url: str, tenant: TenantId
) -> None:
    alone = Database(database_url, pool_size_max=1, command_timeout_s=30, connect_timeout_s=30)
    state = Statement(
        "SELECT current_user <> :role, coalesce(current_setting('app.tenant_id', true), '')"
    )
    async with alone.transaction(tenant) as connection:
        assert tuple((await connection.execute(state, {"role": APP_ROLE})).one()) == (
            False,
            str(tenant),
        )
    async with alone.owner_transaction() as connection:
        assert tuple((await connection.execute(state, {"role": APP_ROLE})).one()) == (True, "")
    await alone.close()


UNSEEN = {
    "a body": "SELECT body FROM responses",
    "what was repaired": "SELECT recoveries FROM responses",
    "an item": "SELECT item FROM messages",
    "an item of a conversation": "SELECT item FROM conversation_items",
    "a conversation": "SELECT metadata FROM conversations",
    "a trace": "SELECT record FROM traces",
    "a page": "SELECT text FROM tool_pages",
    "a document": "SELECT text FROM web_documents",
    "a key": "SELECT hash FROM api_keys",
    "a key's owner": "SELECT * FROM find_caller('')",
}
UNCHANGED = {
    "a body": "UPDATE responses SET body = ''",
    "a request": "UPDATE responses SET request = ''",
    "a prompt": "UPDATE responses SET prompt = ''",
    "a response's tenant": "UPDATE responses SET tenant_id = gen_random_uuid()",
    "a log": "UPDATE events SET entries = ''",
    "a tenant": "UPDATE tenants SET name = ''",
    "an idempotency key": "UPDATE idempotency_keys SET fingerprint = ''",
    "an item": "DELETE FROM messages",
}


@pytest.mark.parametrize("statement", [*UNSEEN.values(), *UNCHANGED.values()])
async def test_the_runs_of_all_tenants_reach_claims_and_logs_but_no_content(
    database: Database, statement: str
) -> None:
    with pytest.raises(StoreError, match="42501"):
        async with database.runs_transaction() as connection:
            await connection.execute(Statement(statement))


async def test_the_runs_of_all_tenants_are_claimed_and_appended_to_at_once(
    database: Database, tenant: TenantId, other_tenant: TenantId
) -> None:
    rows = {who: durable_response() for who in (tenant, other_tenant)}
    for who, new in rows.items():
        await responses.insert(database, who, new)
    runs = await claims.claim(database, "me", TERMS, limit=10_000, take_over=False)
    ours = {run.claim.tenant_id: run.claim for run in runs if run.claim.tenant_id in rows}
    assert {who: claim.uuid for who, claim in ours.items()} == {
        who: new.uuid for who, new in rows.items()
    }
    parcels = [events.LogBatch(claim, CREATED.date(), 1, 1, b".") for claim in ours.values()]
    assert await events.append(database, parcels) == {new.uuid for new in rows.values()}
    await claims.release(database, [run.claim for run in runs])


async def test_every_table_is_walled_off(postgres: PostgresServer, database_url: str) -> None:
    rows = await postgres.fetch(
        "SELECT relname, relrowsecurity AND relforcerowsecurity AS is_walled FROM pg_class"
        " WHERE relkind IN ('r', 'p') AND relnamespace = 'public'::regnamespace",
        url=database_url,
    )
    open_tables = {row["relname"] for row in rows if not row["is_walled"]}
    assert open_tables == {"alembic_version"}
    assert {row["relname"] for row in rows} > set(metadata.tables)


OF_ALL = {
    "ix_usage_tx": "who adds up and tells lines reads those of all tenants",
    "ix_identity_providers_id": "who exchanges a token has no tenant yet",
    "uq_identity_providers_unnamed": "whoever sends a token has none either",
}


def test_every_key_and_index_begins_with_the_tenant() -> None:
    for table in metadata.sorted_tables:
        if table.name == "tenants":
            continue
        assert next(iter(table.primary_key.columns)).name == "tenant_id"
        for index in table.indexes:
            if index.name in OF_ALL:
                continue
            assert str(index.expressions[0]) == f"{table.name}.tenant_id"
