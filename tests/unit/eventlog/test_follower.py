"""Whoever is shown a log that is written elsewhere gets it where it is found, all of it, once."""

from __future__ import annotations

import asyncio
from functools import partial
from itertools import cycle
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from typing_extensions import override

from gateway.api import sse
from gateway.entries import Entry, Finished, Queued, Tokens, TurnStarted, pack
from gateway.eventlog.feed import SHORT_BYTES
from gateway.store.events import LogRow
from tests.fakes.followed_response import TENANT, Stage, folded
from tests.fakes.response_heads import UUID_OF_TEST
from tests.fakes.toy_logs import logs
from tests.fakes.toy_parser import FINAL, TEXT

if TYPE_CHECKING:
    from collections.abc import Awaitable, Iterable, Sequence

    from gateway.protocol.stream_events import Event

OPENED: list[Entry] = [Queued(), TurnStarted(3), Tokens((FINAL,)), Tokens((TEXT,))]
QUEUED = LogRow(0, 1, pack([Queued()]))
END = Finished("completed", 9)


class Client:
    """Is slow now and then."""

    def __init__(self, waits: Iterable[bool] = (False,)) -> None:
        self.frames: list[bytes] = []
        self.may_go_on = asyncio.Event()
        self.may_go_on.set()
        self._waits = cycle(waits)

    def __call__(self, events: Sequence[Event]) -> Awaitable[None] | None:
        self.frames += map(sse.plain, events)
        return self._wait() if next(self._waits) else None

    async def _wait(self) -> None:
        await asyncio.sleep(0)
        await self.may_go_on.wait()


async def pass_turns() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


def written(log: Sequence[Entry], after: int = -1) -> bytes:
    events = [event for event in folded(log) if event.sequence_number > after]
    return b"".join(map(sse.plain, events))


def said(count: int) -> list[Entry]:
    return [Tokens((TEXT + number % 9,)) for number in range(count)]


bools = st.lists(st.booleans(), min_size=1, max_size=5)


@pytest.mark.slow
@settings(deadline=None)
@given(logs(), st.lists(st.integers(1, 9), max_size=9), bools, st.integers(-1, 40))
def test_a_client_of_any_pace_is_shown_every_frame_once_in_order(
    log: list[Entry], counts: list[int], waits: list[bool], after: int
) -> None:
    """However the log is cut."""
    log = [Queued(), *log]

    async def played() -> bytes:
        stage, client, rest = Stage(), Client(waits), log
        async with stage.running(), asyncio.TaskGroup() as group:
            group.create_task(stage.feed.stream(TENANT, stage.head, client, after=after))
            for count in [*counts, len(log)]:
                stage.append(rest[:count])
                rest = rest[count:]
                await pass_turns()
        return b"".join(client.frames)

    assert asyncio.run(played()) == written(log, after)


async def test_text_is_sent_to_its_client_without_a_read() -> None:
    stage, client, more = Stage(), Client(), said(40)
    stage.append(OPENED)
    async with stage.running(), asyncio.TaskGroup() as group:
        group.create_task(stage.feed.stream(TENANT, stage.head, client))
        await pass_turns()
        reads = stage.table.reads
        for entry in more:
            stage.append([entry])
            await pass_turns()
        stage.append(said(30))
        await pass_turns()
        stage.append([END])
    assert stage.table.reads == reads
    assert b"".join(client.frames) == written([*OPENED, *more, *said(30), END])


async def test_what_comes_while_a_client_is_slow_is_at_hand_afterwards() -> None:
    stage, client = Stage(), Client(waits=(False, False, True))
    stage.append(OPENED)
    async with stage.running(), asyncio.TaskGroup() as group:
        group.create_task(stage.feed.stream(TENANT, stage.head, client))
        await pass_turns()
        reads, shown = stage.table.reads, len(client.frames)
        client.may_go_on.clear()
        log = said(6)
        for entry in log:
            stage.append([entry])
            await pass_turns()
        assert len(client.frames) < shown + len(log)
        client.may_go_on.set()
        stage.append([END])
    assert stage.table.reads == reads
    assert b"".join(client.frames) == written([*OPENED, *log, END])


async def test_what_is_long_is_left_to_the_task_that_waits() -> None:
    stage, client = Stage(), Client()
    stage.append(OPENED)
    log = said(SHORT_BYTES)
    async with stage.running(), asyncio.TaskGroup() as group:
        group.create_task(stage.feed.stream(TENANT, stage.head, client))
        await pass_turns()
        stage.append(log)
        await pass_turns()
        stage.append([END])
    assert b"".join(client.frames) == written([*OPENED, *log, END])


class BrokenError(Exception):
    """What a client raises that cannot be written to."""


async def test_a_client_that_cannot_be_shown_anything_is_nothing_to_the_others() -> None:
    class Broken(Client):
        @override
        def __call__(self, events: Sequence[Event]) -> Awaitable[None] | None:
            if events[0].delta_length and len(events) == 1:
                raise BrokenError
            return super().__call__(events)

    stage, client, broken = Stage(), Client(), Broken()
    stage.append(OPENED)
    async with stage.running(), asyncio.TaskGroup() as group:
        failing = asyncio.ensure_future(stage.feed.stream(TENANT, stage.head, broken))
        group.create_task(stage.feed.stream(TENANT, stage.head, client))
        await pass_turns()
        for entry in said(3):
            stage.append([entry])
            await pass_turns()
        with pytest.raises(BrokenError):
            await failing
        stage.append([END])
    assert b"".join(client.frames) == written([*OPENED, *said(3), END])


@pytest.mark.parametrize("how", ["deleted", "removed", "taken over here"])
async def test_a_stream_ends_or_moves_with_its_log(how: str) -> None:
    stage, client = Stage(), Client()
    stage.append(OPENED)
    async with stage.running(), asyncio.TaskGroup() as group:
        group.create_task(stage.feed.stream(TENANT, stage.head, client))
        await pass_turns()
        if how == "deleted":
            del stage.table.rows.rows[UUID_OF_TEST]
            stage.watcher.poll_soon([UUID_OF_TEST])
        elif how == "removed":
            rows = stage.table.rows.rows[UUID_OF_TEST].log
            stage.append([*said(1), END])
            rows.clear()
        else:
            stage.come()
            stage.append([*said(1), END])
    is_whole = how == "taken over here"
    log = [*OPENED, *said(1), END] if is_whole else OPENED
    assert b"".join(client.frames) == written(log)


@pytest.mark.parametrize("is_left", [True, False], ids=["left", "not begun"])
async def test_a_stream_that_a_drain_ends_before_its_first_event_shows_what_was_read(
    is_left: bool,
) -> None:
    """Its client could not resume it else: only the events have the id of the response."""
    stage, client = Stage(), Client()
    stage.come()  # what is generated here is shown once it is committed, and nothing is yet
    stream = partial(stage.feed.stream, TENANT, stage.head, client, beginning=(QUEUED,))
    async with asyncio.TaskGroup() as group:
        if is_left:
            group.create_task(stream())
            await pass_turns()
            assert client.frames == []
        stage.feed.close()
        if not is_left:
            group.create_task(stream())
    assert b"".join(client.frames) == written([Queued()])


async def test_a_stream_that_a_drain_ends_later_repeats_nothing() -> None:
    stage, client = Stage(), Client()
    stage.append(OPENED)
    async with stage.running(), asyncio.TaskGroup() as group:
        group.create_task(stage.feed.stream(TENANT, stage.head, client, beginning=(QUEUED,)))
        await pass_turns()
        stage.feed.close()
    assert b"".join(client.frames) == written(OPENED)
