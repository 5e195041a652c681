"""The turns of one response, as they stand behind its prompt."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.models.harmony.harmony_format import turn_ids
from gateway.models.harmony.tokenizer import (
    CALL,
    CHANNEL,
    END,
    END_OF_TEXT,
    FINAL_HEADER,
    OPENING,
    RETURN,
)

_IDS = st.lists(st.sampled_from([5, 6, CHANNEL, END, RETURN, CALL, END_OF_TEXT]), max_size=6)
_TURNS = st.lists(st.tuples(_IDS, _IDS), max_size=4)
_ENDINGS = {END, RETURN, CALL, END_OF_TEXT}


def test_without_a_turn_nothing_was_said() -> None:
    assert turn_ids([]) == []


def test_the_last_turn_stands_as_it_is() -> None:
    assert turn_ids([(FINAL_HEADER, (7, RETURN))]) == [*FINAL_HEADER, 7, RETURN]


def test_an_earlier_turn_is_closed_and_another_message_begun() -> None:
    turns = [((CHANNEL,), (7, 8, RETURN)), (FINAL_HEADER, ())]
    assert turn_ids(turns) == [CHANNEL, 7, 8, END, *OPENING, *FINAL_HEADER]


def test_a_turn_that_said_nothing_leaves_no_trace_and_neither_does_its_prefill() -> None:
    turns = [((CHANNEL,), ()), ((CHANNEL,), (RETURN,)), ((), (7,)), (FINAL_HEADER, (9,))]
    assert turn_ids(turns) == [7, END, *OPENING, *FINAL_HEADER, 9]


@pytest.mark.slow
@given(_TURNS, _IDS)
def test_more_of_the_last_turn_only_adds_to_the_end(
    turns: list[tuple[list[int], list[int]]], said: list[int]
) -> None:
    before = turn_ids([*turns, ((), ())])
    assert turn_ids([*turns, ((), said)]) == [*before, *said]


@pytest.mark.slow
@given(_TURNS)
def test_turns_can_be_folded_into_the_prompt_one_by_one(
    turns: list[tuple[list[int], list[int]]],
) -> None:
    ids: list[int] = []
    for turn in turns:
        ids += turn_ids([turn, ((), ())])
    assert ids == turn_ids([*turns, ((), ())])


@pytest.mark.slow
@given(_TURNS)
def test_a_message_is_never_closed_twice(turns: list[tuple[list[int], list[int]]]) -> None:
    said_only: list[tuple[list[int], list[int]]] = [
        ([], said) for _, said in turns if said and said[-1] in _ENDINGS
    ]
    ids = turn_ids([*said_only, ((), ())])
    openings = [at for at in range(2, len(ids)) if tuple(ids[at : at + 2]) == OPENING]
    assert all(ids[at - 2] not in _ENDINGS and ids[at - 1] == END for at in openings if at > 2)
