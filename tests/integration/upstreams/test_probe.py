"""Questions to a backend that answers as slowly as it can, over real sockets."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import pytest

from gateway.errors import UpstreamUnavailable
from gateway.upstreams.backend import Backend
from gateway.upstreams.probe import NO_LOAD, CheckOutcome, ReportedLoad, check, describe, read_load
from tests.fakes.raw_server import Act, RawServer, response

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from gateway.upstreams.http.client import Client
    from tests.fakes.raw_server import Script

HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n\r\n"


@asynccontextmanager
async def dripping() -> AsyncIterator[Backend]:
    """A backend that sends an answer byte by byte, and never all of it."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await reader.readuntil(b"\r\n\r\n")
            writer.write(HEAD)
            while True:
                writer.write(b" ")
                await writer.drain()
                await asyncio.sleep(0)
        except ConnectionError:
            writer.transport.abort()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server, asyncio.timeout(30):
        host, port = server.sockets[0].getsockname()
        yield Backend("gpu-0", f"http://{host}:{port}")


async def test_an_answer_that_never_ends_keeps_nobody_waiting(client: Client) -> None:
    async with dripping() as backend:
        with pytest.raises(UpstreamUnavailable, match=r"GET /v1/models: no answer within 0\.05 s"):
            await describe(client, backend, timeout_s=0.05)
        found = await check(client, backend, None, timeout_s=0.05, working_s=0.05)
        assert found.outcome is CheckOutcome.MUTE
        assert await read_load(client, backend, timeout_s=0.05) == NO_LOAD


METRICS = b"# TYPE x gauge\nsglang:num_running_reqs 1\nsglang:num_queue_reqs 4\n"
LOADS = (
    b'{"loads":[{"dp_rank":0,"num_running_reqs":2,"num_waiting_reqs":3,"max_running_requests":48}]}'
)


async def test_an_sglang_with_metrics_tells_how_many_it_runs_at_once(client: Client) -> None:
    routes: dict[str, Sequence[Script]] = {"/metrics": [(response(METRICS),)]}
    async with RawServer(routes | {"/v1/loads": [(response(LOADS),)]}) as server:
        found = await read_load(client, Backend("gpu-0", server.url), timeout_s=30)
        assert found == ReportedLoad(waiting=3, running=2, places=48)
    for no_loads in (response(b"{}", status=404), Act.RESET):
        async with RawServer(routes | {"/v1/loads": [(no_loads,)]}) as server:
            found = await read_load(client, Backend("gpu-0", server.url), timeout_s=30)
            assert found == ReportedLoad(waiting=4, running=1)
