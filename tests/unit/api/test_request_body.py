"""Reading a body within its bounds."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from gateway.api.client_connection import ClientDisconnected
from gateway.api.request_body import BodyBounds, BodyReader
from gateway.errors import InvalidRequest, PayloadTooLarge, RateLimited, UnsupportedEncoding
from gateway.held_bytes import HeldBytes

if TYPE_CHECKING:
    from starlette.types import Receive


def receiving(*messages: dict[str, Any]) -> Receive:
    """Messages one after the other, then silence."""
    waiting = list(messages)

    async def receive() -> dict[str, Any]:
        if not waiting:
            await asyncio.Event().wait()
        return waiting.pop(0)

    return receive


def chunk(body: bytes, *, more: bool = False) -> dict[str, Any]:
    return {"type": "http.request", "body": body, "more_body": more}


DISCONNECT = {"type": "http.disconnect"}


async def read(receive: Receive, *headers: tuple[bytes, bytes], timeout_s: float = 5) -> bytes:
    scope = {"type": "http", "headers": list(headers)}
    unused: Any = None
    reader = BodyReader(unused, BodyBounds(10, timeout_s), unused, strict=False, served=unused)
    return await reader.read(scope, receive)


async def test_chunks_are_joined() -> None:
    assert await read(receiving(chunk(b"abc", more=True), chunk(b"def"))) == b"abcdef"


async def test_a_body_above_the_bound_is_refused_before_it_is_all_there() -> None:
    with pytest.raises(PayloadTooLarge, match="larger than 10 bytes"):
        await read(receiving(chunk(b"x" * 11, more=True)))


async def test_bodies_that_arrive_at_once_have_bounds() -> None:
    unused: Any = None
    arriving = HeldBytes(16, "Too many.")
    bounds = BodyBounds(10, 5, arriving)
    # The listeners of a process have readers of their own.
    reader, other = (
        BodyReader(unused, bounds, unused, strict=False, served=unused) for _ in range(2)
    )
    scope, rest, waits = {"type": "http", "headers": []}, asyncio.Event(), asyncio.Event()

    async def slowly() -> dict[str, Any]:
        if not arriving.of_tenants:
            return chunk(b"x" * 9, more=True)
        waits.set()
        await rest.wait()
        return chunk(b"y")

    async with asyncio.TaskGroup() as group:
        slow = group.create_task(reader.read(scope, slowly))
        await waits.wait()
        with pytest.raises(RateLimited, match="Too many"):
            await other.read(scope, receiving(chunk(b"x" * 9, more=True)))
        # What came whole is not held.
        assert await reader.read(scope, receiving(chunk(b"x" * 9))) == b"x" * 9
        rest.set()
    assert slow.result() == b"x" * 9 + b"y"
    assert not arriving.of_tenants


async def test_a_declared_length_above_the_bound_is_refused_unread() -> None:
    with pytest.raises(PayloadTooLarge):
        await read(receiving(), (b"content-length", b"11"))


async def test_a_body_that_is_compressed_in_an_unknown_way_is_refused_unread() -> None:
    with pytest.raises(UnsupportedEncoding):
        await read(receiving(), (b"content-encoding", b"br"))


async def test_a_body_that_stalls_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="did not arrive within"):
        await read(receiving(chunk(b"a", more=True)), timeout_s=0)


async def test_a_client_that_leaves_while_sending_is_gone() -> None:
    with pytest.raises(ClientDisconnected):
        await read(receiving(chunk(b"a", more=True), DISCONNECT))
