"""Laws of the fold for turns of text: no cut counts, and what was lost stays honest."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Any

from hypothesis import given
from hypothesis import strategies as st

from gateway.constraints.rules import OutputRules
from gateway.entries import Entry, Finished, Text, TurnEnded, TurnStarted, pack, unpack
from gateway.eventlog.fold.fold import Fold
from gateway.generation import FinishReason, ToldUsage
from gateway.models.chat.passthrough.format import FRAMING
from gateway.models.chat.passthrough.parsing import TextParser
from gateway.text_ids import ANSWER, ARGUMENTS, CALL, END, THOUGHT, ids_of
from tests.fakes.event_grammar import check_stream
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
    return Fold(response_head(), lambda _: TextParser(RULES), FRAMING, RULES)


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


@given(TURNS, CUTS, ENDINGS, st.none() | st.just(ToldUsage(9, 8, 7, 6)))
def test_no_cut_counts(
    ids: list[int], cuts: list[int], finish: FinishReason, usage: ToldUsage | None
) -> None:
    said = [*ids, END] if finish is FinishReason.STOP else ids
    ending: list[Entry] = [TurnEnded(finish, 0, usage), Finished("completed", 5)]
    whole = folded([TurnStarted(20), *texts(said, ()), *ending])
    assert whole == folded([TurnStarted(20), *texts(said, cuts), *ending])
    told = whole["usage"]
    if usage is not None:
        assert (told["input_tokens"], told["output_tokens"]) == (9, 8)
    assert told.get("estimated", False) is (usage is None and bool(said))


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


def _bare(item: dict[str, Any]) -> dict[str, Any]:
    """Without what depends on its place."""
    return {name: value for name, value in item.items() if name not in {"id", "call_id"}}
