"""What the server refuses before the application sees it: bounds, envelopes, request ids."""

from __future__ import annotations

import asyncio
import json
import logging
from functools import partial
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any
from weakref import ref

import pytest
from hypothesis import given
from hypothesis import strategies as st
from starlette.responses import PlainTextResponse
from typing_extensions import override
from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

from gateway.api.connection import CONNECTION
from gateway.api.writing import part_writer
from gateway.cli.connection import BUSY, NO_REQUEST, HeadHolder, write_part
from gateway.cli.serving import Server, listen
from gateway.settings import Server as ServerSettings

if TYPE_CHECKING:
    from starlette.types import Receive, Scope, Send

HOST = "127.0.0.1"
SETTINGS = ServerSettings(drain_grace_s=5, head_bytes_max=2000, keepalive_timeout_s=5)
WAIT_S = 5.0
GET = b"GET / HTTP/1.1\r\nhost: x\r\n\r\n"


async def application(scope: Scope, receive: Receive, send: Send) -> None:
    if scope["type"] == "lifespan":
        for moment in ("startup", "shutdown"):
            await receive()
            await send({"type": f"lifespan.{moment}.complete"})
        return
    await PlainTextResponse("hello")(scope, receive, send)


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


async def test_a_connection_too_many_may_try_again() -> None:
    settings = SETTINGS.model_copy(update={"connections_max": 2})
    with listen(HOST, 0, 10) as listener:
        async with Server(application, listener, settings) as server:
            port = int(server.url.rpartition(":")[2])
            reader, writer = await asyncio.open_connection(HOST, port)
            writer.write(GET)
            assert (await reader.readline()).startswith(b"HTTP/1.1 200")
            status, headers, error = _parsed(await _exchange(server, GET))
            writer.close()
            await writer.wait_closed()
    assert status == "HTTP/1.1 503 Service Unavailable"
    assert headers["retry-after"] == "1"
    assert (error["message"], error["code"]) == (BUSY, "server_is_overloaded")


class Wire(asyncio.Transport):
    """Keeps each write by itself."""

    def __init__(self) -> None:
        super().__init__()
        self.writes: list[bytes] = []
        self.closed = False

    @override
    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.writes.append(bytes(data))

    @override
    def is_closing(self) -> bool:
        return self.closed

    @override
    def close(self) -> None:
        self.closed = True

    @override
    def pause_reading(self) -> None:
        """There is nothing to read."""

    @override
    def resume_reading(self) -> None:
        """The same."""


def answering() -> tuple[Any, Wire]:
    """An answer that is about to begin, and where it goes."""
    wire = Wire()
    cycle: Any = SimpleNamespace(transport=wire)
    cycle.transport = HeadHolder(cycle, asyncio.get_running_loop())
    return cycle, wire


async def test_a_head_leaves_with_the_first_of_its_body() -> None:
    cycle, wire = answering()
    cycle.transport.write(b"head")
    cycle.transport.write(b"body")
    assert wire.writes == [b"headbody"]
    assert cycle.transport is wire
    await asyncio.sleep(0)
    assert wire.writes == [b"headbody"]


async def test_a_head_alone_leaves_in_the_same_turn_of_the_loop() -> None:
    cycle, wire = answering()
    cycle.transport.write(b"head")
    await asyncio.sleep(0)
    assert wire.writes == [b"head"]
    cycle.transport.write(b"body")
    assert wire.writes == [b"head", b"body"]


async def test_a_head_leaves_before_its_connection_is_closed() -> None:
    cycle, wire = answering()
    cycle.transport.write(b"head")
    assert not cycle.transport.is_closing()
    cycle.transport.close()
    assert (wire.writes, wire.closed) == ([b"head"], True)


async def test_a_head_for_a_connection_that_is_gone_is_dropped() -> None:
    cycle, wire = answering()
    cycle.transport.write(b"head")
    wire.closed = True
    await asyncio.sleep(0)
    assert wire.writes == []


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


def answer(wire: Wire, method: str = "GET") -> RequestResponseCycle:
    """One of uvicorn's, on a connection that stays open."""
    log = logging.getLogger("gateway.connection")
    scope: Any = {"type": "http", "method": method}
    flow = FlowControl(wire)
    return RequestResponseCycle(
        scope, wire, flow, log, log, False, [], asyncio.Event(), False, True, lambda: None
    )


START: Any = {"type": "http.response.start", "status": 200, "headers": []}
END: Any = {"type": "http.response.body", "body": b""}


@given(st.lists(st.tuples(st.binary(max_size=40), st.booleans()), max_size=8))
def test_what_is_written_as_a_part_is_what_would_be_sent(parts: list[tuple[bytes, bool]]) -> None:
    async def written(*, as_parts: bool) -> bytes:
        wire = Wire()
        cycle = answer(wire)
        await cycle.send(START)
        for part, is_one in parts:
            if as_parts and is_one and part:
                assert write_part(ref(cycle), part)
            else:
                assert not part or not as_parts or not is_one
                message: Any = {"type": "http.response.body", "body": part, "more_body": True}
                await cycle.send(message)
        await cycle.send(END)
        return b"".join(wire.writes)

    assert asyncio.run(written(as_parts=True)) == asyncio.run(written(as_parts=False))


async def test_a_part_is_written_only_in_the_middle_of_a_body_of_unknown_length() -> None:
    wire = Wire()
    cycle = answer(wire)
    write = partial(write_part, ref(cycle))
    refused = [not write(b"before the head")]
    await cycle.send(START)
    refused += [not write(b"")]
    cycle.flow.pause_writing()
    refused += [not write(b"to a client that does not read")]
    cycle.flow.resume_writing()
    assert write(b"part")
    cycle.disconnected = True
    refused += [not write(b"to a client that is gone")]
    cycle.disconnected = False
    await cycle.send(END)
    refused += [not write(b"behind the end")]
    assert all(refused)
    assert wire.writes[1:] == [b"4\r\npart\r\n", b"0\r\n\r\n"]
    del cycle
    assert not write(b"of an answer that nobody makes any more")


@pytest.mark.parametrize(
    ("method", "headers"), [("GET", [(b"content-length", b"2")]), ("HEAD", [])]
)
async def test_a_body_that_is_not_chunked_has_no_parts(
    method: str, headers: list[tuple[bytes, bytes]]
) -> None:
    cycle = answer(Wire(), method)
    start: Any = {**START, "headers": headers}
    await cycle.send(start)
    assert not write_part(ref(cycle), b"ok")


async def test_an_application_may_write_parts() -> None:
    async def parted(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await application(scope, receive, send)
            return
        await send(START)
        await asyncio.sleep(0)
        assert part_writer(scope)(b"hello")
        await send(END)

    with listen(HOST, 0, 10) as listener:
        async with Server(parted, listener, SETTINGS) as server, asyncio.timeout(WAIT_S):
            reader, writer = await asyncio.open_connection(HOST, int(server.url.rpartition(":")[2]))
            writer.write(GET)
            assert (await reader.readuntil(b"0\r\n\r\n")).endswith(b"\r\n5\r\nhello\r\n0\r\n\r\n")
            writer.close()


async def test_the_server_tells_when_a_connection_is_lost() -> None:
    asked, lost = asyncio.Event(), asyncio.Event()

    async def patient(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await application(scope, receive, send)
            return
        watch = scope["extensions"][CONNECTION]["watch"]
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
