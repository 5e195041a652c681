"""Items that a client sends back: what was there already adds nothing, and nothing is changed."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any
from uuid import UUID

import orjson
import pytest
from pydantic import TypeAdapter

from gateway import ids
from gateway.context.assembly import UnreadOriginal, assemble, may_repeat, take_in
from gateway.errors import InvalidRequest
from gateway.protocol.items import AnyInputItem, InputItem
from gateway.sealing import Unsealed
from tests.fakes.cases import each
from tests.fakes.hosted_items import HOSTED

if TYPE_CHECKING:
    from collections.abc import Iterable

    from gateway.protocol.context_item import ContextItem

Json = dict[str, Any]
FIRST, RESPONSE = UUID(int=6), UUID(int=7)
_INPUT: TypeAdapter[InputItem] = TypeAdapter(AnyInputItem)
C1, C2 = ids.call_id(FIRST, 0), ids.call_id(FIRST, 1, form=3)


def own(prefix: str, ordinal: int = 0) -> str:
    return ids.output_item_id(prefix, FIRST, ordinal)


def parsed(raw: Iterable[Json]) -> list[InputItem]:
    return [_INPUT.validate_python(item) for item in raw]


def items_of(*raw: Json, history: tuple[ContextItem, ...] = ()) -> tuple[ContextItem, ...]:
    new, none = parsed(raw), Unsealed(text="sealed")
    unsealed = {at: none for at, item in enumerate(raw) if item.get("encrypted_content")}
    return assemble(history, new, stored={}, unsealed=unsealed, response=RESPONSE).items


def refusal(*raw: Json, history: tuple[ContextItem, ...] = ()) -> InvalidRequest:
    with pytest.raises(InvalidRequest) as caught:
        items_of(*raw, history=history)
    return caught.value


USER: Json = {"type": "message", "id": own("msg_", 1), "role": "user", "content": "hi"}
PARTS: Json = {
    **USER,
    "content": [
        {"type": "input_text", "text": "a"},
        {"type": "input_text", "text": "b"},
        {"type": "input_image", "image_url": "https://example.com/a.png", "detail": "high"},
        {"type": "input_file", "file_id": "file-1"},
    ],
}
ANSWER: Json = {
    "type": "message",
    "id": own("msg_"),
    "role": "assistant",
    "status": "completed",
    "phase": "final_answer",
    "content": [{"type": "output_text", "text": "hello", "annotations": [{"type": "x"}]}],
}
REFUSAL: Json = {**ANSWER, "content": [{"type": "refusal", "refusal": "no"}]}
THOUGHT: Json = {
    "type": "reasoning",
    "id": own("rs_"),
    "summary": [{"type": "summary_text", "text": "s"}],
    "content": [{"type": "reasoning_text", "text": "hm"}],
}
CALL: Json = {
    "type": "function_call",
    "id": own("fc_"),
    "call_id": C1,
    "name": "f",
    "namespace": "n",
    "arguments": '{"b": 1, "a": [2]}',
    "status": "completed",
}
OUTPUT: Json = {
    "type": "function_call_output",
    "id": ids.input_item_id("fco_", FIRST, 1),
    "call_id": C1,
    "output": "ok",
}
CUSTOM: Json = {
    "type": "custom_tool_call",
    "id": own("ctc_"),
    "call_id": C2,
    "name": "t",
    "input": "x",
}
CUSTOM_OUTPUT: Json = {"type": "custom_tool_call_output", "call_id": C2, "output": "ok"}
SHELL: Json = {
    "type": "shell_call",
    "id": own("sh_"),
    "call_id": C1,
    "action": {"commands": ["ls"], "timeout_ms": 5},
    "environment": {"type": "local"},
}
SHELL_OUTPUT: Json = {
    "type": "shell_call_output",
    "call_id": C1,
    "output": [{"stdout": "a", "stderr": "", "outcome": {"type": "exit", "exit_code": 0}}],
}
PATCH: Json = {
    "type": "apply_patch_call",
    "id": own("apc_"),
    "call_id": C1,
    "operation": {"type": "create_file", "path": "a", "diff": "+x"},
}
PATCH_OUTPUT: Json = {
    "type": "apply_patch_call_output",
    "id": own("apco_"),
    "call_id": C1,
    "status": "failed",
    "output": "no",
}
REQUEST: Json = {
    "type": "mcp_approval_request",
    "id": own("mcpr_"),
    "server_label": "crm",
    "name": "drop",
    "arguments": '{"a":1}',
}
APPROVAL: Json = {
    "type": "mcp_approval_response",
    "id": own("mcpa_"),
    "approval_request_id": REQUEST["id"],
    "approve": True,
    "reason": "fine",
}
SEARCH: Json = {
    "type": "web_search_call",
    "id": own("ws_"),
    "action": {"type": "search", "query": "q", "queries": ["q"]},
}
CODE: Json = {
    "type": "code_interpreter_call",
    "id": own("ci_"),
    "code": "1 + 1",
    "outputs": [{"type": "logs", "logs": "2"}],
}
TOOLS: Json = {"type": "mcp_list_tools", "id": own("mcpl_"), "server_label": "crm", "tools": []}


def text(said: str) -> Json:
    return {"type": "output_text", "text": said, "annotations": [], "logprobs": []}


def without(item: Json, *names: str) -> Json:
    return {name: value for name, value in item.items() if name not in names}


SAME = [
    ([USER], {**USER, "content": [{"type": "input_text", "text": "hi"}]}),
    ([PARTS], PARTS),
    ([{**PARTS, "content": PARTS["content"][:2]}], {**USER, "content": "a\nb"}),
    ([ANSWER], {**ANSWER, "content": [text("hello")]}),
    ([ANSWER], {**without(ANSWER, "phase", "status", "type"), "content": "hello"}),
    ([ANSWER], {**ANSWER, "content": [text("hel"), text(""), text("lo")], "status": "incomplete"}),
    ([REFUSAL], REFUSAL),
    ([THOUGHT], THOUGHT),
    ([THOUGHT], {**THOUGHT, "content": None, "status": None, "encrypted_content": None}),
    ([THOUGHT], {**THOUGHT, "summary": []}),
    ([THOUGHT], {**THOUGHT, "summary": [], "content": [], "encrypted_content": "hgw1.x"}),
    ([CALL, OUTPUT], CALL),
    ([CALL, OUTPUT], {**without(CALL, "namespace", "status"), "arguments": '{"a":[2],"b":1}'}),
    ([CALL, OUTPUT], {**without(CALL, "id"), "caller": {"type": "direct"}}),
    ([CALL, OUTPUT], {**CALL, "id": "fc_other"}),
    ([{**CALL, "arguments": '{"a"'}, OUTPUT], {**CALL, "arguments": '{"a"'}),
    ([CALL, OUTPUT], {**OUTPUT, "output": [{"type": "input_text", "text": "ok"}]}),
    ([CALL, OUTPUT], without(OUTPUT, "call_id")),
    ([CALL, OUTPUT], without(OUTPUT, "id")),
    ([CUSTOM, CUSTOM_OUTPUT], without(CUSTOM, "id")),
    ([CUSTOM, CUSTOM_OUTPUT], CUSTOM_OUTPUT),
    ([SHELL, SHELL_OUTPUT], {**SHELL, "action": {"commands": ["ls"]}, "environment": None}),
    ([SHELL, SHELL_OUTPUT], SHELL_OUTPUT),
    ([PATCH, PATCH_OUTPUT], PATCH),
    ([PATCH, PATCH_OUTPUT], PATCH_OUTPUT),
    ([REQUEST], {**REQUEST, "arguments": '{ "a": 1 }'}),
    ([REQUEST, APPROVAL], without(APPROVAL, "id", "reason")),
    ([SEARCH], {**SEARCH, "action": {**SEARCH["action"], "sources": []}, "status": "completed"}),
    ([CODE], {**CODE, "outputs": None}),
    ([TOOLS], {**TOOLS, "tools": [{"name": "t"}]}),
]


@each(("before", "copy"), SAME)
def test_a_copy_of_what_is_there_adds_nothing(before: list[Json], copy: Json) -> None:
    known = items_of(*before)
    kept = tuple(replace(item, parsed=None) for item in known)
    assert items_of(copy, history=kept) == kept
    assert items_of(copy, copy, USER | {"id": None}, history=kept)[: len(kept)] == kept


@each(
    ("before", "copy"),
    [
        (before, copy)
        for before, copy in SAME
        if copy.get("id") in {one["id"] for one in before[:1]}
    ],
)
def test_a_copy_with_its_id_in_the_same_input_adds_nothing(before: list[Json], copy: Json) -> None:
    known = items_of(*before)
    assert items_of(*before, copy) == known


CHANGED = [
    ([USER], {**USER, "content": "ho"}, "content"),
    ([USER], {**USER, "role": "developer"}, "role"),
    ([PARTS], {**USER, "content": PARTS["content"][:3]}, "content"),
    (
        [PARTS],
        {**PARTS, "content": [*PARTS["content"][:3], {"type": "input_file", "file_id": "file-2"}]},
        "content",
    ),
    ([ANSWER], {**ANSWER, "content": [text("hullo")]}, "content"),
    ([ANSWER], {**ANSWER, "phase": "commentary"}, "phase"),
    ([ANSWER], {**THOUGHT, "id": ANSWER["id"]}, "type"),
    ([THOUGHT], {**THOUGHT, "content": [{"type": "reasoning_text", "text": "x"}]}, "content"),
    ([CALL, OUTPUT], {**CALL, "arguments": '{"a": [2]}'}, "arguments"),
    ([CALL, OUTPUT], {**CALL, "arguments": f"{'[' * 300}{']' * 300}"}, "arguments"),
    ([CALL, OUTPUT], {**CALL, "name": "g"}, "name"),
    ([CALL, OUTPUT], {**OUTPUT, "output": "no"}, "output"),
    ([CALL, OUTPUT], {**OUTPUT, "call_id": "c"}, "call_id"),
    ([CUSTOM, CUSTOM_OUTPUT], {**CUSTOM, "input": "y"}, "input"),
    ([SHELL, SHELL_OUTPUT], {**SHELL, "action": {"commands": ["rm", "a"]}}, "action"),
    ([PATCH, PATCH_OUTPUT], {**PATCH_OUTPUT, "status": "completed"}, "status"),
    ([REQUEST], {**REQUEST, "arguments": "{}"}, "arguments"),
    ([REQUEST, APPROVAL], {**APPROVAL, "approve": False}, "approve"),
    ([SEARCH], {**SEARCH, "action": {"type": "search", "query": "r"}}, "action"),
    ([CODE], {**CODE, "code": "2 + 2"}, "code"),
]


@each(("before", "copy", "member"), CHANGED)
def test_a_changed_copy_is_refused_by_its_id(before: list[Json], copy: Json, member: str) -> None:
    kept = tuple(replace(item, parsed=None) for item in items_of(*before))
    error = refusal(USER | {"id": None}, copy, history=kept)
    assert (error.code, error.param) == ("invalid_value", "input[1]")
    assert error.message.startswith(
        f"Duplicate item found with id '{copy['id']}': the context has it already, and its "
        f"'{member}' is another there. Leave it out of your input. Sent as a new item it needs "
    )
    assert refusal(*before, copy).param == f"input[{len(before)}]"


@pytest.mark.parametrize(
    ("copy", "which", "needs"),
    [
        ({**without(CALL, "id"), "name": "g"}, f"call_id '{C1}'", "its own 'call_id'"),
        ({**without(OUTPUT, "id"), "output": "no"}, f"call_id '{C1}'", "its own 'call_id'"),
        (
            {**without(APPROVAL, "id"), "approve": False},
            f"approval_request_id '{REQUEST['id']}'",
            "its own 'approval_request_id'",
        ),
    ],
)
def test_a_changed_copy_without_its_id_is_refused_by_its_call(
    copy: Json, which: str, needs: str
) -> None:
    kept = items_of(CALL, OUTPUT, REQUEST, APPROVAL)
    error = refusal(copy, history=kept)
    assert error.param == "input[0]"
    assert f"Duplicate item found with {which}: " in error.message
    assert f"Sent as a new item it needs {needs} and no 'id'." in error.message


def test_a_second_output_of_a_call_is_compared_once_the_first_is_read() -> None:
    whole = items_of(CALL, OUTPUT)
    kept = tuple(replace(item, parsed=None, json=b"") for item in whole)
    error = refusal(without(OUTPUT, "id"), history=kept)
    assert isinstance(error, UnreadOriginal)
    assert items_of(without(OUTPUT, "id"), history=whole) == whole


def test_an_open_call_may_be_sent_back_with_its_output() -> None:
    (call,) = items_of(CALL, OUTPUT)[:1]
    for copy in (CALL, without(CALL, "id")):
        made = items_of(copy, without(OUTPUT, "id"), history=(call,))
        assert [item.kind for item in made] == ["function_call", "function_call_output"]
        assert made[0] == call


def test_a_call_that_was_cut_off_may_be_sent_whole_without_its_id() -> None:
    cut = replace(items_of(CALL, OUTPUT)[0], complete=False)
    whole = {**without(CALL, "id"), "arguments": "{}"}
    made = items_of(whole, OUTPUT, history=(cut,))
    assert [item.complete for item in made] == [True, True]
    assert b"[2]" not in made[0].json
    assert refusal({**CALL, "arguments": "{}"}, history=(cut,)).param == "input[0]"


def test_a_copy_of_a_call_that_was_cut_off_may_be_answered() -> None:
    cut = replace(items_of(CALL, OUTPUT)[0], complete=False)
    assert [item.complete for item in items_of(CALL, OUTPUT, history=(cut,))] == [True, True]
    assert items_of(CALL, history=(cut,)) == ()


def test_an_output_whose_call_was_deleted_comes_back_with_its_call() -> None:
    _, output = items_of(CALL, OUTPUT)
    made = items_of(CALL, OUTPUT, history=(output,))
    assert [item.kind for item in made] == ["function_call", "function_call_output"]
    assert made[1].item_id != output.item_id


def test_ids_that_clients_made_may_be_those_of_several_items() -> None:
    mine = {**USER, "id": "msg_1"}
    known = items_of(mine)
    assert len(items_of(mine, history=known)) == 2
    answered = items_of(
        {**CALL, "id": None, "call_id": "c"}, {**OUTPUT, "id": None, "call_id": "c"}
    )
    again = orjson.loads(answered[0].json) | {"id": None}
    assert len(items_of(again, {**OUTPUT, "id": None, "call_id": "c"}, history=answered)) == 4
    assert len(items_of({**USER, "id": own("msg_", 9)}, history=known)) == 2


def test_of_items_that_only_their_ids_are_known_of_copies_are_not_told() -> None:
    (item,) = take_in(
        parsed([USER]), stored={}, unsealed={}, source=RESPONSE, before={USER["id"]: None}
    )
    assert item.item_id != USER["id"]


@pytest.mark.parametrize(
    ("new", "own_ids"),
    [
        ([USER, {**ANSWER, "id": "mine"}], {USER["id"]}),
        ([OUTPUT, without(OUTPUT, "id")], {OUTPUT["id"]}),
        ([without(CALL, "id")], set()),
        ([{"type": "item_reference", "id": USER["id"]}], set()),
    ],
)
def test_what_new_items_may_repeat_is_read_of_a_history(new: list[Json], own_ids: set[str]) -> None:
    assert may_repeat(parsed(new)) == own_ids


@each("raw", [raw for raw, _, _ in HOSTED])
def test_every_hosted_item_may_be_sent_back(raw: Json) -> None:
    item = raw | {"id": own("x_")}
    before = [REQUEST | {"id": raw["approval_request_id"]}] if "approve" in raw else []
    known = items_of(*before, item)
    assert items_of(orjson.loads(known[-1].json), history=known) == known


def test_many_copies_and_many_parts_take_no_more_than_they_are_long() -> None:
    """Else the largest of bodies would take minutes, in which nothing else runs."""
    text = {"type": "reasoning_text", "text": "hm"}
    thought: Json = {"type": "reasoning", "id": own("rs_"), "content": [text] * 10_000}
    copies = [{"type": "reasoning", "id": own("rs_"), "summary": []}] * 4_000
    assert len(items_of({**thought, "summary": []}, *copies)) == 1
    message = {**USER, "content": [{"type": "input_text", "text": "a" * 100}] * 20_000}
    assert len(items_of(message, message)) == 1
