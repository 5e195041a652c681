"""What the server refuses before the application sees it: bounds, envelopes, request ids."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any

import pytest
from starlette.responses import PlainTextResponse

from gateway.api.client_connection import ClientConnection, connection_of
from gateway.server.refusals import NO_REQUEST
from gateway.server.server import Server, listen
from gateway.settings import Server as ServerSettings

if TYPE_CHECKING:
    from starlette.types import Receive, Scope, Send

HOST = "127.0.0.1"
pytestmark = pytest.mark.usefixtures("short_heads")
SETTINGS = ServerSettings(drain_grace_s=5, keepalive_timeout_s=5)
WAIT_S = 60.0
GET = b"GET / HTTP/1.1\r\nhost: x\r\n\r\n"


async def application(scope: Scope, receive: Receive, send: Send) -> None:
    if scope["type"] == "lifespan":
        for moment in ("startup", "shutdown"):
            await receive()
            await send({"type": f"lifespan.{moment}.complete"})
        return
    await PlainTextResponse("hello")(scope, receive, send)


def connection(scope: Scope) -> ClientConnection:
    found = connection_of(scope)
    assert found is not None
    return found


async def answer_to(head: bytes) -> tuple[str, dict[str, str], dict[str, Any]]:
    """The status line, the headers and the error of what comes back until the server closes."""
    with listen(HOST, 0, 10) as listener:
        async with Server(application, listener, SETTINGS) as server:
            return _parsed(await _exchange(server, head))


async def _exchange(server: Server, request: bytes) -> bytes:
    reader, writer = await asyncio.open_connection(HOST, int(server.url.rpartition(":")[2]))
    async with asyncio.timeout(WAIT_S):
        writer.write(request)
        answer = await reader.read()
    writer.close()
    await writer.wait_closed()
    return answer


def _parsed(answer: bytes) -> tuple[str, dict[str, str], dict[str, Any]]:
    head, _, body = answer.partition(b"\r\n\r\n")
    status, *lines = head.decode().split("\r\n")
    headers = dict(line.split(": ", 1) for line in lines)
    assert int(headers["content-length"]) == len(body)
    assert headers["x-request-id"].startswith("req_")
    assert headers["connection"] == "close"
    return status, headers, json.loads(body)["error"]


@pytest.mark.requirement("header.size")
@pytest.mark.parametrize(
    "head",
    [
        b"GET / HTTP/1.1\r\nx: " + b"y" * 5000,
        b"GET /" + b"y" * 5000,
        b"GET / HTTP/1.1\r\n" + b"x: y\r\n" * 1000,
    ],
)
async def test_a_head_of_too_many_bytes_is_refused(head: bytes) -> None:
    status, _, error = await answer_to(head)
    assert status == "HTTP/1.1 431 Request Header Fields Too Large"
    assert error == {
        "message": "The request line and headers have more than 2000 bytes. Send fewer or shorter "
        "headers.",
        "type": "invalid_request_error",
        "param": None,
        "code": None,
    }


@pytest.mark.parametrize(
    "bytes_",
    [
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        b"HELLO\r\n\r\n",
        b"GET / HTTP/1.1\r\nno header\r\n\r\n",
        b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: x\r\n\r\n",
        b"\x00" * 5000,
    ],
)
async def test_what_is_no_http_is_refused_once(bytes_: bytes) -> None:
    status, _, error = await answer_to(bytes_)
    assert status == "HTTP/1.1 400 Bad Request"
    assert (error["message"], error["type"]) == (NO_REQUEST, "invalid_request_error")


async def test_a_stream_s_head_comes_before_there_is_a_body() -> None:
    going_on = asyncio.Event()

    async def slow(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await application(scope, receive, send)
            return
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await going_on.wait()
        await send({"type": "http.response.body", "body": b"hello", "more_body": True})
        await send({"type": "http.response.body", "body": b""})

    with listen(HOST, 0, 10) as listener:
        async with Server(slow, listener, SETTINGS) as server, asyncio.timeout(WAIT_S):
            port = int(server.url.rpartition(":")[2])
            reader, writer = await asyncio.open_connection(HOST, port)
            writer.write(GET)
            assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 200")
            going_on.set()
            assert await reader.readuntil(b"0\r\n\r\n") == b"5\r\nhello\r\n0\r\n\r\n"
            writer.close()
            await writer.wait_closed()


@pytest.mark.slow
async def test_requests_that_come_in_one_read_are_answered_one_after_the_other() -> None:
    count = 1200  # more than calls may be within each other
    last = b"GET / HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n"
    with listen(HOST, 0, 10) as listener:
        async with Server(application, listener, SETTINGS) as server:
            answers = await _exchange(server, GET * count + last)
    assert answers.count(b"HTTP/1.1 200 OK\r\n") == answers.count(b"\r\n\r\nhello") == count + 1


async def test_a_body_that_comes_with_its_head_is_there_when_its_request_begins() -> None:
    taken: list[object] = []

    async def taking(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            taken.append(await receive())
        await application(scope, receive, send)

    head = b"POST / HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-length: 2\r\n\r\n"
    with listen(HOST, 0, 10) as listener:
        async with Server(taking, listener, SETTINGS) as server:
            await _exchange(server, head + b"hi")
    assert taken == [{"type": "http.request", "body": b"hi", "more_body": False}]


@pytest.mark.parametrize(
    ("version", "first"), [(b"1.1", b"HTTP/1.1 100 Continue"), (b"1.0", b"HTTP/1.1 200 OK")]
)
async def test_a_client_of_http_1_0_gets_one_answer_whatever_it_expects(
    version: bytes, first: bytes
) -> None:
    async def taking(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            await receive()
        await application(scope, receive, send)

    head = b"POST / HTTP/%b\r\nhost: x\r\nconnection: close\r\ncontent-length: 2\r\n" % version
    with listen(HOST, 0, 10) as listener:
        async with Server(taking, listener, SETTINGS) as server:
            answer = await _exchange(server, head + b"expect: 100-continue\r\n\r\nhi")
    assert answer.startswith(first + b"\r\n")
    assert answer.endswith(b"\r\n\r\nhello")


async def test_an_application_may_write_parts() -> None:
    async def parted(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await application(scope, receive, send)
            return
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await asyncio.sleep(0)
        assert connection(scope).write_part(b"hello")
        await send({"type": "http.response.body", "body": b""})

    with listen(HOST, 0, 10) as listener:
        async with Server(parted, listener, SETTINGS) as server, asyncio.timeout(WAIT_S):
            reader, writer = await asyncio.open_connection(HOST, int(server.url.rpartition(":")[2]))
            writer.write(GET)
            assert (await reader.readuntil(b"0\r\n\r\n")).endswith(b"\r\n5\r\nhello\r\n0\r\n\r\n")
            writer.close()


@pytest.mark.slow
async def test_the_server_tells_when_a_connection_is_lost() -> None:
    asked, lost = asyncio.Event(), asyncio.Event()

    async def patient(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await application(scope, receive, send)
            return
        watch = connection(scope).watch
        watch(lost.set)
        asked.set()
        await lost.wait()
        told: list[bool] = []
        watch(lambda: told.append(True))
        assert told, "whoever asks later is told at once"
        watch(None)

    with listen(HOST, 0, 10) as listener:
        async with Server(patient, listener, SETTINGS) as server, asyncio.timeout(WAIT_S):
            _, writer = await asyncio.open_connection(HOST, int(server.url.rpartition(":")[2]))
            writer.write(GET)
            await asked.wait()
            writer.close()
            await writer.wait_closed()
            await lost.wait()


async def test_an_answer_is_lost_with_its_connection_though_another_request_waits() -> None:
    asked, lost = asyncio.Event(), asyncio.Event()
    told: list[object] = []

    async def streaming(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await application(scope, receive, send)
            return
        assert (await receive())["type"] == "http.request"
        connection(scope).watch(lost.set)
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"hello", "more_body": True})
        asked.set()
        told.append(await receive())
        told.append(connection(scope).write_part(b"hello"))
        await send({"type": "http.response.body", "body": b"hello", "more_body": True})

    with listen(HOST, 0, 10) as listener:
        async with Server(streaming, listener, SETTINGS) as server, asyncio.timeout(WAIT_S):
            _, writer = await asyncio.open_connection(HOST, int(server.url.rpartition(":")[2]))
            writer.write(GET + GET)
            await asked.wait()
            writer.transport.abort()
            await lost.wait()
    assert told == [{"type": "http.disconnect"}, False]


async def test_what_is_no_http_is_refused_behind_the_answer_before_it() -> None:
    may_end = asyncio.Event()

    async def streaming(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await application(scope, receive, send)
            return
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"hello", "more_body": True})
        await may_end.wait()
        await send({"type": "http.response.body", "body": b""})

    with listen(HOST, 0, 10) as listener:
        async with Server(streaming, listener, SETTINGS) as server, asyncio.timeout(WAIT_S):
            reader, writer = await asyncio.open_connection(HOST, int(server.url.rpartition(":")[2]))
            writer.write(GET)
            assert (await reader.readuntil(b"hello\r\n")).startswith(b"HTTP/1.1 200")
            writer.write(b"no request\r\n\r\n")
            may_end.set()
            assert await reader.readuntil(b"0\r\n\r\n") == b"0\r\n\r\n"
            assert (await reader.read()).startswith(b"HTTP/1.1 400 Bad Request\r\n")
            writer.close()
            await writer.wait_closed()


async def test_a_connection_whose_body_still_comes_is_not_closed_for_others() -> None:
    """It has its answer, and loses it if the server resets the connection while it sends on."""
    settings = SETTINGS.model_copy(update={"connections_max": 1})

    async def refusing(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await application(scope, receive, send)
            return
        connection(scope).trust()
        await PlainTextResponse("too large", 413)(scope, receive, send)

    with listen(HOST, 0, 10) as listener:
        async with Server(refusing, listener, settings) as server, asyncio.timeout(WAIT_S):
            port = int(server.url.rpartition(":")[2])
            reader, writer = await asyncio.open_connection(HOST, port)
            writer.write(b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 100000\r\n\r\nabc")
            assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 413")
            assert (await _exchange(server, GET)).startswith(b"HTTP/1.1 503")
            writer.write(b"x" * 50_000)
            await writer.drain()
            assert await reader.read() == b"too large"
            writer.close()
            await writer.wait_closed()
