"""Reading a body within its bounds, and noticing a client that goes away."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from gateway.api.client_connection import (
    EXTENSION,
    BodyReader,
    CancelOnDisconnect,
    ClientDisconnected,
    connection_of,
)
from gateway.errors import InvalidRequest, PayloadTooLarge, UnsupportedEncoding

if TYPE_CHECKING:
    from collections.abc import Callable

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
    reader = BodyReader(unused, 10, timeout_s, unused, strict=False, served=unused)
    return await reader.read(scope, receive)


async def test_chunks_are_joined() -> None:
    assert await read(receiving(chunk(b"abc", more=True), chunk(b"def"))) == b"abcdef"


async def test_a_body_above_the_bound_is_refused_before_it_is_all_there() -> None:
    with pytest.raises(PayloadTooLarge, match="larger than 10 bytes"):
        await read(receiving(chunk(b"x" * 11, more=True)))


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


class Told:
    """A connection that tells when its client has gone."""

    def __init__(self, *, is_gone: bool = False) -> None:
        self.watched: list[Callable[[], None] | None] = []
        self._is_gone = is_gone

    def watch(self, on_disconnect: Callable[[], None] | None) -> None:
        self.watched.append(on_disconnect)
        if self._is_gone:
            self.disconnect()

    def disconnect(self) -> None:
        on_disconnect = self.watched[-1]
        if on_disconnect is not None:
            on_disconnect()


def ending_with(told: Told | None) -> CancelOnDisconnect:
    scope = {"extensions": {} if told is None else {EXTENSION: {"connection": told}}}
    return CancelOnDisconnect(connection_of(scope))


async def test_work_is_cancelled_when_its_client_leaves() -> None:
    told, cancelled = Told(), asyncio.Event()

    async def work() -> None:
        with ending_with(told):
            try:
                await asyncio.Event().wait()
            finally:
                cancelled.set()

    working = asyncio.ensure_future(work())
    await asyncio.sleep(0)
    told.disconnect()
    with pytest.raises(ClientDisconnected):
        await working
    assert cancelled.is_set()
    assert told.watched[1:] == [None]


async def test_work_for_a_client_that_has_left_is_cancelled_at_once() -> None:
    with pytest.raises(ClientDisconnected), ending_with(Told(is_gone=True)):
        await asyncio.Event().wait()


async def test_a_client_that_leaves_at_the_end_of_the_work_disturbs_nothing_later() -> None:
    told = Told()
    with ending_with(told):
        told.disconnect()
    await asyncio.sleep(0)


async def test_what_cancels_the_work_from_elsewhere_is_no_client_that_left() -> None:
    told = Told()

    async def work() -> None:
        with ending_with(told):
            await asyncio.Event().wait()

    working = asyncio.ensure_future(work())
    await asyncio.sleep(0)
    told.disconnect()
    await asyncio.sleep(0)
    working.cancel()
    with pytest.raises(asyncio.CancelledError):
        await working


@pytest.mark.parametrize("failure", [None, InvalidRequest("no")])
async def test_what_work_makes_of_being_cancelled_is_not_asked(failure: Exception | None) -> None:
    told = Told()

    async def work() -> None:
        told.disconnect()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            if failure is not None:
                raise failure from None

    with pytest.raises(ClientDisconnected), ending_with(told):
        await work()
    await asyncio.sleep(0)


@pytest.mark.parametrize("told", [None, Told()])
async def test_what_work_raises_comes_out_as_it_is(told: Told | None) -> None:
    with pytest.raises(InvalidRequest, match="no"), ending_with(told):
        raise InvalidRequest("no")
