"""Policies of tenants: what is set is found with the key; the table refuses what is no policy."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from gateway import ids
from gateway.errors import StoreConflict
from gateway.store import callers, tenants
from gateway.store.postgres.statements import Statement
from gateway.store.tenants import NewKey
from gateway.tenancy import (
    DEFAULT_PROJECT,
    PLAIN_KEY,
    ProjectId,
    ProjectTerms,
    TenantId,
    default_project,
)
from gateway.tenancy.policy import TenantPolicy
from tests.conftest import new_tenant
from tests.fakes.rows import add_rows
from tests.fakes.stored import CREATED

if TYPE_CHECKING:
    from gateway.store.postgres.database import Database
    from gateway.tenancy.policy import OwnPolicy

OWN: OwnPolicy = {
    "on_disconnect": "continue",
    "log_retention_s": 60,
    "response_retention_s": 120,
    "background_running_max": 1,
    "background_queued_max": 2,
    "reasoning_summary": "off",
    "reasoning_budget_tokens": 0,
    "service_tier_max": "priority",
    "response_messages": "allowed",
    "web_search": "refused",
    "code_interpreter": "refused",
    "mcp": "refused",
    "mcp_servers": "registry",
    "mcp_approvals": "always",
    "tool_calls_max": 3,
    "tool_time_max_s": 7,
    "tool_result_ids_max": 11,
    "tool_result_bytes_max": 2**31 - 1,
    "egress": "refused",
    "egress_domains": "a.example",
    "egress_denied_domains": "b.example c.example",
    "containers_max": 5,
    "container_memory_max": "4g",
}
DEFAULTS = TenantPolicy(reasoning_budget_tokens=4096)


async def new_acme(database: Database) -> None:
    tenant = TenantId(ids.new_uuid())
    await tenants.insert_tenant(database, tenant, "acme")
    await tenants.insert_key(database, NewKey(ids.new_uuid(), tenant, "key", "wxyz", b"hash"))


async def test_a_key_is_found_with_every_part_of_its_tenant_s_policy(database: Database) -> None:
    await new_acme(database)
    found = await callers.find_principal(database, b"hash", DEFAULTS)
    assert found is not None
    assert found.policy == DEFAULTS
    await tenants.set_policy(database, "acme", OWN)
    found = await callers.find_principal(database, b"hash", DEFAULTS)
    assert found is not None
    assert found.policy == DEFAULTS.with_own(OWN)
    assert found.policy == TenantPolicy(
        *("continue", 60, 120, 1, 2, "off", 0, "priority", "allowed"),
        *("refused", "refused", "refused", "registry", "always", 3, 7),
        *(11, 2**31 - 1, "refused", "a.example", "b.example c.example", 5, "4g"),
    )


async def test_a_key_has_the_dialect_that_it_was_made_with(database: Database) -> None:
    tenant = TenantId(ids.new_uuid())
    await tenants.insert_tenant(database, tenant, "acme")
    new = NewKey(ids.new_uuid(), tenant, "key", "wxyz", b"hash", "openresponses")
    assert (await tenants.insert_key(database, new)).dialect == "openresponses"
    found = await callers.find_principal(database, b"hash")
    assert found is not None
    assert found.dialect == "openresponses"


async def test_a_key_that_is_older_than_dialects_has_openai_s(database: Database) -> None:
    await new_acme(database)
    async with database.owner_transaction() as connection:
        await connection.execute(Statement("UPDATE api_keys SET dialect = NULL"))
    (key,) = await tenants.keys(database, None)
    found = await callers.find_principal(database, b"hash")
    assert found is not None
    assert (key.dialect, found.dialect) == ("openai", "openai")


async def test_a_policy_that_is_taken_back_is_the_default_again(database: Database) -> None:
    await new_acme(database)
    changed = await tenants.set_policy(database, "acme", OWN)
    assert changed[1] == OWN
    gone = ("reasoning_summary", "reasoning_budget_tokens", "service_tier_max")
    taken_back = await tenants.set_policy(database, "acme", dict.fromkeys(gone))
    assert taken_back[1] == {name: value for name, value in OWN.items() if name not in gone}
    assert DEFAULTS.with_own(taken_back[1]).reasoning_budget_tokens == 4096
    assert DEFAULTS.with_own(taken_back[1]).service_tier_max == "default"


@pytest.mark.parametrize(
    ("column", "value"),
    [
        ("on_disconnect", "pause"),
        ("reasoning_summary", "model"),
        ("reasoning_budget_tokens", -1),
        ("service_tier_max", "flex"),
        ("response_messages", "yes"),
        ("egress", "some"),
        ("container_memory_max", "2g"),
    ],
)
async def test_the_table_refuses_what_is_no_policy(
    database: Database, column: str, value: str | int
) -> None:
    await new_acme(database)
    with pytest.raises(StoreConflict) as caught:
        await tenants.set_policy(database, "acme", {column: value})
    assert caught.value.constraint == f"ck_tenants_{column}"


async def test_a_key_stands_for_its_project_until_that_is_archived(database: Database) -> None:
    tenant = await new_tenant(database)
    project = ProjectId(ids.new_uuid())
    row = {"tenant_id": tenant, "id": project, "name": "Support bot", "created_at": CREATED}
    async with database.transaction(tenant) as connection:
        await add_rows(connection, "projects", row)
    new = NewKey(ids.new_uuid(), tenant, "key", "wxyz", b"of a project", project_id=project)
    key = await tenants.insert_key(database, new)
    assert (key.project, key.terms) == (project, PLAIN_KEY)
    found = await callers.find_principal(database, b"of a project")
    assert found is not None
    assert (found.project, found.project_terms) == (project, ProjectTerms("Support bot"))
    async with database.transaction(tenant) as connection:
        await connection.execute(Statement("UPDATE projects SET archived_at = now()"))
    assert await callers.find_principal(database, b"of a project") is None


async def test_the_default_project_needs_no_row(database: Database) -> None:
    tenant = await new_tenant(database)
    await tenants.insert_key(database, NewKey(ids.new_uuid(), tenant, "key", "wxyz", b"plain"))
    found = await callers.find_principal(database, b"plain")
    assert found is not None
    assert (found.project, found.project_terms) == (default_project(tenant), DEFAULT_PROJECT)
