"""What uvicorn's WebSocket protocol is made to do, over real connections."""

from __future__ import annotations

import asyncio
import logging
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import pytest
from starlette.applications import Starlette
from starlette.responses import PlainTextResponse
from starlette.routing import WebSocketRoute
from websockets.frames import Frame, Opcode

from gateway.held_bytes import HeldBytes
from gateway.server.websocket_protocol import FRAGMENTS_MAX, BoundedWebSocketProtocol
from tests.fakes.serving import serving

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from starlette.websockets import WebSocket

WAIT_S = 60.0
FLOOD_BYTES = 32 * 2**20
UPGRADE = (
    b"%s %s HTTP/1.1\r\nhost: x\r\nconnection: upgrade\r\nupgrade: websocket\r\n"
    b"sec-websocket-version: 13\r\nsec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\n%s\r\n"
)


class Wire:
    """A connection whose bytes the test writes itself."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    async def upgrade(
        self,
        path: bytes = b"/echo",
        *,
        method: bytes = b"GET",
        headers: bytes = b"",
        changed: tuple[bytes, bytes] = (b"", b""),
    ) -> bytes:
        """The head of the answer."""
        self._writer.write((UPGRADE % (method, path, headers)).replace(*changed))
        async with asyncio.timeout(WAIT_S):
            return await self._reader.readuntil(b"\r\n\r\n")

    def send(self, opcode: Opcode, data: bytes, *, fin: bool = True) -> None:
        frame = Frame(opcode, data, fin=fin)
        self._writer.write(frame.serialize(mask=True))

    def send_bytes(self, part: bytes) -> None:
        self._writer.write(part)

    def send_fragments(self, count: int) -> None:
        """The message `xy` in so many frames."""
        self.send(Opcode.TEXT, b"x", fin=False)
        for _ in range(count - 2):
            self.send(Opcode.CONT, b"", fin=False)
        self.send(Opcode.CONT, b"y")

    async def hear(self) -> tuple[int, bytes]:
        """The opcode and the data of the next frame, which must be short."""
        async with asyncio.timeout(WAIT_S):
            head = await self._reader.readexactly(2)
            return head[0] & 0x0F, await self._reader.readexactly(head[1])

    async def hear_head(self) -> int:
        """The opcode of the next frame, which must be very long and is not read."""
        async with asyncio.timeout(WAIT_S):
            head = await self._reader.readexactly(10)
        return head[0] & 0x0F

    async def skip(self, size_bytes: int) -> None:
        """Read so many bytes."""
        async with asyncio.timeout(WAIT_S):
            await self._reader.readexactly(size_bytes)

    async def rest(self) -> bytes:
        """What else comes until the server closes the connection."""
        async with asyncio.timeout(WAIT_S):
            return await self._reader.read()


async def echo(websocket: WebSocket) -> None:
    await websocket.accept()
    async for text in websocket.iter_text():
        await websocket.send_text(text)


class Flood:
    """Sends more than fits into any buffer, and tells when it has heard something."""

    def __init__(self) -> None:
        self.heard = asyncio.Event()

    async def __call__(self, websocket: WebSocket) -> None:
        await websocket.accept()
        await websocket.send_text("x" * FLOOD_BYTES)
        async for _ in websocket.iter_text():
            self.heard.set()


async def refuse(websocket: WebSocket) -> None:
    await websocket.send_denial_response(PlainTextResponse("no", status_code=401))


APP = Starlette(routes=[WebSocketRoute("/echo", echo), WebSocketRoute("/refuse", refuse)])


@asynccontextmanager
async def connected(app: Starlette = APP) -> AsyncIterator[Wire]:
    async with serving(app) as url:
        reader, writer = await asyncio.open_connection("127.0.0.1", int(url.rpartition(":")[2]))
        try:
            yield Wire(reader, writer)
        finally:
            writer.close()


@pytest.mark.parametrize(
    ("method", "headers"),
    [
        (b"POST", b""),
        (b"GET", b"content-length: 5\r\n"),
        (b"GET", b"transfer-encoding: chunked\r\n"),
        (b"GET", b"x-long: " + b"x" * 9000 + b"\r\n"),
        (b"GET", b"".join(b"x-%d: y\r\n" % number for number in range(130))),
    ],
    ids=["no GET", "a body", "chunks", "a long header", "many headers"],
)
async def test_an_upgrade_that_cannot_be_read_is_answered_and_closed(
    method: bytes, headers: bytes
) -> None:
    async with connected() as wire:
        head = await wire.upgrade(method=method, headers=headers)
        assert head.startswith(b"HTTP/1.1 400 ")
        assert b"x-request-id: req_" in head
        assert b'"This server cannot read the upgrade.' in await wire.rest()


@pytest.mark.parametrize(
    "changed",
    [
        (b"version: 13", b"version: 12"),
        (b"sec-websocket-version: 13\r\n", b""),
        (b"sec-websocket-key", b"x-key"),
        (b"dGhlIHNhbXBsZSBub25jZQ==", b"short"),
    ],
    ids=["another version", "no version", "no key", "no such key"],
)
async def test_an_upgrade_of_another_kind_is_refused_in_our_form(
    changed: tuple[bytes, bytes],
) -> None:
    async with connected() as wire:
        head = await wire.upgrade(changed=changed)
        assert head.startswith(b"HTTP/1.1 400 ")
        assert b"x-request-id: req_" in head
        assert b"sec-websocket-version: 13\r\n" in head
        assert b'"This server cannot read the upgrade.' in await wire.rest()


async def test_http_1_0_has_no_upgrades() -> None:
    async with connected() as wire:
        head = await wire.upgrade(changed=(b"HTTP/1.1", b"HTTP/1.0"))
        assert head.startswith(b"HTTP/1.1 404 "), "no route of HTTP is there"


@pytest.mark.slow
async def test_a_refusal_and_text_that_is_none_are_no_errors_of_the_server(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.WARNING)
    async with connected() as wire:
        assert (await wire.upgrade(b"/refuse")).startswith(b"HTTP/1.1 401 ")
        assert await wire.rest() == b"no"
    async with connected() as wire:
        await wire.upgrade()
        wire.send(Opcode.TEXT, b"\xc3", fin=False)
        wire.send(Opcode.CONT, b"(")
        assert await wire.hear() == (Opcode.CLOSE, (1007).to_bytes(2, "big") + b"invalid UTF-8")
        assert await wire.rest() == b""
    assert caplog.records == []


async def test_a_character_may_be_split() -> None:
    async with connected() as wire:
        await wire.upgrade()
        wire.send(Opcode.TEXT, b"\xc3", fin=False)
        wire.send(Opcode.PING, b"between")
        wire.send(Opcode.CONT, b"", fin=False)
        wire.send(Opcode.CONT, b"\xa9")
        assert await wire.hear() == (Opcode.PONG, b"between")
        assert await wire.hear() == (Opcode.TEXT, b"\xc3\xa9")


@pytest.mark.slow
async def test_a_message_has_so_many_fragments_and_no_more() -> None:
    async with connected() as wire:
        await wire.upgrade()
        wire.send_fragments(FRAGMENTS_MAX)
        assert await wire.hear() == (Opcode.TEXT, b"xy")
        wire.send_fragments(FRAGMENTS_MAX + 1)
        opcode, data = await wire.hear()
        assert (opcode, int.from_bytes(data[:2], "big")) == (Opcode.CLOSE, 1009)


async def test_messages_that_arrive_at_once_have_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    arriving = HeldBytes(500_000, "Too many.")
    monkeypatch.setattr(BoundedWebSocketProtocol, "arriving", arriving)
    async with connected() as wire, connected() as other:
        await wire.upgrade()
        wire.send(Opcode.TEXT, b"x" * 300_000, fin=False)
        wire.send(Opcode.PING, b"here")
        assert await wire.hear() == (Opcode.PONG, b"here")
        assert arriving.of_tenants.total() >= 300_000
        # The second one is broken off within its frame.
        await other.upgrade()
        other.send_bytes(Frame(Opcode.TEXT, b"x" * 300_000).serialize(mask=True)[:-1])
        opcode, data = await other.hear()
        assert (opcode, int.from_bytes(data[:2], "big")) == (Opcode.CLOSE, 1013)
        # The first one is heard to its end.
        wire.send(Opcode.CONT, b"y")
        assert await wire.hear_head() == Opcode.TEXT
        assert not arriving.of_tenants


@pytest.mark.slow
async def test_who_breaks_a_rule_and_goes_on_is_told_why() -> None:
    async with connected() as wire:
        await wire.upgrade()
        wire.send(Opcode.TEXT, b"\xff")
        for _ in range(3):
            wire.send(Opcode.TEXT, b"x" * 2**20)
        wire.send(Opcode.TEXT, b"y" * 2**24)
        opcode, data = await wire.hear()
        assert (opcode, int.from_bytes(data[:2], "big")) == (Opcode.CLOSE, 1007)
        assert await wire.rest() == b""


@pytest.mark.slow
async def test_who_does_not_read_is_sent_no_pongs() -> None:
    flood = Flood()
    async with connected(Starlette(routes=[WebSocketRoute("/flood", flood.__call__)])) as wire:
        await wire.upgrade(b"/flood")
        assert await wire.hear_head() == Opcode.TEXT
        for _ in range(3):
            wire.send(Opcode.PING, b"unread")
        wire.send(Opcode.TEXT, b"noted")
        async with asyncio.timeout(WAIT_S):
            await flood.heard.wait()
        await wire.skip(FLOOD_BYTES)
        wire.send(Opcode.PING, b"read")
        assert await wire.hear() == (Opcode.PONG, b"read")
