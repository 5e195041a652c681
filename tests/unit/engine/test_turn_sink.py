"""What one attempt writes: text that flows is written unseen, and nothing tells that it was."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typing_extensions import override

from gateway.engine.output_guard import REPETITION, GuardLimits, OutputGuard
from gateway.engine.turn import PIECES_MAX, TurnSink
from gateway.entries import Mark, TurnStarted
from gateway.errors import ClaimLost
from gateway.eventlog.journal import Journal, MemoryJournal
from gateway.eventlog.live_log import LiveLog
from gateway.generation import FinishReason, TokenChunk, TokenLogprob
from gateway.models.harmony.tokenizer import END, MESSAGE, START
from tests.fakes.harmony_script import harmony, script_ids
from tests.fakes.loop_rounds import counted_rounds
from tests.fakes.response_heads import response_head
from tests.fakes.staged_run import folds, run_spec

if TYPE_CHECKING:
    from gateway.engine.output_guard import TurnEnding
    from gateway.entries import Entry
    from gateway.protocol.stream_events import Event

FINAL = script_ids("<|channel|>final<|message|>")
PIECES = [
    FINAL,
    script_ids("<|channel|>analysis<|message|>"),
    script_ids("<|end|><|start|>assistant"),
    script_ids(" the sea"),
    script_ids("é\N{GRINNING FACE} "),
    script_ids("a") * 9,
    script_ids("<|return|>"),
]
POLICY = GuardLimits(repeated_tokens_max=16)


class Wary(TurnSink):
    """Looks at everything."""

    @override
    def on_tokens(self, chunk: TokenChunk) -> bool:
        self._in_body = False
        return super().on_tokens(chunk)


def begun(kind: type[TurnSink] = TurnSink) -> tuple[TurnSink, Journal]:
    spec = run_spec()
    journal = MemoryJournal(LiveLog(folds(spec.head, spec.rules), reader_events_max=100))
    journal.append(TurnStarted(10))
    guard = OutputGuard(spec.rules, POLICY, harmony(), reasoning_budget=None)
    sink = kind(journal, guard, on_first_chunk=lambda _: None, on_first_token=lambda: None)
    return sink, journal


Outcome = tuple[list[bool], "TurnEnding | None", FinishReason | None, int, "list[Event]", list[int]]


async def heard(kind: type[TurnSink], chunks: list[TokenChunk]) -> Outcome:
    sink, journal = begun(kind)
    shown: list[Event] = []
    follower = asyncio.create_task(journal.live.stream(shown.extend))
    await asyncio.sleep(0)
    answers = []
    for chunk in chunks:
        answers.append(sink.on_tokens(chunk) or await sink.room())
        if not answers[-1]:
            break
    journal.live.hand_over()
    await follower
    said = journal.live.fold.turns[0].output_ids
    return answers, sink.ending, sink.finish, sink.cached_tokens, shown, list(said)


@pytest.mark.slow
@given(
    st.lists(st.sampled_from(PIECES), max_size=12),
    st.lists(st.integers(1, 12), min_size=1),
    st.booleans(),
    st.booleans(),
)
def test_text_that_is_not_looked_at_is_written_as_if_it_were(
    pieces: list[list[int]], sizes: list[int], is_told: bool, has_words: bool
) -> None:
    ids = [*FINAL, *(token for piece in pieces for token in piece)]
    chunks, at = list[TokenChunk](), 0
    while at < len(ids):
        part = ids[at : at + sizes[len(chunks) % len(sizes)]]
        chunks.append(TokenChunk(part, logprobs=[TokenLogprob(-1.0) for _ in part] * is_told))
        at += len(part)
    words = script_ids("and so") if has_words else []
    chunks.append(TokenChunk(words, FinishReason.STOP, 4))
    assert asyncio.run(heard(TurnSink, chunks)) == asyncio.run(heard(Wary, chunks))


HEADER_IDS = [*script_ids("<|channel|><|message|><|constrain|><|start|><|end|><|return|>")]
WORDS = script_ids("final analysis to=functions. json assistant")


def heard_in(
    sizes: list[int], ids: list[int], header_tokens_max: int, *, joins: bool
) -> tuple[object, ...]:
    """What comes of ids that are heard so many at once, the last of the sizes again and again.

    Unless it `joins` them, the ids of a header are written one after the other.
    """

    async def hear() -> tuple[object, ...]:
        spec = run_spec()
        live = LiveLog(folds(response_head(), spec.rules), reader_events_max=100)
        journal = MemoryJournal(live)
        journal.append(TurnStarted(10))
        policy = GuardLimits(header_tokens_max=header_tokens_max)
        guard = OutputGuard(spec.rules, policy, harmony(), reasoning_budget=None)
        guard._joins_header = joins and guard._joins_header
        sink = TurnSink(journal, guard, on_first_chunk=lambda _: None, on_first_token=lambda: None)
        rest, at = ids, 0
        while rest:
            size = sizes[min(at, len(sizes) - 1)]
            if not sink.on_tokens(TokenChunk(rest[:size])) and not await sink.room():
                break
            rest, at = rest[size:], at + 1
        fold = live.fold
        said = tuple(fold.turns[0].output_ids)
        return sink.ending, said, fold.place, fold.response(), fold.recoveries, fold.seen

    return asyncio.run(hear())


@pytest.mark.slow
@given(
    st.lists(st.sampled_from([*HEADER_IDS, *WORDS]), min_size=1, max_size=12),
    st.lists(st.integers(1, 12), min_size=1, max_size=6),
    st.sampled_from([1, 2, 4, 5, 6, 64]),
    st.sampled_from([[], [HEADER_IDS[0]], [HEADER_IDS[0], WORDS[0], HEADER_IDS[1]]]),
)
def test_a_header_that_is_written_as_a_whole_is_decided_about_as_one_that_is_not(
    ids: list[int], sizes: list[int], header_tokens_max: int, front: list[int]
) -> None:
    whole = [*front, *ids]
    joined = heard_in(sizes, whole, header_tokens_max, joins=True)
    assert joined == heard_in(sizes, whole, header_tokens_max, joins=False)


@pytest.mark.parametrize("before", [[], [TokenChunk([*FINAL, *script_ids("and so")])]])
async def test_nothing_is_written_once_the_run_is_abandoned(before: list[TokenChunk]) -> None:
    sink, journal = begun()
    for chunk in before:
        sink.on_tokens(chunk)
    journal.abandon()
    assert journal.is_abandoned
    with pytest.raises(ClaimLost):
        sink.on_tokens(TokenChunk(script_ids(" on")))


MARKERS = script_ids("<|end|><|start|>assistant<|channel|>commentary<|message|>")


@pytest.mark.slow
@pytest.mark.parametrize(
    "ids",
    [
        [*FINAL, *(token for at in range(400) for token in (*MARKERS, 1000 + at))],
        [*FINAL, *range(1000, 20_000)],
        [*FINAL, *(token for at in range(2000) for token in (MESSAGE, 1000 + at))],
        [*FINAL, *(token for at in range(400) for token in (END, 1000 + at, START))],
    ],
)
async def test_of_what_comes_at_once_a_bounded_part_is_written_in_one_turn_of_the_loop(
    ids: list[int],
) -> None:
    sink, journal = begun()
    written = Counter[int]()
    append = journal.append
    async with counted_rounds() as rounds:

        def noting(entry: Entry) -> None:
            written[rounds.count] += not isinstance(entry, Mark)
            append(entry)

        journal.append = noting
        assert not sink.on_tokens(TokenChunk(ids, FinishReason.LENGTH))
        assert await sink.room()
    assert max(written.values()) <= PIECES_MAX
    assert len(written) > 2
    assert list(journal.live.fold.turns[0].output_ids) == ids


async def test_what_is_left_of_a_chunk_is_not_written_once_the_claim_is_lost() -> None:
    sink, journal = begun()
    assert not sink.on_tokens(TokenChunk([*FINAL, *MARKERS * 100]))
    journal.abandon()
    with pytest.raises(ClaimLost):
        await sink.room()


async def test_the_gateway_may_end_a_turn_in_what_was_left_of_a_chunk() -> None:
    sink, _ = begun()
    assert not sink.on_tokens(TokenChunk([*FINAL, *MARKERS * 20, *script_ids("no " * 200)]))
    assert not await sink.room()
    assert sink.ending is not None
    assert sink.ending.rule == REPETITION
