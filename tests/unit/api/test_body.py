"""Reading a body within its bounds, and noticing a client that goes away."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from gateway.api.body import WHOLE_BODY, ClientDisconnected, read_body
from gateway.api.connection import CONNECTION, while_connected
from gateway.errors import InvalidRequest, PayloadTooLarge

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
    return await read_body(scope, receive, bytes_max=10, timeout_s=timeout_s)


async def test_chunks_are_joined() -> None:
    assert await read(receiving(chunk(b"abc", more=True), chunk(b"def"))) == b"abcdef"


async def test_a_body_above_the_bound_is_refused_before_it_is_all_there() -> None:
    with pytest.raises(PayloadTooLarge, match="larger than 10 bytes"):
        await read(receiving(chunk(b"x" * 11, more=True)))


async def test_a_declared_length_above_the_bound_is_refused_unread() -> None:
    with pytest.raises(PayloadTooLarge):
        await read(receiving(), (b"content-length", b"11"))


async def test_compressed_bodies_are_refused() -> None:
    with pytest.raises(InvalidRequest, match="Compressed"):
        await read(receiving(), (b"content-encoding", b"gzip"))


async def test_a_body_that_stalls_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="did not arrive within"):
        await read(receiving(chunk(b"a", more=True)), timeout_s=0)


async def test_a_client_that_leaves_while_sending_is_gone() -> None:
    with pytest.raises(ClientDisconnected):
        await read(receiving(chunk(b"a", more=True), DISCONNECT))


async def read_whole(body: bytes | None, *messages: dict[str, Any]) -> bytes:
    scope = {"headers": [], "extensions": {WHOLE_BODY: {"take": lambda: body}}}
    return await read_body(scope, receiving(*messages), bytes_max=10, timeout_s=5)


async def test_a_body_that_came_with_its_head_is_taken_at_once() -> None:
    assert await read_whole(b"abc") == b"abc"
    assert await read_whole(b"") == b""
    with pytest.raises(PayloadTooLarge, match="larger than 10 bytes"):
        await read_whole(b"x" * 11)


async def test_a_body_that_is_not_whole_is_received() -> None:
    assert await read_whole(None, chunk(b"abc", more=True), chunk(b"def")) == b"abcdef"


async def test_work_of_a_client_that_leaves_is_cancelled() -> None:
    started, cancelled = asyncio.Event(), asyncio.Event()
    waiting: asyncio.Queue[dict[str, Any]] = asyncio.Queue()

    async def work() -> None:
        started.set()
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()

    async def leave() -> None:
        await started.wait()
        await waiting.put(DISCONNECT)

    with pytest.raises(ClientDisconnected):
        await asyncio.gather(while_connected({}, waiting.get, work()), leave())
    assert cancelled.is_set()


async def test_work_is_cancelled_when_the_server_tells_that_its_client_left() -> None:
    watching: list[Callable[[], None] | None] = []
    cancelled = asyncio.Event()

    async def work() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()

    async def leave() -> None:
        (gone,) = watching
        assert gone is not None
        gone()

    scope = {"extensions": {CONNECTION: {"watch": watching.append}}}
    with pytest.raises(ClientDisconnected):
        await asyncio.gather(while_connected(scope, receiving(), work()), leave())
    assert cancelled.is_set()
    assert watching[1:] == [None]


async def test_work_for_a_client_that_has_left_is_cancelled_at_once() -> None:
    def watch(gone: Callable[[], None] | None) -> None:
        if gone is not None:
            gone()

    scope = {"extensions": {CONNECTION: {"watch": watch}}}
    with pytest.raises(ClientDisconnected):
        await while_connected(scope, receiving(), asyncio.Event().wait())  # type: ignore[arg-type]


async def test_a_client_that_leaves_at_the_end_of_the_work_disturbs_nothing_later() -> None:
    watching: list[Callable[[], None] | None] = []

    async def work() -> None:
        (gone,) = watching
        assert gone is not None
        gone()

    await while_connected(
        {"extensions": {CONNECTION: {"watch": watching.append}}}, receiving(), work()
    )
    await asyncio.sleep(0)


async def test_what_cancels_the_work_from_elsewhere_is_no_client_that_left() -> None:
    watching: list[Callable[[], None] | None] = []
    scope = {"extensions": {CONNECTION: {"watch": watching.append}}}

    async def both() -> None:
        await while_connected(scope, receiving(), asyncio.Event().wait())  # type: ignore[arg-type]

    async with asyncio.TaskGroup() as group:
        working = group.create_task(both())
        await asyncio.sleep(0)
        (gone,) = watching
        assert gone is not None
        gone()
        await asyncio.sleep(0)
        working.cancel()
        with pytest.raises(asyncio.CancelledError):
            await working


async def test_what_work_makes_of_being_cancelled_is_not_asked() -> None:
    watching: list[Callable[[], None] | None] = []
    scope = {"extensions": {CONNECTION: {"watch": watching.append}}}

    async def work(failure: Exception | None) -> None:
        gone = watching.pop()
        assert gone is not None
        gone()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            if failure is not None:
                raise failure from None

    for failure in (None, InvalidRequest("no")):
        watching.clear()
        with pytest.raises(ClientDisconnected):
            await while_connected(scope, receiving(), work(failure))
        await asyncio.sleep(0)


async def test_work_that_ends_is_not_disturbed() -> None:
    done: list[int] = []

    async def work() -> None:
        done.append(1)

    await while_connected({}, receiving(), work())
    assert done == [1]


async def test_what_work_raises_comes_out_as_it_is() -> None:
    async def work() -> None:
        raise InvalidRequest("no")

    with pytest.raises(InvalidRequest, match="no"):
        await while_connected({}, receiving(), work())
