"""Noticing a client that goes away."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from gateway.api.client_connection import (
    EXTENSION,
    CancelOnDisconnect,
    ClientDisconnected,
    connection_of,
)
from gateway.errors import InvalidRequest

if TYPE_CHECKING:
    from collections.abc import Callable


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
