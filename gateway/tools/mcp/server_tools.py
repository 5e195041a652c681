"""Tools of MCP servers. The grants alone decide which may be called. A call that may have reached
its server is repeated only if an operator's trusted server declares it repeatable.
"""

from __future__ import annotations

import asyncio
import hashlib
import time
from typing import TYPE_CHECKING, Any, Final

import orjson
from typing_extensions import override

from gateway.constraints.output_rules import UnusableSchema
from gateway.errors import StoreError
from gateway.protocol.json_body import is_within_depth
from gateway.telemetry.logs import EventLog
from gateway.telemetry.trace_context import CURRENT
from gateway.tools.mcp.failures import REQUEST_TIMEOUT, McpError
from gateway.tools.mcp.servers import headers_of
from gateway.tools.mcp.session_pool import BUSY
from gateway.tools.result_text import cut, plain
from gateway.tools.tool_contract import ToolResult, ToolSession, ToolStart

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from uuid import UUID

    from gateway.entries import ToolOutcome
    from gateway.protocol.grants import McpTool, ServerGrant
    from gateway.tools.mcp.servers import McpServer, ServerResolver
    from gateway.tools.mcp.session import CallResult, McpLimits
    from gateway.tools.mcp.session_pool import Peer, SessionPool
    from gateway.tools.tool_contract import ToolCall, ToolScope


DEPTH_MAX: Final = 32
CHECK_WORK_MAX: Final = 50_000
"""Applications of a schema to a value."""
_INLINE_BYTES_MAX: Final = 8 * 1024
"""Larger schemas and arguments are checked in a thread."""


class BadArguments(ValueError):
    """Invalid arguments. The message is for the model."""


async def checked_arguments(tool: McpTool, written: str, *, bytes_max: int) -> dict[str, Any]:
    """Parse the arguments, and validate them. Raises `BadArguments`."""
    content = written.encode("utf-8", "surrogatepass")
    if len(content) > bytes_max:
        raise BadArguments(f"they have {len(content)} bytes; {bytes_max} are the most")
    if not written.strip():
        content = b"{}"
    if len(content) + len(str(tool.parameters)) > _INLINE_BYTES_MAX:
        fault = await asyncio.to_thread(_fault, tool.parameters, content)
    else:
        fault = _fault(tool.parameters, content)
    if fault is not None:
        raise BadArguments(fault)
    arguments: dict[str, Any] = orjson.loads(content)
    return arguments


def _fault(schema: Mapping[str, Any], content: bytes) -> str | None:
    try:
        value = orjson.loads(content)
    except ValueError as error:
        return f"they are not JSON ({str(error).partition(chr(10))[0]})"
    if not isinstance(value, dict):
        return "they are not a JSON object"
    if not is_within_depth(value, DEPTH_MAX):
        return f"they are nested deeper than {DEPTH_MAX} levels"
    # Libraries that nothing may have needed before.
    from gateway.constraints.validators import SchemaValidator

    try:
        validator = SchemaValidator(dict(schema), work_max=CHECK_WORK_MAX)
    except UnusableSchema:
        return None  # the server knows better what it takes
    fault = validator.fault(content.decode())
    return None if fault is None else f"they do not match its schema: {fault}"


INVALID_PARAMS: Final = -32602
SERVER_ERRORS: Final = 500
"""From here on HTTP statuses do not say that nothing was done."""
IDEMPOTENCY_KEY: Final = "harmony-gateway/idempotency-key"
DEADLINE: Final = "harmony-gateway/deadline"
"""Key of `_meta`, in Unix seconds."""
NOBODY_KNOWS: Final = (
    "Nobody knows whether the call had an effect. Do not simply repeat it: find out first, by a "
    "call that only reads, if there is one."
)

_log = EventLog(__name__)


class McpToolSession(ToolSession):
    def __init__(
        self, resolver: ServerResolver, sessions: SessionPool, limits: McpLimits, scope: ToolScope
    ) -> None:
        self._scope = scope
        self._resolver = resolver
        self._sessions = sessions
        self._limits = limits
        self._granted = {
            f"{server.label}.{tool.name}": (server, tool)
            for server in scope.grants.servers
            for tool in server.tools
        }

    @override
    def start(self, call: ToolCall) -> ToolStart:
        # Hints are granted only where the operator trusts the server.
        _, tool = self._granted.get(call.name, (None, None))
        return ToolStart(tool is not None and (tool.is_read_only or tool.is_idempotent))

    @override
    async def run(self, call: ToolCall, on_handle: Callable[[bytes], None]) -> ToolResult:
        grant, tool = self._granted.get(call.name, (None, None))
        if grant is None or tool is None:
            return self._refusal(f"There is no tool {call.name}.", "the tool is not offered")
        try:
            arguments = await checked_arguments(
                tool, call.arguments, bytes_max=self._limits.arguments_bytes_max
            )
        except BadArguments as error:
            text = f"The tool was not called: its arguments cannot be used, because {error}."
            return self._refusal(text, str(error))
        if tool.needs_approval and not self._is_approved(call):
            return self._refusal("The tool was not called: nobody approved it.", "not approved")
        try:
            server = await self._server(grant)
        except StoreError:
            return self._failure(McpError("http_error", 0, _NO_REGISTRY, sent=False), tool)
        if isinstance(server, str):
            return self._refusal(f"The tool was not called: {server}.", server)
        peer = server.peer(self._scope.tenant_id, headers_of(self._secrets(grant)))
        timeout_s = server.call_timeout_s or self._limits.call_timeout_s
        return await self._call_with_retry(call, tool, arguments, peer, timeout_s=timeout_s)

    def _is_approved(self, call: ToolCall) -> bool:
        # The call that the user approved is made before all others.
        approved = self._scope.grants.approved
        return approved is not None and (call.ordinal, call.name, call.arguments) == (
            0,
            approved.name,
            approved.arguments,
        )

    async def _server(self, grant: ServerGrant) -> McpServer | str:
        # The server, or the reason why it must not be called. Raises `StoreError`.
        secrets = self._secrets(grant)
        is_gone = grant.has_secrets and not secrets
        if is_gone or grant.credential != self._resolver.credential(headers_of(secrets)):
            return "the credentials that the request gave for it are gone"
        server = await self._resolver.granted(self._scope.tenant_id, grant.server, secrets)
        return server or "its server may no longer be used here"

    def _secrets(self, grant: ServerGrant) -> Mapping[str, str]:
        return self._scope.secrets.get(grant.label, {})

    async def _call_with_retry(
        self,
        call: ToolCall,
        tool: McpTool,
        arguments: Mapping[str, Any],
        peer: Peer,
        *,
        timeout_s: float,
    ) -> ToolResult:
        clock = asyncio.get_running_loop().time
        until = clock() + timeout_s
        try:
            result = await self._call_once(peer, call, tool, arguments, until)
        except McpError as error:
            if not self._may_repeat(tool, error) or clock() >= until:
                return self._failure(error, tool)
        else:
            return self._result(result)
        try:
            return self._result(await self._call_once(peer, call, tool, arguments, until))
        except McpError as error:
            return self._failure(error, tool)

    @staticmethod
    def _may_repeat(tool: McpTool, error: McpError) -> bool:
        # Only in this process and now; the engine counts the attempts of earlier replicas.
        is_lost = error.type == "http_error" and error.code == 0 and error.sent
        return is_lost and (tool.is_read_only or tool.is_idempotent)

    async def _call_once(
        self, peer: Peer, call: ToolCall, tool: McpTool, arguments: Mapping[str, Any], until: float
    ) -> CallResult:
        left_s = max(0.0, until - asyncio.get_running_loop().time())
        meta = call_meta(self._scope.response, call.ordinal, left_s)
        return await self._sessions.call(peer, tool.name, arguments, timeout_s=left_s, meta=meta)

    def _result(self, result: CallResult) -> ToolResult:
        output = plain(cut(result.output, self._limits.output_bytes_max))
        if not result.is_error:
            shown = {"output": output, "error": None}
            return ToolResult(output, shown=shown, ids_max=self._limits.result_ids_max)
        content = [{"type": "text", "text": output}]
        error = {"type": "mcp_tool_execution_error", "content": content}
        return ToolResult(
            output or "The tool failed without a word.",
            "tool_error",
            shown={"output": None, "error": error},
            ids_max=self._limits.result_ids_max,
        )

    def _refusal(self, text: str, message: str) -> ToolResult:
        error = {
            "type": "mcp_protocol_error",
            "code": INVALID_PARAMS,
            "message": plain(cut(message, 1024)),
        }
        shown = {"output": None, "error": error}
        return ToolResult(text, "refused", shown=shown, ids_max=self._limits.error_ids_max)

    def _failure(self, error: McpError, tool: McpTool) -> ToolResult:
        outcome, message, text = described_failure(error, only_reads=tool.is_read_only)
        _log.info("a call of an MCP server failed", reason=outcome, code=str(error.code))
        shown = {"type": error.type, "code": error.code, "message": message}
        if outcome == "unknown":
            shown["message"] = f"outcome unknown: {message}"
        return ToolResult(
            text,
            outcome,
            shown={"output": None, "error": shown},
            ids_max=self._limits.error_ids_max,
        )


_NO_REGISTRY: Final = "the registry of servers cannot be read now"


def outcome_of(error: McpError, *, only_reads: bool) -> ToolOutcome:
    """Return `unknown` if the call may have had an effect, `refused` if it was not sent for lack of
    room.
    """
    if error.code == BUSY and not error.sent:
        return "refused"
    if error.code == REQUEST_TIMEOUT:
        return "timeout"
    if error.type == "mcp_protocol_error":
        return "tool_error"
    may_have_run = error.sent and (error.code == 0 or error.code >= SERVER_ERRORS)
    return "unknown" if may_have_run and not only_reads else "transport_error"


def described_failure(error: McpError, *, only_reads: bool) -> tuple[ToolOutcome, str, str]:
    """Return the outcome, the message for clients, and that for the model."""
    outcome, message = outcome_of(error, only_reads=only_reads), plain(cut(str(error), 1024))
    text = f"The tool gave no result: {message}."
    if outcome in {"unknown", "timeout"} and error.sent and not only_reads:
        text = f"{text} {NOBODY_KNOWS}"
    return outcome, message, text


def call_meta(response: UUID, ordinal: int, timeout_s: float) -> dict[str, Any]:
    """Return metadata: a key that all attempts share, and the trace of the current span, or one
    made of the response's id.
    """
    key = hashlib.sha256(response.bytes + ordinal.to_bytes(4, "big")).hexdigest()
    span = CURRENT.get()
    trace = f"00-{response.hex}-{key[:16]}-01" if span is None else span.headers["traceparent"]
    return {IDEMPOTENCY_KEY: key, DEADLINE: round(time.time() + timeout_s, 3), "traceparent": trace}
