"""Watched logs: one poll for all, sooner when heard of, through outages, never for nothing."""

from __future__ import annotations

import asyncio
from contextlib import ExitStack, asynccontextmanager
from dataclasses import dataclass, field
from datetime import date
from functools import partial
from typing import TYPE_CHECKING
from uuid import UUID

from gateway.errors import StoreUnavailable
from gateway.eventlog.log_watcher import SHOWN_AT_ONCE, LogWatcher
from gateway.store.claims import LogHead
from gateway.store.events import LogRow
from gateway.store.remote_logs import LogChanges
from gateway.tenancy import TenantId
from tests.fakes.loop_rounds import counted_rounds

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Collection, Sequence

    from gateway.eventlog.log_watcher import WatchedLog
    from gateway.store.remote_logs import LogQuery, Part, Seen

TENANT = TenantId(UUID(int=1))
DAY = date(2026, 11, 21)
ONE, TWO = UUID(int=11), UUID(int=12)
NEVER_S = 3600.0


@dataclass
class Heads:
    """A database of heads that counts who looks; away for as many looks as it is told."""

    heads: dict[UUID, LogHead] = field(default_factory=dict)
    looks: list[set[UUID]] = field(default_factory=list)
    away: int = 0
    parts: list[Part] = field(default_factory=list)
    looked: asyncio.Event = field(default_factory=asyncio.Event)
    writer: tuple[UUID, str] = (TENANT, "there")
    seen_before: list[Seen] = field(default_factory=list)

    async def __call__(
        self, watched: Sequence[LogQuery], seen: Seen, _wanted: Collection[bytes]
    ) -> LogChanges:
        self.seen_before.append(dict(seen))
        seen[self.writer] = len(self.looks)
        await asyncio.sleep(0)
        asked = {one.uuid for one in watched}
        self.looks.append(asked)
        self.looked.set()
        if self.away:
            self.away -= 1
            raise StoreUnavailable("away")
        parts, self.parts = self.parts, []
        known = {key for key, _, _ in parts}
        asked = {one.uuid for one in watched if one.is_due or one.key not in known}
        heads = {uuid: self.heads.get(uuid) for uuid in asked}
        return LogChanges(heads, dict.fromkeys(heads, self.writer[1]), parts)

    async def next_poll(self) -> None:
        self.looked.clear()
        await self.looked.wait()


@asynccontextmanager
async def running(watcher: LogWatcher) -> AsyncIterator[None]:
    async with asyncio.TaskGroup() as group:
        task = group.create_task(watcher.run())
        yield
        task.cancel()


class Woken:
    """A subscriber that is only woken: it takes nothing of what it is sent."""

    def __init__(self) -> None:
        self.event = asyncio.Event()

    def on_entries(self, _part: LogRow) -> bool:
        self.event.set()
        return False

    def on_moved(self) -> None:
        self.event.set()


async def moved(log: WatchedLog, beyond: int) -> None:
    """Wait until the log is seen to have more than so many entries, or to be at its end."""
    woken = Woken()
    log.readers.append(woken)
    while not log.is_beyond(beyond):
        await woken.event.wait()
        woken.event.clear()
    log.readers.remove(woken)


def head(next_entry: int, status: str = "in_progress") -> LogHead:
    return LogHead(epoch=1, next_entry=next_entry, status=status)


async def test_what_is_heard_of_wakes_who_waits_for_it() -> None:
    heads = Heads({ONE: head(3), TWO: head(3)})
    watcher = LogWatcher(heads, interval_s=NEVER_S, pause_s=0)
    async with running(watcher):
        with watcher.watch(TENANT, ONE, DAY) as one, watcher.watch(TENANT, TWO, DAY) as two:
            await asyncio.gather(moved(one, 2), moved(two, 2))
            heads.heads = {ONE: head(4), TWO: head(4)}
            watcher.poll_soon([ONE, UUID(int=99)])
            await moved(one, 3)
            assert heads.looks[-1] == {ONE}
            assert not two.is_beyond(3)


async def test_without_being_told_a_poll_finds_the_same() -> None:
    heads = Heads({ONE: head(0)})
    watcher = LogWatcher(heads, interval_s=0.001, pause_s=0)
    async with running(watcher):
        with watcher.watch(TENANT, ONE, DAY) as one, watcher.watch(TENANT, TWO, DAY) as two:
            await moved(two, 0)
            assert two.has_ended
            heads.heads[ONE] = head(1)
            await moved(one, 0)
            assert (one.entries, one.has_ended) == (1, False)


async def test_all_are_looked_at_when_notices_may_have_been_missed() -> None:
    heads = Heads({ONE: head(1), TWO: head(1)})
    watcher = LogWatcher(heads, interval_s=NEVER_S, pause_s=0)
    async with running(watcher):
        with watcher.watch(TENANT, ONE, DAY) as one, watcher.watch(TENANT, TWO, DAY) as two:
            await asyncio.gather(moved(one, 0), moved(two, 0))
            watcher.poll_all()
            await heads.next_poll()
            assert heads.looks[-1] == {ONE, TWO}


async def test_where_writers_were_that_write_no_more_is_forgotten() -> None:
    heads = Heads({ONE: head(1)})
    watcher = LogWatcher(heads, interval_s=0, pause_s=0)
    async with running(watcher):
        with watcher.watch(TENANT, ONE, DAY) as one:
            await moved(one, 0)
            gone, heads.writer = heads.writer, (TENANT, "elsewhere")
            for _ in range(3):
                await heads.next_poll()
            assert heads.seen_before[1].keys() == {gone}
            assert heads.seen_before[-1].keys() == {heads.writer}


async def test_what_flushes_bring_is_at_hand_for_all_who_follow_it() -> None:
    heads = Heads({ONE: head(2)})
    watcher = LogWatcher(heads, interval_s=NEVER_S, pause_s=0)
    async with running(watcher):
        with watcher.watch(TENANT, ONE, DAY) as one, watcher.watch(TENANT, TWO, DAY) as two:
            await asyncio.gather(moved(one, 1), moved(two, 0))
            rows = [LogRow(2, 1, b".c"), LogRow(3, 2, b".de"), LogRow(9, 1, b".j")]
            heads.parts = [
                *((ONE.bytes, 1, row) for row in [LogRow(1, 1, b".b"), *rows]),
                (UUID(int=99).bytes, 1, LogRow(7, 1, b".z")),
                (ONE.bytes, 2, LogRow(10, 1, b".k")),
            ]
            watcher.poll_soon([TWO])
            await moved(one, 10)
            assert one.entries == 11
            together, *others = one.since(2)
            assert together == LogRow(1, 4, b".bcde")
            assert others == [LogRow(9, 1, b".j"), LogRow(10, 1, b".k")]
            assert one.since(10) == others[1:]
            assert (one.since(0), one.since(5), two.since(0)) == ([], [], [])
            watcher.poll_soon([ONE])
            await heads.next_poll()
            assert one.is_beyond(4)


async def test_others_have_their_turn_while_much_is_shown() -> None:
    heads = Heads()
    watcher = LogWatcher(heads, interval_s=NEVER_S, pause_s=0)
    turns_at, last = list[int](), asyncio.Event()

    class Shown:
        def on_entries(self, part: LogRow) -> bool:
            turns_at.append(rounds.count)
            if len(turns_at) == len(few):
                last.set()
            return part.count == each

        def on_moved(self) -> None:
            """A head says nothing new."""

    few, each = [UUID(int=number) for number in range(4)], SHOWN_AT_ONCE
    async with running(watcher):
        with ExitStack() as watched:
            for uuid in few:
                tail = watched.enter_context(watcher.watch(TENANT, uuid, DAY))
                tail.readers.append(Shown())
            await heads.next_poll()
            heads.parts = [
                (uuid.bytes, 1, LogRow(entry, 1, b".x")) for uuid in few for entry in range(each)
            ]
            async with counted_rounds() as rounds:
                watcher.poll_soon(few)
                await last.wait()
    assert len(set(turns_at)) == len(few)


async def test_an_end_and_a_deletion_wake_whoever_waits_for_more() -> None:
    heads = Heads({ONE: head(2, "completed")})
    watcher = LogWatcher(heads, interval_s=NEVER_S, pause_s=0)
    async with running(watcher):
        with watcher.watch(TENANT, ONE, DAY) as one, watcher.watch(TENANT, TWO, DAY) as two:
            await asyncio.gather(moved(one, 100), moved(two, 100))


async def test_an_outage_is_waited_for() -> None:
    heads = Heads({ONE: head(1)}, away=3)
    watcher = LogWatcher(heads, interval_s=0.001, pause_s=0)
    async with running(watcher):
        with watcher.watch(TENANT, ONE, DAY) as one:
            await moved(one, 0)
    assert len(heads.looks) == 4


async def test_nothing_is_looked_at_while_nothing_is_watched() -> None:
    heads = Heads({ONE: head(1)})
    watcher = LogWatcher(heads, interval_s=0, pause_s=0)
    async with running(watcher):
        watcher.poll_soon([ONE])
        await turns()
        assert heads.looks == []
        with watcher.watch(TENANT, ONE, DAY) as one:
            await moved(one, 0)
        await turns()
        looks = len(heads.looks)
        await turns()
        assert len(heads.looks) == looks


async def test_whoever_writes_is_asked_to_tell_as_long_as_somebody_watches() -> None:
    asked: list[tuple[UUID, ...]] = []
    heads = Heads()
    watcher = LogWatcher(heads, interval_s=0, pause_s=0, follow=asked.append)
    async with running(watcher):
        one = partial(watcher.watch, TENANT, ONE, DAY)
        with one(), one(), watcher.watch(TENANT, TWO, DAY):
            await heads.next_poll()
            assert asked == []
            await turns()
            assert asked == [(ONE, TWO)]


async def test_followers_of_one_response_share_its_tail() -> None:
    heads = Heads({ONE: head(1)})
    watcher = LogWatcher(heads, interval_s=NEVER_S, pause_s=0)
    async with running(watcher):
        with watcher.watch(TENANT, ONE, DAY) as first:
            with watcher.watch(TENANT, ONE, DAY) as second:
                assert first is second
                await moved(second, 0)
            heads.heads[ONE] = head(2)
            watcher.poll_soon([ONE])
            await moved(first, 1)


async def test_a_busy_log_does_not_keep_the_others_from_being_looked_at() -> None:
    heads = Heads({ONE: head(0), TWO: head(0)})
    watcher = LogWatcher(heads, interval_s=0.001, pause_s=0)
    async with running(watcher):
        with watcher.watch(TENANT, ONE, DAY), watcher.watch(TENANT, TWO, DAY) as two:
            heads.heads[TWO] = head(1)
            async with asyncio.TaskGroup() as group:
                noise = group.create_task(keep_telling(watcher))
                await moved(two, 0)
                noise.cancel()


async def keep_telling(watcher: LogWatcher) -> None:
    while True:
        watcher.poll_soon([ONE])
        await asyncio.sleep(0)


async def turns() -> None:
    """Let everything that is ready run, many times over."""
    for _ in range(20):
        await asyncio.sleep(0)
