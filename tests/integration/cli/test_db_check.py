"""`db check` finds nothing in what a gateway wrote, and each thing that is damaged by hand."""

from __future__ import annotations

import asyncio
import json
import sys
from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pytest

from gateway.store import endings, responses
from gateway.store.integrity import CHECKS, Scope
from gateway.store.postgres.database import Database
from gateway.store.tenants import tenant_named
from tests.fakes.gateway import PEPPER, gateway_settings, running_gateway
from tests.fakes.http_client import http_client
from tests.fakes.keys import MemoryKeys, sealing_keyring
from tests.fakes.logins import SERVING, make_roles
from tests.fakes.serving import serving
from tests.fakes.stored import durable_response, finished, item, last_row, new_response
from tests.fakes.wayward_engine.engine import create_simulator
from tests.fakes.wayward_engine.options import WaywardOptions

if TYPE_CHECKING:
    from gateway.store.integrity import Violation
    from gateway.tenancy import TenantId
    from tests.fakes.postgres import PostgresServer

pytestmark = pytest.mark.slow

EVER = datetime.min.replace(tzinfo=UTC)
SCOPE = Scope(since=EVER, rows_max=1_000, log_s=86_400, lines_s=86_400)


async def violations(
    database: Database, tenant: TenantId, scope: Scope = SCOPE
) -> dict[str, list[Violation]]:
    found: dict[str, list[Violation]] = {}
    for check in CHECKS.values():
        async for page in check(database, tenant, scope):
            for one in page.violations:
                found.setdefault(one.invariant, []).append(one)
    return found


@pytest.fixture
async def tenant(database_url: str, postgres: PostgresServer, database: Database) -> TenantId:
    """One whose gateway has written an hour ago: a chain, a conversation and a background log."""
    async with serving(create_simulator(WaywardOptions())) as url:
        settings = gateway_settings(database_url, [url])
        async with (
            running_gateway(settings) as gateway,
            http_client(gateway.url, headers=gateway.headers) as client,
        ):

            async def create(**body: Any) -> dict[str, Any]:
                body = {"model": "gpt-oss-20b", "input": "hello", **body}
                created: dict[str, Any] = (await client.post("/v1/responses", json=body)).json()
                return created

            first = await create()
            await create(previous_response_id=first["id"])
            conversation = (await client.post("/v1/conversations", json={})).json()
            await create(conversation=conversation["id"])
            one = await create(background=True)
            async with asyncio.timeout(30):
                while one["status"] != "completed":
                    one = (await client.get(f"/v1/responses/{one['id']}")).json()
    found = (await postgres.fetch("SELECT id FROM tenants", url=database_url))[0]["id"]
    await damage(
        postgres,
        database_url,
        "UPDATE responses SET completed_at = completed_at - interval '1 hour'",
    )
    assert not await violations(database, found)
    return found  # type: ignore[no-any-return]


async def damage(postgres: PostgresServer, url: str, statement: str) -> None:
    await postgres.execute(statement, database=url.partition("?")[0].rpartition("/")[2])


DAMAGES = {
    "state": "UPDATE responses SET completed_at = NULL WHERE parent_id IS NOT NULL",
    "claim": "UPDATE responses SET status = 'in_progress', completed_at = NULL, "
    "lease_until = now() - interval '1 day' WHERE durable",
    "chain": "DELETE FROM responses WHERE parent_id IS NULL AND NOT durable",
    "usage": "DELETE FROM usage WHERE response_id IN (SELECT id FROM responses WHERE durable)",
    "positions": "UPDATE conversations SET next_position = 1",
}


@pytest.mark.parametrize("invariant", DAMAGES)
async def test_what_was_damaged_is_found(
    invariant: str,
    tenant: TenantId,
    database: Database,
    database_url: str,
    postgres: PostgresServer,
) -> None:
    await damage(postgres, database_url, DAMAGES[invariant])
    found = await violations(database, tenant)
    assert list(found) == [invariant]
    assert len(found[invariant]) == 1
    assert found[invariant][0].remedy
    assert found[invariant][0].is_certain == (invariant != "chain")


async def test_a_first_item_at_the_next_position_is_found(
    tenant: TenantId, database: Database, database_url: str, postgres: PostgresServer
) -> None:
    await damage(
        postgres,
        database_url,
        "DELETE FROM conversation_items WHERE position > 1;"
        " UPDATE conversation_items SET position = 0; UPDATE conversations SET next_position = 0",
    )
    (one,) = (await violations(database, tenant))["positions"]
    assert one.detail == "the next position is 0, the last one 0"


async def test_a_log_that_is_not_whole_is_found(
    tenant: TenantId, database: Database, database_url: str, postgres: PostgresServer
) -> None:
    rows = await postgres.fetch("SELECT * FROM events ORDER BY first_entry", url=database_url)
    assert rows
    await damage(postgres, database_url, "UPDATE events SET entry_count = entry_count - 1")
    (one,) = (await violations(database, tenant))["log"]
    assert "entries are there" in one.detail
    await damage(postgres, database_url, "UPDATE events SET entry_count = entry_count + 1")
    assert not await violations(database, tenant)
    await damage(postgres, database_url, "UPDATE events SET first_entry = first_entry + 100")
    (one,) = (await violations(database, tenant))["log"]
    assert one.detail.endswith("with a gap")
    await damage(postgres, database_url, "UPDATE events SET first_entry = first_entry - 100")
    # Version 1, and an entry that is `Alive`.
    await damage(postgres, database_url, r"UPDATE events SET entries = '\x0103'")
    (one,) = (await violations(database, tenant))["log"]
    assert one.detail == "it does not end with a terminal event"
    await damage(postgres, database_url, r"UPDATE events SET entries = '\xee'")
    (one,) = (await violations(database, tenant))["log"]
    assert "cannot be read" in one.detail
    await damage(postgres, database_url, "DELETE FROM events")
    (one,) = (await violations(database, tenant))["log"]
    assert one.detail.startswith("0 of ")


async def test_what_no_key_opens_is_found(database_url: str) -> None:
    keys = MemoryKeys()
    options: dict[str, Any] = {"pool_size_max": 2, "command_timeout_s": 30, "connect_timeout_s": 30}
    sealing = Database(database_url, keyring=sealing_keyring(keys), **options)
    async with sealing.owner_transaction() as connection:
        await connection.script("INSERT INTO tenants VALUES (gen_random_uuid(), 'acme', now())")
    tenant = (await tenant_named(sealing, "acme")).id
    new = new_response()
    await responses.insert(sealing, tenant, new)
    await endings.finish(sealing, tenant, finished(new.uuid, [item("one")]))
    durable = durable_response(owner="here")
    await responses.insert(sealing, tenant, durable)
    end = replace(finished(durable.uuid, epoch=1), entries=last_row(1))
    await endings.finish(sealing, tenant, end)
    scope = replace(SCOPE, log_s=10**9)
    is_open = await violations(sealing, tenant, scope)
    assert not {"sealed", "destroyed", "log"} & is_open.keys()
    other = Database(database_url, keyring=sealing_keyring(MemoryKeys()), **options)
    found = (await violations(other, tenant))["sealed"]
    await other.close()
    assert {one.row.split()[0] for one in found} == {"responses", "messages", "events"}
    keys.destroy(tenant)
    sealing.keyring.forget(tenant)
    is_shredded = await violations(sealing, tenant, scope)
    await sealing.close()
    assert not {"sealed", "log"} & is_shredded.keys()
    assert {one.row for one in is_shredded["destroyed"]} == {one.row for one in found}
    assert not any(one.is_certain for one in is_shredded["destroyed"])


async def test_it_is_bounded(tenant: TenantId, database: Database) -> None:
    async def rows(scope: Scope) -> int:
        return sum([page.rows async for page in CHECKS["responses"](database, tenant, scope)])

    assert await rows(SCOPE) == 4
    assert await rows(Scope(EVER, 2, 1, 1)) == 2
    assert await rows(Scope(datetime.now(UTC), 1_000, 1, 1)) == 0


async def check(database_url: str, *options: str) -> tuple[int | None, dict[str, Any]]:
    environment = {"DATABASE_URL": database_url, "GATEWAY_AUTH__KEY_PEPPER": PEPPER}
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "gateway", "db", "check", "--json", *options),
        env=environment,
        stdout=asyncio.subprocess.PIPE,
    )
    printed, _ = await process.communicate()
    return process.returncode, json.loads(printed)


async def test_the_command_says_what_is_wrong_by_its_exit_code(
    tenant: TenantId, database_url: str, postgres: PostgresServer
) -> None:
    code, told = await check(database_url)
    assert (code, told["ok"], told["violations"]) == (0, True, [])
    assert told["rows"]["responses"] == 4
    await damage(postgres, database_url, "UPDATE alembic_version SET version_num = 'newer'")
    _, told = await check(database_url)
    assert told["findings"][0]["detail"] == "at newer, nothing is missing"
    days = "SELECT relname FROM pg_class WHERE relname ~ '^events_[0-9]+$'"
    names = [row[0] for row in await postgres.fetch(days, url=database_url)]
    await damage(postgres, database_url, f"DROP TABLE {max(names)}")
    await damage(postgres, database_url, "DROP INDEX ix_usage_tenant_id_at")
    await damage(postgres, database_url, DAMAGES["usage"])
    code, told = await check(database_url)
    assert code == 1
    assert {one["name"]: one["ok"] for one in told["findings"]} == {
        "schema": False,
        "partitions": False,
    }
    (one,) = told["violations"]
    assert (one["invariant"], one["tenant_id"]) == ("usage", str(tenant))


async def test_the_login_that_serves_may_look(
    tenant: TenantId, database_url: str, postgres: PostgresServer
) -> None:
    make_roles(database_url)
    name = database_url.partition("?")[0].rpartition("/")[2]
    code, told = await check(postgres.database_url(name, user=SERVING))
    assert told["violations"] == []
    assert told["rows"]["responses"] == 4
    assert told["rows"]["content"] > 4
    assert code == 0
