"""What tests of MCP tools share: sessions that reach loopback, and calls that tell what came."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from functools import partial
from ipaddress import ip_network
from typing import TYPE_CHECKING, Any
from uuid import UUID

from gateway import ids
from gateway.protocol.hosted_tools import McpServerTool
from gateway.sealing import Sealer, SealingSecret
from gateway.store.tools.mcp_servers import OPERATOR, McpServerRow
from gateway.tenancy import TenantId
from gateway.tools.egress.network_policy import NetworkPolicy
from gateway.tools.mcp.listing import McpServers, RequestedServer
from gateway.tools.mcp.operator_tools import BuiltinSession
from gateway.tools.mcp.server_tools import McpToolSession
from gateway.tools.mcp.servers import Registry, ServerPolicy, ServerResolver
from gateway.tools.mcp.session import McpLimits
from gateway.tools.mcp.session_pool import Networks, Peer, SessionPool

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping

    from gateway.telemetry.metrics import Metrics
    from gateway.tools.egress.transport import Resolver
    from gateway.tools.tool_contract import HostedTools

LOOPBACK = NetworkPolicy(networks=(ip_network("127.0.0.1/32"),))
PATIENT = McpLimits(connect_timeout_s=20, list_timeout_s=20)
TENANT = TenantId(UUID(int=7))
IDENTITY_KEY = b"key of identities"
SEALER = Sealer([SealingSecret("key", b"secret" * 8)])


@asynccontextmanager
async def pool(
    policy: NetworkPolicy = LOOPBACK,
    limits: McpLimits = PATIENT,
    resolver: Resolver | None = None,
    metrics: Metrics | None = None,
) -> AsyncIterator[SessionPool]:
    """SessionPool that are closed in the end."""
    given: dict[str, Any] = {} if resolver is None else {"resolver": resolver}
    given["metrics"] = metrics
    sessions = SessionPool(Networks(policy, policy), limits, **given)
    async with asyncio.TaskGroup() as tasks:
        running = tasks.create_task(sessions.run())
        try:
            yield sessions
        finally:
            running.cancel()


def row(url: str, label: str = "ours", **fields: Any) -> McpServerRow:
    """A registered server, of all tenants."""
    return McpServerRow(OPERATOR, ids.new_uuid(), label, url, **fields)


def resolver_of(*rows: McpServerRow, policy: ServerPolicy | None = None) -> ServerResolver:
    """Knows these servers, and lets requests name any on loopback."""

    async def load_rows(_tenant: TenantId) -> Mapping[str, McpServerRow]:
        return {one.label: one for one in rows}

    allowed = policy or ServerPolicy("any", (), LOOPBACK)
    return ServerResolver(Registry(load_rows, SEALER), allowed, IDENTITY_KEY)


def servers_of(
    sessions: SessionPool, *rows: McpServerRow, limits: McpLimits = PATIENT
) -> McpServers:
    return McpServers(resolver_of(*rows), sessions, limits)


def peer(url: str, **headers: str) -> Peer:
    return Peer(TENANT, url, url, repr(sorted(headers.items())), headers)


def asked(label: str, url: str | None = None, **fields: Any) -> RequestedServer:
    """What a request says of a server, in its own words."""
    tool = {"type": "mcp", "server_label": label, "server_url": url, **fields}
    return RequestedServer.of(McpServerTool.model_validate(tool), "tools[0]")


def mcp_tools(resolver: ServerResolver, sessions: SessionPool, limits: McpLimits) -> HostedTools:
    return partial(McpToolSession, resolver, sessions, limits)


def mcp_builtins(registry: Registry, sessions: SessionPool, limits: McpLimits) -> HostedTools:
    return partial(BuiltinSession, registry, sessions, limits)
