"""The two logins of deploy/roles.sql: one owns the tables, the other serves."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from gateway import ids
from gateway.errors import StoreError
from gateway.retention import sweep
from gateway.retention.sweep import DAYS_AHEAD, Housekeeping
from gateway.retention.tenant_data import TenantData
from gateway.settings.sections import Retention
from gateway.store import callers, claims, responses, tenants
from gateway.store.migration.migrate import upgrade
from gateway.store.postgres.statements import Statement
from gateway.store.schema import EVERYONE, REVISION
from gateway.tenancy import TenantId
from tests.conftest import new_tenant, opened
from tests.fakes.aged import DAY, store_aged, stored_ids
from tests.fakes.filled_tables import Filled, counts, fill
from tests.fakes.logins import OWNER, SERVING, make_roles
from tests.fakes.logs import captured_logs
from tests.fakes.stored import TERMS, durable_response, store_turn

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from gateway.store.postgres.database import Database
    from tests.fakes.postgres import PostgresServer

KEEP = Retention.model_construct(
    log_s=86_400, response_s=30 * 86_400, idempotency_key_s=86_400, traces_s=30 * 86_400
)


@pytest.fixture(scope="module")
async def migrated(postgres: PostgresServer) -> AsyncIterator[str]:
    """A database migrated by its owner, to which nobody is connected."""
    name = await postgres.create()
    make_roles(postgres.database_url(name))
    await upgrade(postgres.database_url(name, user=OWNER))
    yield name
    await postgres.drop(name)


@pytest.fixture
async def name(postgres: PostgresServer, migrated: str) -> AsyncIterator[str]:
    """A copy of it. Rights to a database are not copied: its roles are made a second time, which
    must be possible.
    """
    name = await postgres.create(migrated)
    make_roles(postgres.database_url(name))
    yield name
    await postgres.drop(name)


@pytest.fixture
async def owner(postgres: PostgresServer, name: str) -> AsyncIterator[Database]:
    async with opened(postgres.database_url(name, user=OWNER)) as database:
        yield database


@pytest.fixture
async def serving(postgres: PostgresServer, name: str) -> AsyncIterator[Database]:
    async with opened(postgres.database_url(name, user=SERVING)) as database:
        yield database


def housekeeping(database: Database) -> Housekeeping:
    return Housekeeping(database, KEEP, interval_s=3600, batch_rows_max=2)


async def test_neither_has_powers_over_the_server(postgres: PostgresServer, name: str) -> None:
    powers = "rolsuper OR rolcreaterole OR rolcreatedb OR rolbypassrls OR rolreplication"
    rows = await postgres.fetch(
        f"SELECT rolname FROM pg_roles WHERE ({powers}) AND rolname IN ('{OWNER}', '{SERVING}')",
        url=postgres.database_url(name),
    )
    assert rows == []


async def test_what_serves_sees_the_revision_and_whose_a_key_is(
    owner: Database, serving: Database
) -> None:
    assert await serving.revision() == REVISION
    tenant = await new_tenant(owner)
    key = tenants.NewKey(ids.new_uuid(), tenant, "key", "wxyz", b"hash")
    await tenants.insert_key(owner, key)
    found = await callers.find_principal(serving, b"hash")
    assert found is not None
    assert found.tenant_id == tenant


@pytest.mark.slow
async def test_what_serves_stores_claims_and_deletes(owner: Database, serving: Database) -> None:
    tenant = await new_tenant(owner)
    uuid = await store_turn(serving, tenant, "1")
    assert await responses.delete(serving, tenant, uuid)
    await responses.insert(serving, tenant, durable_response())
    assert len(await claims.claim(serving, "me", TERMS, limit=9, take_over=True)) == 1


@pytest.mark.parametrize(
    "statement",
    [
        "SELECT hash FROM api_keys",
        "SELECT FROM operator_keys",
        "INSERT INTO tenants (id, name, created_at) VALUES (gen_random_uuid(), 'other', now())",
        "UPDATE tenants SET disabled_at = NULL",
        "UPDATE alembic_version SET version_num = ''",
        "CREATE TABLE other ()",
        "ALTER TABLE responses DISABLE ROW LEVEL SECURITY",
        f"SET ROLE {OWNER}",
    ],
)
async def test_what_serves_may_not_do_what_the_owner_does(
    serving: Database, statement: str
) -> None:
    with pytest.raises(StoreError, match="42501"):
        async with serving.owner_transaction() as connection:
            await connection.execute(Statement(statement))


COLUMNS = (
    "tenant_id, id, name, issuer, audience, transformations, algorithms, clock_skew_s,"
    " lifetime_max_s, bearer, unnamed_bearer, tenants, roles, enabled, created_at, updated_at"
)
OPERATORS_ISSUER = Statement(f"""
INSERT INTO identity_providers ({COLUMNS})
VALUES ('{EVERYONE}', gen_random_uuid(), 'us', 'https://id.example', 'api', '', '{{RS256}}', 0,
        3600, true, false, '{{*}}', '', true, now(), now())
""")
THOSE_OF_OPERATORS = f"identity_providers WHERE tenant_id = '{EVERYONE}'"


async def test_what_serves_neither_reads_nor_changes_the_issuers_of_operators(
    owner: Database, serving: Database
) -> None:
    """Whoever may write them can act for any tenant."""
    async with owner.owner_transaction() as connection:
        await connection.execute(OPERATORS_ISSUER)
    count = Statement(f"SELECT count(*) FROM {THOSE_OF_OPERATORS}")
    change = Statement("UPDATE identity_providers SET enabled = true")
    tenant = await new_tenant(owner)
    for transaction in (
        serving.owner_transaction(),
        serving.transaction(TenantId(EVERYONE)),
        serving.transaction(tenant),
    ):
        async with transaction as connection:
            assert await connection.scalar(count) == 0
            assert await connection.count(change, {}) == 0
    with pytest.raises(StoreError, match="42501"):
        async with serving.owner_transaction() as connection:
            await connection.execute(OPERATORS_ISSUER)
    async with owner.owner_transaction() as connection:
        assert await connection.scalar(count) == 1


@pytest.mark.slow
async def test_what_serves_removes_what_has_expired_and_leaves_days_to_the_owner(
    owner: Database, serving: Database
) -> None:
    tenant = await new_tenant(owner)
    await store_aged(serving, tenant, 31 * DAY)
    report = await housekeeping(serving).round()
    assert (report.days_owned, report.days_made, report.removed["responses"]) == (False, 0, 1)
    assert await stored_ids(serving, tenant) == set()
    report = await housekeeping(owner).round()
    assert (report.days_owned, report.days_made) == (True, DAYS_AHEAD + 1)
    async with serving.owner_transaction() as connection:
        assert len(await sweep.partition_days(connection)) == DAYS_AHEAD + 1


async def test_whoever_leaves_days_to_the_owner_says_so_once(serving: Database) -> None:
    with captured_logs(of="gateway.retention.sweep") as logged:
        await housekeeping(serving)._begin()
    assert [(event["level"], "db maintain" in event["event"]) for event in logged] == [
        ("info", True)
    ]


@pytest.mark.slow
async def test_what_takes_the_owner_and_many_steps_is_not_begun_by_who_serves(
    owner: Database, serving: Database
) -> None:
    """Half of it would be permitted."""
    made = Filled(await new_tenant(owner), "word")
    await fill(owner, made)
    before = await counts(owner, made.tenant)
    async with owner.owner_transaction() as connection:
        await connection.execute(Statement("UPDATE tenants SET deleted_at = now() - interval '8d'"))
    data = TenantData(serving)
    for begun in (data.erase_person(f"tenant-{made.tenant}", "grace"), data.purge()):
        with pytest.raises(StoreError, match=f"takes {OWNER}.*nothing was changed") as refused:
            await begun
        assert refused.value.state == "42501"
    assert await counts(owner, made.tenant) == before
