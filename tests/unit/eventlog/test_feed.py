"""Following a durable response: every event once, wherever it is generated, whoever joins when."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from typing_extensions import override

from gateway.api import sse
from gateway.entries import Alive, Entry, Finished, Queued, Tokens, TurnStarted
from gateway.errors import StoreUnavailable
from gateway.eventlog.fold.fold import Fold
from tests.fakes.fold_formats import parsed_by
from tests.fakes.followed_response import TENANT, Stage, folded
from tests.fakes.following import following
from tests.fakes.response_heads import UUID_OF_TEST
from tests.fakes.staged_run import NO_RULES
from tests.fakes.toy_logs import FRAMING, logs
from tests.fakes.toy_parser import FINAL, TEXT, ToyParser

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable

    from gateway.protocol.responses.response_object import ResponseHead
    from gateway.protocol.stream_events import Event

LOG: list[Entry] = [
    Queued(),
    TurnStarted(3),
    *(Tokens((token,)) for token in (FINAL, TEXT, TEXT + 1, TEXT)),
    Finished("completed", 9),
]


def wanted(log: list[Entry], after: int) -> list[Event]:
    return [event for event in folded(log) if event.sequence_number > after]


def flat(batches: list[list[Event]]) -> list[Event]:
    """The events; fails unless only a stream without any has an empty list, and nothing else."""
    events = [event for batch in batches for event in batch]
    assert all(batches) if events else batches == [[]]
    return events


async def pass_turns(count: int = 20) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


@pytest.mark.slow
@settings(deadline=None)
@given(logs(), st.data())
def test_whoever_joins_when_gets_the_rest_once(log: list[Entry], data: st.DataObject) -> None:
    """Any split into rows, any moment of joining, any moves to this process and away from it."""
    log = [Queued(), *log]
    after = st.integers(-1, len(folded(log)) + 2)
    steps: list[tuple[str, int]] = data.draw(
        st.lists(
            st.tuples(st.just("append"), st.integers(1, 9))
            | st.tuples(st.just("join"), after)
            | st.tuples(st.sampled_from(["come", "go"]), st.just(0))
            | st.tuples(st.just("pass"), st.integers(1, 12)),
            max_size=20,
        )
    )
    read_bytes_max = data.draw(st.sampled_from([1, 40, 10_000]))
    slice_s = data.draw(st.sampled_from([0.0, 1.0]))
    is_shown = data.draw(st.booleans())

    async def play() -> list[tuple[int, list[list[Event]]]]:
        stage = Stage(read_bytes_max=read_bytes_max, slice_s=slice_s)
        readers: list[tuple[int, asyncio.Task[list[list[Event]]]]] = []
        rest = log
        async with stage.running(), asyncio.TaskGroup() as group:
            for step, number in [*steps, ("join", -1), ("append", len(log))]:
                if step == "append":
                    stage.append(rest[:number])
                    rest = rest[number:]
                elif step == "join":
                    read = stage.play if is_shown else stage.read
                    readers.append((number, group.create_task(read(number))))
                elif step == "pass":
                    await pass_turns(number)
                elif rest:
                    stage.come() if step == "come" else stage.go()
        return [(after, task.result()) for after, task in readers]

    for joined_after, batches in asyncio.run(play()):
        assert flat(batches) == wanted(log, joined_after)


@pytest.mark.slow
@settings(deadline=None)
@given(logs(), st.integers(-1, 60), st.booleans())
def test_the_suffix_is_the_tail_of_the_stream_byte_for_byte(
    log: list[Entry], after: int, obfuscate: bool
) -> None:
    async def read(after: int) -> list[Event]:
        stage = Stage()
        stage.append(log)
        async with stage.running():
            return flat(await stage.read(after))

    encode = sse.obfuscated if obfuscate else sse.plain

    def written(events: list[Event]) -> bytes:
        return b"".join(sse.writes(events, encode, bytes_max=100))

    whole, suffix = asyncio.run(read(-1)), asyncio.run(read(after))
    cut = len(b"".join(map(encode, whole[: after + 1])))
    if after < len(whole) - 1:
        assert written(suffix) == written(whole)[cut:]
    else:
        assert suffix == []


def followed(stage: Stage) -> aclosing[AsyncGenerator[list[Event], None]]:
    return aclosing(following(partial(stage.feed.stream, TENANT, stage.head)))


async def test_nothing_is_shown_before_it_is_committed() -> None:
    stage = Stage()
    stage.append(LOG[:2])
    stage.come()
    async with stage.running(), followed(stage) as stream:
        seen = [*await anext(stream)]
        assert stage.live is not None
        for entry in LOG[2:4]:
            stage.live.append(entry)
        stage.go()
        stage.append(LOG[4:5] + LOG[2:4])
        stage.append(LOG[6:])
        seen += [event async for batch in stream for event in batch]
    assert seen == folded([*LOG[:2], LOG[4], *LOG[2:4], LOG[6]])


async def test_text_that_is_generated_here_goes_on_elsewhere_behind_what_was_sent() -> None:
    stage, before = Stage(), len(LOG) - 2
    stage.append(LOG[:before])
    stage.come()
    said = [Tokens((TEXT + number,)) for number in range(9)]
    log = [*LOG[:before], *said, LOG[-1]]
    events: list[Event] = []
    async with stage.running(), asyncio.TaskGroup() as group:
        group.create_task(stage.feed.stream(TENANT, stage.head, events.extend))
        await pass_turns()
        live = stage.live
        assert live is not None
        for entry in said[:3]:
            live.append(entry)
        sent = len(events)
        live.show(before + 3)
        assert len(events) == sent + 3
        stage.go()
        stage.append([*said, LOG[-1]])
    assert events == folded(log)


async def test_nothing_is_sent_to_a_stream_that_is_about_to_be_left() -> None:
    stage = Stage()
    stage.append(LOG[:-2])
    stage.come()
    events: list[Event] = []
    async with stage.running(), asyncio.TaskGroup() as group:
        group.create_task(stage.feed.stream(TENANT, stage.head, events.extend))
        await pass_turns()
        live = stage.live
        assert live is not None
        live.append(Tokens((TEXT,)))
        stage.feed.close()
        live.show(len(LOG) - 1)
    assert events == folded(LOG[:-2])


async def test_a_stream_that_is_beyond_the_head_waits() -> None:
    stage = Stage()
    stage.append(LOG[:4])
    beyond = len(folded(LOG[:4])) + 1
    async with stage.running(), asyncio.TaskGroup() as group:
        reading = group.create_task(stage.read(beyond))
        await pass_turns()
        assert not reading.done()
        stage.append(LOG[4:])
    assert flat(reading.result()) == wanted(LOG, beyond)


async def test_a_drain_ends_streams_without_an_end() -> None:
    stages = [Stage() for _ in range(4)]
    for stage in stages[:2]:
        stage.come()
    for stage in stages:
        read = stage.play if stage in stages[::2] else stage.read
        stage.append(LOG[:4])
        async with stage.running(), asyncio.TaskGroup() as group:
            reading = group.create_task(read())
            await pass_turns()
            assert not reading.done()
            stage.feed.close()
            stage.append(LOG[4:])
        events = [event for batch in reading.result() for event in batch]
        assert events == folded(LOG[:4])
        assert all(reading.result())
        assert await read() == []
        assert stage.followers[-1] == 0


async def test_a_stream_that_takes_its_time_to_end_may_be_told_twice() -> None:
    """As when the database does not answer, so that a read cannot even be cancelled at once."""
    stage = Stage()
    stage.append(LOG[:4])
    is_asked, may_end = asyncio.Event(), asyncio.Event()

    async def stubborn(*_arguments: Any, **_options: Any) -> Any:
        is_asked.set()
        try:
            await asyncio.Event().wait()
        finally:
            await may_end.wait()

    stage.feed._read_log = stubborn
    async with stage.running(), asyncio.TaskGroup() as group:
        reading = group.create_task(stage.read())
        await is_asked.wait()
        stage.feed.close()
        await pass_turns()
        stage.feed.close()
        may_end.set()
    assert reading.result() == []


async def test_a_log_that_was_removed_ends_the_stream() -> None:
    stage = Stage()
    stage.append(LOG[:4])
    async with stage.running(), followed(stage) as stream:
        await anext(stream)
        stage.append(LOG[4:])
        stage.table.rows.rows[UUID_OF_TEST].log.clear()
        assert [batch async for batch in stream] == []


async def test_a_log_with_a_gap_is_shown_as_far_as_it_goes() -> None:
    stage = Stage()
    for entry in LOG:
        stage.append([entry])
    del stage.table.rows.rows[UUID_OF_TEST].log[3]
    async with stage.running():
        batches = await stage.read()
    assert [event for batch in batches for event in batch] == folded(LOG[:3])


async def test_a_response_that_was_deleted_ends_the_stream() -> None:
    stage = Stage()
    stage.append(LOG[:4])
    async with stage.running(), followed(stage) as stream:
        await anext(stream)
        del stage.table.rows.rows[UUID_OF_TEST]
        stage.watcher.poll_soon([UUID_OF_TEST])
        assert [batch async for batch in stream] == []


async def test_a_database_that_is_away_is_waited_for() -> None:
    stage = Stage()
    stage.append(LOG)
    read, failures = stage.table.read, [StoreUnavailable("away"), StoreUnavailable("away")]

    async def flaky(*arguments: Any, **options: Any) -> Any:
        if failures:
            raise failures.pop()
        return await read(*arguments, **options)

    stage.feed._read_log = flaky
    async with stage.running():
        assert flat(await stage.read()) == folded(LOG)
    assert not failures


async def test_followers_are_counted() -> None:
    stage = Stage()
    stage.append(LOG[:2])
    async with stage.running(), followed(stage) as first, followed(stage) as second:
        await anext(first)
        await anext(second)
        await first.aclose()
        assert stage.followers == [1, 2, 1]
    assert stage.followers == [1, 2, 1, 0]


@pytest.mark.slow
async def test_streams_that_replay_take_turns_with_all_else() -> None:
    """However many there are, the loop comes round between two slices."""
    applied = 0

    class Counting(Fold):
        @override
        def apply(self, entry: Entry) -> list[Event]:
            nonlocal applied
            applied += 1
            return super().apply(entry)

    def counting(head: ResponseHead) -> Callable[[], Fold]:
        return lambda: Counting(head, parsed_by(lambda _trace: ToyParser(), FRAMING), NO_RULES)

    stage = Stage(slice_s=0, new_fold_for=counting)
    stage.append([Queued(), *[Alive()] * 1_100, Finished("cancelled", 9)])
    most = 0
    async with stage.running(), asyncio.TaskGroup() as group:
        reading = [group.create_task(stage.read()) for _ in range(5)]
        while not all(task.done() for task in reading):
            before = applied
            await asyncio.sleep(0)
            most = max(most, applied - before)
    assert applied == 5 * 1_102
    assert most == 1


async def test_a_snapshot_is_the_log_as_far_as_it_has_come() -> None:
    stage = Stage(read_bytes_max=1)
    statuses = []
    for entry in LOG:
        statuses.append((await stage.feed.snapshot(TENANT, stage.head))["status"])
        stage.append([entry])
    whole = await stage.feed.snapshot(TENANT, stage.head)
    assert statuses == ["queued", "queued", *["in_progress"] * 5]
    assert whole["status"] == "completed"
    assert whole["output"][0]["content"][0]["text"] == "aba"


async def test_a_log_is_there_until_it_is_removed() -> None:
    stage = Stage()
    assert await stage.feed.beginning(TENANT, stage.table.load()) == ()
    stage.append(LOG)
    log = stage.table.rows.rows[UUID_OF_TEST].log
    assert await stage.feed.beginning(TENANT, stage.table.load()) == log
    log.clear()
    assert await stage.feed.beginning(TENANT, stage.table.load()) is None


async def test_of_a_log_that_is_written_here_hardly_anything_is_read() -> None:
    stage = Stage()
    stage.come()
    stage.append(LOG[:3])
    first, *_ = stage.table.rows.rows[UUID_OF_TEST].log
    assert await stage.feed.beginning(TENANT, stage.table.load()) == [first]


@pytest.mark.parametrize("is_shown", [True, False])
@pytest.mark.parametrize("known", range(1, len(LOG) + 1))
async def test_a_beginning_that_was_read_before_is_not_read_again(
    known: int, is_shown: bool
) -> None:
    """Whatever was written between reading it and following the rest."""
    stage = Stage()
    stage.append(LOG[:known])
    beginning = await stage.feed.beginning(TENANT, stage.table.load())
    assert beginning is not None
    stage.append(LOG[known:])
    reads = stage.table.reads
    async with stage.running():
        read = stage.play if is_shown else stage.read
        assert flat(await read(0, beginning)) == wanted(LOG, 0)
    assert stage.table.reads - reads == (0 if known == len(LOG) else 1)
