"""The rooms of hosted tools: each is imported and built only if it is enabled."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from gateway import ids
from gateway.errors import StartupError
from gateway.protocol.grants import PythonGrant
from gateway.store.tools import tool_calls
from gateway.store.tools.mcp_servers import OPERATOR
from gateway.telemetry.logs import EventLog

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Mapping, Sequence
    from uuid import UUID

    from gateway.engine.engine import AskApproval
    from gateway.protocol.grants import DomainRules
    from gateway.protocol.hosted_tools import CodeInterpreterTool, HostedFamily, McpServerTool
    from gateway.services.containers import Containers
    from gateway.tenancy import Principal, TenantId
    from gateway.tenancy.policy import McpServersAllowed
    from gateway.tools.mcp.listing import Listing
    from gateway.tools.tool_contract import HostedTools, ToolKind
    from gateway.tools.tool_executor import ToolExecutor
    from gateway.wiring.foundation import Foundation
    from gateway.wiring.mcp_room import McpRoom

BUILTINS_INTERVAL_S: Final = 5.0
"""Seconds between two looks for an operator's server for browser or Python."""
APPROVAL_TTL_S: Final = 86_400.0
"""Seconds in which a call can be approved."""
BEHIND_MCP: Final = "mcp"
"""Engine of Python where an operator's MCP server runs it."""
_FAMILIES: Final[Mapping[ToolKind, HostedFamily]] = {
    "browser": "web_search",
    "python": "code_interpreter",
    "mcp": "mcp",
}
_PURPOSES: Final[tuple[ToolKind, ...]] = ("browser", "python")

_log = EventLog(__name__)


class Rooms:
    def __init__(self, base: Foundation) -> None:
        # Builds what needs no event loop, without connecting. Raises `StartupError`.
        tools = base.settings.tools
        self._base = base
        self._tools: dict[ToolKind, HostedTools] = {}
        self.families: frozenset[HostedFamily] = frozenset()
        """Families of the tools that can run now: every request asks for them."""
        self._own: dict[ToolKind, HostedTools] = {}
        self._helpers: list[Callable[[], Coroutine[Any, Any, None]]] = []
        self._open = AsyncExitStack()
        self.mcp: McpRoom | None = None
        self.executor: ToolExecutor | None = None
        """None: the gateway runs no tools."""
        self.ask_approval: AskApproval | None = None
        if not (tools.web.enabled or tools.python.enabled or tools.mcp.enabled):
            return
        # A process that runs no tools does not hold their code.
        from gateway.tools.tool_executor import ToolExecutor, ToolLimits

        self.executor = ToolExecutor(
            self._tools, tools.fill(ToolLimits), threads=base.executor, metrics=base.metrics
        )
        if tools.mcp.enabled:
            from gateway.wiring.mcp_room import new_room

            self.mcp = new_room(base.settings, base.database, base.sealer, base.metrics)
            self.ask_approval = partial(
                tool_calls.ask_approval,
                base.database,
                key=base.settings.mcp_identity_key,
                ttl_s=APPROVAL_TTL_S,
            )

    def is_behind_mcp(self, kind: ToolKind) -> bool:
        return self.mcp is not None and self._tools.get(kind) is self.mcp.builtins

    async def start(self) -> None:
        """Test what each room depends on, and leave out rooms that fail."""
        tools = self._base.settings.tools
        if tools.web.enabled:
            await self._add("browser", self._start_browser)
        if tools.python.enabled:
            await self._add("python", self._start_python)
        if self.mcp is not None:
            self._own["mcp"] = self.mcp.tools
            self._helpers += [self.mcp.sessions.run, self._look_for_builtins]
        self._tools.update(self._own)
        self._note_families()
        if self.mcp is not None:
            await self._find_builtins()

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            for helper in self._helpers:
                group.create_task(helper())

    async def close(self) -> None:
        # No call may run any more.
        try:
            await self._open.aclose()
        except Exception as error:  # noqa: BLE001 - the process ends all the same
            _log.error("hosted tools were not closed", error=error)

    async def _add(
        self, kind: ToolKind, start: Callable[[], Coroutine[Any, Any, tuple[HostedTools, str]]]
    ) -> None:
        try:
            self._own[kind], summary = await start()
        except StartupError:
            raise
        except Exception as error:  # noqa: BLE001 - a gateway without one of its tools still serves
            _log.error("a hosted tool is off", kind=kind, error=error)
        else:
            _log.info("a hosted tool is on", kind=kind, reason=summary)

    async def _start_browser(self) -> tuple[HostedTools, str]:
        from gateway.wiring.web import browser_tools

        base, call = self._base, None
        if (mcp := self.mcp) is not None:
            from gateway.tools.mcp.operator_tools import search_call

            timeout_s = base.settings.tools.mcp.call_timeout_s
            call = search_call(mcp.registry, mcp.sessions, timeout_s=timeout_s)
        browser = browser_tools(base.settings, base.database, base.metrics, call)
        self._open.push_async_callback(browser.close)
        return browser.session, await browser.check()

    async def _start_python(self) -> tuple[HostedTools, str]:
        from gateway.tools.python.python_tool import PythonSession

        containers = self._base.containers
        self._open.push_async_callback(containers.close)
        summary = await containers.check()
        if containers.engine is None:
            raise RuntimeError(summary)
        self._helpers.append(containers.run)
        return partial(PythonSession, containers), summary

    async def _look_for_builtins(self) -> None:
        while True:
            await asyncio.sleep(BUILTINS_INTERVAL_S)
            await self._find_builtins()

    async def _find_builtins(self) -> None:
        # An operator's server for a built-in tool takes precedence over the gateway's own.
        assert self.mcp is not None
        try:
            servers = await self.mcp.registry.servers(OPERATOR)
        except Exception as error:  # noqa: BLE001 - a gateway that cannot read it still serves
            _log.warning("the registry of MCP servers cannot be read", error=error)
            return
        purposes = frozenset().union(*(server.purposes for server in servers.values()))
        for kind in _PURPOSES:
            if kind in purposes:
                self._tools[kind] = self.mcp.builtins
            elif kind in self._own:
                self._tools[kind] = self._own[kind]
            else:
                self._tools.pop(kind, None)
        self._note_families()

    def _note_families(self) -> None:
        self.families = frozenset(_FAMILIES[kind] for kind in self._tools)


class Sources:
    def __init__(self, base: Foundation, rooms: Rooms, containers: Containers) -> None:
        self._base = base
        self._rooms = rooms
        self._containers = containers

    def families(self) -> frozenset[HostedFamily]:
        return self._rooms.families

    async def container(
        self,
        principal: Principal,
        response: UUID,
        tool: CodeInterpreterTool,
        *,
        inherited: str | None,
        param: str,
    ) -> PythonGrant:
        """Return a response's container, named after it if an operator's server runs Python."""
        if self._rooms.is_behind_mcp("python"):
            uuid = ids.auto_container(response)
            description = await self._python_description(principal.tenant_id)
            return PythonGrant(
                ids.container_id(uuid), BEHIND_MCP, memory_bytes=0, description=description or None
            )
        return await self._containers.granted(
            principal, response, tool.container, inherited=inherited, param=param
        )

    async def _python_description(self, tenant_id: TenantId) -> str:
        from gateway.tools.mcp.failures import McpError

        mcp = self._rooms.mcp
        assert mcp is not None
        server = await mcp.registry.for_purpose(tenant_id, "python")
        if server is None:
            return ""
        try:
            return await mcp.servers.instructions(tenant_id, server)
        except McpError as error:
            _log.warning("a server says nothing of its Python", kind="mcp", error=error)
            return ""

    async def servers(
        self,
        tenant_id: TenantId,
        tools: Sequence[tuple[str, McpServerTool]],
        allowed: McpServersAllowed,
        domains: DomainRules,
        *,
        anew: bool,
    ) -> Sequence[Listing]:
        from gateway.tools.mcp.listing import RequestedServer
        from gateway.tools.mcp.servers import UrlTerms

        assert self._rooms.mcp is not None, "tools of MCP servers are served"
        requested = [RequestedServer.of(tool, path) for path, tool in tools]
        terms = UrlTerms(allowed, domains)
        return await self._rooms.mcp.servers.list(tenant_id, requested, terms, anew=anew)
