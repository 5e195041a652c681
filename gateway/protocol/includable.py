"""Fields of items that `include` shows: the sources of a search, the outputs of a program.

Whoever reads an item may ask for them, whatever its request asked for. So an item is kept as its
request wants it shown, and what that leaves out is kept beside it: its *includable* fields.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import orjson

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping


SOURCES: Final = "web_search_call.action.sources"
OUTPUTS: Final = "code_interpreter_call.outputs"
INCLUDABLE: Final = frozenset({SOURCES, OUTPUTS})
"""Values of `include` that show fields which are there anyway."""
_FIELDS: Final = {
    "web_search_call": ("action", SOURCES),
    "code_interpreter_call": ("outputs", OUTPUTS),
}
"""By the type of an item: its field that is not shown in full, and the value that asks for it."""


def divided(
    item_type: str, fields: Mapping[str, Any], include: Collection[str]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Split `fields` of an item into those shown and those that only `include` shows.

    A field that is shown in part, such as the action of a search without its sources, is in both.
    """
    shown = {**fields}
    field, value = _FIELDS.get(item_type, ("", ""))
    if field not in shown or value in include:
        return shown, {}
    if field == "outputs":
        return shown, {field: shown.pop(field)}
    action = shown[field]
    if not isinstance(action, dict) or "sources" not in action:
        return shown, {}
    shown[field] = {name: action[name] for name in action if name != "sources"}
    return shown, {field: action}


def included(
    item: dict[str, Any], includable: Mapping[str, Any], include: Collection[str]
) -> dict[str, Any]:
    """Return the item with those `includable` fields that `include` asks for.

    The result is the same as if its request had asked for them.
    """
    field, value = _FIELDS.get(item["type"], ("", ""))
    if value not in include or field not in includable:
        return item
    return {**item, field: includable[field]}


def included_json(item: bytes, includable: bytes | None, include: Collection[str]) -> bytes:
    """Apply `included` to JSON; `includable` None: there is nothing to include."""
    if not includable or INCLUDABLE.isdisjoint(include):
        return item
    return orjson.dumps(included(orjson.loads(item), orjson.loads(includable), include))


def included_body(body: bytes, includable: Mapping[str, bytes], include: Collection[str]) -> bytes:
    """Return the JSON of a Response object with the fields that `include` asks for.

    `includable` is the JSON of the fields stored beside each item, by item id.
    """
    if not includable or INCLUDABLE.isdisjoint(include):
        return body
    response = orjson.loads(body)
    response["output"] = [
        included(item, orjson.loads(includable[item["id"]]), include)
        if item["id"] in includable
        else item
        for item in response["output"]
    ]
    return orjson.dumps(response)
