"""Connections to a backend against a real socket: which is used again, which is replaced, when."""

from __future__ import annotations

import asyncio
import sys
from typing import TYPE_CHECKING

import httpx2
import pytest

from tests.fakes.failures import failure_of
from tests.fakes.raw_server import STREAM_HEAD, Act, Gate, Script, Step, chunk, response
from tests.integration.upstreams.raw_streams import limited, serving, streaming

if TYPE_CHECKING:
    from gateway.upstreams.http.client import Client, ResponseBody


async def test_a_connection_is_used_again(client: Client) -> None:
    async with serving((response(b"ok"),)) as server:
        for _ in range(3):
            await client.get(server.url)
        assert (server.connections, len(server.requests)) == (1, 3)


@pytest.mark.parametrize(
    "script",
    [
        (response(b"ok", headers="connection: close\r\n"), Act.CLOSE),
        (b"HTTP/1.1 200 OK\r\n\r\nok", Act.CLOSE),
        (response(b"ok") + b"excess",),
    ],
)
async def test_a_connection_that_ended_badly_is_not_used_again(
    client: Client, script: Script
) -> None:
    async with serving(script) as server:
        for _ in range(2):
            assert (await client.get(server.url)).content == b"ok"
        assert server.connections == 2


async def test_a_body_that_was_not_read_to_its_end_closes_the_connection(client: Client) -> None:
    async with serving((STREAM_HEAD, chunk(b"a"), Act.STALL)) as server:
        async with streaming(client, server) as answer:
            await anext(answer.aiter_raw())
        await server.hung_up.wait()


async def test_a_backend_that_speaks_unasked_is_hung_up_on(client: Client) -> None:
    gate = Gate()
    talkative: Script = (response(b"1"), gate, b"HTTP/1.1 200 OK\r\n", Act.STALL)
    async with serving(talkative, (response(b"2"),)) as server:
        await client.get(server.url)
        gate.opened.set()
        await server.hung_up.wait()
        assert (await client.get(server.url)).content == b"2"
        assert server.connections == 2


async def test_a_cancelled_request_closes_the_connection_before_any_answer(client: Client) -> None:
    gate = Gate()
    async with serving((gate, Act.STALL)) as server:
        async with asyncio.TaskGroup() as group:
            task = group.create_task(client.get(server.url))
            await gate.reached.wait()
            task.cancel()
        gate.opened.set()
        await server.hung_up.wait()


async def test_a_stale_connection_is_replaced_once_and_silently(client: Client) -> None:
    async with serving((response(b"1"),), (Act.CLOSE,), (response(b"2"),)) as server:
        await client.get(server.url)
        assert (await client.get(server.url)).content == b"2"
        assert [request.path for request in server.requests] == ["/"] * 3
        assert server.connections == 2


@pytest.mark.parametrize("before", [(), (response(b"1"),), (response(b"1"), Act.CLOSE)])
async def test_a_request_is_let_go_of_once_its_answer_begins(
    client: Client, before: tuple[Step, ...]
) -> None:
    scripts = [(step,) for step in before]
    begun: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
    async with serving(*scripts, (STREAM_HEAD, chunk(b"a"), Act.STALL)) as server:
        if before:
            await client.get(server.url)
        message = b"GET %b HTTP/1.1\r\nhost: x\r\n\r\n" % b"/last"
        held = sys.getrefcount(message)
        origin = client.transport.origin(httpx2.URL(server.url))
        listener = Awaited(begun)
        work = origin.deliver(message, timeouts={"read": 60}, listener=listener)
        async with asyncio.TaskGroup() as group:
            task = group.create_task(work)
            assert await begun == b"a"
            assert sys.getrefcount(message) == held
            assert server.requests[-1].path == "/last"
            task.cancel()


class Awaited:
    """A listener whose first bytes are waited for."""

    def __init__(self, begun: asyncio.Future[bytes]) -> None:
        self._begun = begun

    def attach(self, body: ResponseBody) -> None:
        """Nothing is sent twice."""

    def take(self, data: bytes) -> None:
        self._begun.set_result(data)

    def end(self, error: httpx2.TransportError | None) -> None:
        """It is cancelled."""


async def test_a_fresh_connection_that_is_closed_is_not_replaced(client: Client) -> None:
    async with serving((Act.CLOSE,)) as server:
        with pytest.raises(httpx2.RemoteProtocolError, match="without an answer"):
            await client.get(server.url)
        assert server.connections == 1


async def test_a_stale_connection_is_not_replaced_twice(client: Client) -> None:
    async with serving((response(b"1"),), (Act.CLOSE,)) as server:
        await client.get(server.url)
        with pytest.raises(httpx2.RemoteProtocolError):
            await client.get(server.url)
        assert len(server.requests) == 3


async def test_a_request_whose_stale_connection_cannot_be_replaced_was_lost(client: Client) -> None:
    gate = Gate()
    async with serving((response(b"1"),), (gate, Act.RESET)) as server:
        await client.get(server.url)
        async with asyncio.TaskGroup() as group:
            task = group.create_task(failure_of(client.get(server.url)))
            await gate.reached.wait()
            gate.opened.set()
            await server.stop()
        assert isinstance(task.result(), httpx2.ReadError)
        assert isinstance(task.result().__cause__, httpx2.ConnectError)


async def test_what_was_hung_up_on_is_not_sent_again(client: Client) -> None:
    gate = Gate()
    async with serving((response(b"1"),), (gate, Act.STALL)) as server:
        await client.get(server.url)
        async with asyncio.TaskGroup() as group:
            task = group.create_task(failure_of(client.get(server.url, timeout=None)))
            await gate.reached.wait()
            gate.opened.set()
            (used,) = client.transport.origin(httpx2.URL(server.url))._open
            used.hang_up("enough")
        assert str(task.result()) == "enough"
        assert (server.connections, len(server.requests)) == (1, 2)


async def test_a_request_is_not_repeated_once_the_answer_has_begun(client: Client) -> None:
    async with serving((response(b"1"),), (b"HTTP/1.1 200 O", Act.CLOSE)) as server:
        await client.get(server.url)
        with pytest.raises(httpx2.RemoteProtocolError):
            await client.get(server.url)
        assert len(server.requests) == 2


async def test_idle_connections_are_closed_when_they_are_too_old_or_too_many() -> None:
    async with serving((response(b"ok"),)) as server, limited(expiry_s=0.01) as client:
        await client.get(server.url)
        await server.hung_up.wait()
    gates = [Gate(), Gate()]
    scripts: list[Script] = [(gate, response(b"ok")) for gate in gates]
    async with serving(*scripts) as server, limited(idle_max=1) as client:
        async with asyncio.TaskGroup() as group:
            for gate in gates:
                group.create_task(client.get(server.url))
                await gate.reached.wait()
            for gate in gates:
                gate.opened.set()
        await server.hung_up.wait()
        assert server.connections == 2


async def test_connections_are_bounded_without_a_queue() -> None:
    async with (
        serving((STREAM_HEAD, Act.STALL)) as server,
        limited(connections_max=2) as client,
        streaming(client, server),
        streaming(client, server),
    ):
        with pytest.raises(httpx2.PoolTimeout, match="all 2 connections"):
            await client.get(server.url)
