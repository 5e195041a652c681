"""A backend that says what it is told, byte for byte, and the client of a gateway that asks it."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from gateway.upstreams.http.client import Client, KeepAlivePolicy, build_client
from gateway.upstreams.http.connection import ConnectionLimits
from tests.fakes.raw_server import RawServer, Script

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    import httpx2


def serving(*scripts: Script) -> RawServer:
    return RawServer({"*": scripts})


def limited(
    *, connections_max: int = 10, idle_max: int = 10, expiry_s: float = 4.0, **limits: int
) -> Client:
    keep_alive = KeepAlivePolicy(
        connections_max=connections_max, idle_max=idle_max, expiry_s=expiry_s
    )
    return build_client(keep_alive=keep_alive, limits=ConnectionLimits(**limits))


@asynccontextmanager
async def streaming(client: Client, server: RawServer) -> AsyncIterator[httpx2.Response]:
    async with client.stream("GET", server.url + "/x") as answer:
        yield answer
