"""The live log: readers see every event once, in order, however slow they are."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from dataclasses import dataclass, field
from functools import partial
from itertools import cycle, repeat
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typing_extensions import override

from gateway.api.streaming import Later
from gateway.entries import Alive, Entry, Finished, Tokens, TurnStarted
from gateway.eventlog.fold.fold import Fold
from gateway.eventlog.fold_slices import EntryBuffer
from gateway.eventlog.live_log import LiveLog
from tests.fakes.fold_formats import parsed_by
from tests.fakes.following import collected, following
from tests.fakes.response_heads import response_head
from tests.fakes.staged_run import NO_RULES
from tests.fakes.toy_logs import FRAMING, apply_all, logs, new_fold
from tests.fakes.toy_parser import ToyParser

if TYPE_CHECKING:
    from collections.abc import Awaitable, Iterator, Sequence

    from gateway.protocol.stream_events import Event


def play(live: LiveLog, entries: list[Entry]) -> None:
    """Append a whole log, its end included."""
    for entry in entries[:-1]:
        live.append(entry)
    live.close(entries[-1], live.fold.apply(entries[-1]))


async def collect(live: LiveLog, after: int = -1) -> list[Event]:
    return await collected(partial(live.stream, after=after))


@dataclass
class Shown:
    """A reader that is shown events; one after another `waits` tells after how many turns of the
    loop it may be shown more, 0 for at once.
    """

    waits: Iterator[int] = field(default_factory=lambda: repeat(0))
    events: list[Event] = field(default_factory=list)
    is_busy: bool = False

    def __call__(self, events: Sequence[Event]) -> Awaitable[None] | None:
        assert events
        assert not self.is_busy
        self.events += events
        turns = next(self.waits)
        if not turns:
            return None
        self.is_busy = True
        return Later(partial(self._rest, turns))

    async def _rest(self, turns: int) -> None:
        for _ in range(turns):
            await asyncio.sleep(0)
        self.is_busy = False


@pytest.mark.slow
@given(logs(), st.integers(-1, 40))
def test_a_reader_of_a_finished_log_gets_the_suffix(entries: list[Entry], after: int) -> None:
    async def read() -> list[Event]:
        live = LiveLog(new_fold, reader_events_max=10)
        play(live, entries)
        return await collect(live, after)

    wanted = [event for event in apply_all(new_fold(), entries) if event.sequence_number > after]
    assert asyncio.run(read()) == wanted


@pytest.mark.slow
@given(logs(), st.integers(1, 5), st.data())
def test_readers_get_every_event_once_whatever_their_pace(
    entries: list[Entry], reader_events_max: int, data: st.DataObject
) -> None:
    pauses = data.draw(st.lists(st.booleans(), min_size=len(entries), max_size=len(entries)))

    async def read() -> tuple[list[Event], list[Event]]:
        live = LiveLog(new_fold, reader_events_max=reader_events_max)

        async def write() -> None:
            for entry, pause in zip(entries[:-1], pauses, strict=False):
                live.append(entry)
                if pause:
                    await asyncio.sleep(0)
            live.close(entries[-1], live.fold.apply(entries[-1]))

        async with asyncio.TaskGroup() as group:
            first, second = (group.create_task(collect(live)) for _ in range(2))
            group.create_task(write())
        return first.result(), second.result()

    wanted = apply_all(new_fold(), entries)
    assert asyncio.run(read()) == (wanted, wanted)


@pytest.mark.slow
@given(logs(), st.integers(1, 5), st.booleans(), st.data())
def test_readers_that_are_shown_events_get_each_once_in_order(
    entries: list[Entry], reader_events_max: int, held: bool, data: st.DataObject
) -> None:
    """However slow they are, wherever they begin, whenever they come, whatever is held back."""
    turns = st.lists(st.integers(0, 3), min_size=1, max_size=8)
    readers = data.draw(
        st.lists(st.tuples(st.integers(-1, 8), st.integers(0, 6), turns), min_size=1, max_size=4)
    )
    pauses, shows = data.draw(turns), data.draw(turns)

    async def read(live: LiveLog, after: int, delay: int, waits: list[int]) -> list[Event]:
        for _ in range(delay):
            await asyncio.sleep(0)
        shown = Shown(cycle(waits))
        await live.stream(shown, after)
        assert not shown.is_busy
        return shown.events

    async def run() -> list[list[Event]]:
        live = LiveLog(new_fold, reader_events_max=reader_events_max, held=held)
        async with asyncio.TaskGroup() as group:
            reading = [group.create_task(read(live, *reader)) for reader in readers]
            count, showing, pausing = 0, cycle(shows), cycle(pauses)
            for number, entry in enumerate(entries[:-1], 1):
                live.append(entry)
                count = min(number, count + next(showing))
                live.show(count)
                for _ in range(next(pausing)):
                    await asyncio.sleep(0)
            live.close(entries[-1], live.fold.apply(entries[-1]))
        return [task.result() for task in reading]

    wanted = apply_all(new_fold(), entries)
    assert asyncio.run(run()) == [
        [event for event in wanted if event.sequence_number > after] for after, _, _ in readers
    ]


async def test_a_reader_that_keeps_up_is_shown_events_where_they_are_made() -> None:
    live, shown = LiveLog(new_fold, reader_events_max=3), Shown()
    async with asyncio.TaskGroup() as group:
        playing = group.create_task(live.stream(shown))
        await asyncio.sleep(0)
        for count in range(2, 9):
            live.append(Alive())
            assert len(shown.events) == count
        finished = Finished("completed", 1)
        live.close(finished, live.fold.apply(finished))
        assert shown.events[-1].is_terminal
        assert not playing.done()


async def test_the_first_reader_is_given_the_beginning_and_nothing_is_folded_again() -> None:
    folds = 0

    def counted() -> Fold:
        nonlocal folds
        folds += 1
        return new_fold()

    live, shown = LiveLog(counted, reader_events_max=100), Shown()
    play(live, [Alive(), Alive(), Finished("completed", 1)])
    await live.stream(shown)
    assert shown.events == apply_all(new_fold(), [Alive(), Alive(), Finished("completed", 1)])
    assert folds == 1
    assert await collect(live) == shown.events
    assert folds == 2


async def test_what_showing_raises_is_the_reader_s_and_not_the_run_s() -> None:
    def broken(_: Sequence[Event]) -> None:
        raise ValueError("a defect")

    live = LiveLog(new_fold, reader_events_max=3)
    playing = asyncio.ensure_future(live.stream(broken))
    await asyncio.sleep(0)
    live.append(Alive())
    live.append(Alive())
    with pytest.raises(ValueError, match="a defect"):
        await playing
    assert not live._readers


async def test_a_reader_that_falls_behind_holds_no_more_than_its_bound() -> None:
    live = LiveLog(new_fold, reader_events_max=3)
    live.append(Alive())
    async with aclosing(following(live.stream)) as follower:
        seen = list(await anext(follower))
        for _ in range(50):
            live.append(Alive())
        (reader,) = live._readers
        assert reader.lags
        assert not reader.events
        finished = Finished("completed", 1)
        live.close(finished, live.fold.apply(finished))
        seen += [event async for batch in follower for event in batch]
    assert [event.sequence_number for event in seen] == list(range(len(seen)))
    assert seen[-1].is_terminal


@pytest.mark.slow
@given(logs(), st.lists(st.booleans(), min_size=1), st.data())
def test_a_reader_that_holds_is_shown_all_from_the_first_output_on_in_that_call(
    entries: list[Entry], gathers: list[bool], data: st.DataObject
) -> None:
    first = next((at for at, entry in enumerate(entries) if isinstance(entry, Tokens)), None)
    admitted = data.draw(st.integers(0, len(entries) - 1 if first is None else first))

    async def read() -> tuple[list[Event], int | None]:
        live = LiveLog(new_fold, reader_events_max=1000)
        shown: list[Event] = []
        begun_at: int | None = None
        async with asyncio.TaskGroup() as group:
            for at, entry in enumerate(entries):
                if at == admitted:
                    group.create_task(live.stream(shown.extend, grace_s=60))
                    await asyncio.sleep(0)
                if at == len(entries) - 1:
                    live.close(entry, live.fold.apply(entry))
                elif gathers[at % len(gathers)]:
                    with live.gathered():
                        live.append(entry)
                        assert first is None or at > first or not shown
                else:
                    live.append(entry)
                if shown and begun_at is None:
                    begun_at = at
        return shown, begun_at

    assert asyncio.run(read()) == (apply_all(new_fold(), entries), first)


async def test_a_reader_that_holds_is_shown_what_there_is_when_its_grace_is_over() -> None:
    live = LiveLog(new_fold, reader_events_max=3)
    shown: list[Event] = []
    async with asyncio.TaskGroup() as group:
        is_shown = asyncio.Event()

        def show(events: Sequence[Event]) -> None:
            shown.extend(events)
            is_shown.set()

        playing = group.create_task(live.stream(show, grace_s=0.001))
        await asyncio.sleep(0)
        live.append(TurnStarted(1))
        assert not shown
        await is_shown.wait()
        playing.cancel()
    assert shown == apply_all(new_fold(), [TurnStarted(1)])


@pytest.mark.parametrize("is_attached", [True, False])
async def test_a_reader_that_holds_is_told_why_there_is_no_output(is_attached: bool) -> None:
    live = LiveLog(new_fold, reader_events_max=3)
    playing = live.stream(lambda _: None, grace_s=60)
    async with asyncio.TaskGroup() as group:
        live.append(TurnStarted(1))
        live.failure = ValueError("a backend failed")
        if is_attached:
            group.create_task(_fails(playing))
            await asyncio.sleep(0)
        failed = Finished("failed", 2, code="server_error", message="It failed.")
        live.close(failed, live.fold.apply(failed))
    if not is_attached:
        await _fails(playing)


async def _fails(playing: Awaitable[None]) -> None:
    with pytest.raises(ValueError, match="a backend failed"):
        await playing


async def test_a_reader_that_leaves_is_forgotten() -> None:
    live = LiveLog(new_fold, reader_events_max=3)
    live.append(Alive())
    async with aclosing(following(live.stream)) as follower:
        await anext(follower)
    assert not live._readers


async def test_an_end_that_could_not_be_kept_is_taken_back() -> None:
    live = LiveLog(new_fold, reader_events_max=3)
    live.append(Alive())
    live.fold.apply(Finished("completed", 1))
    fold = live.refold()
    assert not fold.shown.is_finished
    failed = Finished("failed", 2, code="server_error", message="not stored")
    live.close(failed, fold.apply(failed))
    events = await collect(live)
    assert [event.sequence_number for event in events] == list(range(len(events)))
    assert events[-1].type == "response.failed"
    assert live.closed.is_set()
    assert live.produced.is_set()


async def test_readers_of_a_log_without_an_end_are_told() -> None:
    live = LiveLog(new_fold, reader_events_max=3)
    live.append(Alive())
    async with aclosing(following(live.stream)) as follower:
        await anext(follower)
        live.give_up(ValueError("a bug"))
        with pytest.raises(ValueError, match="a bug"):
            await anext(follower)
    assert live.produced.is_set()


async def test_a_log_that_has_its_end_cannot_be_given_up() -> None:
    live = LiveLog(new_fold, reader_events_max=3)
    play(live, [Alive(), Finished("completed", 1)])
    live.give_up(ValueError("a bug"))
    assert (await collect(live))[-1].type == "response.completed"
    assert live.failure is None


async def test_ids_that_show_nothing_are_silence() -> None:
    live = LiveLog(new_fold, reader_events_max=3)
    live.append(TurnStarted(1))
    live.shown_at = shown = live.shown_at - 1
    live.append(Tokens(()))
    assert live.shown_at == shown
    live.append(Alive())
    assert live.shown_at > shown


@pytest.mark.slow
@given(logs(), st.integers(1, 12), st.data())
def test_readers_of_a_held_log_see_what_is_committed_once_and_in_order(
    entries: list[Entry], reader_events_max: int, data: st.DataObject
) -> None:
    shows = data.draw(st.lists(st.integers(0, 3), min_size=len(entries), max_size=len(entries)))

    async def read() -> tuple[list[Event], list[Event], list[Event]]:
        live = LiveLog(new_fold, reader_events_max=reader_events_max, held=True)
        shown = 0

        async with asyncio.TaskGroup() as group:
            early = group.create_task(collect(live))
            middle: asyncio.Task[list[Event]] | None = None
            for number, (entry, show) in enumerate(zip(entries[:-1], shows, strict=False), 1):
                live.append(entry)
                shown = min(number, shown + show)
                live.show(shown)
                if show:
                    middle = middle or group.create_task(collect(live))
                    await asyncio.sleep(0)
            live.close(entries[-1], live.fold.apply(entries[-1]))
            middle = middle or group.create_task(collect(live))
        return early.result(), middle.result(), await collect(live)

    wanted = apply_all(new_fold(), entries)
    assert asyncio.run(read()) == (wanted, wanted, wanted)


async def test_a_held_log_shows_nothing_that_is_not_committed() -> None:
    live = LiveLog(new_fold, reader_events_max=100, held=True)
    live.append(TurnStarted(1))
    live.append(Tokens((1,)))
    assert live.fold.usage.output_tokens == 1
    assert live.is_holding
    async with aclosing(following(live.stream)) as follower:
        live.show(1)
        assert not live.produced.is_set()
        seen = await anext(follower)
        assert seen == apply_all(new_fold(), [TurnStarted(1)])
    live.show(2)
    assert live.produced.is_set()
    assert not live.is_holding


async def test_a_restored_log_goes_on_where_it_stood() -> None:
    began: list[Entry] = [TurnStarted(1), Tokens((1,))]
    fold = new_fold()
    known = apply_all(fold, began)
    live = LiveLog.restored(new_fold, EntryBuffer(began), fold=fold, reader_events_max=100)
    live.append(Alive())
    async with aclosing(following(live.stream)) as follower:
        assert await anext(follower) == known
        live.show(3)
        assert await anext(follower) == apply_all(new_fold(), [*began, Alive()])[len(known) :]


async def test_a_reader_that_has_seen_all_does_not_fold_again() -> None:
    folds = 0

    def counted() -> Fold:
        nonlocal folds
        folds += 1
        return new_fold()

    live = LiveLog(counted, reader_events_max=100)
    async with asyncio.TaskGroup() as group:
        first = group.create_task(collect(live))
        await asyncio.sleep(0)
        live.append(Alive())
        second = group.create_task(collect(live, after=2))
        await asyncio.sleep(0)
        play(live, [Alive(), Finished("completed", 1)])
    assert first.result()[3:] == second.result()
    assert folds == 1


@pytest.mark.slow
async def test_logs_that_are_folded_again_take_turns_with_all_else() -> None:
    """When the database is back after long, all readers of all logs have to at the same moment."""
    applied = 0

    class Counting(Fold):
        @override
        def apply(self, entry: Entry) -> list[Event]:
            nonlocal applied
            applied += 1
            return super().apply(entry)

    def counting() -> Fold:
        return Counting(response_head(), parsed_by(lambda _trace: ToyParser(), FRAMING), NO_RULES)

    turn = asyncio.Lock()
    lives = [LiveLog(counting, reader_events_max=100, turn=turn, slice_s=0) for _ in range(5)]
    entries: list[Entry] = [*[Alive()] * 600, Finished("completed", 1)]
    for live in lives:
        play(live, entries)
    most = 0
    async with asyncio.TaskGroup() as group:
        reading = [group.create_task(collect(live)) for live in lives]
        while not all(task.done() for task in reading):
            before = applied
            await asyncio.sleep(0)
            most = max(most, applied - before)
    wanted = apply_all(new_fold(), entries)
    assert all(task.result() == wanted for task in reading)
    assert most == 1


async def test_a_reader_may_be_ahead_of_the_log() -> None:
    live = LiveLog(new_fold, reader_events_max=100)
    live.append(Alive())
    async with aclosing(following(partial(live.stream, after=4))) as follower:
        for _ in range(4):
            live.append(Alive())
        assert [event.sequence_number for event in await anext(follower)] == [5]


async def test_readers_of_a_log_that_is_handed_over_end_without_an_end() -> None:
    live = LiveLog(new_fold, reader_events_max=100, held=True)
    live.append(Alive())
    live.show(1)
    live.append(Alive())
    live.hand_over()
    live.show(2)
    events = await collect(live)
    assert [event.type for event in events] == ["response.created", "response.in_progress"]
    assert live.handed_over
    assert live.failure is None


async def test_a_log_that_has_its_end_is_not_handed_over() -> None:
    live = LiveLog(new_fold, reader_events_max=100)
    play(live, [Alive(), Finished("completed", 1)])
    live.hand_over()
    assert not live.handed_over


async def test_what_is_held_back_for_long_is_forgotten_and_folded_again() -> None:
    live = LiveLog(new_fold, reader_events_max=3, held=True)
    async with aclosing(following(live.stream)) as follower:
        for _ in range(50):
            live.append(Alive())
        assert live._withheld is not None
        assert len(live._withheld._by_entry) <= 3
        live.show(49)
        late = following(partial(live.stream, after=10))
        async with aclosing(late):
            assert (await anext(late))[0].sequence_number == 11
        live.show(50)
        finished = Finished("completed", 1)
        live.close(finished, live.fold.apply(finished))
        seen = [event async for batch in follower for event in batch]
    assert seen == apply_all(new_fold(), [*[Alive()] * 50, finished])
