"""A long log is folded in slices, and shown meanwhile; its entries are kept as they were."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.entries import (
    SINGLES_MAX,
    Alive,
    Finished,
    Queued,
    Tokens,
    TurnStarted,
    pack,
    portions,
)
from gateway.eventlog.fold_slices import AFTER_EVERY_EVENT, EntryBuffer, fold_rows, fold_slice
from gateway.generation import TokenLogprob
from gateway.store.events import LogRow
from tests.fakes.toy_logs import apply_all, logs, new_fold
from tests.fakes.toy_parser import FINAL, TEXT

if TYPE_CHECKING:
    from collections.abc import Awaitable, Sequence

    from gateway.entries import Entry
    from gateway.protocol.stream_events import Event

LOG: list[Entry] = [
    Queued(),
    TurnStarted(9),
    Tokens((FINAL,)),
    *(Tokens((TEXT,)) for _ in range(3 * SINGLES_MAX)),
    *(Alive() for _ in range(3 * SINGLES_MAX)),
    Finished("completed", 1_795_000_009),
]
AGES_S = 3600.0


@pytest.mark.parametrize(("slice_s", "slices"), [(AGES_S, 1), (0.0, 8 + 3 * SINGLES_MAX)])
def test_a_slice_ends_with_its_time_or_with_the_log(slice_s: float, slices: int) -> None:
    fold = new_fold(background=True)
    shown: list[Sequence[Event]] = []
    log = portions(pack(LOG))
    taken, is_more = 0, True
    while is_more:
        _, is_more = fold_slice(fold, log, shown.append, after=-1, slice_s=slice_s)
        taken += 1
    wanted = apply_all(new_fold(background=True), LOG)
    assert [event for events in shown for event in events] == wanted
    assert max(map(len, shown)) <= 2 * SINGLES_MAX
    assert taken == slices


def test_a_slice_ends_where_there_is_something_to_wait_for() -> None:
    shown: list[Sequence[Event]] = []
    rest = asyncio.Event()

    def show(events: Sequence[Event]) -> Awaitable[None]:
        shown.append(events)
        return waited_for

    async def wait() -> None:
        await rest.wait()

    waited_for = wait()
    fold = new_fold(background=True)
    found, is_more = fold_slice(fold, portions(pack(LOG)), show, after=-1, slice_s=AGES_S)
    waited_for.close()
    assert found is waited_for
    assert is_more
    assert len(shown) == 1


@pytest.mark.parametrize("slice_s", [AGES_S, 0.0])
@pytest.mark.parametrize("entries_a_row", [1, 7, len(LOG)])
async def test_rows_are_folded_from_any_entry_on(slice_s: float, entries_a_row: int) -> None:
    rows = [
        LogRow(start, len(part), pack(part))
        for start in range(0, len(LOG), entries_a_row)
        for part in [LOG[start : start + entries_a_row]]
    ]
    middle = len(LOG) // 2
    fold, wanted = new_fold(background=True), new_fold(background=True)
    apply_all(wanted, LOG)
    begin = [row for row in rows if row.first_entry < middle]
    done = len(await fold_rows(fold, begin, slice_s=slice_s))
    rest = [row for row in rows if row.first_entry + row.count > done]
    entries = await fold_rows(fold, rest, from_entry=done, slice_s=slice_s)
    assert list(entries) == LOG[done:]
    assert fold.response() == wanted.response()


async def test_a_row_that_was_folded_before_adds_nothing() -> None:
    assert len(await fold_rows(new_fold(), [LogRow(0, 2, pack(LOG[:2]))], from_entry=2)) == 0


async def test_a_missing_row_is_no_log() -> None:
    with pytest.raises(ValueError, match="missing before number 2"):
        await fold_rows(new_fold(background=True), [LogRow(2, 1, pack([Alive()]))])


def test_of_a_log_that_is_known_no_delta_is_made() -> None:
    shown: list[Sequence[Event]] = []
    fold = new_fold(background=True)
    fold_slice(fold, portions(pack(LOG)), shown.append, after=AFTER_EVERY_EVENT, slice_s=AGES_S)
    assert not [event for events in shown for event in events if event.delta_length][1:]
    assert fold.shown.is_finished


PLAIN = st.lists(st.integers(0, 2**32 - 1), max_size=5).map(lambda ids: Tokens(tuple(ids)))
SCORED = st.integers(0, 9).map(lambda token: Tokens((token,), (TokenLogprob(-1.0),)))


@pytest.mark.slow
@given(st.tuples(logs(), st.lists(PLAIN | SCORED)), st.data())
def test_any_entries_are_kept_in_order(
    both: tuple[Sequence[Entry], Sequence[Entry]], data: st.DataObject
) -> None:
    entries = data.draw(st.permutations([*both[0], *both[1]]))
    kept = EntryBuffer(entries)
    assert list(kept) == entries
    assert list(reversed(kept)) == entries[::-1]
    assert len(kept) == len(entries)
    start = data.draw(st.integers(0, len(entries)))
    stop = data.draw(st.integers(start, len(entries)))
    part = EntryBuffer()
    for portion in kept.portions(start, stop):
        part.add(portion)
    assert list(part) == entries[start:stop]
