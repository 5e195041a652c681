"""Leaving out the oldest turns: whole turns only, the last one never."""

from __future__ import annotations

from array import array
from typing import cast, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.context.shortening import costs_of, drop_oldest_turns, missing_tokens
from gateway.errors import ContextLengthExceeded
from gateway.generation import PREAMBLE, Prompt, Span
from gateway.protocol.context_item import CallKind, ContextItem, OutputKind
from tests.fakes.contexts import answering

DEVELOPER = ContextItem("message", "d", b"", role="developer")
USER = ContextItem("message", "u", b"", role="user")
ANSWER = ContextItem("message", "a", b"", role="assistant")
CALL = ContextItem("function_call", "c", b"", call_id="1", name="f")
OUTPUT = ContextItem("function_call_output", "o", b"", call_id="1")

CALL_KINDS: tuple[CallKind, ...] = get_args(CallKind)


PROMPT = Prompt(array("I", range(10)), (Span(PREAMBLE, 0, 3), Span(0, 3, 5), Span(1, 5, 9)))


REQUEST = ContextItem("mcp_approval_request", "r", b"", name="s.t")
CONSENT = answering("r", approve=True)
REFUSAL = answering("r", approve=False)
MADE = ContextItem("mcp_call", "m", b"", call_id="r")
SEARCH = ContextItem("web_search_call", "w", b"")


@pytest.mark.parametrize(
    ("items", "kept"),
    [
        ([USER, SEARCH, ANSWER, USER, ANSWER], [3, 4]),
        ([USER, REQUEST, CONSENT, USER, MADE, ANSWER], None),
        ([USER, REQUEST, CONSENT, USER, MADE, ANSWER, USER], [6]),
        ([USER, REQUEST, CONSENT, USER], None),
        ([USER, REQUEST, CONSENT, ANSWER, USER], [4]),
        ([USER, REQUEST, REFUSAL, USER], [3]),
        ([USER, REQUEST, USER], [2]),
    ],
)
def test_a_call_is_not_left_without_the_request_that_was_approved(
    items: list[ContextItem], kept: list[int] | None
) -> None:
    if kept is None:
        with pytest.raises(ContextLengthExceeded):
            drop_oldest_turns(items, [1] * len(items), 1)
    else:
        assert drop_oldest_turns(items, [1] * len(items), 1) == kept


@pytest.mark.parametrize(
    ("context_length", "answer_tokens", "missing"),
    [
        (30, 20, -5),  # an answer makes room for half of the window at most
        (30, 5, -15),
        (14, 5, 1),
        (8, 50, 6),
        (160, None, -140),  # no length was asked for: a sixteenth of the window
        (10, None, 0),
        (17, 0, -6),  # 17 // 16
    ],
)
def test_what_is_missing_for_the_answer(
    context_length: int, answer_tokens: int | None, missing: int
) -> None:
    assert missing_tokens(PROMPT, context_length, answer_tokens=answer_tokens) == missing


def test_an_item_costs_its_tokens_and_the_preamble_is_no_item_s() -> None:
    assert costs_of(PROMPT, 3) == [2, 4, 0]


def test_nothing_goes_when_nothing_has_to() -> None:
    assert drop_oldest_turns([USER, ANSWER, USER], [5, 5, 5], 0) == [0, 1, 2]


def test_the_oldest_turns_go_first_and_instructions_stay() -> None:
    items = [DEVELOPER, USER, ANSWER, USER, CALL, OUTPUT, ANSWER, USER]
    assert drop_oldest_turns(items, [9, 1, 1, 1, 1, 1, 1, 1], 3) == [0, 7]
    assert drop_oldest_turns(items, [9, 1, 1, 1, 1, 1, 1, 1], 2) == [0, 3, 4, 5, 6, 7]


def test_turns_go_for_what_is_wanted_as_far_as_there_are_any() -> None:
    items = [USER, ANSWER, USER, USER]
    assert drop_oldest_turns(items, [1, 1, 1, 9], 0, wanted_tokens=2) == [2, 3]
    assert drop_oldest_turns(items, [1, 1, 1, 9], 0, wanted_tokens=99) == [3]
    with pytest.raises(ContextLengthExceeded):
        drop_oldest_turns(items, [1, 1, 1, 9], 4, wanted_tokens=2)


def test_what_stands_before_the_first_user_message_is_a_turn_of_its_own() -> None:
    assert drop_oldest_turns([ANSWER, USER], [4, 4], 1) == [1]


@pytest.mark.parametrize("items", [[USER], [DEVELOPER], []])
def test_the_last_turn_is_never_dropped(items: list[ContextItem]) -> None:
    with pytest.raises(ContextLengthExceeded):
        drop_oldest_turns(items, [10] * len(items), 1)


def test_a_message_that_interrupts_a_tool_loop_opens_no_turn() -> None:
    items = [USER, CALL, USER, OUTPUT, ANSWER, USER]
    assert drop_oldest_turns(items, [1] * 6, 1) == [5]


def test_a_call_that_was_cut_off_waits_for_nothing() -> None:
    cut = ContextItem("function_call", "c", b"", call_id="1", name="f", complete=False)
    assert drop_oldest_turns([USER, cut, USER, ANSWER], [1] * 4, 1) == [2, 3]


@pytest.mark.parametrize("kind", CALL_KINDS)
def test_calls_of_every_kind_wait_for_their_output(kind: CallKind) -> None:
    call = ContextItem(kind, "c", b"", call_id="1", name="f")
    kinds = {"tool_search_call": "tool_search_output"}
    output_kind = kinds.get(kind, f"{kind}_output")
    output = ContextItem(cast("OutputKind", output_kind), "o", b"", call_id="1")
    items = [USER, call, USER, output, ANSWER, USER]
    assert drop_oldest_turns(items, [1] * 6, 1) == [5]


TURNS = ([USER, ANSWER], [USER, CALL, OUTPUT, ANSWER], [USER, CALL, USER, OUTPUT], [USER])


@pytest.mark.slow
@given(st.lists(st.sampled_from(TURNS), min_size=1), st.integers(0, 30))
def test_a_call_is_never_parted_from_its_output(
    turns: list[list[ContextItem]], excess_tokens: int
) -> None:
    items = [item for turn in turns for item in turn]
    try:
        kept = [items[i] for i in drop_oldest_turns(items, [1] * len(items), excess_tokens)]
    except ContextLengthExceeded:
        assert len(items) - len(turns[-1]) < excess_tokens
    else:
        assert len(items) - len(kept) >= excess_tokens
        assert kept.count(CALL) == kept.count(OUTPUT)
        assert kept[-len(turns[-1]) :] == turns[-1]
