"""Laws of the fold for turns of text: no cut counts, and what was lost stays honest."""

from __future__ import annotations

from functools import partial
from itertools import chain, pairwise
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.constraints.output_rules import OutputRules
from gateway.entries import Entry, Finished, Text, TurnEnded, TurnStarted, pack, unpack
from gateway.eventlog.fold.fold import Fold
from gateway.generation import IN_TOKEN, UNTOLD, FinishReason, ReportedUsage, TextLogprob, TextToken
from gateway.models.chat.passthrough import FRAMING, TextParser
from gateway.text_ids import ANSWER, ARGUMENTS, CALL, END, THOUGHT, ids_of
from tests.fakes.event_grammar import check_stream
from tests.fakes.fold_formats import parsed_by
from tests.fakes.response_heads import response_head
from tests.fakes.toy_logs import apply_all

if TYPE_CHECKING:
    from collections.abc import Sequence

RULES = OutputRules({}, frozenset())
WORDS = st.sampled_from(["Hm.", "Oslo, né? 😀 ", "\n", '{"a":1}', "get"])
PARTS = st.lists(
    st.tuples(st.sampled_from([(THOUGHT,), (ANSWER,), (CALL, *ids_of("get"), ARGUMENTS)]), WORDS),
    max_size=4,
)
TURNS = PARTS.map(lambda parts: [one for mark, word in parts for one in (*mark, *ids_of(word))])
ENDINGS = st.sampled_from([FinishReason.STOP, FinishReason.LENGTH, FinishReason.FILTERED])


def new_fold() -> Fold:
    parser = partial(TextParser, RULES)
    return Fold(response_head(), parsed_by(lambda trace: parser(trace=trace), FRAMING), RULES)


def texts(ids: Sequence[int], cuts: Sequence[int]) -> list[Entry]:
    bounds = [0, *sorted(min(cut, len(ids)) for cut in cuts), len(ids)]
    return [Text(tuple(ids[a:b])) for a, b in pairwise(bounds) if a < b]


def folded(log: list[Entry], *, is_lost: bool = False) -> dict[str, Any]:
    """`is_lost`: an item may be incomplete though others follow, as in no other stream."""
    fold = new_fold()
    events = apply_all(fold, unpack(pack(log)))
    assert [event.sequence_number for event in events] == list(range(len(events)))
    if not is_lost:
        check_stream(events)
    return fold.response()


CUTS = st.lists(st.integers(0, 60), max_size=6)


@pytest.mark.slow
@given(TURNS, CUTS, ENDINGS, st.none() | st.just(ReportedUsage(9, 8, 7, 6)))
def test_no_cut_counts(
    ids: list[int], cuts: list[int], finish: FinishReason, usage: ReportedUsage | None
) -> None:
    said = [*ids, END] if finish is FinishReason.STOP else ids
    ending: list[Entry] = [TurnEnded(finish, 0, usage), Finished("completed", 5)]
    whole = folded([TurnStarted(20), *texts(said, ()), *ending])
    assert whole == folded([TurnStarted(20), *texts(said, cuts), *ending])
    told = whole["usage"]
    if usage is not None:
        assert (told["input_tokens"], told["output_tokens"]) == (9, 8)
    assert told.get("estimated", False) is (usage is None)


@pytest.mark.slow
@given(TURNS, TURNS, CUTS)
def test_a_turn_that_was_lost_is_incomplete_and_free(
    lost: list[int], again: list[int], cuts: list[int]
) -> None:
    anew = [TurnStarted(20), *texts([*again, END], cuts), TurnEnded(FinishReason.STOP)]
    end = Finished("completed", 5)
    made = folded(
        [TurnStarted(20), *texts(lost, cuts), TurnEnded(FinishReason.LOST), *anew, end],
        is_lost=True,
    )
    alone = folded([*anew, end])
    count = len(alone["output"])
    assert [_bare(item) for item in made["output"][len(made["output"]) - count :]] == [
        _bare(item) for item in alone["output"]
    ]
    assert made["usage"] == alone["usage"]


def test_the_usage_of_a_turn_that_was_broken_off_is_estimated() -> None:
    said = texts([ANSWER, *ids_of("Oslo")], ())
    assert folded([TurnStarted(20), *said, Finished("cancelled", 5)])["usage"]["estimated"] is True


def _bare(item: dict[str, Any]) -> dict[str, Any]:
    """Without what depends on its place."""
    return {name: value for name, value in item.items() if name not in {"id", "call_id"}}


TOLD_WORDS = st.lists(
    st.tuples(
        st.sampled_from(["Os", "lo,", " né?", "\n\n", " ", "😀"]), st.floats(-9, 0, width=16)
    ),
    min_size=1,
    max_size=8,
)


@pytest.mark.slow
@given(TOLD_WORDS, CUTS, st.booleans())
def test_what_is_told_of_tokens_is_told_of_the_same_text_however_it_was_cut(
    said: list[tuple[str, float]], cuts: list[int], is_told: bool
) -> None:
    ids, told = [ANSWER], [IN_TOKEN]
    for word, logprob in said:
        token = TextToken(word.encode(), logprob)
        ids += ids_of(word)
        told += [TextLogprob((token,)), *[IN_TOKEN] * (len(word) - 1)]
    ids.append(END)
    told.append(IN_TOKEN)
    if not is_told:
        told[1] = UNTOLD
    bounds = [0, *sorted(min(cut, len(ids)) for cut in cuts), len(ids)]
    cut_up = [Text(tuple(ids[a:b]), tuple(told[a:b])) for a, b in pairwise(bounds) if a < b]
    ending: list[Entry] = [TurnEnded(FinishReason.STOP), Finished("completed", 5)]
    made = folded([TurnStarted(20), *cut_up, *ending])
    assert made == folded([TurnStarted(20), Text(tuple(ids), tuple(told)), *ending])
    text = "".join(word for word, _ in said)
    if not text.strip():
        return
    (part,) = made["output"][0]["content"]
    assert part["text"] == text
    spelled = bytes(chain.from_iterable(one["bytes"] for one in part["logprobs"])).decode()
    assert spelled == (text if is_told else "")
