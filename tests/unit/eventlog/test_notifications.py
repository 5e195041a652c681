"""Notices on their way out: gathered, and never in anybody's way."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from gateway import ids
from gateway.errors import StoreUnavailable
from gateway.eventlog.notifications import FOLLOWED_S, Notifier
from gateway.store.notices import Notice

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable


WAIT_S = 60.0
ONE, TWO = ids.new_uuid(), ids.new_uuid()


@dataclass
class Wire:
    """Where notices are sent; `busy` keeps a sender there, `failures` are raised one by one."""

    sent: list[list[Notice]] = field(default_factory=list)
    failures: list[Exception] = field(default_factory=list)
    busy: asyncio.Event | None = None
    reached: asyncio.Queue[None] = field(default_factory=asyncio.Queue)

    async def send(self, notices: Iterable[Notice]) -> None:
        self.reached.put_nowait(None)
        if self.busy is not None:
            await self.busy.wait()
        if self.failures:
            raise self.failures.pop()
        self.sent.append(list(notices))

    async def until_reached(self) -> None:
        async with asyncio.timeout(WAIT_S):
            await self.reached.get()


@asynccontextmanager
async def running(wire: Wire) -> AsyncIterator[Notifier]:
    notifier = Notifier(wire.send, pause_s=0)
    async with asyncio.TaskGroup() as group:
        task = group.create_task(notifier.run())
        yield notifier
        task.cancel()


async def test_a_notice_is_sent() -> None:
    wire = Wire()
    async with running(wire) as notifier:
        notifier.announce(Notice("ended", (ONE,)))
        await wire.until_reached()
    assert wire.sent == [[Notice("ended", (ONE,))]]


async def test_what_comes_while_one_is_sent_goes_together_and_once() -> None:
    wire = Wire(busy=asyncio.Event())
    async with running(wire) as notifier:
        notifier.followed([ONE, TWO])
        notifier.announce(Notice("work"))
        await wire.until_reached()
        for responses in ([ONE], [TWO, ONE], [ONE]):
            notifier.committed(responses)
        notifier.announce(Notice("work"))
        assert wire.busy is not None
        wire.busy.set()
        await wire.until_reached()
    assert wire.sent == [[Notice("work")], [Notice("log", (ONE, TWO)), Notice("work")]]


async def test_what_cannot_be_sent_is_dropped_and_the_next_is_sent() -> None:
    wire = Wire(failures=[StoreUnavailable("gone"), StoreUnavailable("gone")])
    async with running(wire) as notifier:
        for kind in ("work", "follow", "ended"):
            notifier.announce(Notice(kind))
            await wire.until_reached()
    assert wire.sent == [[Notice("ended")]]


async def test_the_last_ones_are_sent_without_a_task() -> None:
    wire = Wire()
    notifier = Notifier(wire.send)
    await notifier.flush()
    assert wire.sent == []
    notifier.announce(Notice("work"))
    await notifier.flush()
    await notifier.flush()
    assert wire.sent == [[Notice("work")]]


async def test_a_log_is_told_of_only_while_somebody_follows_it() -> None:
    wire = Wire()
    notifier = Notifier(wire.send, followed_s=0.0)
    notifier.followed([ONE])
    notifier.committed([ONE])
    await notifier.flush()
    assert wire.sent == []
    notifier = Notifier(wire.send)
    notifier.committed([ONE])
    notifier.followed([ONE])
    notifier.followed([ONE])
    notifier.committed([ONE, TWO])
    notifier.announce(Notice("log", (TWO,)))
    await notifier.flush()
    assert wire.sent == [[Notice("log", (ONE,))]]


async def test_what_is_followed_from_here_alone_is_not_told_of() -> None:
    wire = Wire()
    notifier = Notifier(wire.send)
    notifier.announce(Notice("follow", (ONE,)))
    await notifier.flush()
    notifier.followed([ONE])
    notifier.committed([ONE])
    await notifier.flush()
    assert wire.sent == [[Notice("follow", (ONE,))]]
    notifier.followed([ONE])
    notifier.committed([ONE])
    await notifier.flush()
    assert wire.sent[1:] == [[Notice("log", (ONE,))]]


async def test_a_request_that_does_not_come_back_is_forgotten() -> None:
    """Behind a pooler none does."""
    wire, now = Wire(), 0.0
    notifier = Notifier(wire.send, clock=lambda: now)
    notifier.announce(Notice("follow", (ONE,)))
    now = FOLLOWED_S + 1
    notifier.announce(Notice("follow", (TWO,)))
    await notifier.flush()
    notifier.followed([ONE, TWO])
    notifier.committed([ONE, TWO])
    await notifier.flush()
    assert wire.sent[1:] == [[Notice("log", (ONE,))]]
