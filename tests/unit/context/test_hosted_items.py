"""Items of hosted tools in a context: they pair with nothing, and none is refused."""

from __future__ import annotations

import json
from array import array
from dataclasses import replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any
from uuid import UUID

import pytest
from pydantic import TypeAdapter

from gateway import ids
from gateway.context.assembly import assemble, referenced_ids
from gateway.context.shortening import droppable
from gateway.errors import InvalidRequest
from gateway.protocol.items import AnyInputItem, InputItem
from tests.fakes.cases import each
from tests.fakes.hosted_items import HOSTED

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gateway.protocol.context_item import ContextItem

RESPONSE = UUID(int=7)
_NOTHING: Mapping[str, ContextItem] = MappingProxyType({})
WS, CI = (ids.output_item_id(prefix, UUID(int=3), 0) for prefix in ("ws_", "ci_"))
SEARCH = {"type": "web_search_call", "id": WS, "action": {"type": "search", "query": "x"}}
CODE = {"type": "code_interpreter_call", "id": CI, "code": "1 + 1"}
ANSWER = {"type": "message", "role": "assistant", "content": "2"}
USER = {"role": "user", "content": "hi"}
_INPUT: TypeAdapter[InputItem] = TypeAdapter(AnyInputItem)
REQUEST = {
    "type": "mcp_approval_request",
    "id": "mcpr_1",
    "server_label": "crm",
    "name": "drop",
    "arguments": "{}",
}
ALONE = [raw for raw, _, _ in HOSTED if raw["type"] != "mcp_approval_response"]
RESPONSE_ITEM = {"type": "mcp_approval_response", "approval_request_id": "mcpr_1", "approve": True}
MADE = {
    "type": "mcp_call",
    "id": "mcp_1",
    "server_label": "crm",
    "name": "drop",
    "arguments": "{}",
    "output": "gone",
}


def taken(
    *raw: dict[str, Any],
    history: tuple[ContextItem, ...] = (),
    stored: Mapping[str, ContextItem] = _NOTHING,
) -> list[ContextItem]:
    new = [_INPUT.validate_python(item) for item in raw]
    context = assemble(history, new, stored=stored, unsealed={}, response=RESPONSE)
    return list(context.items)


@each("raw", ALONE)
def test_items_of_every_hosted_kind_but_answers_are_taken_alone(raw: dict[str, Any]) -> None:
    user = {"role": "user", "content": "hi"}
    items = taken(user, raw, user)
    assert [item.kind for item in items] == ["message", raw["type"], "message"]
    assert not (items[1].is_call)
    assert not (items[1].is_output)
    assert taken(user, history=tuple(items))[:3] == items


def test_an_approval_is_known_without_parsing() -> None:
    request, answer, made = taken(REQUEST, RESPONSE_ITEM, {**MADE, "approval_request_id": "mcpr_1"})
    assert (request.name, request.call_id) == ("crm.drop", None)
    assert (answer.name, answer.call_id, answer.approves) == (None, "mcpr_1", True)
    assert (made.name, made.call_id, made.approves) == (None, "mcpr_1", False)


@pytest.mark.parametrize(
    "raw", [MADE, {**MADE, "approval_request_id": None}, {**MADE, "approval_request_id": 7}]
)
def test_a_call_that_needed_no_approval_names_none(raw: dict[str, Any]) -> None:
    [made] = taken(raw)
    assert made.call_id is None


def test_a_request_for_what_can_be_no_tool_has_no_name() -> None:
    [request] = taken({**REQUEST, "server_label": "a b"})
    assert request.name is None


def test_what_was_not_approved_does_not_approve() -> None:
    _, answer = taken(REQUEST, {**RESPONSE_ITEM, "approve": False})
    assert not answer.approves


def test_an_answer_to_an_approval_request_needs_the_request_or_its_call() -> None:
    unasked = {**RESPONSE_ITEM, "approval_request_id": "mcpr_none"}
    for approve in (True, False):
        for before in ([], [REQUEST, RESPONSE_ITEM], [MADE]):
            with pytest.raises(InvalidRequest, match="no approval request 'mcpr_none'") as caught:
                taken(*before, {**unasked, "approve": approve})
            assert (caught.value.code, caught.value.param) == ("approval_not_found", "input")
    assert len(taken(RESPONSE_ITEM, {**MADE, "approval_request_id": "mcpr_1"})) == 2
    history = tuple(taken(REQUEST))
    assert len(taken(RESPONSE_ITEM, history=history)) == 2
    reference = {"type": "item_reference", "id": "mcpr_1"}
    assert len(taken(reference, RESPONSE_ITEM, stored={"mcpr_1": history[0]})) == 2


def test_an_answer_whose_request_was_deleted_blocks_no_history() -> None:
    _, answer = taken(REQUEST, RESPONSE_ITEM)
    assert len(taken(USER, history=(answer,))) == 2


def test_a_compaction_hides_items_of_hosted_tools() -> None:
    items = taken({"role": "user", "content": "hi"}, REQUEST, RESPONSE_ITEM, MADE)
    assert droppable(items) == [1, 2, 3]


def wanted(*raw: dict[str, Any]) -> list[str]:
    return referenced_ids(_INPUT.validate_python(item) for item in raw)


def test_what_a_search_returned_is_looked_up_as_long_as_it_is_shown() -> None:
    assert wanted(USER, SEARCH, CODE) == [WS, CI]
    assert wanted(USER, SEARCH, {**ANSWER, "phase": "commentary"}, CODE) == [WS, CI]
    assert wanted(USER, SEARCH, ANSWER, USER, CODE) == [CI]
    assert wanted(SEARCH, {"type": "item_reference", "id": "msg_1"}, ANSWER) == ["msg_1"]
    assert wanted({**SEARCH, "id": None}, MADE, REQUEST) == []
    assert wanted({**SEARCH, "id": "ws_1"}, {**CODE, "id": "ci_1"}) == []


def test_a_call_with_an_id_of_the_client_is_not_another_one_with_that_id() -> None:
    other = replace(taken({**SEARCH, "id": "ws_1"})[0], ids=array("I", [1]))
    named = {"type": "item_reference", "id": "ws_1"}
    [item, *_] = taken({**SEARCH, "id": "ws_1"}, named, stored={"ws_1": other})
    assert item.ids is None


@pytest.mark.parametrize("raw", [SEARCH, CODE], ids=lambda raw: raw["type"])
def test_a_call_that_a_client_repeats_comes_with_its_result(raw: dict[str, Any]) -> None:
    [known] = taken(raw)
    known = replace(known, parsed=None, ids=array("I", [1, 2, 3]))
    stored = {known.item_id: known}
    [item] = taken({**raw, "status": "completed"}, stored=stored)
    assert (item.item_id, item.ids) == (raw["id"], known.ids)
    for other in (
        {},
        {known.item_id: replace(known, ids=None)},
        {known.item_id: replace(known, kind="mcp_call")},
    ):
        [item] = taken(raw, stored=other)
        assert item.ids is None
    assert [one.ids for one in taken(raw, history=(known,), stored=stored)] == [known.ids]


def test_code_that_a_client_changed_is_shown_as_it_is() -> None:
    [known] = taken(CODE)
    stored = {known.item_id: replace(known, ids=array("I", [1]))}
    [item] = taken({**CODE, "code": "2 + 2"}, stored=stored)
    assert item.ids is None


@each("raw", [raw for raw, _, _ in HOSTED])
def test_an_item_that_says_no_status_is_listed_as_completed(raw: dict[str, Any]) -> None:
    before = [REQUEST] if raw["type"] == "mcp_approval_response" else []
    for silent in ({**raw, "status": None}, {k: v for k, v in raw.items() if k != "status"}):
        *_, item = taken(*before, silent)
        shown = json.loads(item.json).get("status")
        assert shown == ("completed" if "status" in raw and raw["type"] != "mcp_call" else None)
    *_, item = taken(*before, raw)
    assert json.loads(item.json).get("status") == raw.get("status")
