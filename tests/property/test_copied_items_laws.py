"""Law: what a client sends back of a context, in whatever form, changes nothing of the prompt."""

from __future__ import annotations

from array import array
from dataclasses import replace
from typing import TYPE_CHECKING, Any
from uuid import UUID

import orjson
import pytest
from hypothesis import given, reject, settings
from hypothesis import strategies as st

from gateway import ids
from gateway.errors import InvalidRequest
from tests.fakes.contexts import (
    answer,
    answering,
    asking,
    call,
    computed,
    output,
    said,
    searched,
    served,
    thought,
    user,
)
from tests.fakes.examples import examples
from tests.property.test_repeated_history_laws import SPECS, input_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from gateway.protocol.context_item import ContextItem
    from gateway.services.runs.spec_builder import Written

Json = dict[str, Any]
EARLIER = UUID(int=5)
C1, C2 = ids.call_id(EARLIER, 1), ids.call_id(EARLIER, 2)
ASKED = ids.output_item_id("mcpr_", EARLIER, 99)

PLAIN = [user(), user("go"), answer(), answer(phase="commentary"), answer(phase=None)]
THINKING = [thought(), searched(), computed(), served()]
TURNS: list[list[ContextItem]] = [
    *([item] for item in (*PLAIN, *THINKING)),
    [said("developer", "A")],
    [call(C1, arguments='{"a": 1}'), output(C1)],
    [thought(), call(C2, "g"), output(C2, "two")],
    [asking(), answering(ASKED, approve=False)],
    [asking(), answering(ASKED, approve=True), served("1", ASKED)],
]


@st.composite
def histories(draw: st.DrawFn) -> list[ContextItem]:
    """Items as they are stored, with ids of this gateway's. It may end with a call that waits."""
    turns = draw(st.lists(st.sampled_from(TURNS), max_size=5, unique_by=_call_of))
    items = [user(), *(item for turn in turns for item in turn)]
    if draw(st.booleans()) and C1 not in {item.call_id for item in items}:
        items.append(call(C1))
    return [_stored(item, at) for at, item in enumerate(items)]


def _call_of(turn: list[ContextItem]) -> object:
    """What at most one turn of a context is about."""
    kinds = {item.kind for item in turn}
    if "mcp_approval_request" in kinds:
        return ASKED
    return next((item.call_id for item in turn if item.is_call), object())


def _stored(item: ContextItem, at: int) -> ContextItem:
    is_input = item.role == "user" or item.is_output
    named = ids.input_item_id if is_input else ids.output_item_id
    item_id = ASKED if item.kind == "mcp_approval_request" else named("x_", EARLIER, at)
    shown = {k: v for k, v in orjson.loads(item.json).items() if v is not None} | {"id": item_id}
    ids_of_it = None if item.approves else array("I", [1_000 + at, 2_000 + at])
    return replace(item, item_id=item_id, json=orjson.dumps(shown), ids=ids_of_it, parsed=None)


def _with_empty_members(item: Json) -> Json:
    if item["type"] != "message" or item["role"] != "assistant":
        return {**item, "status": None}
    parts = [{**part, "annotations": [], "logprobs": []} for part in item["content"]]
    return {**item, "content": parts}


def _as_text(item: Json) -> Json:
    if item["type"] == "message":
        return {**item, "content": item["content"][0]["text"], "phase": None}
    return {**item, "arguments": " {} "} if item.get("arguments") == "{}" else item


def _without_id(item: Json) -> Json:
    """Calls are known by their `call_id`, too."""
    called = item["type"] in {"function_call", "function_call_output"}
    return {k: v for k, v in item.items() if k != "id"} if called else item


def _reference(item: Json) -> Json:
    return {"type": "item_reference", "id": item["id"]}


FORMS: list[Callable[[Json], Json]] = [
    lambda item: item,
    lambda item: {**item, "status": "completed", "unknown": 1},
    _with_empty_members,
    _as_text,
    _without_id,
    _reference,
]


@st.composite
def copies(draw: st.DrawFn, history: list[ContextItem]) -> list[Json]:
    chosen = draw(st.lists(st.sampled_from(history), max_size=6))
    return [draw(st.sampled_from(FORMS))(orjson.loads(item.json)) for item in chosen]


def new_items(history: list[ContextItem]) -> list[Json]:
    new: list[Json] = [{"role": "user", "content": "and now?"}]
    waits = history[-1].is_call
    answered = {"type": "function_call_output", "call_id": C1, "output": "late"}
    return [answered, *new] if waits else new


def written(history: list[ContextItem], new: list[Json], *, item_by_item: bool) -> Written:
    return SPECS.write(input_of(history, new), item_by_item=item_by_item)


def added(made: Written) -> list[Json]:
    items = made.context.items[made.context.inherited :]
    return [orjson.loads(item.json) | {"id": ""} for item in items]


@pytest.mark.slow
@settings(max_examples=examples(300), deadline=None)
@given(st.data(), histories(), st.booleans())
def test_a_prompt_is_the_same_whatever_is_sent_back_of_its_context(
    data: st.DataObject, history: list[ContextItem], item_by_item: bool
) -> None:
    new = new_items(history)
    plain = written(history, new, item_by_item=item_by_item)
    sent = [*data.draw(copies(history)), *new]
    again = written(history, sent, item_by_item=item_by_item)
    assert again.prompt.ids == plain.prompt.ids
    assert added(again) == added(plain)


@pytest.mark.slow
@settings(max_examples=examples(200), deadline=None)
@given(st.data(), histories(), st.booleans())
def test_a_copy_that_says_something_else_is_refused_by_its_id(
    data: st.DataObject, history: list[ContextItem], item_by_item: bool
) -> None:
    item = orjson.loads(data.draw(st.sampled_from(history)).json)
    texts = {"content": "x", "arguments": "[]", "output": "x", "code": "x", "reason": "x"}
    changed = next(
        ({**item, name: text} for name, text in texts.items() if isinstance(item.get(name), str)),
        {**item, "content": "x"} if item["type"] == "message" else None,
    )
    if changed is None:
        reject()
    place = data.draw(st.integers(0, 1))
    new = new_items(history)
    new.insert(place, changed)
    with pytest.raises(InvalidRequest, match=f"'{item['id']}'") as caught:
        written(history, new, item_by_item=item_by_item)
    assert caught.value.param == f"input[{place}]"
