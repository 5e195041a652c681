"""Assembling a context: order, identity, references, and every call with its output."""

from __future__ import annotations

from uuid import UUID

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.conversation.assembly import Context, assemble, referenced_ids
from gateway.errors import InvalidRequest, ResourceNotFound
from gateway.protocol.context import ContextItem
from gateway.protocol.items import (
    FunctionCall,
    FunctionCallOutput,
    InputItem,
    InputText,
    ItemReference,
    Message,
    OutputText,
    Reasoning,
    ReasoningText,
)

RESPONSE = UUID(int=7)


def user(text: str, item_id: str | None = None) -> Message:
    return Message(id=item_id, role="user", content=(InputText(text=text),))


def call(call_id: str, name: str = "f") -> FunctionCall:
    return FunctionCall(call_id=call_id, name=name, arguments="{}")


def output(call_id: str, text: str = "ok") -> FunctionCallOutput:
    return FunctionCallOutput(call_id=call_id, output=text)


def assembled(*new: InputItem, history: tuple[ContextItem, ...] = ()) -> Context:
    return assemble(history, new, stored={}, response=RESPONSE)


def test_new_items_follow_the_history_and_are_told_apart() -> None:
    first = assembled(user("one")).items
    context = assembled(user("two"), history=first)
    assert [item.json for item in context.items[:1]] == [first[0].json]
    assert context.inherited == 1
    assert b"two" in context.added[0].json


def test_items_get_an_id_and_are_listed_as_completed() -> None:
    (item,) = assembled(user("hi")).items
    listed = orjson.loads(item.json)
    assert listed["id"] == item.item_id == f"msg_{RESPONSE.hex}i0000"
    assert listed["status"] == "completed"
    assert listed["content"][0]["text"] == "hi"


def test_ids_of_the_client_are_kept() -> None:
    (item,) = assembled(user("hi", "msg_mine")).items
    assert item.item_id == "msg_mine"


def test_roles_phases_names_and_call_ids_are_known_without_parsing() -> None:
    answer = Message(role="assistant", content=(OutputText(text="a"),), phase="final_answer")
    message, called, answered = assembled(answer, call("c1"), output("c1")).items
    assert (message.role, message.phase) == ("assistant", "final_answer")
    assert (called.name, called.call_id) == ("f", "c1")
    assert (answered.kind, answered.call_id) == ("function_call_output", "c1")
    assert message.item() == answer


@pytest.mark.parametrize(
    ("items", "message"),
    [
        ((output("c1"),), "No tool call found for function call output with call_id c1."),
        ((output("c1"), call("c1")), "No tool call found"),
        ((call("c1"),), "No tool output found for function call c1."),
        ((call("c1"), call("c1"), output("c1")), "No tool output found for function call c1."),
        ((call("c1"), output("c1"), output("c1")), "No tool call found"),
        ((call("c1"), user("never mind")), "No tool output found for function call c1."),
    ],
)
def test_calls_and_outputs_must_pair_up(items: tuple[InputItem, ...], message: str) -> None:
    with pytest.raises(InvalidRequest, match=message) as caught:
        assembled(*items)
    assert caught.value.param == "input"


def test_an_output_may_answer_a_call_of_the_history() -> None:
    history = assembled(call("c1"), output("c1")).items[:1]
    assert len(assembled(output("c1"), history=history).items) == 2


def test_a_call_id_may_be_used_again_once_it_was_answered() -> None:
    assert len(assembled(call("c"), output("c"), call("c"), output("c")).items) == 4


def test_a_call_that_was_cut_off_is_left_out() -> None:
    cut = ContextItem("function_call", "fc_1", b"{}", call_id="c1", name="f", complete=False)
    context = assembled(user("go on"), history=(cut,))
    assert [item.kind for item in context.items] == ["message"]
    assert context.inherited == 0


def cut_call(call_id: str, item_id: str | None = None) -> FunctionCall:
    return FunctionCall(id=item_id, call_id=call_id, name="f", arguments='{"a', status="incomplete")


def test_a_cut_off_call_in_the_input_need_not_be_answered() -> None:
    context = assembled(user("go"), cut_call("c1"), user("go on"))
    called = context.items[1]
    assert (called.kind, called.complete) == ("function_call", False)
    assert orjson.loads(called.json)["status"] == "incomplete"
    assert len(assembled(user("and on"), history=context.items).items) == 3


def test_a_cut_off_call_that_was_answered_is_a_call_like_any_other() -> None:
    called, _ = assembled(cut_call("c1"), output("c1")).items
    assert called.complete
    assert orjson.loads(called.json)["status"] == "completed"


def test_a_cut_off_call_may_have_the_id_of_one_that_was_answered() -> None:
    context = assembled(call("c"), output("c"), cut_call("c"), user("go on"), cut_call("c"))
    assert [item.complete for item in context.items] == [True, True, False, True, False]


def test_a_reference_to_a_cut_off_call_adds_nothing() -> None:
    (stored,) = assembled(cut_call("c1", "fc_1")).items
    context = assemble((), [ItemReference(id="fc_1")], stored={"fc_1": stored}, response=RESPONSE)
    assert context.items == ()


def test_ids_are_unique_within_a_context() -> None:
    history = assembled(user("one", "msg_1")).items
    context = assembled(user("two", "msg_1"), user("three", "msg_1"), history=history)
    listed = [item.item_id for item in context.items]
    assert listed == ["msg_1", f"msg_{RESPONSE.hex}i0000", f"msg_{RESPONSE.hex}i0001"]
    assert [orjson.loads(item.json)["id"] for item in context.items] == listed


@pytest.mark.parametrize("again", [ItemReference(id="rs_1"), Reasoning(id="rs_1")])
def test_a_reference_to_what_is_there_already_adds_nothing(again: InputItem) -> None:
    thought = Reasoning(id="rs_1", content=(ReasoningText(text="t"),))
    history = assembled(thought).items
    assert assembled(again, history=history).items == history
    assert assembled(thought, again).items == history


def test_reasoning_that_another_provider_encrypted_is_kept() -> None:
    sealed = Reasoning(id="rs_1", encrypted_content="gAAA")
    (item,) = assembled(sealed).items
    assert orjson.loads(item.json)["encrypted_content"] == "gAAA"
    assert len(assembled(Reasoning(encrypted_content="gAAA")).items) == 1


def test_reasoning_that_is_stored_is_taken_from_the_store_even_if_it_is_encrypted_too() -> None:
    (stored,) = assembled(Reasoning(id="rs_1", content=(ReasoningText(text="t"),))).items
    sealed = Reasoning(id="rs_1", encrypted_content="gAAA")
    context = assemble((), [sealed], stored={"rs_1": stored}, response=RESPONSE)
    assert context.items == (stored,)


def test_a_reference_becomes_the_stored_item() -> None:
    (stored,) = assembled(user("earlier", "msg_1")).items
    reference = ItemReference(id="msg_1")
    assert referenced_ids([reference]) == ["msg_1"]
    context = assemble((), [reference], stored={"msg_1": stored}, response=RESPONSE)
    assert context.items == (stored,)


@pytest.mark.parametrize("item", [ItemReference(id="x_1"), Reasoning(id="x_1")])
def test_an_unknown_reference_is_not_found(item: InputItem) -> None:
    assert referenced_ids([item]) == ["x_1"]
    with pytest.raises(ResourceNotFound, match="Item with id 'x_1' not found") as caught:
        assembled(item)
    assert caught.value.param == "input"


def test_reasoning_that_says_nothing_and_has_no_id_is_left_out() -> None:
    assert referenced_ids([Reasoning(), user("x", "msg_9")]) == []
    assert [item.kind for item in assembled(Reasoning(), user("x")).items] == ["message"]


def test_reasoning_with_content_needs_no_store() -> None:
    thought = Reasoning(id="rs_1", content=(ReasoningText(text="t"),))
    assert referenced_ids([thought]) == []
    assert assembled(thought).items[0].item_id == "rs_1"


@given(st.permutations(["a", "b", "c", "d"]))
def test_outputs_may_come_in_any_order(order: list[str]) -> None:
    context = assembled(*map(call, "abcd"), *map(output, order))
    assert len(context.items) == 8
