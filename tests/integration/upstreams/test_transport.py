"""The transport against a real socket: framing, errors, back-pressure."""

from __future__ import annotations

import asyncio
import socket
import ssl
import threading
from itertools import chain, repeat
from socket import EAI_AGAIN, EAI_NONAME
from typing import TYPE_CHECKING, Any

import httpx2
import pytest

from gateway.upstreams.http import client as client_of_backends
from gateway.upstreams.http.client import Client, HttptoolsTransport, KeepAlivePolicy, build_client
from gateway.upstreams.http.connection import Connection, ConnectionLimits
from tests.fakes.certificate import self_signed
from tests.fakes.failures import failure_of
from tests.fakes.raw_server import (
    STREAM_END,
    STREAM_HEAD,
    Act,
    Gate,
    RawServer,
    Script,
    chunk,
    response,
    silent_address,
)
from tests.integration.upstreams.raw_streams import limited, serving, streaming

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

READ_FROM_SOCKET_MAX = 256 * 1024
LOOKUP_WITHIN_S = 30.0
TURNS = 100
"""Of the loop, in which each of a few requests comes to the lookup."""


async def test_a_body_with_a_length_is_read(client: Client) -> None:
    async with serving((response(b"hello", headers="x-a: b\r\n"),)) as server:
        answer = await client.get(server.url + "/path?q=1")
    assert (answer.status_code, answer.content, answer.headers["x-a"]) == (200, b"hello", "b")
    assert answer.http_version == "HTTP/1.1"
    assert server.requests[0].path == "/path?q=1"


async def test_a_chunked_body_is_read(client: Client) -> None:
    async with serving((STREAM_HEAD, chunk(b"ab"), chunk(b"cd"), STREAM_END)) as server:
        assert (await client.get(server.url)).content == b"abcd"


async def test_a_redirect_is_an_answer_wherever_it_leads(client: Client) -> None:
    moved = response(b"", status=301, headers="Location: //:80/v1\r\n")
    async with serving((moved,)) as server:
        assert (await client.get(server.url)).status_code == 301


async def test_a_body_without_framing_is_read_to_the_end_of_the_connection(client: Client) -> None:
    async with serving((b"HTTP/1.1 200 OK\r\n\r\nab", b"cd", Act.CLOSE)) as server:
        assert (await client.get(server.url)).content == b"abcd"


async def test_what_comes_in_one_read_comes_out_as_one_part(client: Client) -> None:
    body = chunk(b"a") + chunk(b"b") + chunk(b"c")
    gate = Gate()
    script: Script = (STREAM_HEAD + body, gate, chunk(b"d") + STREAM_END)
    async with serving(script) as server, streaming(client, server) as answer:
        parts = answer.aiter_raw()
        assert await anext(parts) == b"abc"
        gate.opened.set()
        assert [part async for part in parts] == [b"d"]


async def test_a_request_body_arrives_with_its_length(client: Client) -> None:
    async with serving((response(b""),)) as server:
        await client.post(server.url + "/x", content=b"z" * 3_000_000)
    assert server.requests[0].body == b"z" * 3_000_000


async def test_a_request_body_of_unknown_length_is_measured(client: Client) -> None:
    async def parts() -> AsyncIterator[bytes]:
        yield b"ab"
        yield b"c"

    async with serving((response(b""),)) as server:
        await client.post(server.url + "/x", content=parts())
    assert server.requests[0].body == b"abc"
    assert "transfer-encoding" not in server.requests[0].headers


async def test_only_listed_headers_leave_the_gateway(client: Client) -> None:
    async with serving((response(b"", headers="set-cookie: a=b\r\n"),)) as server:
        for _ in range(2):
            await client.post(
                server.url,
                json={},
                headers={"x-request-id": "1", "cookie": "c=d", "authorization": "Bearer k"},
            )
    assert set(server.requests[1].headers) == {
        "accept",
        "accept-encoding",
        "authorization",
        "content-length",
        "content-type",
        "host",
        "user-agent",
    }
    assert server.requests[1].headers["accept-encoding"] == "identity"


async def test_redirects_are_not_followed(client: Client) -> None:
    async with serving((response(b"", status=307, headers="location: /y\r\n"),)) as server:
        assert (await client.get(server.url)).status_code == 307
    assert len(server.requests) == 1


async def test_proxies_of_the_environment_are_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:1")
    monkeypatch.setenv("ALL_PROXY", "http://127.0.0.1:1")
    async with serving((response(b"ok"),)) as server, limited() as client:
        assert (await client.get(server.url)).content == b"ok"


@pytest.mark.parametrize(
    ("script", "error"),
    [
        (
            (b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nab", Act.CLOSE),
            httpx2.RemoteProtocolError,
        ),
        ((STREAM_HEAD, chunk(b"ab"), Act.CLOSE), httpx2.RemoteProtocolError),
        ((STREAM_HEAD, b"nonsense\r\n", Act.STALL), httpx2.RemoteProtocolError),
        ((b"nonsense\r\n\r\n", Act.STALL), httpx2.RemoteProtocolError),
        ((b"HTTP/1.1 200 OK\r\nx: " + b"y" * 70_000, Act.STALL), httpx2.RemoteProtocolError),
        ((STREAM_HEAD, chunk(b"ab"), Act.RESET), httpx2.ReadError),
        ((Act.RESET,), httpx2.ReadError),
    ],
)
async def test_a_broken_answer_is_an_error_of_httpx2(
    client: Client, script: Script, error: type[httpx2.TransportError]
) -> None:
    async with serving(script) as server:
        with pytest.raises(error):
            await client.get(server.url)


async def test_bytes_before_a_break_are_delivered_first(client: Client) -> None:
    gate = Gate()
    script: Script = (STREAM_HEAD, gate, chunk(b"ab") + b"nonsense", Act.CLOSE)
    async with serving(script) as server, streaming(client, server) as answer:
        gate.opened.set()
        parts = answer.aiter_raw()
        assert await anext(parts) == b"ab"
        with pytest.raises(httpx2.RemoteProtocolError):
            await anext(parts)


async def test_nobody_listens(client: Client) -> None:
    async with serving((response(b""),)) as server:
        pass
    with pytest.raises(httpx2.ConnectError):
        await client.get(server.url)


async def test_a_name_that_does_not_resolve(client: Client) -> None:
    with pytest.raises(httpx2.ConnectError):
        await client.get("http://nowhere.invalid/")


async def test_a_backend_that_does_not_answer_in_time(client: Client) -> None:
    async with serving((Act.STALL,)) as server:
        with pytest.raises(httpx2.ReadTimeout, match="does not answer"):
            await client.get(server.url, timeout=httpx2.Timeout(5, read=0.02))
        await server.hung_up.wait()


async def test_a_backend_that_does_not_read_the_request(client: Client) -> None:
    gate = Gate()
    async with RawServer({"*": [(gate, Act.RESET)]}, reads_bodies=False) as server:
        waits = httpx2.Timeout(5, write=0.05)
        with pytest.raises(httpx2.WriteTimeout):
            await client.post(server.url, content=bytes(32_000_000), timeout=waits)
        gate.opened.set()


async def test_a_backend_that_refuses_before_it_has_read_all_is_heard(client: Client) -> None:
    gate = Gate()
    refusal = response(b"too large", status=413)
    async with RawServer({"*": [(refusal, gate, Act.RESET)]}, reads_bodies=False) as server:
        answer = await client.post(server.url, content=bytes(32_000_000))
        gate.opened.set()
    assert (answer.status_code, answer.content) == (413, b"too large")


@pytest.mark.parametrize("seconds", [0.0, 1e-9])
async def test_a_connection_that_is_not_accepted_in_time(client: Client, seconds: float) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        with pytest.raises(httpx2.ConnectTimeout):
            await client.get(f"http://127.0.0.1:{port}", timeout=httpx2.Timeout(5, connect=seconds))


async def test_a_slow_consumer_holds_a_bounded_number_of_bytes() -> None:
    parts, size, bound = 300, 64 * 1024, 100_000
    script: Script = (STREAM_HEAD, *[chunk(bytes(size))] * parts, STREAM_END)
    received, most = 0, 0
    async with (
        serving(script) as server,
        limited(buffer_bytes_max=bound) as client,
        streaming(client, server) as answer,
    ):
        connection = connection_of(answer)
        await paused(connection)
        async for part in answer.aiter_raw():
            received += len(part)
            most = max(most, len(part))
            if received < parts * size // 2:
                await paused(connection)
    assert received == parts * size
    assert bound < most <= bound + READ_FROM_SOCKET_MAX


def connection_of(answer: httpx2.Response) -> Connection:
    connection = answer.extensions["body"].connection
    assert isinstance(connection, Connection)
    return connection


async def paused(connection: Connection) -> None:
    """Until the consumer is so far behind that nothing more is read from the socket."""
    while not connection._reading_paused:  # noqa: ASYNC110  there is no event to wait for
        await asyncio.sleep(0)


async def test_patience_is_looked_up_at_each_wait_and_may_be_tightened(client: Client) -> None:
    waits: dict[str, float | None] = {"connect": 5, "read": 60}
    async with serving((STREAM_HEAD, chunk(b"a"), Act.STALL)) as server:
        request = client.build_request("GET", server.url, extensions={"timeout": waits})
        answer = await client.send(request, stream=True)
        parts = answer.aiter_raw()
        assert await anext(parts) == b"a"
        waits["read"] = 0.01
        with pytest.raises(httpx2.ReadTimeout, match="fell silent"):
            await anext(parts)
        await server.hung_up.wait()


async def test_closing_the_client_breaks_off_what_is_under_way() -> None:
    client = limited()
    async with serving((STREAM_HEAD, chunk(b"a"), Act.STALL)) as server:
        request = client.build_request("GET", server.url)
        answer = await client.send(request, stream=True)
        parts = answer.aiter_raw()
        await anext(parts)
        await client.aclose()
        with pytest.raises(httpx2.ReadError):
            await anext(parts)
        await server.hung_up.wait()


async def test_a_connection_that_is_made_after_closing_the_client_is_not_used() -> None:
    client = limited()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        async with asyncio.TaskGroup() as group:
            task = group.create_task(failure_of(client.get(url)))
            await asyncio.sleep(0)
            await client.aclose()
    assert isinstance(task.result(), httpx2.NetworkError)


async def test_a_closed_body_is_not_read_on() -> None:
    async with (
        serving((STREAM_HEAD, chunk(b"a"), Act.STALL)) as server,
        HttptoolsTransport(keep_alive=KeepAlivePolicy(), limits=ConnectionLimits()) as transport,
    ):
        answer = await transport.handle_async_request(httpx2.Request("GET", server.url))
        assert isinstance(answer.stream, httpx2.AsyncByteStream)
        await answer.stream.aclose()
        with pytest.raises(httpx2.StreamClosed):
            await anext(aiter(answer.stream))


@pytest.mark.parametrize("line", [b"x: y\r\n", b"\r\nHTTP/1.1 102 Processing\r\n"])
async def test_a_head_that_never_ends_is_not_waited_for(line: bytes) -> None:
    endless = chain([b"HTTP/1.1 102 Processing\r\n"], repeat(line))
    async with limited(head_bytes_max=1 << 40) as client, serving(endless) as server:
        with pytest.raises(httpx2.ReadTimeout):
            await client.get(server.url, timeout=httpx2.Timeout(0.3))
        await server.hung_up.wait()


async def test_tls_is_spoken_and_certificates_are_checked(tmp_path: Path) -> None:
    certificate = self_signed(tmp_path, "127.0.0.1")
    trusting = ssl.create_default_context(cafile=certificate)
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(certificate)
    limits = ConnectionLimits()
    async with RawServer({"*": [(response(b"ok"),)]}, tls=tls) as server:
        async with build_client(limits=limits, ssl_context=trusting) as client:
            for _ in range(2):
                assert (await client.get(server.url)).content == b"ok"
        assert server.connections == 1
        async with build_client(limits=limits) as client:
            with pytest.raises(httpx2.ConnectError, match=r"self.signed certificate"):
                await client.get(server.url)


async def test_a_burst_of_connections_takes_one_lookup(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A name server that is slow on a busy machine would be asked by a few threads in turn."""
    count, looked_up, answers = 20, list[str](), threading.Event()
    getaddrinfo, loop, begun = socket.getaddrinfo, asyncio.get_running_loop(), asyncio.Event()

    def slow(host: str, *arguments: Any, **options: Any) -> Any:
        looked_up.append(host)
        loop.call_soon_threadsafe(begun.set)
        assert answers.wait(LOOKUP_WITHIN_S)
        return getaddrinfo(host, *arguments, **options)

    monkeypatch.setattr(socket, "getaddrinfo", slow)
    async with serving(*[(response(b"ok"),)] * count) as server, asyncio.TaskGroup() as group:
        url = server.url.replace("127.0.0.1", "localhost")
        asking = [group.create_task(client.get(url)) for _ in range(count)]
        await begun.wait()
        for _ in range(TURNS):
            await asyncio.sleep(0)
        answers.set()
    assert [task.result().content for task in asking] == [b"ok"] * count
    assert server.connections == count
    assert looked_up == ["localhost"]


async def test_a_silent_address_of_a_backend_leaves_time_for_the_others(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with serving((response(b"ok"),)) as server:
        with silent_address(httpx2.URL(server.url).port or 0) as silent:

            def both(host: str, port: int, *_: Any, **__: Any) -> Any:
                kind = (socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP, "")
                return [(*kind, (address, port)) for address in (silent, "127.0.0.1")]

            monkeypatch.setattr(socket, "getaddrinfo", both)
            url = server.url.replace("127.0.0.1", "localhost")
            answer = await client.get(url, timeout=httpx2.Timeout(None, connect=1.0))
            assert answer.content == b"ok"


async def test_a_backend_that_is_forgotten_during_its_lookup_is_not_reached(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The request was not cancelled: another backend can answer it."""
    answers, begun, loop = threading.Event(), asyncio.Event(), asyncio.get_running_loop()

    def slow(*arguments: Any, **options: Any) -> Any:
        loop.call_soon_threadsafe(begun.set)
        assert answers.wait(LOOKUP_WITHIN_S)
        return []

    monkeypatch.setattr(socket, "getaddrinfo", slow)
    url = httpx2.URL("http://localhost:9/")
    asking = asyncio.create_task(client.get(url))
    await begun.wait()
    await client.transport.forget(url)
    answers.set()
    with pytest.raises(httpx2.ConnectError):
        await asking


@pytest.mark.slow
@pytest.mark.parametrize(
    ("how", "kept_s", "is_reached"),
    [
        ("late", client_of_backends.LOOKUP_KEPT_S, True),
        (EAI_AGAIN, client_of_backends.LOOKUP_KEPT_S, True),
        (EAI_AGAIN, 0.0, False),
        (EAI_NONAME, client_of_backends.LOOKUP_KEPT_S, False),
    ],
)
async def test_a_backend_stays_where_it_was_while_the_name_server_is_away(
    monkeypatch: pytest.MonkeyPatch, how: str | int, kept_s: float, is_reached: bool
) -> None:
    """For a while, and not if its name is gone."""
    monkeypatch.setattr(client_of_backends, "LOOKUP_KEPT_S", kept_s)
    answers, over = threading.Event(), threading.Event()

    def fail(*arguments: Any, **options: Any) -> Any:
        answers.set()
        if how == "late":
            assert over.wait(LOOKUP_WITHIN_S)
        raise socket.gaierror(EAI_AGAIN if how == "late" else how, "no answer")

    async with limited(idle_max=0) as client, serving(*[(response(b"ok"),)] * 2) as server:
        url = server.url.replace("127.0.0.1", "localhost")
        assert (await client.get(url)).content == b"ok"
        monkeypatch.setattr(socket, "getaddrinfo", fail)
        try:
            if is_reached:
                assert (await client.get(url)).content == b"ok"
            else:
                with pytest.raises(httpx2.ConnectError):
                    await client.get(url)
            assert answers.is_set()
        finally:
            over.set()


@pytest.mark.parametrize(
    ("method", "url", "headers", "error"),
    [
        ("GET", "ftp://127.0.0.1/", {}, httpx2.UnsupportedProtocol),
        ("HEAD", "http://127.0.0.1/", {}, httpx2.LocalProtocolError),
        ("GET", "http://127.0.0.1/", {"x": "a\r\nb: c"}, httpx2.LocalProtocolError),
    ],
)
async def test_what_cannot_be_sent_is_refused(
    method: str, url: str, headers: dict[str, str], error: type[httpx2.TransportError]
) -> None:
    transport = HttptoolsTransport(keep_alive=KeepAlivePolicy(), limits=ConnectionLimits())
    with pytest.raises(error):
        await transport.handle_async_request(httpx2.Request(method, url, headers=headers))


async def test_a_body_that_blocks_is_refused() -> None:
    transport = HttptoolsTransport(keep_alive=KeepAlivePolicy(), limits=ConnectionLimits())
    with pytest.raises(httpx2.LocalProtocolError, match="asynchronous"):
        await transport.handle_async_request(
            httpx2.Request("POST", "http://127.0.0.1/", content=iter([b"a"]))
        )
