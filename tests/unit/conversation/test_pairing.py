"""What lost its other half is left out of a context, and nothing else."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.conversation.assembly import assemble
from gateway.conversation.compaction import compaction_item
from gateway.conversation.pairing import without_orphans
from gateway.errors import InvalidRequest
from gateway.ids import new_uuid
from gateway.protocol.items import CustomToolCallOutput
from tests.fakes.contexts import answer, call, context_item, output, thought, user

if TYPE_CHECKING:
    from gateway.protocol.context import ContextItem

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


@given(TURNS)
def test_a_history_of_whole_turns_stays_as_it_is(history: list[ContextItem]) -> None:
    assert without_orphans(history, []) == history


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
