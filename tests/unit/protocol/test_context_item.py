from __future__ import annotations

from array import array
from dataclasses import replace
from typing import Any, get_args

from gateway.protocol.context_item import CallKind, ContextItem, Kind, OutputKind
from gateway.protocol.documented import literal_values
from gateway.protocol.items import InputText, Item, Message
from tests.fakes.call_items import CALLS, OUTPUTS
from tests.fakes.cases import each


def test_there_is_an_item_of_every_kind() -> None:
    types = [model.model_fields["type"].default for model in get_args(Item)]
    assert sorted(types) == sorted(literal_values(Kind))


@each("kind", literal_values(Kind))
def test_calls_and_their_outputs_are_told_apart(kind: Any) -> None:
    item = ContextItem(kind=kind, item_id="i", json=b"{}")
    assert item.is_call is (kind in get_args(CallKind))
    assert item.is_output is (kind in get_args(OutputKind))


def test_an_item_is_the_same_with_its_ids_and_read_again_only_from_its_json() -> None:
    message = Message(role="user", content=(InputText(text="hi"),))
    item = ContextItem("message", "i", message.model_dump_json().encode(), "user", parsed=message)
    rendered = item.with_ids(array("I", [1]))
    assert rendered == replace(item, ids=array("I", [1]), parsed=None)
    assert rendered.item() == message


@each("raw", [case[0] for case in (*CALLS, *OUTPUTS)])
def test_a_stored_item_is_read_again(raw: dict[str, Any]) -> None:
    model = {model.model_fields["type"].default: model for model in get_args(Item)}[raw["type"]]
    item = model.model_validate({"call_id": "call_1", **raw})
    stored = ContextItem(kind=item.type, item_id="i", json=item.model_dump_json().encode())
    assert stored.item() == item
