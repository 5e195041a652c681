"""The listening process: its start, its bounds, its end."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import pytest
from starlette.applications import Starlette
from starlette.responses import PlainTextResponse
from starlette.routing import Route

from gateway.errors import StartupError
from gateway.server.server import PortTaken, Server, listen, stopped_by_signals, until_stopped
from gateway.settings import Server as ServerSettings

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from starlette.requests import Request

HOST = "127.0.0.1"
pytestmark = pytest.mark.usefixtures("short_heads")
SETTINGS = ServerSettings(drain_grace_s=5, keepalive_timeout_s=5)
WAIT_S = 60.0


async def hello(_: Request) -> PlainTextResponse:
    return PlainTextResponse("hello")


def application(events: list[str] | None = None, failure: Exception | None = None) -> Starlette:
    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        if failure is not None:
            raise failure
        yield
        if events is not None:
            events.append("ended")

    return Starlette(routes=[Route("/", hello, methods=["GET", "POST"])], lifespan=lifespan)


async def exchange(server: Server, request: bytes) -> bytes:
    """All that comes back until the server closes."""
    host, _, port = server.url.removeprefix("http://").rpartition(":")
    reader, writer = await asyncio.open_connection(host.strip("[]"), int(port))
    async with asyncio.timeout(WAIT_S):
        writer.write(request)
        answer = await reader.read()
    writer.close()
    await writer.wait_closed()
    return answer


async def test_a_server_answers_while_entered_and_ends_the_application_after() -> None:
    events: list[str] = []
    with listen(HOST, 0, 10) as listener:
        async with Server(application(events), listener, SETTINGS) as server:
            answer = await exchange(
                server, b"GET / HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n"
            )
            assert answer.startswith(b"HTTP/1.1 200 OK\r\n")
            assert b"\r\ndate: " in answer
            assert b"\r\nserver: " not in answer
            assert events == []
        assert events == ["ended"]


async def test_a_start_that_fails_raises_what_made_it_fail() -> None:
    failure = StartupError("no", remedy="do")
    with listen(HOST, 0, 10) as listener:
        server = Server(application(failure=failure), listener, SETTINGS)
        with pytest.raises(StartupError) as caught:
            await server.__aenter__()
    assert caught.value is failure


async def test_a_taken_port_is_told_before_anything_starts() -> None:
    with listen(HOST, 0, 10) as listener:
        port = listener.getsockname()[1]
        with pytest.raises(PortTaken, match=f"{HOST}:{port}: something else is listening there"):
            listen(HOST, port, 10)


@pytest.mark.parametrize("host", ["192.0.2.1", "no such host", "a..b"])
async def test_an_address_that_is_not_here_is_told(host: str) -> None:
    with pytest.raises(StartupError, match="cannot listen on"):
        listen(host, 0, 10)


async def test_a_signal_stops_all_servers_and_a_second_one_does_not_wait() -> None:
    with listen(HOST, 0, 10) as first, listen(HOST, 0, 10) as second:
        one, other = (Server(application(), socket_, SETTINGS) for socket_ in (first, second))
        with stopped_by_signals(one, other):
            async with one, other, asyncio.timeout(WAIT_S):
                os.kill(os.getpid(), signal.SIGTERM)
                await until_stopped(one, other)
                assert [server.force_exit for server in (one, other)] == [False, False]
                one.handle_exit(signal.SIGINT)
                assert one.force_exit


class Leaving:
    """An application that is told that it is about to end; `may_end` is when others are ready."""

    def __init__(self) -> None:
        self.told = asyncio.Event()
        self.may_end = asyncio.Event()
        self.ended_streams = False

    async def begin_drain(self) -> None:
        self.told.set()
        await self.may_end.wait()

    def end_streams(self) -> None:
        self.ended_streams = True


REQUEST = b"GET / HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n"


async def leave(server: Server) -> None:
    async with server:
        pass


async def test_it_serves_until_others_have_taken_over() -> None:
    leaving = Leaving()
    with listen(HOST, 0, 10) as listener:
        server = Server(application(), listener, SETTINGS, leaving)
        async with asyncio.timeout(WAIT_S), asyncio.TaskGroup() as group:
            ending = group.create_task(leave(server))
            await leaving.told.wait()
            assert (await exchange(server, REQUEST)).startswith(b"HTTP/1.1 200 OK")
            assert not leaving.ended_streams
            leaving.may_end.set()
            await ending
    assert leaving.ended_streams


async def test_a_second_signal_does_not_wait_for_them() -> None:
    leaving = Leaving()
    with listen(HOST, 0, 10) as listener:
        server = Server(application(), listener, SETTINGS, leaving)
        async with asyncio.timeout(WAIT_S), asyncio.TaskGroup() as group:
            group.create_task(leave(server))
            await leaving.told.wait()
            server.handle_exit(signal.SIGTERM)
            server.handle_exit(signal.SIGTERM)
    assert leaving.ended_streams


async def test_it_goes_on_for_as_long_as_load_balancers_are_given() -> None:
    leaving = Leaving()
    leaving.may_end.set()
    patient = SETTINGS.model_copy(update={"drain_notice_s": 3600.0})
    with listen(HOST, 0, 10) as listener:
        server = Server(application(), listener, patient, leaving)
        async with asyncio.timeout(WAIT_S), asyncio.TaskGroup() as group:
            ending = group.create_task(leave(server))
            await leaving.told.wait()
            assert (await exchange(server, REQUEST)).startswith(b"HTTP/1.1 200 OK")
            assert not ending.done()
            server.should_exit = server.force_exit = True


async def test_an_application_that_breaks_down_takes_its_server_with_it() -> None:
    broken = asyncio.Event()
    failure = RuntimeError("a helper broke down")

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        async def helper() -> None:
            await broken.wait()
            raise failure

        async with asyncio.TaskGroup() as group:
            group.create_task(helper())
            yield

    with listen(HOST, 0, 10) as listener:
        leaving = Leaving()
        server = Server(Starlette(lifespan=lifespan), listener, SETTINGS, leaving)

        async def serve() -> None:
            async with asyncio.timeout(WAIT_S), server:
                broken.set()
                await until_stopped(server)

        with pytest.raises(ExceptionGroup) as caught:
            await serve()
    assert caught.value.exceptions == (failure,)
    assert not leaving.told.is_set()


@pytest.mark.parametrize("head", [b"", b"GET / HTTP/1.1\r\nhost: x\r\n"])
async def test_a_head_that_does_not_come_ends_the_connection(head: bytes) -> None:
    impatient = SETTINGS.model_copy(update={"head_timeout_s": 0.05})
    with listen(HOST, 0, 10) as listener:
        async with Server(application(), listener, impatient) as server:
            assert await exchange(server, head) == b""


async def test_bytes_of_bodies_do_not_count_as_head() -> None:
    request = b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 9000\r\n\r\n" + b"z" * 9000
    closing = request.replace(b"host: x", b"host: x\r\nconnection: close")
    with listen(HOST, 0, 10) as listener:
        async with Server(application(), listener, SETTINGS) as server:
            answer = await exchange(server, request + closing)
    assert answer.count(b"HTTP/1.1 200 OK") == 2


async def test_the_url_of_a_server_on_all_addresses_is_this_machine() -> None:
    with listen("0.0.0.0", 0, 10) as listener:
        url = Server(application(), listener, SETTINGS).url
    assert url.startswith("http://127.0.0.1:")


@pytest.mark.skipif(not socket.has_ipv6, reason="no IPv6 here")
async def test_the_url_of_an_ipv6_server_has_brackets() -> None:
    try:
        listener = listen("::1", 0, 10)
    except StartupError:
        pytest.skip("no IPv6 here")
    with listener:
        assert Server(application(), listener, SETTINGS).url.startswith("http://[::1]:")
