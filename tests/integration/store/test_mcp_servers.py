"""The registry of MCP servers: of all tenants, of one, and whose counts."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import pytest

from gateway import ids
from gateway.errors import StoreConflict
from gateway.sealing import Sealer, SealingSecret
from gateway.store.tools import mcp_servers
from gateway.store.tools.mcp_servers import OPERATOR, McpServerRow
from gateway.tools.mcp.servers import Registry, sealed_headers

if TYPE_CHECKING:
    from gateway.store.postgres.database import Database
    from gateway.tenancy import TenantId


def server(tenant: TenantId, label: str, url: str = "https://mcp.example/mcp") -> McpServerRow:
    return McpServerRow(tenant, ids.new_uuid(), label, url)


async def test_a_tenant_knows_its_own_and_those_of_all(
    database: Database, tenant: TenantId, other_tenant: TenantId
) -> None:
    everybodys = server(OPERATOR, "crm")
    full = replace(
        server(tenant, "files"),
        secret="sealed",
        trusted=True,
        always_asks=True,
        allowed_tools=b'["a"]',
        purposes="mcp browser",
        call_timeout_s=90,
    )
    own = server(tenant, "crm", "https://own.example/mcp")
    for one in (everybodys, full, own):
        await mcp_servers.insert(database, one)
    known = await mcp_servers.visible_to(database, tenant)
    assert known == {"crm": own, "files": full}
    assert await mcp_servers.visible_to(database, other_tenant) == {"crm": everybodys}
    assert await mcp_servers.of_tenant(database, OPERATOR) == [everybodys]
    with pytest.raises(StoreConflict):
        await mcp_servers.insert(database, server(tenant, "crm"))
    assert await mcp_servers.remove(database, tenant, "crm")
    assert not await mcp_servers.remove(database, tenant, "crm")
    assert (await mcp_servers.visible_to(database, tenant))["crm"] == everybodys


async def test_credentials_are_sealed_for_their_row(database: Database, tenant: TenantId) -> None:
    sealer = Sealer([SealingSecret("key", b"secret" * 8)])
    one = server(OPERATOR, "crm")
    sealed = sealed_headers(sealer, OPERATOR, one.id, {"authorization": "Bearer secret"})
    assert "secret" not in sealed
    await mcp_servers.insert(database, replace(one, secret=sealed))
    moved = replace(server(tenant, "moved"), secret=sealed)
    await mcp_servers.insert(database, moved)
    registry = Registry(partial(mcp_servers.visible_to, database), sealer)
    known = await registry.servers(tenant)
    assert known["crm"].headers == {"authorization": "Bearer secret"}
    assert "Bearer" not in repr(known["crm"])
    assert "moved" not in known
