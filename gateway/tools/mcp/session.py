"""Connection to an MCP server, owned by a task of its own.

The SDK's client has to be left in the task that entered it, and a server that dies cancels that
task. So the owner only waits: calls run in tasks below it, and their callers hold futures.

    streamable HTTP    `server/discover`, and where that is unknown the `initialize` handshake
    SSE                where a server answers a POST with 400, 404 or 405, as those before 2025 do

The SDK is imported with the first session: it costs half a second and 20 MiB. It validates a page
of tools as a whole, so invalid tools are removed from one that it would refuse.
"""

from __future__ import annotations

import asyncio
import json
from contextlib import asynccontextmanager, nullcontext, suppress
from dataclasses import dataclass, field, replace
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final, Generic, Literal, TypeVar

import orjson
from pydantic import ValidationError

from gateway import __version__
from gateway.protocol.tool_types import FUNCTION_NAME
from gateway.telemetry.logs import EventLog
from gateway.telemetry.trace_context import CURRENT
from gateway.tools.mcp.failures import (
    EXCHANGE,
    HEADER_MISMATCH,
    INTERNAL_ERROR,
    LOST,
    NEEDS_USER,
    REQUEST_TIMEOUT,
    HttpTrace,
    McpError,
    translated,
    watch,
)

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
    from types import TracebackType

    import httpx2
    from mcp import Client
    from mcp.types import CallToolResult, ContentBlock, Tool

    from gateway.tools.egress.transport import EgressClient


@dataclass(frozen=True, slots=True)
class CallResult:
    output: str
    is_error: bool = False


def shown(result: CallToolResult) -> CallResult:
    """Render one text block as it is, anything else as JSON, without binary data."""
    content = result.content
    if len(content) == 1 and content[0].type == "text" and result.structured_content is None:
        return CallResult(content[0].text, result.is_error)
    if result.structured_content is not None and all(block.type == "text" for block in content):
        return CallResult(_compact(result.structured_content), result.is_error)
    blocks = [_block(block) for block in content]
    return CallResult(_compact(blocks), result.is_error)


def _compact(value: object) -> str:
    try:
        return orjson.dumps(value).decode()
    except TypeError:  # a number of more than 64 bits
        return json.dumps(value, separators=(",", ":"), ensure_ascii=False)


def _block(block: ContentBlock) -> Mapping[str, Any]:
    fields = block.model_dump(mode="json", by_alias=True, exclude_none=True)
    fields.pop("_meta", None)
    inner = fields.get("resource")
    for holder in (fields, inner if isinstance(inner, dict) else {}):
        for name in ("data", "blob"):
            if isinstance(holder.get(name), str):
                holder[name] = f"({len(holder[name])} characters of base64 left out)"
    return fields


_LIST: Final = "tools/list"
_PATH_PARTS: Final = 2
"""Parts of the path to a mistake: deeper ones may be names that the server chose."""
_log = EventLog(__name__)


SERVER_REQUESTS_MAX: Final = 100
"""And one more each second: a mebibyte of pings would take ten seconds of CPU."""


class MessageCheck:
    """Check of arriving messages. `version` is the protocol's, once it is agreed."""

    def __init__(self) -> None:
        self.version: str | None = None
        self._clock = asyncio.get_running_loop().time
        self._began = self._clock()
        self._requests = 0

    def passed(self, message: Any) -> Any:
        """Return a message for the SDK; None if its server sends too many requests."""
        inner = getattr(message, "message", None)
        if hasattr(inner, "method") and hasattr(inner, "id"):
            self._requests += 1
            if self._requests > SERVER_REQUESTS_MAX + self._clock() - self._began:
                return None
        result = getattr(inner, "result", None)
        # The result of a call may have anything in it, but always has its content.
        if self.version is not None and isinstance(result, dict) and "content" not in result:
            tools = result.get("tools")
            if isinstance(tools, list) and self._fault(result) is not None:
                self._leave_out(result, tools)
        return message

    def _leave_out(self, page: dict[str, Any], tools: list[Any]) -> None:
        faults = [self._fault({**page, "tools": [tool]}) for tool in tools]
        kept = [tool for tool, fault in zip(tools, faults, strict=True) if fault is None]
        if not kept:
            return
        page["tools"] = kept
        bad, fault = next(pair for pair in zip(tools, faults, strict=True) if pair[1] is not None)
        _log.warning(
            "tools of an MCP server cannot be read and are left out",
            count=len(tools) - len(kept),
            reason=f"{_name(bad)}: {fault}",
        )

    def _fault(self, page: Mapping[str, Any]) -> str | None:
        # Return where and why the SDK would reject a page, or None.
        from mcp.types.methods import parse_server_result

        assert self.version is not None
        try:
            parse_server_result(_LIST, self.version, page)
        except ValidationError as error:
            first = error.errors(include_url=False, include_context=False, include_input=False)[0]
            path = [part for part in first["loc"] if isinstance(part, str) and part != "tools"]
            return f"{'.'.join(path[:_PATH_PARTS])} {first['type']}"
        return None


def _name(tool: Any) -> str:
    # For logs, so only a valid name.
    name = tool.get("name") if isinstance(tool, dict) else None
    return name if isinstance(name, str) and FUNCTION_NAME.fullmatch(name) else "a tool"


GETS_MAX: Final = 20
"""And one more each second: a server may have its streams opened again at once, without end."""


class GetPace:
    """Pace of the GET requests of one session, by which the SDK opens a stream again."""

    def __init__(self) -> None:
        self._clock = asyncio.get_running_loop().time
        self._began = self._clock()
        self._count = 0

    async def wait(self, request: httpx2.Request) -> None:
        if request.method == "GET":
            self._count += 1
            await asyncio.sleep(self._began + self._count - GETS_MAX - self._clock())


class CheckedStream:
    def __init__(self, stream: Any, check: MessageCheck) -> None:
        self._stream = stream
        self._check = check

    @property
    def last_context(self) -> Any:
        # The SDK continues in the context in which the last message was sent.
        return getattr(self._stream, "last_context", None)

    async def receive(self) -> Any:
        while (passed := self._check.passed(await self._stream.receive())) is None:
            pass
        return passed

    async def aclose(self) -> None:
        await self._stream.aclose()

    def __aiter__(self) -> CheckedStream:
        return self

    async def __anext__(self) -> Any:
        while (passed := self._check.passed(await anext(self._stream))) is None:
            pass
        return passed

    async def __aenter__(self) -> CheckedStream:
        await self._stream.__aenter__()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> bool | None:
        ended: bool | None = await self._stream.__aexit__(kind, error, traceback)
        return ended


T = TypeVar("T")
Transport = Literal["http", "sse"]

SSE_EVENT_BYTES_MAX: Final = 1024 * 1024
PAGES_MAX: Final = 20
_BEFORE_STREAMABLE: Final = frozenset({400, 404, 405})
"""https://modelcontextprotocol.io/specification/2025-11-25/basic/transports"""
ROUNDS_MAX: Final = 8
"""Calls with a state that the server returned."""


@dataclass(frozen=True, slots=True)
class ServerTool:
    """Tool as its server describes it."""

    name: str
    description: str
    input_schema: Mapping[str, Any]
    read_only: bool = False
    idempotent: bool = False
    annotations: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ToolPages:
    """All tools of a server. `ttl_s` 0: it does not say."""

    tools: tuple[ServerTool, ...]
    ttl_s: float = 0.0
    instructions: str = ""


RESULT_BYTES_MAX: Final = 1024 * 1024
"""Parsing holds up the process for up to 10 ms per megabyte of text."""
RESULT_VALUES_MAX: Final = 50_000
"""A megabyte of nothing but brackets takes most of a second."""


@dataclass(frozen=True, slots=True)
class McpLimits:
    connect_timeout_s: float = 10.0
    list_timeout_s: float = 10.0
    listed_tools_max: int = 4096
    listing_bytes_max: int = 2 * 1024 * 1024
    tools_max: int = 256
    """Tools of all servers of a request."""
    schema_bytes_max: int = 64 * 1024
    """Bytes of the schemas of one server's tools that a request uses."""
    ttl_s: float = 300.0
    cache_bytes_max: int = 128 * 1024 * 1024
    idle_s: float = 60.0
    sessions_max: int = 256
    tenant_sessions_max: int = 64
    calls_max: int = 8
    """Calls of one session at a time."""
    busy_wait_s: float = 5.0
    """Wait for a session, and for a turn."""
    result_bytes_max: int = RESULT_BYTES_MAX
    """Bytes of a result as JSON; an event has `SSE_EVENT_BYTES_MAX`."""
    result_values_max: int = RESULT_VALUES_MAX
    read_timeout_s: float = 660.0
    """Longer than any call may take."""
    call_timeout_s: float = 60.0
    arguments_bytes_max: int = 64 * 1024
    output_bytes_max: int = 256 * 1024
    """Shown and stored."""
    result_ids_max: int = 8192
    error_ids_max: int = 512


class McpSession:
    """Session with one server under one set of credentials. Cancel `run`, the owner's task, to end
    it.
    """

    def __init__(
        self,
        url: str,
        connect: Callable[[Transport], EgressClient],
        limits: McpLimits,
        *,
        transport: Transport | None = None,
        on_list_changed: Callable[[], None] = lambda: None,
    ) -> None:
        # `transport` is the server's known transport; None: detect it.
        self._url = url
        self._connect = connect
        self._limits = limits
        self._on_list_changed = on_list_changed
        self._jobs: asyncio.Queue[_Job[Any] | None] = asyncio.Queue()
        self._waiting: set[_Job[Any]] = set()
        self._failure: McpError | None = None
        self._is_abandoned = False
        self._is_retired = False
        self.transport: Transport | None = transport
        self._instructions = ""
        self.is_over = False

    def retire(self) -> None:
        """End as soon as nobody waits for an answer."""
        self._is_retired = True
        self._jobs.put_nowait(None)

    async def run(self) -> None:
        """Hold the connection until it is idle or lost. Never raises."""
        exchange = HttpTrace()
        EXCHANGE.set(exchange)
        CURRENT.set(None)  # it outlives the call that opened it
        try:
            await self._hold(exchange)
        except BaseException as error:  # noqa: BLE001 - the SDK cancels this task when a server dies
            if self._waiting:  # how a session ends that nobody uses is of no interest
                self._failure = translated(error, exchange)
        finally:
            self.is_over = True
            for job in self._waiting:
                job.fail(self._session_lost(sent=job.exchange.is_sent))

    async def list_tools(self) -> ToolPages:
        pages = await self._ask(_list_tools(self._limits), self._limits.list_timeout_s)
        return replace(pages, instructions=self._instructions)

    async def call(
        self, name: str, arguments: Mapping[str, Any], *, timeout_s: float, meta: Mapping[str, Any]
    ) -> CallResult:
        """Run a tool; cancellation reaches the server. Raises `McpError`."""

        async def call(client: Client) -> CallResult:
            return shown(await _call_tool(client, name, arguments, meta))

        return await self._ask(call, timeout_s)

    async def _hold(self, exchange: HttpTrace) -> None:
        deadline = asyncio.get_running_loop().time() + self._limits.connect_timeout_s
        if self.transport != "sse":
            try:
                await self._hold_by("http", deadline)
            except Exception:
                if self.transport or exchange.status not in _BEFORE_STREAMABLE:
                    raise
            else:
                return
        await self._hold_by("sse", deadline)

    async def _hold_by(self, transport: Transport, deadline: float) -> None:
        # Elsewhere than in the event loop, which others need meanwhile.
        await asyncio.to_thread(_load_sdk)
        from mcp import Client
        from mcp.types import Implementation

        async with self._connect(transport) as http, asyncio.timeout_at(deadline) as connecting:
            watch(http, GetPace().wait)
            check = MessageCheck()
            client = Client(
                _streams(transport, self._url, http, check),
                cache=None,
                message_handler=self._on_message,
                client_info=Implementation(name="harmony-gateway", version=__version__),
            )
            async with client, asyncio.TaskGroup() as tasks:
                connecting.reschedule(None)
                check.version = client.protocol_version
                self.transport = transport
                self._instructions = client.instructions or ""
                listening = tasks.create_task(self._watch(client))
                while (job := await self._next_job()) is not None:
                    # With SSE answers come by another request, and the SDK does not report
                    # a POST that failed.
                    job.exchange = HttpTrace(self._give_up if transport == "sse" else None)
                    tasks.create_task(job.run(client))
                # New calls use another session from here on; closing this one may take long.
                self.is_over = True
                listening.cancel()
                clock = asyncio.get_running_loop().time
                connecting.reschedule(clock() + self._limits.connect_timeout_s)

    async def _watch(self, client: Client) -> None:
        # The server's notifications go to `_on_message`.
        tools = client.server_capabilities.tools
        if tools is None or not tools.list_changed:
            return
        with suppress(Exception):  # an older server tells it unasked, or it is found out in time
            async with client.listen(tools_list_changed=True) as changes:
                async for _ in changes:
                    pass

    async def _on_message(self, message: object) -> None:
        from mcp.types import ToolListChangedNotification

        if isinstance(message, ToolListChangedNotification):
            self._on_list_changed()

    async def _next_job(self) -> _Job[Any] | None:
        # None: the session was idle for `idle_s`, or is retired without waiting calls.
        while not self._is_abandoned:
            if self._is_retired and not self._waiting:
                return None
            try:
                async with asyncio.timeout(None if self._waiting else self._limits.idle_s):
                    job = await self._jobs.get()
            except TimeoutError:
                if self._waiting:
                    continue
                return None
            if job is not None:
                return job
        raise McpError("http_error", 0, LOST)

    def _give_up(self) -> None:
        self._is_abandoned = True
        self._jobs.put_nowait(None)

    async def _ask(self, question: Callable[[Client], Awaitable[T]], timeout_s: float) -> T:
        # Runs the job in a task below the owner's.
        if self.is_over:
            raise self._session_lost(sent=False)
        job = _Job(question)
        self._waiting.add(job)
        self._jobs.put_nowait(job)
        try:
            async with asyncio.timeout(timeout_s):
                return await job.answer
        except TimeoutError:
            message, sent = f"no answer in {timeout_s:g} s", job.exchange.is_sent
            raise McpError("mcp_protocol_error", REQUEST_TIMEOUT, message, sent=sent) from None
        finally:
            self._waiting.discard(job)
            if not self._waiting:
                self._jobs.put_nowait(None)  # the owner now waits for so long and no longer

    def _session_lost(self, *, sent: bool) -> McpError:
        # `sent`: the request had left.
        why = self._failure
        if why is None:
            return McpError("http_error", 0, "the session is over", sent=sent)
        return McpError(why.type, why.code, str(why), sent=sent)


class _Job(Generic[T]):
    def __init__(self, question: Callable[[Client], Awaitable[T]]) -> None:
        self.answer: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self.exchange = HttpTrace()
        self._question = question
        self._span = CURRENT.get()

    async def run(self, client: Client) -> None:
        """Run unless nobody waits; a caller that stops waiting cancels it."""
        if self.answer.done():
            return
        task = asyncio.current_task()
        assert task is not None, "it runs in a task"
        self.answer.add_done_callback(lambda answer: answer.cancelled() and task.cancel())
        EXCHANGE.set(self.exchange)
        CURRENT.set(self._span)
        try:
            result = await self._question(client)
        except Exception as error:  # noqa: BLE001 - whoever asked is told
            self.fail(translated(error, self.exchange))
        else:
            if not self.answer.done():
                self.answer.set_result(result)

    def fail(self, error: McpError) -> None:
        # The caller may have stopped waiting.
        if not self.answer.done():
            self.answer.set_exception(error)


@cache
def _load_sdk() -> None:
    # Imports what a session needs.
    for module in ("mcp", "mcp.client.sse", "mcp.client.streamable_http"):
        import_module(module)


@cache
def _call_answer() -> Any:
    # A type adapter for all results of a call.
    from mcp import types
    from pydantic import TypeAdapter

    return TypeAdapter(types.CallToolResult | types.InputRequiredResult)


@asynccontextmanager
async def _streams(
    transport: Transport, url: str, http: EgressClient, check: MessageCheck
) -> AsyncIterator[Any]:
    # The SDK's transport on a client that is entered already.
    if transport == "http":
        from mcp.client.streamable_http import streamable_http_client

        connected = streamable_http_client(
            url, http_client=http, max_sse_event_size=SSE_EVENT_BYTES_MAX
        )
    else:
        from mcp.client.sse import sse_client

        # Its client is in use: leaving it does not close it.
        connected = sse_client(url, httpx_client_factory=lambda **_: nullcontext(http))  # type: ignore[arg-type]
    async with connected as (reading, writing):
        yield CheckedStream(reading, check), writing


def _list_tools(limits: McpLimits) -> Callable[[Client], Awaitable[ToolPages]]:
    async def list_tools(client: Client) -> ToolPages:
        tools: dict[str, ServerTool] = {}
        cursors: set[str] = set()
        cursor: str | None = None
        size = 0
        for _ in range(PAGES_MAX):
            page = await client.list_tools(cursor=cursor)
            for tool in page.tools:
                size += len(str(tool.input_schema)) + len(tool.description or "")
                tools.setdefault(tool.name, _server_tool(tool))
            cursor = page.next_cursor
            if not cursor:  # some servers end with an empty one
                return ToolPages(tuple(tools.values()), page.ttl_ms / 1000)
            if cursor in cursors:
                raise _bad_listing("the server's list of tools goes in a circle")
            if len(tools) > limits.listed_tools_max or size > limits.listing_bytes_max:
                break
            cursors.add(cursor)
        raise _bad_listing("the server lists too many tools")

    return list_tools


_SHOWN_HINTS: Final = {
    *("title", "read_only_hint", "destructive_hint", "idempotent_hint", "open_world_hint")
}


def _bad_listing(message: str) -> McpError:
    return McpError("mcp_protocol_error", INTERNAL_ERROR, message)


def _server_tool(tool: Tool) -> ServerTool:
    hints = tool.annotations
    return ServerTool(
        tool.name,
        tool.description or "",
        tool.input_schema,
        read_only=bool(hints and hints.read_only_hint),
        idempotent=bool(hints and hints.idempotent_hint),
        annotations=hints.model_dump(
            mode="json", by_alias=True, exclude_none=True, include=_SHOWN_HINTS
        )
        if hints
        else {},
    )


async def _call_tool(
    client: Client, name: str, arguments: Mapping[str, Any], meta: Mapping[str, Any]
) -> CallToolResult:
    # The SDK's own method also validates the result against the schema of the last listing, and may
    # list the tools again for it: that could lose a result.
    from mcp import types

    state: str | None = None
    for _ in range(ROUNDS_MAX):
        params = types.CallToolRequestParams(
            name=name, arguments=dict(arguments), request_state=state, _meta=dict(meta)
        )
        request = types.CallToolRequest(params=params)
        result = await _send_request(client, request)
        if isinstance(result, types.CallToolResult):
            return result
        if result.input_requests or result.request_state is None:
            break
        state = result.request_state
    raise McpError("mcp_protocol_error", INTERNAL_ERROR, NEEDS_USER)


async def _send_request(client: Client, request: Any) -> Any:
    # A modern server may refuse a call until its tools were listed again.
    from mcp.shared.exceptions import MCPError

    try:
        return await client.session.send_request(request, _call_answer())
    except MCPError as error:
        if error.code != HEADER_MISMATCH:
            raise
    await client.list_tools()
    return await client.session.send_request(request, _call_answer())
