"""Requests of tools in front of a real server on loopback."""

from __future__ import annotations

import asyncio
import socket
import threading
from contextlib import asynccontextmanager
from ipaddress import ip_network
from typing import TYPE_CHECKING, Any

import httpx2
import pytest

from gateway.tools.egress.network_policy import EgressRefused, NetworkPolicy
from gateway.tools.egress.transport import (
    HEAD_BYTES_MAX,
    PART_BYTES,
    PARTS_AT_ONCE,
    BodyTooLong,
    EgressLimits,
    EncodedBody,
    client,
    resolve,
)
from gateway.tools.tool_executor import ToolLimits
from tests.fakes.raw_server import silent_address

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

LOOPBACK = NetworkPolicy(networks=(ip_network("127.0.0.1/32"),))
PUBLIC = NetworkPolicy(ports=frozenset(range(1, 65536)))


class Server:
    """Answers every request with the same bytes, and keeps what it was asked."""

    def __init__(self, answer: bytes) -> None:
        self.answer = answer
        self.asked: list[bytes] = []
        self.port = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.asked.append(await reader.readuntil(b"\r\n\r\n"))
        writer.write(self.answer)
        await writer.drain()
        writer.close()


@asynccontextmanager
async def serving(answer: bytes) -> AsyncIterator[Server]:
    server = Server(answer)
    listener = await asyncio.start_server(server.serve, "127.0.0.1", 0)
    server.port = listener.sockets[0].getsockname()[1]
    async with listener:
        yield server


def said(body: bytes, *headers: bytes) -> bytes:
    lines = (b"HTTP/1.1 200 OK", b"content-length: %d" % len(body), *headers, b"", body)
    return b"\r\n".join(lines)


async def test_request_has_nothing_of_its_own() -> None:
    async with serving(said(b"hello")) as server, client(LOOPBACK, EgressLimits()) as tools:
        answer = await tools.get(f"http://localhost:{server.port}/page")
        assert answer.text == "hello"
    head = server.asked[0].lower()
    assert b"accept-encoding: identity" in head
    assert f"host: localhost:{server.port}".encode() in head
    assert not any(name in head for name in (b"cookie", b"authorization", b"referer"))


@pytest.mark.parametrize(
    "host",
    ["127.0.0.1", "localhost", "[::1]", "[::ffff:127.0.0.1]", "0.0.0.0", "2130706433", "0x7f.1"],
)
async def test_loopback_is_refused_in_every_spelling(host: str) -> None:
    async with serving(said(b"secret")) as server, client(PUBLIC, EgressLimits()) as tools:
        with pytest.raises((EgressRefused, httpx2.ConnectError)):
            await tools.get(f"http://{host}:{server.port}/")
    assert not server.asked


async def test_name_is_looked_up_once() -> None:
    """A name that is public when it is checked and private afterwards leads nowhere private."""
    answers = [("127.0.0.1",), ("10.0.0.1",)]
    looked_up: list[str] = []

    async def rebinding(host: str, port: int) -> tuple[str, ...]:
        looked_up.append(host)
        return answers[len(looked_up) - 1]

    async with (
        serving(said(b"page")) as server,
        client(LOOPBACK, EgressLimits(), resolver=rebinding) as tools,
    ):
        url = f"http://rebinding.example:{server.port}/"
        assert (await tools.get(url)).text == "page"
        assert looked_up == ["rebinding.example"]
        with pytest.raises(EgressRefused):
            await tools.get(url)


async def test_next_address_is_tried() -> None:
    policy = NetworkPolicy(networks=(ip_network("127.0.0.0/8"), ip_network("::1/128")))

    async def resolver(host: str, port: int) -> tuple[str, ...]:
        return (
            ("::1", "127.0.0.2", "127.0.0.1") if host == "there.example" else ("::1", "127.0.0.2")
        )

    async with (
        serving(said(b"page")) as server,
        client(policy, EgressLimits(), resolver=resolver) as tools,
    ):
        assert (await tools.get(f"http://there.example:{server.port}/")).text == "page"
        with pytest.raises(httpx2.ConnectError):
            await tools.get(f"http://away.example:{server.port}/")


async def test_silent_address_of_a_name_leaves_time_for_the_others() -> None:
    policy = NetworkPolicy(networks=(ip_network("127.0.0.0/8"),))
    limits = EgressLimits(connect_timeout_s=1.0)
    async with serving(said(b"page")) as server:
        with silent_address(server.port) as silent:

            async def resolver(host: str, port: int) -> tuple[str, ...]:
                return (silent, "127.0.0.1")

            async with client(policy, limits, resolver=resolver) as tools:
                assert (await tools.get(f"http://there.example:{server.port}/")).text == "page"


async def test_redirect_is_an_answer() -> None:
    moved = b"HTTP/1.1 302 Found\r\nlocation: http://169.254.169.254/\r\ncontent-length: 0\r\n\r\n"
    async with serving(moved) as server, client(LOOPBACK, EgressLimits()) as tools:
        answer = await tools.get(f"http://127.0.0.1:{server.port}/")
        assert answer.status_code == 302
        with pytest.raises(EgressRefused):
            await tools.get(answer.headers["location"])


async def test_body_is_bounded() -> None:
    limits = EgressLimits(body_bytes_max=100)
    async with serving(said(b"x" * 101)) as server, client(LOOPBACK, limits) as tools:
        with pytest.raises(BodyTooLong):
            await tools.get(f"http://127.0.0.1:{server.port}/")
    async with serving(said(b"x" * 100)) as server, client(LOOPBACK, limits) as tools:
        assert len((await tools.get(f"http://127.0.0.1:{server.port}/")).content) == 100


def in_bytes(count: int) -> bytes:
    """An answer of so many chunks of one byte."""
    head = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"
    return head + b"1\r\nx\r\n" * count + b"0\r\n\r\n"


async def test_chunks_of_a_body_are_bounded() -> None:
    limits = EgressLimits(body_bytes_max=100 * PART_BYTES)
    most = 100 + PARTS_AT_ONCE
    async with serving(in_bytes(most + 1)) as server, client(LOOPBACK, limits) as tools:
        with pytest.raises(BodyTooLong):
            await tools.get(f"http://127.0.0.1:{server.port}/")
    async with serving(in_bytes(most)) as server, client(LOOPBACK, limits) as tools:
        assert len((await tools.get(f"http://127.0.0.1:{server.port}/")).content) == most


async def test_chunks_of_a_byte_do_not_hold_up_the_event_loop() -> None:
    turns = 0

    async def take_turns() -> None:
        nonlocal turns
        while True:
            await asyncio.sleep(0)
            turns += 1

    async with (
        serving(in_bytes(50 * PARTS_AT_ONCE)) as server,
        client(LOOPBACK, EgressLimits()) as tools,
        tools.stream("GET", f"http://127.0.0.1:{server.port}/") as answer,
    ):
        others = asyncio.create_task(take_turns())
        await answer.aread()
        others.cancel()
    assert turns >= 49


async def test_head_of_an_answer_has_an_end() -> None:
    interim = b"HTTP/1.1 100 Continue\r\n\r\n"
    url = "http://127.0.0.1:{}/"
    async with serving(interim * 3 + said(b"x")) as server:
        async with client(LOOPBACK, EgressLimits()) as tools:
            assert (await tools.get(url.format(server.port))).text == "x"
        server.answer = interim * (2 * HEAD_BYTES_MAX // len(interim)) + said(b"x")
        async with client(LOOPBACK, EgressLimits()) as tools:
            with pytest.raises(httpx2.RemoteProtocolError):
                await tools.get(url.format(server.port))


async def test_compressed_body_is_refused() -> None:
    bomb = said(b"\x1f\x8b", b"content-encoding: gzip")
    async with serving(bomb) as server, client(LOOPBACK, EgressLimits()) as tools:
        with pytest.raises(EncodedBody):
            await tools.get(f"http://127.0.0.1:{server.port}/")


async def test_failures_are_those_of_httpx2() -> None:
    async def nowhere(host: str, port: int) -> tuple[str, ...]:
        raise OSError("no such host")

    async def never(host: str, port: int) -> tuple[str, ...]:
        await asyncio.Event().wait()
        return ()

    limits = EgressLimits(connect_timeout_s=0.01)
    async with client(LOOPBACK, limits, resolver=nowhere) as tools:
        with pytest.raises(httpx2.ConnectError):
            await tools.get("http://nowhere.example/")
    async with client(LOOPBACK, limits, resolver=never) as tools:
        with pytest.raises(httpx2.ConnectTimeout):
            await tools.get("http://never.example/")
    async with serving(b"nonsense\r\n\r\n") as server, client(LOOPBACK, EgressLimits()) as tools:
        with pytest.raises(httpx2.RemoteProtocolError):
            await tools.get(f"http://127.0.0.1:{server.port}/")


async def test_names_that_nobody_answers_for_hold_up_no_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    getaddrinfo, over = socket.getaddrinfo, threading.Event()

    def answered(host: str, *arguments: Any, **options: Any) -> Any:
        if host == "silent.example":
            over.wait(30)
            raise socket.gaierror(socket.EAI_AGAIN, "no answer")
        return getaddrinfo(host, *arguments, **options)

    monkeypatch.setattr(socket, "getaddrinfo", answered)
    silent = [
        asyncio.create_task(resolve("silent.example", 80)) for _ in range(ToolLimits().running_max)
    ]
    await asyncio.sleep(0)
    try:
        assert await resolve("127.0.0.1", 80) == ("127.0.0.1",)
    finally:
        over.set()
        await asyncio.wait(silent)
        assert all(isinstance(task.exception(), OSError) for task in silent)


async def test_resolve_reads_literal_addresses() -> None:
    assert await resolve("2130706433", 80) == ("127.0.0.1",)
