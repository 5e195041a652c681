from __future__ import annotations

from array import array
from typing import TYPE_CHECKING

import pytest

from gateway.errors import InvalidRequest
from gateway.models.history import (
    PlacedItem,
    in_call_order,
    leading_instructions,
    repeated_ids,
    without_stale_reasoning,
)
from gateway.protocol.context_item import Columns, Label
from tests.fakes.contexts import answer, call, output, said, thought, uncalled, user

if TYPE_CHECKING:
    from gateway.protocol.context_item import ContextItem


def place(items: list[ContextItem]) -> list[PlacedItem]:
    return [PlacedItem(index, item) for index, item in enumerate(items)]


def kept(items: list[ContextItem]) -> list[int]:
    return [placed.source for placed in without_stale_reasoning(place(items))]


def ordered(items: list[ContextItem]) -> list[int]:
    return [placed.source for placed in in_call_order(place(items))]


@pytest.mark.requirement("harmony.reasoning-is-dropped")
@pytest.mark.requirement("harmony.reasoning-is-kept")
def test_reasoning_before_the_last_answer_goes_and_reasoning_after_it_stays() -> None:
    items = [user(), thought("old"), answer(), user(), thought("new"), call(), output()]
    assert kept(items) == [0, 2, 3, 4, 5, 6]


@pytest.mark.requirement("harmony.reasoning-is-dropped")
def test_all_reasoning_of_an_answered_turn_goes_though_a_user_message_follows() -> None:
    items = [user(), thought(), call(), output(), thought(), answer(), user()]
    assert kept(items) == [0, 2, 3, 5, 6]


@pytest.mark.parametrize(("is_answered", "left"), [(False, [1, 3, 4, 5]), (True, [1, 3, 4])])
def test_ids_of_stale_reasoning_are_not_repeated(is_answered: bool, left: list[int]) -> None:
    items = [user(), thought("old"), answer(), user(), thought("new")]
    labels = {
        str(at): Label(one.kind, one.role, one.phase, one.complete) for at, one in enumerate(items)
    }
    ids = array("I", range(1, 6))
    history = Columns(list(labels), labels, array("I", [ids.itemsize] * 5), ids)
    assert list(repeated_ids(history, is_answered=is_answered) or ()) == left


@pytest.mark.requirement("harmony.reasoning-is-kept")
def test_reasoning_of_an_unfinished_tool_loop_stays_though_a_user_message_follows() -> None:
    items = [user(), thought(), call(), output(), user()]
    assert kept(items) == [0, 1, 2, 3, 4]


def test_a_message_without_a_phase_is_an_answer() -> None:
    assert kept([thought(), answer(phase=None), thought()]) == [1, 2]


@pytest.mark.requirement("harmony.calls-stay")
def test_commentary_is_no_answer() -> None:
    assert kept([thought(), answer(phase="commentary"), call(), output()]) == [0, 1, 2, 3]


def test_what_a_tool_said_unasked_stays_where_it_is() -> None:
    items = [call("a"), uncalled("goal", "agent"), output("a"), uncalled("g")]
    assert ordered(items) == [0, 2, 1, 3]
    assert [placed.function for placed in in_call_order(place(items))] == [
        *(None, "f", "agent.goal", "g")
    ]


def test_parallel_calls_are_shown_one_after_the_other_in_call_order() -> None:
    items = [user(), call("c1"), call("c2"), output("c2"), output("c1")]
    assert ordered(items) == [0, 1, 4, 2, 3]


@pytest.mark.parametrize(
    ("items", "shown"),
    [
        ([user(), thought(), call(), user(), output()], [0, 1, 3, 2, 4]),
        ([call("a"), call("b"), user(), output("a"), output("b"), user()], [2, 0, 3, 1, 4, 5]),
        ([call("a"), output("a"), call("b"), user(), output("b")], [0, 1, 3, 2, 4]),
        ([call(), answer(phase="commentary"), output()], [0, 2, 1]),
    ],
)
def test_an_output_behind_a_message_of_the_user_takes_its_call_there(
    items: list[ContextItem], shown: list[int]
) -> None:
    assert ordered(items) == shown


def test_an_output_knows_the_name_of_its_function() -> None:
    items = [call("c1", "f"), call("c2", "g"), output("c2"), output("c1")]
    assert [placed.function for placed in in_call_order(place(items))] == [None, "f", None, "g"]


def test_a_call_id_used_twice_pairs_in_order() -> None:
    items = [call("c1", "f"), output("c1"), call("c1", "g"), output("c1")]
    assert ordered(items) == [0, 1, 2, 3]


def test_a_call_without_an_output_stays() -> None:
    assert ordered([call("c1"), user()]) == [0, 1]


def test_a_call_that_was_cut_off_is_left_out_and_takes_no_output() -> None:
    items = [user(), call("c1", complete=False), call("c1"), output("c1")]
    assert ordered(items) == [0, 2, 3]


@pytest.mark.parametrize("items", [[output("c1")], [call("c1"), output("c1"), output("c1")]])
def test_an_output_without_a_call_is_refused(items: list[ContextItem]) -> None:
    with pytest.raises(InvalidRequest, match="call_id c1") as caught:
        ordered(items)
    assert caught.value.param == "input"


def test_leading_instructions_end_at_the_first_other_item() -> None:
    system, developer = said("system", "A"), said("developer", "B")
    assert leading_instructions([]) == 0
    assert leading_instructions([system, developer]) == 2
    assert leading_instructions([system, thought(), developer]) == 1
