"""How a connection ends that its client keeps open, and one whose client has ended its side."""

from __future__ import annotations

import asyncio
import gc
import socket
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager, closing, suppress
from typing import TYPE_CHECKING

import pytest
from starlette.responses import PlainTextResponse

from gateway.api.client_connection import connection_of
from gateway.server import http_protocol
from gateway.server.server import Server, listen
from gateway.settings import Server as ServerSettings

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from starlette.types import ASGIApp, Receive, Scope, Send

HOST = "127.0.0.1"
pytestmark = pytest.mark.usefixtures("short_heads")
SETTINGS = ServerSettings(drain_grace_s=5, keepalive_timeout_s=60)
WAIT_S = 60.0
FLOOD = 60
KEY = b"authorization: Bearer good\r\n"
OK = b"HTTP/1.1 200 OK\r\n"
ENDLESS = [
    b"content-length: 100000\r\n\r\n",
    b"transfer-encoding: chunked\r\n\r\n",
    b"transfer-encoding: chunked\r\n\r\n0\r\n",
    b"transfer-encoding: chunked\r\n\r\n1;",
]


async def application(scope: Scope, receive: Receive, send: Send) -> None:
    """`/body` reads all of the body before it answers; a key is shown to be valid."""
    if scope["type"] == "lifespan":
        for moment in ("startup", "shutdown"):
            await receive()
            await send({"type": f"lifespan.{moment}.complete"})
        return
    if dict(scope["headers"]).get(b"authorization") == b"Bearer good":
        connection = connection_of(scope)
        assert connection is not None
        connection.trust()
    if scope["path"] == "/body":
        while (message := await receive()).get("more_body"):
            pass
        if message["type"] == "http.disconnect":
            return
    await PlainTextResponse(scope["path"])(scope, receive, send)


class Client:
    """What goes over one connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    async def ask(self, request: bytes) -> bytes:
        """Send it; all that comes until the server ends its side."""
        self.writer.write(request)
        return await self.reader.read()

    async def trickle(self) -> None:
        """Byte by byte, until the server takes no more."""
        try:
            while True:
                self.writer.write(b"a")
                await self.writer.drain()
                await asyncio.sleep(0)
        except OSError:
            return


@asynccontextmanager
async def serving(
    app: ASGIApp = application, *, reserved_max: int = 64, **settings: object
) -> AsyncIterator[Server]:
    with listen(HOST, 0, 100) as listener, pytest.MonkeyPatch.context() as patch:
        patch.setattr(http_protocol, "CONNECTIONS_RESERVED_MAX", reserved_max)
        patch.setattr(http_protocol, "LINGER_S", 0.05)
        async with (
            Server(app, listener, SETTINGS.model_copy(update=settings)) as server,
            asyncio.timeout(WAIT_S),
        ):
            yield server


@asynccontextmanager
async def connected(server: Server) -> AsyncIterator[Client]:
    reader, writer = await asyncio.open_connection(HOST, int(server.url.rpartition(":")[2]))
    try:
        yield Client(reader, writer)
    finally:
        writer.transport.abort()


def get(path: bytes = b"/", headers: bytes = b"", *, method: bytes = b"GET") -> bytes:
    return method + b" " + path + b" HTTP/1.1\r\nhost: x\r\n" + headers + b"\r\n"


def unfinished(rest: bytes, path: bytes = b"/") -> bytes:
    return get(path, rest, method=b"POST").removesuffix(b"\r\n")


@pytest.mark.parametrize("rest", ENDLESS)
async def test_an_answer_that_did_not_wait_for_the_body_is_the_last(rest: bytes) -> None:
    async with serving() as server, connected(server) as client:
        answer = await client.ask(unfinished(rest))
        assert answer.startswith(OK)
        assert b"\r\nconnection: close\r\n" in answer
        await client.trickle()


@pytest.mark.parametrize("path", [b"/", b"/body"])
@pytest.mark.parametrize(
    "trailers", [b"a: b\r\n" * 22, b"a: " + b"b" * 2100, b"a: " + b"b" * 1000 + b"\r\nc: " * 1000]
)
async def test_trailers_are_bounded_as_a_head_is(path: bytes, trailers: bytes) -> None:
    head = unfinished(b"transfer-encoding: chunked\r\n\r\n", path)
    async with serving() as server, connected(server) as client:
        answer = await client.ask(head + b"1\r\na\r\n0\r\n" + trailers)
        assert answer.startswith(b"HTTP/1.1 431 Request Header Fields Too Large\r\n")
        assert answer.count(b"HTTP/1.1 ") == 1
        await client.trickle()


async def test_chunk_extensions_are_bounded_as_a_head_is() -> None:
    head = unfinished(b"transfer-encoding: chunked\r\n\r\n", b"/body")
    async with serving() as server:
        for chunks in (b"1;" + b"a" * 2100, (b"1;" + b"a" * 200 + b"\r\na\r\n") * 11):
            async with connected(server) as client:
                assert (await client.ask(head + chunks)).startswith(b"HTTP/1.1 431 ")


async def test_trailers_are_no_headers() -> None:
    seen: list[Scope] = []

    async def noting(scope: Scope, receive: Receive, send: Send) -> None:
        seen.append(scope)
        await application(scope, receive, send)

    body = b"1\r\na\r\n0\r\nauthorization: Bearer good\r\n\r\n"
    async with serving(noting) as server, connected(server) as client:
        head = unfinished(b"transfer-encoding: chunked\r\nconnection: close\r\n\r\n", b"/body")
        assert (await client.ask(head + body)).startswith(OK)
    assert b"authorization" not in dict(seen[-1]["headers"])


async def test_a_body_that_breaks_the_rules_midway_is_refused_once() -> None:
    head = unfinished(b"transfer-encoding: chunked\r\n\r\n", b"/body")
    async with serving() as server, connected(server) as client:
        client.writer.write(head + b"1\r\na\r\n")
        await client.writer.drain()
        answer = await client.ask(b"zz\r\n")
    assert answer.startswith(b"HTTP/1.1 400 Bad Request\r\n")
    assert answer.count(b"HTTP/1.1 ") == 1


async def test_what_stands_before_garbage_is_answered() -> None:
    post = get(b"/body", b"content-length: 2\r\n", method=b"POST") + b"hi"
    async with serving() as server, connected(server) as client:
        answers = await client.ask(get(b"/one") + post + b"garbage\r\n\r\n" + get(b"/two"))
    assert [part[:3] for part in answers.split(b"HTTP/1.1 ")[1:]] == [b"200", b"200", b"400"]
    assert b"/body" in answers
    assert b"/two" not in answers


async def test_a_request_line_without_a_version_is_refused_before_its_head_ends() -> None:
    async with serving(head_timeout_s=60) as server, connected(server) as client:
        assert (await client.ask(b"GET /healthz\r\n")).startswith(b"HTTP/1.1 400 Bad Request\r\n")


async def test_a_client_that_ended_its_side_is_answered() -> None:
    async with serving() as server:
        for requests, count in [
            (get(), 1),
            (get() * 3, 3),
            (get(b"/body", b"content-length: 2\r\n", method=b"POST") + b"hi", 1),
            (b"GET / HTTP/1.0\r\n\r\n", 1),
            (get() + b"GET / HT", 1),
        ]:
            async with connected(server) as client:
                client.writer.write(requests)
                client.writer.write_eof()
                answers = await client.reader.read()
                assert answers.count(OK) == answers.count(b"HTTP/1.1 ") == count


async def test_a_client_that_ended_its_side_within_a_request_is_not_waited_for() -> None:
    async with serving() as server:
        for part in (b"", b"GET / HT", unfinished(ENDLESS[0], b"/body") + b"abc"):
            async with connected(server) as client:
                client.writer.write(part)
                client.writer.write_eof()
                assert await client.reader.read() == b""


class Long:
    """An application that works until it may end, or its client has gone."""

    def __init__(self, content_type: bytes | None) -> None:
        """Its head goes out at the beginning, if it has a content type."""
        self.asked, self.may_end, self.lost = asyncio.Event(), asyncio.Event(), asyncio.Event()
        self._content_type = content_type

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await application(scope, receive, send)
            return
        headers = [(b"content-type", self._content_type or b"application/json")]
        connection = connection_of(scope)
        assert connection is not None
        connection.watch(self.lost.set)
        if self._content_type is not None:
            await send({"type": "http.response.start", "status": 200, "headers": headers})
        self.asked.set()
        await self.may_end.wait()
        if self._content_type is None:
            await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": b"the end"})


@pytest.mark.slow
@pytest.mark.parametrize("content_type", [None, b"text/event-stream; charset=utf-8"])
@pytest.mark.parametrize("version", [b"1.1", b"1.0"])
async def test_work_ends_with_its_client_and_not_with_its_client_s_side(
    content_type: bytes | None, version: bytes
) -> None:
    long = Long(content_type)
    async with serving(long) as server:
        async with connected(server) as client:
            client.writer.write(get().replace(b"1.1", version))
            await long.asked.wait()
            client.writer.write_eof()
            if (content_type, version) != (None, b"1.0"):
                skipped = b":\n\n" if content_type else b"HTTP/1.1 100 Continue\r\n\r\n"
                await client.reader.readuntil(skipped)
                await client.reader.readuntil(skipped)
                assert not long.lost.is_set()
                long.may_end.set()
                assert b"the end" in await client.reader.read()
            else:
                # Nothing can be sent that such a client would skip.
                assert await client.reader.read() == b""
                assert long.lost.is_set()
        for moment in (long.may_end, long.asked, long.lost):
            moment.clear()
        async with connected(server) as client:
            client.writer.write(get().replace(b"1.1", version))
            await long.asked.wait()
            client.writer.close()
            await client.writer.wait_closed()
            await long.lost.wait()
            long.may_end.set()


async def test_connections_without_a_key_do_not_shut_out_others() -> None:
    async with serving(connections_max=20, reserved_max=2) as server, AsyncExitStack() as stack:
        for number in range(20):
            client = await stack.enter_async_context(connected(server))
            client.writer.write(unfinished(ENDLESS[number % 4], b"/body") if number % 2 else b"G")
        for path, key in [(b"/healthz", b""), (b"/readyz", b""), (b"/", KEY), (b"/body", KEY)]:
            async with connected(server) as client:
                answer = await client.ask(get(path, key + b"connection: close\r\n"))
                assert answer.startswith(OK)


def at_once(server: Server, count: int, stack: ExitStack) -> list[socket.socket]:
    """So many connections, which the server has no turn to take one after the other."""
    address = (HOST, int(server.url.rpartition(":")[2]))
    return [
        stack.enter_context(closing(socket.create_connection(address, WAIT_S)))
        for _ in range(count)
    ]


async def all_from(client: socket.socket) -> bytes:
    reader, writer = await asyncio.open_connection(sock=client)
    answer = await reader.read()
    writer.close()
    return answer


async def test_a_probe_that_has_come_whole_is_answered_before_newcomers_push_it_out() -> None:
    async with serving(connections_max=4, reserved_max=2) as server:
        with ExitStack() as stack:
            probe, *_ = at_once(server, FLOOD, stack)
            probe.sendall(get(b"/readyz", b"connection: close\r\n"))
            assert (await all_from(probe)).startswith(OK)


async def test_a_probe_that_is_being_answered_outlasts_every_flood() -> None:
    long = Long(None)
    async with (
        serving(long, connections_max=4, reserved_max=2) as server,
        connected(server) as probe,
        AsyncExitStack() as stack,
    ):
        probe.writer.write(get(b"/readyz", b"connection: close\r\n"))
        await long.asked.wait()
        newest = probe
        for _ in range(FLOOD):
            newest = await stack.enter_async_context(connected(server))
        newest.writer.write(b"no http\r\n\r\n")
        assert await newest.reader.read()
        long.may_end.set()
        assert b"the end" in await probe.reader.read()


async def test_more_probes_than_may_wait_are_told_so() -> None:
    long = Long(None)
    async with serving(long, connections_max=1, reserved_max=1) as server:
        with ExitStack() as stack:
            probe, other = at_once(server, 2, stack)
            for one in (probe, other):
                one.sendall(get(b"/readyz", b"connection: close\r\n"))
            assert (await all_from(other)).startswith(b"HTTP/1.1 503 ")
            long.may_end.set()
            assert b"the end" in await all_from(probe)


@pytest.mark.slow
async def test_who_does_not_take_an_answer_makes_room() -> None:
    async def large(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan" or scope["path"] == "/healthz":
            await application(scope, receive, send)
            return
        await PlainTextResponse(b"x" * 50_000_000)(scope, receive, send)

    async with (
        serving(large, connections_max=1, reserved_max=1) as server,
        connected(server) as slow,
    ):
        assert isinstance(slow.writer.transport, asyncio.Transport)
        slow.writer.transport.pause_reading()
        slow.writer.write(get(b"/openapi.json"))
        await slow.writer.drain()
        async with connected(server) as client:
            answer = await client.ask(get(b"/healthz", b"connection: close\r\n"))
            assert answer.startswith(OK)
        await slow.trickle()


async def test_where_all_connections_have_keys_the_idle_make_room_and_probes_get_through() -> None:
    async with (
        serving(connections_max=2) as server,
        connected(server) as one,
        connected(server) as two,
    ):
        for client in (one, two):
            client.writer.write(get(b"/", KEY))
            assert await client.reader.readuntil(b"\r\n\r\n/")
        async with connected(server) as client:
            assert (await client.ask(get(b"/healthz", b"connection: close\r\n"))).startswith(OK)
        async with connected(server) as client:
            assert (await client.ask(get(b"/", KEY + b"connection: close\r\n"))).startswith(OK)
        assert await one.reader.read() == b""
        two.writer.write(get(b"/", KEY + b"connection: close\r\n"))
        assert (await two.reader.read()).startswith(OK)


async def test_where_all_connections_with_keys_are_busy_one_more_is_told_so() -> None:
    async with serving(connections_max=1) as server, connected(server) as one:
        one.writer.write(unfinished(KEY + b"expect: 100-continue\r\n" + ENDLESS[0], b"/body"))
        await one.reader.readuntil(b"HTTP/1.1 100 Continue\r\n\r\n")
        async with connected(server) as client:
            answer = await client.ask(get(b"/", KEY))
            assert answer.startswith(b"HTTP/1.1 503 Service Unavailable\r\n")
            assert b"\r\nretry-after: 1\r\n" in answer
            assert b"server_is_overloaded" in answer


async def test_an_address_has_so_many_connections() -> None:
    async with serving(connections_per_peer_max=1) as server:
        async with connected(server) as first, connected(server) as second:
            assert (await second.reader.read()).startswith(b"HTTP/1.1 503 Service Unavailable\r\n")
            assert (await first.ask(get(b"/", b"connection: close\r\n"))).startswith(OK)
        while server.server_state.connections:  # noqa: ASYNC110 - uvicorn tells nobody
            await asyncio.sleep(0)
        async with connected(server) as client:
            assert (await client.ask(get(b"/", b"connection: close\r\n"))).startswith(OK)


@pytest.mark.slow
async def test_many_requests_at_once_let_other_connections_have_their_turn() -> None:
    count = 1000
    async with serving() as server, connected(server) as many, connected(server) as other:
        many.writer.write(get(b"/many") * count)
        await many.reader.readuntil(b"/many")
        other.writer.write(get(b"/other"))
        await other.reader.readuntil(b"/other")
        answered = 1
        while answered < count:
            await many.reader.readuntil(b"/many")
            answered += 1


@pytest.mark.slow
async def test_what_is_not_taken_by_its_client_is_dropped_with_it() -> None:
    async def large(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await application(scope, receive, send)
            return
        await PlainTextResponse(b"x" * 50_000_000)(scope, receive, send)

    async with serving(large, keepalive_timeout_s=1) as server, connected(server) as client:
        assert isinstance(client.writer.transport, asyncio.Transport)
        client.writer.transport.pause_reading()
        client.writer.write(get(b"/", b"connection: close\r\n"))
        await client.trickle()


@pytest.mark.slow
async def test_a_request_leaves_nothing_for_the_garbage_collector() -> None:
    forms = [get() * 3, get(headers=b"connection: close\r\n"), b"no http\r\n\r\n", b"GET / HT"]
    forms += [unfinished(rest) for rest in ENDLESS]
    async with serving() as server:
        gc.collect()
        gc.freeze()  # what other tests of this process left alive is not looked at
        gc.set_debug(gc.DEBUG_SAVEALL)
        try:
            for form in forms:
                async with connected(server) as client:
                    client.writer.write(form)
                    client.writer.write_eof()
                    await client.reader.read()
            gc.collect()
            ours = [one for one in gc.garbage if type(one).__module__.startswith("gateway.")]
        finally:
            gc.set_debug(0)
            gc.unfreeze()
            gc.garbage.clear()
    assert not ours


async def test_a_server_that_stops_answers_those_that_wait_to_be_accepted() -> None:
    async with serving() as server:
        address = HOST, int(server.url.rpartition(":")[2])
        clients = [socket.create_connection(address) for _ in range(20)]
        for client in clients:
            client.sendall(get())
    # Nothing was accepted until the server began to stop.
    for client in clients:
        with closing(client):
            assert client.recv(1_000_000).startswith(OK)


async def test_a_server_that_stops_answers_the_request_that_is_on_its_way() -> None:
    async def ask_late(client: Client, port: int) -> bytes:
        with suppress(ConnectionRefusedError):
            while True:
                _, writer = await asyncio.open_connection(HOST, port)
                writer.transport.abort()
        return await client.ask(get())

    async with AsyncExitStack() as stack, asyncio.TaskGroup() as group:
        async with serving() as server:
            port = int(server.url.rpartition(":")[2])
            early, silent = [await stack.enter_async_context(connected(server)) for _ in range(2)]
            async with connected(server) as other:  # those before it are accepted, then
                assert (await other.ask(get(headers=b"connection: close\r\n"))).startswith(OK)
            answer = group.create_task(ask_late(early, port))
        assert await silent.reader.read() == b""
    assert answer.result().startswith(OK)
    assert b"\r\nconnection: close\r\n" in answer.result()
