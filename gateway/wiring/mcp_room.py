from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from ipaddress import ip_network
from typing import TYPE_CHECKING

from gateway.errors import StartupError, installation
from gateway.store.tools import mcp_servers
from gateway.tools.egress.network_policy import NetworkPolicy
from gateway.tools.mcp.listing import McpServers
from gateway.tools.mcp.operator_tools import BuiltinSession
from gateway.tools.mcp.server_tools import McpToolSession
from gateway.tools.mcp.servers import Registry, ServerPolicy, ServerResolver
from gateway.tools.mcp.session import McpLimits
from gateway.tools.mcp.session_pool import Networks, SessionPool

if TYPE_CHECKING:
    from gateway.sealing import Sealer
    from gateway.settings import Settings
    from gateway.settings.tools import Mcp
    from gateway.store.postgres.database import Database
    from gateway.telemetry.metrics import Metrics
    from gateway.tools.tool_contract import HostedTools


@dataclass(frozen=True, slots=True)
class McpRoom:
    """MCP tools: `servers` list them when a response is created; `builtins` are the browser and
    Python of operators' servers.
    """

    servers: McpServers
    tools: HostedTools
    builtins: HostedTools
    sessions: SessionPool
    registry: Registry


def new_room(
    settings: Settings, database: Database, sealer: Sealer, metrics: Metrics | None = None
) -> McpRoom:
    """Build the room without connecting."""
    mcp = settings.tools.mcp
    if find_spec("mcp") is None:
        raise StartupError(
            "tools of MCP servers need the MCP SDK, which is not installed",
            remedy=f"Install it, in a checkout: {installation('mcp')}. Or set tools.mcp.enabled to "
            "false.",
        )
    networks = _networks(mcp)
    registry = Registry(partial(mcp_servers.visible_to, database), sealer)
    policy = ServerPolicy(mcp.servers, mcp.hosts, networks.named)
    resolver = ServerResolver(registry, policy, settings.mcp_identity_key)
    limits = mcp.fill(McpLimits)
    sessions = SessionPool(networks, limits, metrics=metrics)
    return McpRoom(
        servers=McpServers(resolver, sessions, limits),
        tools=partial(McpToolSession, resolver, sessions, limits),
        builtins=partial(BuiltinSession, registry, sessions, limits),
        sessions=sessions,
        registry=registry,
    )


def _networks(mcp: Mcp) -> Networks:
    # Operators know which servers they register: those may use plain HTTP, and any port within
    # `networks`.
    ports = frozenset(mcp.ports)
    return Networks(
        registered=NetworkPolicy(tuple(map(ip_network, mcp.networks)), ports | {80}),
        named=NetworkPolicy(
            tuple(map(ip_network, mcp.url_networks)),
            ports | ({80} if mcp.url_plain_http else set()),
            plain_http=mcp.url_plain_http,
        ),
    )
