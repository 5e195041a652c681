"""Assembling a context: order, identity, references, and every call with its output."""

from __future__ import annotations

from array import array
from dataclasses import replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any
from uuid import UUID

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.context.assembly import Context, assemble, opening, referenced_ids
from gateway.errors import InvalidRequest, ResourceNotFound
from gateway.ids import output_item_id
from gateway.protocol.context_item import ContextItem
from gateway.protocol.items import (
    ApplyPatchCall,
    ApplyPatchCallOutput,
    CustomToolCall,
    CustomToolCallOutput,
    FileOperation,
    FunctionCall,
    FunctionCallOutput,
    InputItem,
    InputText,
    ItemReference,
    LocalShellAction,
    LocalShellCall,
    LocalShellCallOutput,
    McpCall,
    McpListTools,
    Message,
    OutputText,
    Reasoning,
    ReasoningText,
    ShellAction,
    ShellCall,
    ShellCallOutput,
)
from gateway.protocol.responses.create_request import CreateResponse
from gateway.sealing import Unsealed

if TYPE_CHECKING:
    from collections.abc import Mapping

RESPONSE = UUID(int=7)


def user(text: str, item_id: str | None = None) -> Message:
    return Message(id=item_id, role="user", content=(InputText(text=text),))


def call(call_id: str, name: str = "f") -> FunctionCall:
    return FunctionCall(call_id=call_id, name=name, arguments="{}")


def output(call_id: str, text: str = "ok") -> FunctionCallOutput:
    return FunctionCallOutput(call_id=call_id, output=text)


def assembled(
    *new: InputItem,
    history: tuple[ContextItem, ...] = (),
    stored: Mapping[str, ContextItem] = MappingProxyType({}),
    unsealed: Mapping[int, Unsealed] = MappingProxyType({}),
) -> Context:
    return assemble(history, new, stored=stored, unsealed=unsealed, response=RESPONSE)


def test_new_items_follow_the_history_and_are_told_apart() -> None:
    first = assembled(user("one")).items
    context = assembled(user("two"), history=first)
    assert [item.json for item in context.items[:1]] == [first[0].json]
    assert context.inherited == 1
    assert b"two" in context.items[context.inherited].json


@pytest.mark.requirement("context.input-gets-ids")
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
        ((call("c1"), call("c1"), output("c1")), "The call_id c1 is used twice: a function call"),
        ((call("c1"), call("c1"), output("c1"), output("c1")), "The call_id c1 is used twice"),
        ((call("c1"), output("c1"), output("c1")), "The call of that id has an output already"),
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


def said(response: int, ordinal: int, *, complete: bool) -> ContextItem:
    item_id = output_item_id("msg_", UUID(int=response), ordinal)
    return ContextItem("message", item_id, b"{}", role="assistant", complete=complete)


def test_what_broke_off_and_was_said_anew_is_left_out() -> None:
    broken, whole = said(1, 0, complete=False), said(1, 1, complete=True)
    assert assembled(user("on"), history=(broken, whole)).items[0] is whole
    for other in (said(2, 0, complete=True), replace(whole, item_id="msg_of_a_client")):
        assert assembled(user("on"), history=(broken, other)).items[:2] == (broken, other)
    assert assembled(user("on"), history=(broken,)).items[0] is broken


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
    context = assembled(ItemReference(id="fc_1"), stored={"fc_1": stored})
    assert context.items == ()


CUT = ContextItem("function_call", "fc_1", b"{}", call_id="c1", name="f", complete=False)


def test_a_cut_off_call_of_the_history_may_be_answered_too() -> None:
    context = assembled(output("c1"), history=(CUT,))
    assert [(item.kind, item.complete) for item in context.items] == [
        ("function_call", True),
        ("function_call_output", True),
    ]
    assert context.inherited == 1


def test_it_stays_answered_when_the_conversation_goes_on() -> None:
    asked, *_ = assembled(user("go")).items
    _, answered = assembled(cut_call("c1"), output("c1")).items
    history = (asked, CUT, answered)
    context = assembled(user("go on"), history=history)
    assert [item.kind for item in context.items] == [
        *("message", "function_call", "function_call_output", "message")
    ]
    assert all(item.complete for item in context.items)


def test_an_output_is_that_of_a_whole_call_first() -> None:
    (whole,) = assembled(call("c1"), output("c1")).items[:1]
    for history in [(CUT, whole), (whole, CUT)]:
        context = assembled(output("c1"), history=history)
        assert context.items[:-1] == (whole,)


def test_an_output_of_another_kind_answers_no_cut_off_call() -> None:
    with pytest.raises(InvalidRequest, match="No tool call found for custom tool call output"):
        assembled(CustomToolCallOutput(call_id="c1", output="x"), history=(CUT,))


def test_a_cut_off_call_may_be_named_and_answered() -> None:
    context = assembled(ItemReference(id="fc_1"), output("c1"), stored={"fc_1": CUT})
    assert [(item.kind, item.complete) for item in context.items] == [
        ("function_call", True),
        ("function_call_output", True),
    ]


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


def sealed(item_id: str | None = None) -> Reasoning:
    return Reasoning(id=item_id, encrypted_content="hgw1.x")


def test_sealed_reasoning_comes_back_id_for_id() -> None:
    unsealed = {1: Unsealed(ids=(200006, 1, 200007))}
    thought = assembled(user("x"), sealed("rs_1"), unsealed=unsealed).items[1]
    assert thought.ids == array("I", [200006, 1, 200007])
    assert orjson.loads(thought.json)["encrypted_content"] == "hgw1.x"


def test_sealed_reasoning_that_has_no_ids_comes_back_as_its_text() -> None:
    told = Reasoning(content=(ReasoningText(text="altered"),), encrypted_content="hgw1.x")
    for item in (sealed(), told):
        (thought,) = assembled(item, unsealed={0: Unsealed(text="as it was")}).items
        assert thought.ids is None
        assert thought.item() == item.model_copy(
            update={"content": (ReasoningText(text="as it was"),)}
        )
        assert b"as it was" not in thought.json


def test_sealed_reasoning_needs_no_store() -> None:
    assert referenced_ids([sealed("rs_1")]) == []


def test_sealed_reasoning_that_is_there_already_adds_nothing() -> None:
    unsealed = {index: Unsealed(ids=(1,)) for index in range(3)}
    history = assembled(sealed("rs_1"), unsealed=unsealed).items
    assert assembled(sealed("rs_1"), history=history, unsealed=unsealed).items == history
    context = assembled(sealed("rs_1"), sealed("rs_1"), sealed(), unsealed=unsealed)
    assert [item.item_id for item in context.items] == ["rs_1", f"rs_{RESPONSE.hex}i0002"]


def test_a_reference_becomes_the_stored_item() -> None:
    (stored,) = assembled(user("earlier", "msg_1")).items
    reference = ItemReference(id="msg_1")
    assert referenced_ids([reference]) == ["msg_1"]
    context = assembled(reference, stored={"msg_1": stored})
    assert context.items == (stored,)


@pytest.mark.parametrize("item", [ItemReference(id="x_1"), Reasoning(id="x_1")])
def test_an_unknown_reference_is_not_found(item: InputItem) -> None:
    assert referenced_ids([item]) == ["x_1"]
    with pytest.raises(ResourceNotFound, match="Item with id 'x_1' not found") as caught:
        assembled(item)
    assert caught.value.param == "input"


@pytest.mark.requirement("harmony.empty-reasoning")
def test_reasoning_that_says_nothing_and_has_no_id_is_left_out() -> None:
    assert referenced_ids([Reasoning(), user("x", "msg_9")]) == []
    assert [item.kind for item in assembled(Reasoning(), user("x")).items] == ["message"]


def test_reasoning_with_content_needs_no_store() -> None:
    thought = Reasoning(id="rs_1", content=(ReasoningText(text="t"),))
    assert referenced_ids([thought]) == []
    assert assembled(thought).items[0].item_id == "rs_1"


FILE = FileOperation(type="delete_file", path="a")
PAIRS: list[tuple[InputItem, InputItem, str]] = [
    (call("c"), output("c"), "f"),
    (FunctionCall(call_id="c", name="f", namespace="n", arguments="{}"), output("c"), "n.f"),
    (
        CustomToolCall(call_id="c", name="apply_patch", input="x"),
        CustomToolCallOutput(call_id="c", output="ok"),
        "apply_patch",
    ),
    (
        LocalShellCall(call_id="c", action=LocalShellAction(command=("ls",))),
        LocalShellCallOutput(call_id="c", output="a"),
        "local_shell",
    ),
    (
        ShellCall(call_id="c", action=ShellAction(commands=("ls",))),
        ShellCallOutput(call_id="c", output=()),
        "shell",
    ),
    (
        ApplyPatchCall(call_id="c", operation=FILE),
        ApplyPatchCallOutput(call_id="c", status="failed"),
        "apply_patch",
    ),
]
KINDS = [called.type for called, _, _ in PAIRS]


@pytest.mark.parametrize(("called", "answered", "name"), PAIRS, ids=KINDS)
def test_calls_of_every_kind_pair_up(called: InputItem, answered: InputItem, name: str) -> None:
    items = assembled(called, answered).items
    assert [item.name for item in items] == [name, None]
    assert [item.call_id for item in items] == ["c", "c"]
    words = called.type.replace("_", " ")
    with pytest.raises(InvalidRequest, match=f"^No tool output found for {words} c\\.$"):
        assembled(called)
    with pytest.raises(InvalidRequest, match=f"^No tool call found for {words} output with call_"):
        assembled(answered)


@pytest.mark.parametrize(("called", "answered", "name"), PAIRS[1:], ids=KINDS[1:])
def test_an_output_must_be_of_the_kind_of_its_call(
    called: InputItem, answered: InputItem, name: str
) -> None:
    wrong = PAIRS[2][1] if called.type != "custom_tool_call" else PAIRS[3][1]
    words = wrong.type.replace("_", " ")
    with pytest.raises(InvalidRequest, match=f"^No tool call found for {words} with call_id c\\.$"):
        assembled(called, wrong)
    with pytest.raises(InvalidRequest, match="The call_id c is used twice: a function call has it"):
        assembled(called, call("c"), answered)


@pytest.mark.parametrize(("called", "_answered", "_name"), PAIRS, ids=KINDS)
def test_every_call_may_be_answered_like_one_of_a_function(
    called: InputItem, _answered: InputItem, _name: str
) -> None:
    assert len(assembled(called, output("c")).items) == 2


def test_an_output_says_how_it_went() -> None:
    _, answered = assembled(*PAIRS[-1][:2]).items
    assert orjson.loads(answered.json)["status"] == "failed"


def test_a_cut_off_call_of_any_kind_need_not_be_answered() -> None:
    cut = CustomToolCall(call_id="c", name="t", input="*** Beg", status="incomplete")
    (item,) = assembled(cut).items
    assert not item.complete
    assert assembled(history=(item,)).items == ()


@given(st.permutations(["a", "b", "c", "d"]))
def test_outputs_may_come_in_any_order(order: list[str]) -> None:
    context = assembled(*map(call, "abcd"), *map(output, order))
    assert len(context.items) == 8


MESSAGES = st.builds(
    Message,
    id=st.sampled_from([None, "msg_1"]),
    role=st.sampled_from(["user", "developer", "system", "assistant"]),
    content=st.lists(
        st.builds(InputText, text=st.text()) | st.builds(OutputText, text=st.text()), max_size=2
    ).map(tuple),
    status=st.sampled_from([None, "completed"]),
    phase=st.sampled_from([None, "commentary"]),
)


@pytest.mark.slow
@given(MESSAGES)
def test_a_message_is_listed_as_it_came_with_an_id_and_a_status(message: Message) -> None:
    (item,) = assembled(message).items
    told = message.model_dump(exclude_none=True) | {"id": item.item_id, "status": "completed"}
    assert item.json == orjson.dumps(told)


@pytest.mark.slow
@given(
    st.lists(
        st.tuples(st.sampled_from(["user", "system", "assistant"]), st.text()),
        min_size=1,
        max_size=3,
    )
)
def test_messages_alone_are_assembled_as_ever(said: list[tuple[str, str]]) -> None:
    body = {"model": "m", "input": [{"role": role, "content": text} for role, text in said]}
    messages: Any = CreateResponse.model_validate(body).input
    whole = assemble((), messages, stored={}, unsealed={}, response=RESPONSE)
    assert opening(messages, RESPONSE) == whole


def test_items_of_hosted_tools_are_listed_as_they_came() -> None:
    raw: dict[str, Any] = {
        "type": "mcp_list_tools",
        "server_label": "s",
        "tools": [],
        "error": None,
    }
    call = McpCall(server_label="s", name="t", arguments="{}")
    listing = McpListTools.model_validate(raw)
    own, kept = assembled(listing, call.model_copy(update={"id": "mcp_1"})).items
    assert orjson.loads(own.json) == {**raw, "id": own.item_id}
    assert own.item_id.startswith("mcpl_")
    assert (kept.item_id, kept.kind, kept.is_call) == ("mcp_1", "mcp_call", False)
