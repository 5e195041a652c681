"""Approvals: asked for once, used once, by one response."""

from __future__ import annotations

import asyncio
import hashlib
from typing import TYPE_CHECKING

import pytest

from gateway import ids
from gateway.errors import InvalidRequest
from gateway.retention import sweep
from gateway.settings.sections import Retention
from gateway.store.postgres.statements import Statement
from gateway.store.tools import tool_calls
from tests.fakes.rows import count

if TYPE_CHECKING:
    from uuid import UUID

    from gateway.store.postgres.database import Database
    from gateway.tenancy import TenantId

ASKED, DIGEST, KEY = "mcpr_\ud800", b"d" * 32, b"key of digests"
KEEP = Retention.model_construct(log_s=1, response_s=1, idempotency_key_s=1, traces_s=1)
AGE = Statement(
    "UPDATE tool_approvals SET expires_at = now() - make_interval(secs => :age_s)"
    " WHERE tenant_id = :tenant"
)


@pytest.fixture
def database(shared_database: Database) -> Database:
    return shared_database


async def ask(database: Database, tenant: TenantId, digest: bytes = DIGEST) -> None:
    await tool_calls.ask_approval(database, tenant, ASKED, digest, key=KEY, ttl_s=60)


async def use(
    database: Database, tenant: TenantId, request_id: str, digest: bytes, used_by: UUID
) -> str:
    """The code of the refusal, or that it counts."""
    approvals = [(request_id, tool_calls.keyed(digest, KEY))]
    try:
        async with database.transaction(tenant) as connection:
            await tool_calls.use_approvals(connection, tenant, approvals, used_by)
    except InvalidRequest as error:
        return str(error.code).removeprefix("approval_")
    return "counts"


async def age(database: Database, tenant: TenantId, seconds: float) -> None:
    async with database.transaction(tenant) as connection:
        await connection.execute(AGE, {"tenant": tenant, "age_s": seconds})


async def test_an_approval_is_used_once(database: Database, tenant: TenantId) -> None:
    await ask(database, tenant)
    first, second = ids.new_uuid(), ids.new_uuid()
    assert await use(database, tenant, ASKED, DIGEST, first) == "counts"
    assert await use(database, tenant, ASKED, DIGEST, second) == "already_used"
    assert await use(database, tenant, ASKED, DIGEST, first) == "counts"
    assert await use(database, tenant, ASKED, b"other", first) == "already_used"
    await ask(database, tenant)  # who took the response over asks again
    assert await use(database, tenant, ASKED, DIGEST, second) == "already_used"


async def test_of_many_at_once_one_uses_it(database: Database, tenant: TenantId) -> None:
    await ask(database, tenant)
    uses = await asyncio.gather(
        *(use(database, tenant, ASKED, DIGEST, ids.new_uuid()) for _ in range(8))
    )
    assert sorted(uses) == [*["already_used"] * 7, "counts"]


async def test_an_approval_is_of_one_call_of_one_tenant(
    database: Database, tenant: TenantId, other_tenant: TenantId
) -> None:
    await ask(database, tenant)
    await ask(database, tenant, b"changed")  # the first one counts
    assert await use(database, tenant, ASKED, b"changed", ids.new_uuid()) == "mismatch"
    assert await use(database, other_tenant, ASKED, DIGEST, ids.new_uuid()) == "not_found"
    assert await use(database, tenant, "mcpr_other", DIGEST, ids.new_uuid()) == "not_found"
    assert await use(database, tenant, ASKED, DIGEST, ids.new_uuid()) == "counts"


async def test_nobody_who_reads_the_table_can_try_what_was_asked_for(
    database: Database, tenant: TenantId
) -> None:
    await ask(database, tenant)
    async with database.transaction(tenant) as connection:
        kept = await connection.scalar(Statement("SELECT digest FROM tool_approvals"))
        assert kept not in {DIGEST, hashlib.sha256(DIGEST).digest()}
        await connection.execute(Statement("UPDATE tool_approvals SET digest = :d"), {"d": DIGEST})
    assert await use(database, tenant, ASKED, DIGEST, ids.new_uuid()) == "mismatch"


async def test_an_approval_that_comes_too_late_counts_no_more(
    database: Database, tenant: TenantId
) -> None:
    await ask(database, tenant)
    await age(database, tenant, 1)
    late = await use(database, tenant, ASKED, DIGEST, ids.new_uuid())
    assert late == "expired"


async def test_what_expired_long_ago_is_removed(
    database: Database, tenant: TenantId, other_tenant: TenantId
) -> None:
    await ask(database, tenant)
    await ask(database, other_tenant)
    while await sweep.delete_expired("tool_approvals", database, KEEP, rows_max=9):
        pass  # other tests leave some
    await age(database, tenant, 8 * 86_400)
    assert await sweep.delete_expired("tool_approvals", database, KEEP, rows_max=9) == 1
    assert await sweep.delete_expired("tool_approvals", database, KEEP, rows_max=9) == 0
    assert await count(database, tenant, "tool_approvals") == 0
    assert await count(database, other_tenant, "tool_approvals") == 1


async def test_who_uses_one_that_expired_is_told_so_for_a_week(
    database: Database, tenant: TenantId
) -> None:
    await ask(database, tenant)
    await age(database, tenant, 6.9 * 86_400)
    while await sweep.delete_expired("tool_approvals", database, KEEP, rows_max=9):
        pass  # other tests leave some
    late = await use(database, tenant, ASKED, DIGEST, ids.new_uuid())
    assert late == "expired"
