"""What is replayed many entries at once is what was folded one by one."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from gateway.api import sse
from gateway.entries import (
    SINGLES_MAX,
    Entry,
    Finished,
    Singles,
    Tokens,
    TurnStarted,
    pack,
    packed_entry,
    portions,
    unpack,
)
from gateway.eventlog.fold.fold import Fold
from gateway.eventlog.fold_slices import EntryBuffer, fold_slice
from gateway.generation import SegmentText
from gateway.models.harmony.parsing import Parser
from gateway.protocol.stream_events import Deltas
from tests.fakes.fold_formats import parsed_by
from tests.fakes.harmony_script import TOOLS, script_ids, vocabulary
from tests.fakes.response_heads import NO_RULES, response_head
from tests.fakes.toy_logs import FRAMING, RULES, apply_all, logs, new_fold, steered_logs
from tests.fakes.toy_parser import FINAL, PIECES, TEXT

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from gateway.constraints.output_rules import OutputRules
    from gateway.entries import Portion
    from gateway.protocol.stream_events import Event

laws = settings(deadline=None)
_AGES_S = 3600.0

_SCRIPTS = (
    "<|channel|>analysis<|message|>Let me see. 💖 नमस्ते<|end|><|start|>assistant",
    "<|channel|>final<|message|>Hello 💖, world",
    '<|channel|>commentary to=functions.bash <|constrain|>json<|message|>{"a": 1}<|call|>',
    "<|channel|>commentary to=functions.bash<|message|>",
    "<|channel|>analysis to=functions.bash<|message|>x",
    "some text",
    "<|return|>",
)
_SPOKEN = [script_ids(script) for script in _SCRIPTS]
# Halves of characters, and ids that are no text or none at all.
_STRAY = [*script_ids("💖"), *script_ids("नमस्ते"), 199998, 201087, 2**32 - 1]
_IDS = st.lists(st.sampled_from([*_SPOKEN, *([token] for token in _STRAY)]), max_size=12).map(
    lambda pieces: [token for piece in pieces for token in piece]
)
_LONG_ANSWER: list[Entry] = [
    TurnStarted(0),
    Tokens((FINAL,)),
    *(Tokens((TEXT + number % len(PIECES),)) for number in range(2 * SINGLES_MAX + 3)),
    Finished("completed", 1_795_000_009),
]


def one_id_each(entries: Iterable[Entry]) -> list[Entry]:
    """The same log as a paced stream leaves it."""
    return [
        alone
        for entry in entries
        for alone in (
            [Tokens((token,), entry.logprobs[at : at + 1]) for at, token in enumerate(entry.ids)]
            if isinstance(entry, Tokens)
            else [entry]
        )
    ]


def spread(taken: Iterable[Portion]) -> list[Entry]:
    """Their entries, one by one."""
    return [
        entry
        for portion in taken
        for entry in (
            [Tokens((token,)) for token in portion.ids]
            if isinstance(portion, Singles)
            else [portion]
        )
    ]


def check_replay(
    fresh: Callable[[], Fold], log: list[Entry], data: st.DataObject, *, is_whole: bool
) -> None:
    """From any entry on, for a reader with any events, the replay is the fold."""
    log = one_id_each(log) if data.draw(st.booleans()) else log
    begin = data.draw(st.integers(0, len(log)))
    end = len(log) if is_whole else data.draw(st.integers(begin, len(log)))
    plain, replayed = fresh(), fresh()
    apply_all(replayed, log[:begin])
    events = [*apply_all(plain, log[:begin]), *apply_all(plain, log[begin:end])]
    after = data.draw(st.integers(-1, len(events)))
    known = len(apply_all(fresh(), log[:begin]))
    found: list[Event] = []
    packed = pack(log[:end])
    for portion in portions(packed, begin):
        found += replayed.replay(portion, after)
    wanted = [event for event in events[known:] if event.sequence_number > after]
    assert [event for event in found if event.sequence_number > after] == wanted
    assert [event.text for event in found if event.sequence_number > after] == [
        event.text for event in wanted
    ]
    assert knowledge(replayed) == knowledge(plain)


def knowledge(fold: Fold) -> dict[str, Any]:
    """All that a fold says of itself."""
    names = (
        *("violation", "bodies", "called", "is_repaired", "place", "seen", "stopped", "hops"),
        *("is_held", "turns", "usage", "recoveries", "listed"),
        *("approval_request", "approved_result", "rules"),
    )
    of_calls = ("call", "attempts", "started", "handle", "states", "results", "result_ids")
    return {
        "response": fold.response(),
        "items": fold.items(),
        "is_visible": fold.shown.is_visible,
        "is_finished": fold.shown.is_finished,
        "tool_state": fold.hosted.state_json(),
        **{name: getattr(fold, name) for name in names},
        **{name: getattr(fold.hosted, name) for name in of_calls},
    }


@pytest.mark.slow
@laws
@given(logs(), st.data(), st.booleans())
def test_a_log_is_replayed_as_it_was_folded(
    log: list[Entry], data: st.DataObject, is_whole: bool
) -> None:
    check_replay(new_fold, log, data, is_whole=is_whole)


@pytest.mark.slow
@laws
@given(st.data(), st.booleans())
def test_a_long_answer_is_replayed_as_it_was_folded(data: st.DataObject, is_whole: bool) -> None:
    check_replay(new_fold, _LONG_ANSWER, data, is_whole=is_whole)


@pytest.mark.parametrize("rules", RULES)
def test_an_answer_under_any_rules_is_replayed_as_it_was_folded(rules: OutputRules) -> None:
    plain, replayed = new_fold(rules=rules), new_fold(rules=rules)
    found = [
        event for portion in portions(pack(_LONG_ANSWER)) for event in replayed.replay(portion)
    ]
    assert found == apply_all(plain, _LONG_ANSWER)
    assert knowledge(replayed) == knowledge(plain)


@pytest.mark.slow
@laws
@given(steered_logs(), st.data())
def test_a_steered_log_is_replayed_as_it_was_folded(
    case: tuple[OutputRules, list[Entry]], data: st.DataObject
) -> None:
    rules, log = case
    # As far as packing keeps them: a logprob has half the digits there.
    check_replay(lambda: new_fold(rules=rules), unpack(pack(log)), data, is_whole=True)


def new_harmony_fold() -> Fold:
    return Fold(
        response_head(),
        parsed_by(lambda trace: Parser(vocabulary(), frozenset(TOOLS), trace=trace), FRAMING),
        NO_RULES,
    )


@pytest.mark.slow
@laws
@given(_IDS, st.integers(0, 3), st.data())
def test_harmony_is_replayed_as_it_was_folded(
    ids: list[int], prefilled: int, data: st.DataObject
) -> None:
    log: list[Entry] = [TurnStarted(9, tuple(ids[:prefilled]))]
    log += [Tokens((token,)) for token in ids[prefilled:]]
    log.append(Finished("completed", 1_795_000_009))
    check_replay(new_harmony_fold, log, data, is_whole=data.draw(st.booleans()))


@pytest.mark.slow
@laws
@example(_SPOKEN[1] * 99, 1, 5, 0.0, True)
@example(_SPOKEN[1] * 99, 1, 300, _AGES_S, False)
@example(_SPOKEN[4] * 99, 2, 200, _AGES_S, True)
@given(
    st.tuples(_IDS, st.integers(1, 30)).map(lambda drawn: drawn[0] * drawn[1]),
    st.integers(1, 3),
    st.integers(-1, 400),
    st.sampled_from([0.0, _AGES_S]),
    st.booleans(),
)
def test_what_is_written_of_a_replay_is_what_each_event_would_have_been(
    ids: list[int], ids_an_entry: int, after: int, slice_s: float, obfuscate: bool
) -> None:
    """For any ids, entries, place to go on from, and slices."""
    starts = range(0, len(ids), ids_an_entry)
    log: list[Entry] = [TurnStarted(9)]
    log += [Tokens(tuple(ids[at : at + ids_an_entry])) for at in starts]
    log.append(Finished("completed", 1_795_000_009))
    encode, encode_run = sse.OBFUSCATED if obfuscate else sse.PLAIN
    written: list[bytes] = []

    def show(events: Sequence[Event]) -> None:
        wanted = [event for event in events if event.sequence_number > after]
        if isinstance(events, Deltas):
            assert len(wanted) == len(events)
            written.append(encode_run(events) if events else b"")
        else:
            written.extend(map(encode, wanted))

    replayed, taken, is_more = new_harmony_fold(), portions(pack(log)), True
    while is_more:
        _, is_more = fold_slice(replayed, taken, show, after=after, slice_s=slice_s)
    plain = new_harmony_fold()
    wanted = [event for event in apply_all(plain, log) if event.sequence_number > after]
    assert b"".join(written) == b"".join(map(encode, wanted))
    assert knowledge(replayed) == knowledge(plain)


@pytest.mark.slow
@laws
@given(_IDS, _IDS, st.booleans())
def test_ids_that_are_fed_together_are_what_each_would_have_told(
    before: list[int], ids: list[int], trace: bool
) -> None:
    one, other = (Parser(vocabulary(), frozenset(TOOLS), trace=trace) for _ in range(2))
    one.feed(before)
    other.feed(before)
    texts = one.feed_each(ids)
    told = [other.feed((token,)) for token in islice(ids, len(texts))]
    assert told == [[SegmentText(text)] if text else [] for text in texts]
    assert (one.place, one.reasoning_tokens) == (other.place, other.reasoning_tokens)
    rest = ids[len(texts) :]
    assert one.feed(rest) == other.feed(rest)
    assert one.finish(None) == other.finish(None)
    assert one.recoveries == other.recoveries


@pytest.mark.slow
@laws
@example(_LONG_ANSWER, 70, 160)
@given(steered_logs().map(lambda case: case[1]), st.integers(0, 60), st.integers(0, 60))
def test_portions_are_the_entries(log: list[Entry], start: int, size: int) -> None:
    log = unpack(pack(log))
    for entries in (log, one_id_each(log)):
        stop = min(len(entries), start + size)
        assert spread(portions(pack(entries), start)) == entries[start:]
        kept = EntryBuffer()
        for portion in portions(pack(entries)):
            kept.add(portion)
        assert list(kept) == entries
        for taken in (EntryBuffer(entries), kept):
            assert spread(taken.portions(start, stop)) == entries[start:stop]


def test_singles_are_packed_one_by_one() -> None:
    (portion,) = portions(pack([Tokens((7,)), Tokens((8,))]))
    assert portion == Singles((7, 8))
    assert b"".join(map(packed_entry, spread([portion]))) == pack(spread([portion]))[1:]
