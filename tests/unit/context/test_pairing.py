"""What lost its other half is left out of a context, and nothing else."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.context.assembly import assemble, with_call_ids, without_orphans
from gateway.context.shortening import compaction_item
from gateway.errors import InvalidRequest
from gateway.ids import new_uuid
from gateway.protocol.items import CustomToolCallOutput, FunctionCallOutput
from tests.fakes.contexts import answer, call, context_item, output, thought, uncalled, user

if TYPE_CHECKING:
    from gateway.protocol.context_item import ContextItem

SUMMARY = compaction_item("cmp_1", "seal", "it went well")


def kept(*history: ContextItem, added: tuple[ContextItem, ...] = ()) -> list[int]:
    """Indexes of what is left of a history."""
    left = [id(item) for item in without_orphans(history, added)]
    return [index for index, item in enumerate(history) if id(item) in left]


def test_whole_pairs_stay() -> None:
    history = [user(), call("a"), call("b"), output("b"), output("a"), answer(), user()]
    assert kept(*history) == list(range(7))


def test_a_call_without_an_output_goes_when_the_conversation_went_on() -> None:
    assert kept(user(), thought(), call("a"), user(), answer()) == [0, 1, 3, 4]
    assert kept(call("a"), output("a"), call("b"), user()) == [0, 1, 3]


def test_a_call_that_may_still_be_answered_stays() -> None:
    assert kept(user(), call("a")) == [0, 1]
    assert kept(user(), call("a"), answer(), thought()) == [0, 1, 2, 3]


def test_a_call_that_is_answered_late_stays() -> None:
    assert kept(call("a"), user(), added=(output("a"),)) == [0, 1]


def test_an_output_without_a_call_before_it_goes() -> None:
    assert kept(output("a"), user()) == [1]
    assert kept(output("a"), call("a")) == [1]
    assert kept(call("a"), output("a"), output("a")) == [0, 1]


def test_an_output_of_another_kind_goes_with_its_call() -> None:
    other = context_item(CustomToolCallOutput(call_id="a", output="x"))
    assert kept(call("a"), other, user()) == [2]


def test_of_two_calls_of_one_id_the_later_one_may_be_answered() -> None:
    assert kept(call("a"), call("a")) == [1]
    assert kept(call("a"), call("a"), output("a")) == [1, 2]


def test_what_a_compaction_hides_cannot_be_answered() -> None:
    assert kept(call("a"), SUMMARY, output("a")) == [1]
    assert kept(call("a"), SUMMARY, added=(output("a"),)) == [1]
    assert kept(call("a"), output("a"), SUMMARY, call("b")) == [0, 1, 2, 3]


TURNS = st.lists(
    st.sampled_from(
        [
            lambda name: [user(), answer()],
            lambda name: [user(), thought(), call(name), output(name), answer()],
            lambda name: [call(name), call(f"{name}+"), output(f"{name}+"), output(name)],
            lambda name: [SUMMARY],
        ]
    ),
    max_size=6,
).map(lambda turns: [item for i, turn in enumerate(turns) for item in turn(f"c{i % 2}")])


@pytest.mark.slow
@given(TURNS)
def test_a_history_of_whole_turns_stays_as_it_is(history: list[ContextItem]) -> None:
    assert without_orphans(history, []) == history


@pytest.mark.slow
@given(TURNS, st.data())
def test_whatever_is_deleted_the_conversation_can_go_on(
    history: list[ContextItem], data: st.DataObject
) -> None:
    left = [item for item in history if data.draw(st.booleans())]
    context = assemble([*left, user()], (), stored={}, unsealed={}, response=new_uuid())
    assert [item for item in context.items if not (item.is_call or item.is_output)] == [
        item for item in [*left, context.items[-1]] if not (item.is_call or item.is_output)
    ]


def test_a_call_at_the_end_has_to_be_answered() -> None:
    with pytest.raises(InvalidRequest, match="No tool output found for function call a"):
        assemble([user(), call("a")], (), stored={}, unsealed={}, response=new_uuid())


def answers(*items: ContextItem, history: int = 0) -> list[str | None]:
    """The `call_id` of every item that names no call, as it is found out."""
    before, added = with_call_ids(items[:history], items[history:])
    told = [*before, *added]
    return [told[i].call_id for i, item in enumerate(items) if item.is_output and not item.call_id]


def test_an_output_without_a_call_id_is_that_of_the_last_open_call_of_its_name() -> None:
    calls = [call("a", "f"), call("b", "f"), call("c", "g"), call("d", "ns.f")]
    assert answers(*calls, uncalled("f")) == ["b"]
    assert answers(*calls, uncalled("f"), uncalled("f"), uncalled("f")) == ["b", "a", None]
    assert answers(*calls, uncalled("f", "ns")) == ["d"]


@pytest.mark.parametrize("history", range(4))
def test_the_call_may_be_in_the_history(history: int) -> None:
    assert answers(user(), call("a"), uncalled("f"), history=history) == ["a"]


def test_an_output_without_a_name_is_that_of_the_last_open_call() -> None:
    assert answers(call("a"), call("b", "g"), uncalled(), uncalled(), uncalled()) == [
        *("b", "a"),
        None,
    ]


def test_a_call_that_is_answered_by_its_id_is_not_taken_from_its_output() -> None:
    assert answers(call("a"), uncalled("f"), output("a")) == [None]
    assert answers(call("a"), uncalled(), output("a")) == [None]
    assert answers(call("a"), call("a"), uncalled("f"), output("a")) == ["a"]


def test_an_output_of_a_tool_that_was_not_called_answers_no_call() -> None:
    assert answers(call("a"), uncalled("goal", "agent")) == [None]


def test_calls_that_were_cut_off_or_are_hidden_are_not_answered() -> None:
    assert answers(call("a", complete=False), uncalled("f")) == [None]
    assert answers(call("a"), SUMMARY, uncalled("f")) == [None]


def test_the_answered_call_is_told_where_the_output_is_listed() -> None:
    _, (_, listed) = with_call_ids((), (call("a"), uncalled("f")))
    assert json.loads(listed.json)["call_id"] == "a"
    assert isinstance(listed.parsed, FunctionCallOutput)
    assert listed.parsed.call_id == "a"
    bare = replace(uncalled("f"), json=b"", parsed=None)
    _, (_, unread) = with_call_ids((), (call("a"), bare))
    assert (unread.call_id, unread.json, unread.parsed) == ("a", b"", None)


def test_what_a_tool_said_unasked_stays_and_what_no_tool_said_goes() -> None:
    assert kept(user(), uncalled("f"), uncalled(), user()) == [0, 1, 3]


def test_an_output_that_tells_neither_call_nor_name_is_refused() -> None:
    new = [FunctionCallOutput(output="x")]
    with pytest.raises(InvalidRequest, match="without call_id"):
        assemble([user()], new, stored={}, unsealed={}, response=new_uuid())
