"""Servers that answer anything: whoever asks gets an error in time, and others are not troubled."""

from __future__ import annotations

import asyncio
import gzip
import json
from collections.abc import Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import anyio
import pytest
from mcp.shared.message import SessionMessage
from mcp.types import JSONRPCNotification, JSONRPCRequest

from gateway.tools.mcp.failures import McpError
from gateway.tools.mcp.server_tools import outcome_of
from gateway.tools.mcp.session import GETS_MAX, SERVER_REQUESTS_MAX, CheckedStream, MessageCheck
from tests.fakes.logs import captured_logs
from tests.fakes.mcp_peers import PATIENT, peer, pool

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

JSON = "application/json"
EVENTS = "text/event-stream"
LIMITS = replace(PATIENT, result_bytes_max=2_500_000)
INITIALIZED = {
    "protocolVersion": "2025-11-25",
    "capabilities": {"tools": {}},
    "serverInfo": {"name": "hostile", "version": "0"},
}


Answer = Callable[[bytes], bytes]
"""The id of a request, as JSON → what is sent."""


def answer(
    body: bytes, content_type: str = JSON, status: str = "200 OK", *more: str, missing: int = 0
) -> Answer:
    """`ID` in the body stands for the id of the request; `missing` bytes of it are not sent."""

    def made(id_: bytes) -> bytes:
        said = body.replace(b"ID", id_)
        length = len(said) + missing
        head = [f"HTTP/1.1 {status}", f"content-type: {content_type}", f"content-length: {length}"]
        return "\r\n".join([*head, *more, "", ""]).encode() + said

    return made


def result(value: Any) -> Answer:
    said = json.dumps(value).encode()
    return answer(b'{"jsonrpc":"2.0","id":ID,"result":' + said + b"}")


DEEP = b'{"jsonrpc":"2.0","id":ID,"result":' + b"[" * 100_000 + b"]" * 100_000 + b"}"
ANSWERS: dict[str, Answer] = {
    "no JSON": answer(b"hello"),
    "half of a JSON": answer(b'{"jsonrpc":"2.0","id":ID,'),
    "nothing": answer(b""),
    "a list": answer(b"[]"),
    "deep": answer(DEEP),
    "no content": result({}),
    "wrong content": result({"content": "text"}),
    "content of no kind": result({"content": [{"type": "magic"}]}),
    "a page": answer(b"<html>", "text/html"),
    "no type": answer(b"{}", ""),
    "compressed": answer(gzip.compress(b"{}" * 1000), JSON, "200 OK", "content-encoding: gzip"),
    "accepted": answer(b"", JSON, "202 Accepted"),
    "an error without words": answer(b"", JSON, "500 Internal Server Error"),
    "an error of no kind": answer(b'{"jsonrpc":"2.0","id":ID,"error":7}'),
    "an error with words": answer(
        b'{"jsonrpc":"2.0","id":ID,"error":{"code":7,"message":"no"}}', JSON, "400 Bad Request"
    ),
    "a redirect to itself": answer(b"", JSON, "307 Temporary Redirect", "location: /mcp"),
    "a redirect inside": answer(
        b"", JSON, "307 Temporary Redirect", "location: http://169.254.169.254/latest"
    ),
    "no HTTP": lambda _: b"hello\r\n\r\n",
    "a cut body": answer(b"x" * 10, missing=89),
    "events of nothing": answer(b"data: hello\n\n", EVENTS),
    "an event that is too long": answer(b"data: " + b"x" * 2_000_000, EVENTS),
    "an end without an event": answer(b": ping\n\n", EVENTS),
    "too much": answer(b" " * 3_000_000),
}


@asynccontextmanager
async def serving(hostile: Answer | None, *, methods: tuple[str, ...]) -> AsyncIterator[str]:
    """A server of the handshake's age that answers these methods with `hostile`; None: never."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                asked = await _request(reader)
                is_hostile = asked.get("method") in methods
                reply = hostile if is_hostile else _reply(asked)
                if reply is None:
                    continue
                writer.write(reply(json.dumps(asked.get("id")).encode()))
                await writer.drain()
                if is_hostile:
                    break
        except (OSError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/mcp"


async def _request(reader: asyncio.StreamReader) -> dict[str, Any]:
    head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
    if not head.startswith("post"):
        return {}
    length = int(head.partition("content-length: ")[2].partition("\r\n")[0])
    asked: dict[str, Any] = json.loads(await reader.readexactly(length))
    return asked


def _reply(asked: dict[str, Any]) -> Answer:
    method = asked.get("method", "")
    if method == "initialize":
        return result(INITIALIZED)
    if method.startswith("notifications/"):
        return answer(b"", JSON, "202 Accepted")
    return answer(b"", JSON, "400 Bad Request" if method else "405 Method Not Allowed")


@pytest.mark.slow
@pytest.mark.parametrize("name", ANSWERS)
async def test_whatever_a_call_is_answered_with_is_an_error(name: str) -> None:
    hostile = ANSWERS[name]
    methods = ("tools/call", "tools/list")
    async with serving(hostile, methods=methods) as url, pool(limits=LIMITS) as sessions:
        with pytest.raises(McpError) as called:
            await sessions.call(peer(url), "say", {}, timeout_s=20, meta={})
        with pytest.raises(McpError):
            await sessions.list_tools(peer(url))
    assert called.value.code != -32001  # nobody had to wait for the end of time
    assert called.value.sent
    assert len(str(called.value)) < 500


@pytest.mark.parametrize("name", ["no JSON", "nothing", "a page", "no type", "accepted"])
async def test_an_answer_that_nobody_reads_is_none(name: str) -> None:
    """So nobody knows what came of the call."""
    async with serving(ANSWERS[name], methods=("tools/call",)) as url, pool() as sessions:
        with pytest.raises(McpError) as called:
            await sessions.call(peer(url), "say", {}, timeout_s=20, meta={})
    error = called.value
    assert (error.type, error.code, error.sent) == ("http_error", 0, True)
    assert outcome_of(error, only_reads=False) == "unknown"


@pytest.mark.parametrize(
    ("code", "told"), [(-(2**31) + 1, -(2**31) + 1), (2**31, -32603), (-(10**30), -32603)]
)
async def test_the_code_of_an_error_is_an_integer_of_every_client(code: int, told: int) -> None:
    said = json.dumps({"code": code, "message": "no"}).encode()
    hostile = answer(b'{"jsonrpc":"2.0","id":ID,"error":' + said + b"}")
    async with serving(hostile, methods=("tools/call",)) as url, pool() as sessions:
        with pytest.raises(McpError) as called:
            await sessions.call(peer(url), "say", {}, timeout_s=20, meta={})
    assert (called.value.code, str(called.value)) == (told, "no")


async def test_error_with_the_code_of_a_lost_connection_is_the_servers_own() -> None:
    """Servers use -32000 for any failure of their own: a result of the call is known."""
    own = answer(b'{"jsonrpc":"2.0","id":ID,"error":{"code":-32000,"message":"no such city"}}')
    async with serving(own, methods=("tools/call",)) as url, pool() as sessions:
        with pytest.raises(McpError) as called:
            await sessions.call(peer(url), "say", {}, timeout_s=20, meta={})
    error = called.value
    assert (error.type, error.code, str(error)) == ("mcp_protocol_error", -32000, "no such city")
    assert outcome_of(error, only_reads=False) == "tool_error"


@pytest.mark.slow
@pytest.mark.parametrize("name", ANSWERS)
async def test_whatever_a_handshake_is_answered_with_is_an_error(name: str) -> None:
    hostile = ANSWERS[name]
    methods = ("server/discover", "initialize")
    async with serving(hostile, methods=methods) as url, pool(limits=LIMITS) as sessions:
        with pytest.raises(McpError) as called:
            await sessions.call(peer(url), "say", {}, timeout_s=20, meta={})
    assert not called.value.sent


@pytest.mark.parametrize(
    "tools",
    [
        [{"name": 5, "inputSchema": {}}],
        [{"name": "a"}],
        [{"name": "a", "inputSchema": []}],
        "tools",
        None,
    ],
)
async def test_lists_of_no_tools_are_errors(tools: Any) -> None:
    hostile = result({"tools": tools})
    async with serving(hostile, methods=("tools/list",)) as url, pool() as sessions:
        with pytest.raises(McpError):
            await sessions.list_tools(peer(url))


GOOD: dict[str, Any] = {"name": "good", "inputSchema": {"type": "object"}}


@pytest.mark.parametrize(
    ("bad", "why"),
    [
        ({"name": "bad", "inputSchema": {"properties": {}}}, "bad: inputSchema.type missing"),
        ({"name": "bad", "inputSchema": {"type": "string"}}, "bad: inputSchema.type literal_error"),
        ({"name": "bad"}, "bad: inputSchema missing"),
        ({"name": "c a n a r y"}, "a tool: inputSchema missing"),
        (7, "a tool:  model_type"),
    ],
)
async def test_a_tool_that_cannot_be_read_does_not_cost_the_others(bad: Any, why: str) -> None:
    hostile = result({"tools": [bad, GOOD, bad, {**GOOD, "name": "fine"}]})
    async with serving(hostile, methods=("tools/list",)) as url, pool() as sessions:
        with captured_logs(of="gateway.tools.mcp.session") as logged:
            pages = await sessions.list_tools(peer(url))
    assert [tool.name for tool in pages.tools] == ["good", "fine"]
    (told,) = [event for event in logged if event["level"] == "warning"]
    assert (told["count"], told["reason"]) == (2, why)


async def test_an_empty_cursor_ends_a_list() -> None:
    """As servers write it whose language leaves out no empty text."""
    last = result({"tools": [GOOD], "nextCursor": ""})
    async with serving(last, methods=("tools/list",)) as url, pool() as sessions:
        pages = await sessions.list_tools(peer(url))
    assert [tool.name for tool in pages.tools] == ["good"]


async def test_what_a_call_returns_is_no_list_of_tools() -> None:
    said = {"content": [{"type": "text", "text": "x"}], "structuredContent": {}, "tools": [7, GOOD]}
    async with serving(result(said), methods=("tools/call",)) as url, pool() as sessions:
        with captured_logs(of="gateway.tools.mcp.session") as logged:
            await sessions.call(peer(url), "say", {}, timeout_s=20, meta={})
    assert not logged


@pytest.mark.slow
async def test_a_stream_that_ends_at_once_is_not_opened_again_without_pause() -> None:
    gets = 0
    again = answer(b"retry: 0\nid: 1\ndata:\n\n", EVENTS)
    begun = b'{"jsonrpc":"2.0","id":ID,"result":' + json.dumps(INITIALIZED).encode() + b"}"

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal gets
        with suppress(OSError, asyncio.IncompleteReadError):
            while True:
                asked = await _request(reader)
                gets += not asked
                match asked.get("method"):
                    case None:
                        reply = again
                    case "initialize":
                        reply = answer(begun, JSON, "200 OK", "mcp-session-id: 1")
                    case "tools/call":
                        reply = result({"content": []})
                    case _:
                        reply = _reply(asked)
                writer.write(reply(json.dumps(asked.get("id")).encode()))
        writer.close()

    clock = asyncio.get_running_loop().time
    began = clock()
    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server, pool() as sessions:
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/mcp"
        while gets < GETS_MAX:
            await sessions.call(peer(url), "say", {}, timeout_s=20, meta={})
        for _ in range(3 * GETS_MAX):
            await sessions.call(peer(url), "say", {}, timeout_s=20, meta={})
        assert GETS_MAX <= gets <= GETS_MAX + clock() - began + 1


@pytest.mark.slow
async def test_a_server_that_asks_without_end_is_not_answered_for_ever() -> None:
    check = MessageCheck()
    ping = SessionMessage(JSONRPCRequest(jsonrpc="2.0", id=1, method="ping"))
    news = SessionMessage(JSONRPCNotification(jsonrpc="2.0", method="notifications/message"))
    sending, receiving = anyio.create_memory_object_stream[Any](2 * SERVER_REQUESTS_MAX + 1)
    for message in (*[ping] * (2 * SERVER_REQUESTS_MAX), news):
        sending.send_nowait(message)
    sending.close()
    async with CheckedStream(receiving, check) as stream:
        *answered, last = [message async for message in stream]
    assert SERVER_REQUESTS_MAX <= len(answered) < 2 * SERVER_REQUESTS_MAX
    assert last == news


async def test_answer_that_never_comes_ends_with_its_deadline() -> None:
    async with serving(None, methods=("tools/call",)) as url, pool() as sessions:
        with pytest.raises(McpError):  # it is connected from here on, however slow the machine
            await sessions.list_tools(peer(url))
        with pytest.raises(McpError) as called:
            await sessions.call(peer(url), "say", {}, timeout_s=1, meta={})
    assert (called.value.code, called.value.sent) == (-32001, True)
