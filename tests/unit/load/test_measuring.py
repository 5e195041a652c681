"""What the workloads make of times and logs, without anything that is measured."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.entries import Finished, Queued, Tokens, TurnEnded, TurnStarted
from gateway.generation import FinishReason, TokenLogprob
from tests.load import copying, crowds, heavy, registry
from tests.load.loading import Load, word_times
from tests.load.processes import RunVoid
from tests.load.replays import one_by_one
from tests.load.workloads.durable import visible
from tests.load.workloads.history import FORMS, LONGEST
from tests.load.workloads.resume import sequence_numbers
from tests.load.workloads.stall import Pair, Window, figures_of, worst_ms

if TYPE_CHECKING:
    from pathlib import Path

    from gateway.entries import Entry

MS = 1_000_000
S = 1000 * MS


def test_times_of_words_are_read_as_they_were_written(tmp_path: Path) -> None:
    file = tmp_path / "times"
    file.write_bytes(struct.pack("<4Q", 1, 5, 2, 7))
    assert word_times(file) == [(1, 5), (2, 7)]


def words_sent(*late_ms: float, every_ms: int = 10) -> list[tuple[int, int]]:
    """Words sent one after the other, each read so much later."""
    return [
        (at * every_ms * MS, int((at * every_ms + late) * MS)) for at, late in enumerate(late_ms)
    ]


def test_the_worst_word_of_a_window_is_one_that_was_sent_in_it() -> None:
    words = words_sent(50, 1, 3, 2, 90)
    assert worst_ms(Window(10 * MS, 40 * MS), words) == 3
    assert worst_ms(Window(11 * MS, 19 * MS), words) == 0


def test_an_excess_is_the_median_over_pairs_of_windows() -> None:
    words = words_sent(2, 9, 2, 2, 3, 2, 4, 2, 2)
    pairs = [
        Pair(
            Window(at * 10 * MS, (at + 1) * 10 * MS),
            Window((at + 1) * 10 * MS, (at + 2) * 10 * MS),
            5,
        )
        for at in (1, 4, 6)
    ]
    figures = figures_of(pairs, words)
    assert (figures["loud_ms"], figures["quiet_ms"]) == (4, 2)
    assert (figures["excess_ms"], figures["largest_ms"], figures["pairs"]) == (2, 7, 3)


def test_windows_that_outlast_the_streams_count_for_nothing() -> None:
    whole = Pair(Window(0, 10 * MS), Window(10 * MS, 20 * MS), 1)
    late = Pair(Window(10 * MS, 20 * MS), Window(20 * MS, 90 * MS), 1)
    words = words_sent(1, 1, 1)
    assert figures_of([whole, late], words)["pairs"] == 1
    with pytest.raises(RunVoid, match="before the streams"):
        figures_of([late], words)
    with pytest.raises(RunVoid, match="before the streams"):
        figures_of([whole], [])


def test_tokens_count_as_visible_only_while_all_streams_run() -> None:
    load = Load(streams=2, requests=2, tokens=304, rate_per_s=100, ramp_s=1)
    words = [
        (at * S // 100, at * S // 100 + (2 if 150 <= at < 300 else 90) * MS) for at in range(400)
    ]
    figures = visible(load, words)
    assert figures["latency_p50_us"] == figures["latency_p99_us"] == 2000
    assert figures["measured"] == 150


def test_streams_that_never_ran_together_void_the_run() -> None:
    load = Load(streams=2, requests=2, tokens=14, rate_per_s=100, ramp_s=1)
    with pytest.raises(RunVoid, match="had not all begun"):
        visible(load, words_sent(1, 1, 1))


def test_a_stream_has_the_numbers_of_its_events_and_has_to_complete() -> None:
    stream = (
        b'event: a\ndata: {"type":"a","sequence_number":4}\n\n: comment\n\n'
        b'event: b\ndata: {"type":"response.completed","sequence_number":7}\n\n'
    )
    assert sequence_numbers(stream) == [4, 7]
    for cut in (stream[: stream.index(b"event: b")], b""):
        with pytest.raises(RunVoid, match="did not complete"):
            sequence_numbers(cut)


@given(st.lists(st.lists(st.integers(0, 200_000), max_size=5), max_size=5))
def test_a_log_of_single_ids_says_the_same(parts: list[list[int]]) -> None:
    frame = (Queued(), TurnStarted(3)), (TurnEnded(FinishReason.STOP), Finished("completed", 9))
    entries: list[Entry] = [*frame[0], *(Tokens(tuple(part)) for part in parts), *frame[1]]
    singles = list(one_by_one(entries))
    said = [entry.ids for entry in singles if isinstance(entry, Tokens)]
    assert said == [(token,) for part in parts for token in part]
    assert [entry for entry in singles if not isinstance(entry, Tokens)] == [*frame[0], *frame[1]]


def test_logprobs_stay_with_their_ids() -> None:
    logprobs = tuple(TokenLogprob(-0.5) for _ in range(2))
    assert list(one_by_one([Tokens((7, 8), logprobs)])) == [
        Tokens((7,), logprobs[:1]),
        Tokens((8,), logprobs[1:]),
    ]


def test_copies_of_a_response_fill_every_column_of_its_tables() -> None:
    statements = list(crowds._copies())
    assert [statement.split()[2] for statement in statements] == ["responses", "messages", "usage"]
    for statement in statements:
        named, _, taken = statement.partition(" SELECT ")
        given = taken.partition(" FROM made, ")[0].replace(copying.ITEM_ID, "")
        assert named.count(",") == given.count(",")
        assert "made.tenant_id" in taken


def test_every_target_of_a_workload_is_about_a_row_that_it_has() -> None:
    known = {workload.letter: workload for workload in registry.workloads()}
    assert list(known) == list("abcdefghijklmnopq")
    assert set(LONGEST) < set(FORMS)
    assert {target.row for target in known["l"].targets} == set(heavy.REQUESTS)


def test_a_large_schema_is_one_that_is_accepted() -> None:
    schema = heavy.object_schema([b" abc"], heavy.SCHEMA_PROPERTIES)
    assert len(schema["properties"]) == len(schema["required"]) == heavy.SCHEMA_PROPERTIES
    assert heavy.tool([b" abc"], 3)["name"] == "tool_3"
